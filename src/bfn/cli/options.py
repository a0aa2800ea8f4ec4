"""Parameters that several commands share."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bfn.errors import without_none
from bfn.recipe import Eval, Sample, Section
from bfn.recipe.values import Text


def _integer(_: Any, tokens: Sequence[Any]) -> int:
    """A whole number; cyclopts itself would silently round 2.5."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


Integer = Annotated[int, Parameter(converter=_integer)]
OutFile = Annotated[Path, Parameter(allow_leading_hyphen=True)]
"""A file, or - for standard output."""
Out = Annotated[Path, Parameter(alias="-o")]
OutOrPrint = Annotated[OutFile, Parameter(alias="-o")]
Overrides = Annotated[dict[str, Text], Parameter(parse=False)]
"""Recipe keys, as --section.key VALUE; `bfn.cli.app.run` removes them from the command line."""

Run = Annotated[
    Path,
    Parameter(
        help="A run folder, a shipped model (digits or digits-labelled), or owner/name on the hub."
    ),
]
Json = Annotated[
    OutFile | None,
    Parameter(help="Also write the table to this file; - prints JSON instead of the table."),
]
Trust = Annotated[
    bool, Parameter(help="Run code that is not part of bfn, if the run or recipe names any.")
]
Force = Annotated[bool, Parameter(help="Replace existing files.")]


_AS_IN_RUN = "Parameters (defaults are those of the run's recipe)"


def _keys(section: type[Section], *left_out: str) -> Any:
    """The keys of a recipe's section as options of a command, parsed as the recipe's values are."""
    hints = typing.get_type_hints(section)
    fields = []
    for each in dataclasses.fields(section):
        # The type is for --help only. Lists are one word here, as in 10,25,inf.
        hint = str if typing.get_origin(hints[each.name]) is tuple else hints[each.name]
        option = Parameter(
            help=each.metadata["meaning"], converter=_text, n_tokens=1, group=_AS_IN_RUN
        )
        if each.name not in left_out:
            fields.append((each.name, Annotated[hint | None, option], None))
    made = dataclasses.make_dataclass(f"{section.__name__}Keys", fields, kw_only=True)
    made.__module__ = __name__  # else cyclopts treats it as a built-in type
    return Parameter(name="*")(made)


def _text(_: Any, tokens: Sequence[Any]) -> Text:
    return Text(tokens[0].value)


def chosen(keys: Any) -> dict[str, Text]:
    """The keys that the command line gives, for `Section.updated`."""
    return {} if keys is None else without_none(**vars(keys))


def device_key(asked: Mapping[str, Any], section: str) -> str:
    """Where the device comes from: the command line, or a section of the run's recipe."""
    return "--device" if "device" in asked else f"{section}.device"


if TYPE_CHECKING:
    EvalKeys = SampleKeys = SolverKeys = Any
else:
    EvalKeys, SampleKeys = _keys(Eval), _keys(Sample)
    SolverKeys = _keys(Sample, "n", "steps", "solver", "label")

Calls = Annotated[
    Integer | None,
    Parameter(help="Network calls, one more than the steps; give either of the two."),
]
