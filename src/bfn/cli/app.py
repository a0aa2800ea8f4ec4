"""The commands, and the command line: recipe keys are taken out first, cyclopts parses the rest.

Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted. An error is one sentence on
standard error.

A command declares its parameters where it is defined, in a file imported on first use. Those files
import torch only inside their functions, to keep --help fast.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)

import bfn
from bfn.errors import (
    BFNError,
    Diverged,
    ProcessLost,
    WriteFailed,
    did_you_mean,
    printable,
    suggestion,
)
from bfn.recipe import PLACES, SECTIONS, Recipe, is_own, names, read
from bfn.recipe.values import Text

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
KEY = r"""--([A-Za-z_]+\.[\w-]+)((?:\.(?:"[^"]+"|[^".=]+))*)(?:=(.*))?"""
"""--section.key, and the names below it (such as those of columns), unchanged."""
COMMANDS = {
    "demo": "train:demo",
    "recipes": "train:recipes",
    "train": "train:train",
    "runs": "runs:runs",
    "plot": "runs:plot",
    "eval": "evaluate:evaluate",
    "sample": "sample:sample",
    "infill": "sample:infill",
    "serve": "serve:serve",
    "view": "serve:view",
    "solvers": "evaluate:solvers",
    "compress": "archives:compress",
    "decompress": "archives:decompress",
    "inspect": "archives:inspect",
    "compare": "evaluate:compare",
    "figures": "runs:figures",
    "import": "share:import_",
    "card": "share:card",
    "push": "share:push",
}
KEYS = {key: f"--data.{key}" for key in PLACES} | {
    each.name: f"--{name}.{each.name}"
    for name in ("sample", "eval", "train")  # where sections share a key, train's is meant
    for each in dataclasses.fields(SECTIONS[name])
}
"""The options of recipe keys that are the same in all recipes, by the key without its section."""


def _default(value: object) -> object:
    return None if value is False else value  # flags are off unless they are given


app = App(
    name="bfn",
    help="Bayesian Flow Networks: train, evaluate and sample.\n\nStart with `bfn demo`. "
    "`bfn COMMAND --help` explains a command.",
    version=bfn.__version__,
    help_format="markdown",
    result_action="return_value",
    default_parameter=Parameter(negative=(), show_default=_default),
)
for _i, (_name, _place) in enumerate(COMMANDS.items()):
    app.command(f"bfn.cli.{_place}", name=_name, sort_key=_i)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    try:
        run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except ProcessLost as error:
        # Threads still waiting for the lost process must not keep this one alive.
        code = _answer(str(error), FAILED, at_once=True)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    except KeyboardInterrupt as error:
        return INTERRUPTED if rank() else _answer(str(error) or "interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        where = f": {str(error.filename)!r}" if error.filename else ""
        return _answer(f"{error.strerror or error}{where}", FAILED)
    except (BFNError, Diverged, MemoryError) as error:
        misused = isinstance(error, BFNError) and not isinstance(error, WriteFailed)
        return _answer(str(error) or type(error).__name__, MISUSED if misused else FAILED)
    return DONE


def _answer(sentence: str, code: int, *, at_once: bool = False) -> int:
    """Print one line on standard error and return the exit code."""
    sentence = printable(" ".join(sentence.split()))
    if rank() and not at_once:
        # The first process probably reports the same, and the launcher then ends the others.
        time.sleep(3.0)
        sentence = f"process {rank()}: {sentence}"
    ending = "" if sentence.endswith((".", "?")) else "."
    with contextlib.suppress(OSError):  # the reader may be gone
        print(f"bfn: {sentence}{ending}", file=sys.stderr, flush=True)
    return code


def rank() -> int:
    """The number of this process among those that torchrun started."""
    value = os.environ.get("RANK", "0")
    return int(value) if value.isdecimal() else 0


def run(arguments: list[str]) -> None:
    """Parse and run one command line."""
    rest, overrides = split(arguments)
    name = rest[0] if rest else "--help"
    if name in ("--help", "-h", "--version"):
        for each in COMMANDS:
            app[each]  # imports it, for its line of help
    elif name.startswith("-"):
        hint = did_you_mean(name, ("--help", "--version")) or f"; write bfn COMMAND {name} ..."
        raise BFNError(f"{name} comes before the command{hint}")
    elif name not in COMMANDS:
        raise BFNError(f"unknown command {name!r}{suggestion(name, COMMANDS)}")
    try:
        command, bound, ignored = app.parse_args(rest, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise BFNError(_sentence(error, rest)) from None
    if "overrides" in ignored:
        bound.arguments["overrides"] = overrides
    elif overrides and command != app.help_print:
        raise BFNError(
            f"bfn {name} takes no recipe keys such as --{next(iter(overrides))}; see bfn "
            f"{name} --help"
        )
    for key, value in bound.arguments.items():
        bound.arguments[key] = _at_home(value)
    command(*bound.args, **bound.kwargs)
    if command == app.help_print and name == "train":
        recipe = _named_recipe(rest[1:], overrides)
        if recipe is not None:
            _show_keys(recipe)


def _at_home(value: object) -> object:
    """Paths with ~ expanded, which a shell leaves as it is in --out=~/x and within quotes."""
    if isinstance(value, tuple):
        return tuple(map(_at_home, value))
    return Path(os.path.expanduser(value)) if isinstance(value, Path) else value


def split(arguments: list[str]) -> tuple[list[str], dict[str, Text]]:
    """Take `--section.key value` and `--section.key=value` out of a command line."""
    rest: list[str] = []
    overrides: dict[str, Text] = {}
    queue = list(arguments)
    while queue:
        token = queue.pop(0)
        match = re.fullmatch(KEY, token, re.DOTALL)
        if match is None:
            rest.append(token)
            continue
        key, value = match[1].replace("-", "_") + match[2], match[3]
        if value is None:
            if not queue or queue[0].startswith("--"):
                raise BFNError(f"{token} has no value; write {token} VALUE")
            value = queue.pop(0)
        if key in overrides:
            raise BFNError(f"{token} is given twice; give it once")
        overrides[key] = Text(value)
    return rest, overrides


def _named_recipe(words: list[str], overrides: Mapping[str, Text]) -> Recipe | None:
    """The recipe that the words after `bfn train` name."""
    for i, word in enumerate(words):
        if word in names() or word.endswith(".toml") or (i == 0 and word[:1] != "-"):
            return read(word, overrides, trust="--trust" in words or is_own(word))
    return None


def _sentence(error: CycloptsError, words: list[str]) -> str:
    """The error of a command line as one sentence."""
    command = f"bfn {words[0]}"
    see = f"see {command} --help"
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        known = {n.lstrip("-"): n for each in error.argument_collection for n in each.names}
        if words[0] == "train":
            known = {**KEYS, **known}
        name = option.lstrip("-").replace("-", "_")
        return (
            f"unknown option {option}{did_you_mean(name, known, known.__getitem__) or f'; {see}'}"
        )
    if isinstance(error, UnusedCliTokensError):
        unused = " ".join(error.unused_tokens or ())
        is_key = re.match(r"[a-z]+\.\w", unused)
        hint = f"did you mean --{unused}?" if is_key else see
        return f"{command} does not take {unused!r}; {hint}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.keyword is not None:
            return f"{error.keyword} has no value; write {error.keyword} VALUE"
        return f"{command} needs {error.argument.name}; {see}"
    error.verbose = False
    text = " ".join(str(error).split()).rstrip("., ")
    return text if text.endswith("?") else f"{text}; {see}"


def _show_keys(recipe: Recipe) -> None:
    """Print the keys of a recipe as cyclopts prints options, one panel for each section."""
    from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel, InlineText

    from bfn.recipe.keys import keys

    for section, listed in keys(recipe).items():
        entries = [
            HelpEntry(
                positive_names=(f"--{key.name}",),
                description=InlineText.from_format(key.meaning, "markdown"),
                choices=key.choices,
                default=key.value or None,
                required=key.value is None,
            )
            for key in listed
        ]
        title = f"Section {section} of {recipe.name}"
        panel = HelpPanel(format="parameter", title=title, entries=entries)
        DefaultFormatter()(app.console, app.console.options, panel)
