"""The commands. Each declares its own parameters in its own file, which is imported when used.

Those files import torch only inside their functions, so that --help is quick.
"""

from __future__ import annotations

from cyclopts import App, Parameter, UnknownOptionError, UnusedCliTokensError

import bfn
from bfn.cli import keys
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
    "solvers": "solvers:solvers",
    "compress": "compress:compress",
    "decompress": "decompress:decompress",
    "inspect": "inspect:inspect",
    "schedule": "schedule:schedule",
    "figures": "figures:figures",
    "import": "import_:import_",
    "card": "card:card",
    "push": "push:push",
}

app = App(
    name="bfn",
    help="Bayesian Flow Networks: train, evaluate and sample.",
    version=bfn.__version__,
    help_format="markdown",
    result_action="return_value",
    default_parameter=Parameter(negative=(), show_default=lambda value: value or None),
)
for _name, _place in COMMANDS.items():
    app.command(f"bfn.cli.{_place}", name=_name)


def run(arguments: list[str]) -> None:
    """Parse and carry out one command line."""
    rest, overrides = keys.split(arguments)
    name = rest[0] if rest else "--help"
    if name in ("--help", "-h", "--version"):
        for each in COMMANDS:
            app[each]  # imports it, for its line of help
    elif name.startswith("-"):
        raise BFNError(f"{name} stands before the command; write bfn COMMAND {name} ...")
    elif name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f"; expected {', '.join(COMMANDS)}"
        raise BFNError(f"unknown command {name!r}{hint}")
    try:
        command, bound, ignored = app.parse_args(rest, print_error=False, exit_on_error=False)
    except UnknownOptionError as error:
        recipe = keys.recipe_in(rest[1:], overrides) if name == "train" else None
        raise BFNError(keys.unknown(error, recipe)) from None
    except UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or ())
        raise BFNError(f"bfn {name} cannot use {words!r}; see bfn {name} --help") from None
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
