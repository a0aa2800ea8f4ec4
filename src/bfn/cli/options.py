"""Parameters that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bfn.recipe.values import Text


def _whole(_: Any, tokens: Sequence[Any]) -> int:
    """A whole number; cyclopts itself would silently round 2.5."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


Whole = Annotated[int, Parameter(converter=_whole)]
OutFile = Annotated[Path, Parameter(allow_leading_hyphen=True)]
"""A file, or - for standard output."""
Overrides = Annotated[dict[str, Text], Parameter(parse=False)]
"""Recipe keys, as --section.key VALUE; `bfn.cli.app.run` takes them out of the command line."""

Run = Annotated[
    Path,
    Parameter(help="A run folder, the name of a shipped model (digits), or owner/name on the hub."),
]
Json = Annotated[
    OutFile | None,
    Parameter(help="Also write the table to this file; - prints JSON instead of the table."),
]
Force = Annotated[bool, Parameter(help="Replace what exists.")]
Seed = Annotated[Whole | None, Parameter(help="Random seed for the noise.")]
Device = Annotated[str | None, Parameter(help="cpu, cuda, ...; auto is cuda if there is one.")]
Batch = Annotated[
    Whole | None,
    Parameter(help="Examples at once; results do not depend on it. Halved if memory runs out."),
]

# Evaluation.
EvalSteps = Annotated[
    str | None, Parameter(help="The n of each row, as in 10,25,100,inf (inf for L^inf).")
]
Split = Annotated[str | None, Parameter(help="train, validation or test.")]
Repeats = Annotated[
    Whole | None, Parameter(help="Passes over the split with fresh noise, averaged.")
]
Crops = Annotated[
    Whole | None,
    Parameter(help="Number of random crops of a text; 0 for non-overlapping windows."),
]

# Sampling.
Steps = Annotated[Whole | None, Parameter(help="Bayesian updates.")]
Calls = Annotated[
    Whole | None, Parameter(help="Network calls, one more than the steps: give one of the two.")
]
Final = Annotated[
    Literal["sample", "mode"] | None,
    Parameter(help="How the last output becomes data: a sample from it, or its mode."),
]
Solver = Annotated[
    str | None, Parameter(help="The step rule: ancestral (the paper's), sde, sde2, ode or ode2.")
]
Grid = Annotated[
    str | None,
    Parameter(help="Spacing of the steps: time, power or geometric; auto is the solver's own."),
]
Label = Annotated[
    str | None,
    Parameter(help="A label, for models with labels; several in turn, as in 3,7; or each."),
]
Guidance = Annotated[
    float | None,
    Parameter(help="Strength of the label's effect on the prediction: 1 is plain, 2 exaggerates."),
]
