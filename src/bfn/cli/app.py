"""The commands. Each declares its own parameters in its own file, which is imported when used.

Those files import torch only inside their functions, so that --help is quick.
"""

from __future__ import annotations

import re
from pathlib import Path

from cyclopts import App, CycloptsError, Parameter

import bfn
from bfn.cli import keys, mistakes
from bfn.errors import BFNError, did_you_mean

COMMANDS = {
    "demo": "demo:demo",
    "recipes": "recipes:recipes",
    "train": "train:train",
    "runs": "runs:runs",
    "plot": "plot:plot",
    "eval": "evaluate:evaluate",
    "sample": "sample:sample",
    "infill": "infill:infill",
    "serve": "serve:serve",
    "view": "view:view",
    "solvers": "solvers:solvers",
    "compress": "compress:compress",
    "decompress": "decompress:decompress",
    "inspect": "inspect:inspect",
    "compare": "compare:compare",
    "schedule": "schedule:schedule",
    "figures": "figures:figures",
    "import": "import_:import_",
    "card": "card:card",
    "push": "push:push",
}


def _default(value: object) -> object:
    return None if value is False else value  # that a flag is not set goes without saying


app = App(
    name="bfn",
    help="Bayesian Flow Networks: train, evaluate and sample.\n\nFor a first look, run `bfn demo`. "
    "`bfn COMMAND --help` explains a command.",
    version=bfn.__version__,
    help_format="markdown",
    result_action="return_value",
    default_parameter=Parameter(negative=(), show_default=_default),
)
for _i, (_name, _place) in enumerate(COMMANDS.items()):
    app.command(f"bfn.cli.{_place}", name=_name, sort_key=_i)


def run(arguments: list[str]) -> None:
    """Parse and carry out one command line."""
    # A shell expands ~ only at the beginning of a word, and not within quotes.
    home = str(Path.home())
    arguments = [re.sub(r"^(--[\w.-]+=)?~(?=/)", rf"\1{home}", word) for word in arguments]
    rest, overrides = keys.split(arguments)
    name = rest[0] if rest else "--help"
    if name in ("--help", "-h", "--version"):
        for each in COMMANDS:
            app[each]  # imports it, for its line of help
    elif name.startswith("-"):
        hint = did_you_mean(name, ("--help", "--version")) or f"; write bfn COMMAND {name} ..."
        raise BFNError(f"{name} stands before the command{hint}")
    elif name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f"; expected {', '.join(COMMANDS)}"
        raise BFNError(f"unknown command {name!r}{hint}")
    try:
        command, bound, ignored = app.parse_args(rest, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise BFNError(mistakes.sentence(error, rest, overrides)) from None
    if "overrides" in ignored:
        bound.arguments["overrides"] = overrides
    elif overrides and command != app.help_print:
        raise BFNError(
            f"bfn {name} takes no recipe keys such as --{next(iter(overrides))}; see bfn "
            f"{name} --help"
        )
    command(*bound.args, **bound.kwargs)
    if command == app.help_print and name == "train":
        recipe = keys.recipe_in(rest[1:], overrides)
        if recipe is not None:
            keys.show(recipe, app.console)
