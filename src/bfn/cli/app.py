"""The commands. Each declares its own parameters in its own file, which is imported when used.

Those files import torch only inside their functions, so that --help is quick.
"""

from __future__ import annotations

import re

from cyclopts import App, Parameter

import bfn
from bfn.errors import BFNError
from bfn.recipe.values import Text

COMMANDS = {
    "demo": "demo:demo",
    "recipes": "recipes:recipes",
    "train": "train:command",
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
    help_format="plaintext",
    result_action="return_value",
    default_parameter=Parameter(negative=()),
)
for _name, _place in COMMANDS.items():
    app.command(f"bfn.cli.{_place}", name=_name)


def run(arguments: list[str]) -> None:
    """Parse and carry out one command line."""
    rest, overrides = split_overrides(arguments)
    if not COMMANDS.keys() & set(rest):
        for name in COMMANDS:
            app[name]  # imports it, for its line of help
    command, bound, ignored = app.parse_args(rest, print_error=False, exit_on_error=False)
    if "overrides" in ignored:
        bound.arguments["overrides"] = overrides
    elif overrides and not {"--help", "-h"} & set(rest):
        raise BFNError(
            f"this command takes no recipe keys such as --{next(iter(overrides))}; see bfn "
            f"{rest[0] if rest else ''} --help"
        )
    command(*bound.args, **bound.kwargs)


def split_overrides(arguments: list[str]) -> tuple[list[str], dict[str, Text]]:
    """Take `--section.key value` and `--section.key=value` out of a command line."""
    rest: list[str] = []
    overrides: dict[str, Text] = {}
    queue = list(arguments)
    while queue:
        token = queue.pop(0)
        match = re.fullmatch(r"--([A-Za-z_]+\.[\w.-]+)(?:=(.*))?", token, re.DOTALL)
        if match is None:
            rest.append(token)
            continue
        key, value = match[1].replace("-", "_"), match[2]
        if value is None:
            if not queue or queue[0].startswith("--"):
                raise BFNError(f"{token} has no value; write {token} VALUE")
            value = queue.pop(0)
        if key in overrides:
            raise BFNError(f"{token} is given twice; give it once")
        overrides[key] = Text(value)
    return rest, overrides
