"""The commands and what they take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

import bfn
from bfn.errors import BFNError
from bfn.recipe.values import Text

app = App(
    name="bfn",
    help="Bayesian Flow Networks: train, evaluate and sample.",
    version=bfn.__version__,
    help_format="plaintext",
    result_action="return_value",
)

Overrides = Annotated[dict[str, Text], Parameter(parse=False)]


def _whole(_: Any, tokens: Sequence[Any]) -> int:
    """A whole number; left alone, cyclopts would round 2.5 in silence."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


Whole = Annotated[int, Parameter(converter=_whole)]
OutFile = Annotated[Path, Parameter(allow_leading_hyphen=True)]
"""A file, or - for standard output."""

# What several commands take, explained once.
Run = Annotated[
    Path,
    Parameter(
        help="The run folder, the name of a shipped model (digits), or owner/name on the hub."
    ),
]
Final = Annotated[
    Literal["sample", "mode"] | None,
    Parameter(help="How the last output becomes data: a draw from it, or its mode."),
]
Grid = Annotated[
    str | None,
    Parameter(help="The spacing of the steps: time, power or geometric; auto is the solver's own."),
]
Guidance = Annotated[
    float | None,
    Parameter(help="Multiplies what a label adds to the prediction: 1 is plain, 2 exaggerates."),
]
Batch = Annotated[
    Whole | None,
    Parameter(help="Examples at once; results do not depend on it. Halved when memory runs out."),
]
Seed = Annotated[Whole | None, Parameter(help="Of the noise.")]
Device = Annotated[str | None, Parameter(help="cpu, cuda, ...; auto is cuda where there is one.")]


def run(arguments: list[str]) -> None:
    """Parse and carry out one command line."""
    rest, overrides = split_overrides(arguments)
    command, bound, ignored = app.parse_args(rest, print_error=False, exit_on_error=False)
    if overrides and "overrides" not in ignored and "--help" not in rest and "-h" not in rest:
        raise BFNError(
            f"this command takes no recipe keys such as --{next(iter(overrides))}; see bfn "
            f"{rest[0] if rest else ''} --help"
        )
    if "overrides" in ignored:
        command(*bound.args, **{**bound.kwargs, "overrides": overrides})
    else:
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


def _keys() -> str:
    from bfn import recipe as config

    lines = ["Recipe keys, as --section.key VALUE (lists as 1,2,3), with their defaults:", ""]
    for section, chooser in config.FREE.items():
        lines.append(f"--{section}.{chooser} NAME, and NAME's own arguments as --{section}.KEY")
    for key, default, meaning in config.options():
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        lines.append(f"--{key} {shown}: {meaning}")
    return "\n".join(lines)


@app.command
def recipes(*, json: bool = False) -> None:
    """List the shipped recipes.

    Parameters
    ----------
    json
        Print JSON instead of a table.
    """
    from bfn.cli import recipes as command

    command.show(json)


@app.command(help_epilogue=_keys())
def train(
    recipe: str,
    /,
    *,
    out: Path | None = None,
    resume: Literal["auto"] | None = None,
    init: str | None = None,
    force: bool = False,
    overrides: Overrides,
) -> None:
    """Train a recipe.

    Several processes: torchrun --nproc_per_node=N -m bfn train RECIPE ...

    Parameters
    ----------
    recipe
        A shipped name (see `bfn recipes`) or the path of a .toml file.
    out
        The run folder; runs/NAME by default.
    resume
        auto goes on from the newest checkpoint, or starts if there is none.
    init
        Start with the weights of this run, shipped model or owner/name on the hub, with a fresh
        optimiser.
    force
        Replace the run that is in the folder, as soon as there is a checkpoint.
    """
    from bfn.cli import train as command

    command.train(recipe, out, resume is not None, force, init, overrides)


@app.command
def runs(folder: Path = Path("runs"), /, *, json: bool = False) -> None:
    """List runs: running, finished, interrupted, diverged or failed, how far, how good, and when.

    Parameters
    ----------
    folder
        The folder that holds them, or a run itself.
    json
        Print JSON instead of a table.
    """
    from bfn.cli import runs as command

    command.show(folder, json)


@app.command
def plot(
    *runs: Path,
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("curves.png"),
    smooth: Whole | None = None,
    force: bool = False,
) -> None:
    """Draw the learning curves of one run or several, and where in time their loss is.

    Parameters
    ----------
    runs
        The run folders.
    out
        The .png, .pdf or .svg to write.
    smooth
        Lines of metrics to average over; by default a thirtieth of them.
    force
        Replace that file if it exists.
    """
    from bfn.cli import plot as command

    command.plot(runs, out, smooth, force)


@app.command
def eval(
    run: Run,
    /,
    *,
    steps: str | None = None,
    split: str | None = None,
    repeats: Whole | None = None,
    crops: Whole | None = None,
    batch: Batch = None,
    seed: Seed = None,
    device: Device = None,
    json: OutFile | None = None,
    per_example: Path | None = None,
    force: bool = False,
    overrides: Overrides,
) -> None:
    """Evaluate a run: L^n + L^r for several n, in the data's unit, in nats and bits per dimension.

    Where the data lie may be given anew, as --data.dir or --data.path.

    Parameters
    ----------
    steps
        The n of each row, as in 10,25,100,inf.
    split
        train, validation or test.
    repeats
        Passes over the split with fresh noise.
    crops
        Crops at random positions of a text; 0 for windows that do not overlap.
    json
        Also write the table to this file; - is standard output, without the table.
    per_example
        Also write every example's total to this .npy or .csv, one column for each n.
    force
        Replace those files if they exist.
    """
    from bfn.cli import evaluate as command

    given = {
        "steps": steps and Text(steps),
        "split": split,
        "repeats": repeats,
        "crops": crops,
        "batch": batch,
        "seed": seed,
        "device": device,
    }
    command.evaluate(run, _given(given), json, per_example, force, overrides)


@app.command
def demo(
    *, out: Path = Path("demo"), seconds: float = 150.0, force: bool = False, overrides: Overrides
) -> None:
    """Train the digits in about three minutes on two cores, evaluate, and draw samples.

    Parameters
    ----------
    out
        The folder for the pictures, the table and the run.
    seconds
        The most time to spend on training; a slow machine takes fewer steps.
    force
        Replace what is there.
    """
    from bfn.cli import demo as command

    command.demo(out, seconds, force, overrides)


@app.command
def schedule(
    K: str,
    /,
    *,
    bins: bool = False,
    cost: float = 0.01,
    rows: Whole = 11,
    json: bool = False,
    out: Path | None = None,
    force: bool = False,
) -> None:
    """Suggest beta_1 for K classes, or sigma_1 for K bins, and draw the entropy over time.

    Parameters
    ----------
    K
        The number of classes, or of bins.
    bins
        Discretised data: K bins of [-1, 1] instead of K classes.
    cost
        Nats per variable left at t = 1.
    rows
        Times in the table.
    json
        Print JSON instead of the table and the curve.
    out
        Also draw the curve to this .png, .svg or .pdf.
    force
        Replace that file if it exists.
    """
    from bfn.cli import schedule as command

    command.schedule(K, bins, cost, rows, json, out, force)


app.command(
    "bfn.cli.import_:import_",
    name="import",
    help="Turn a published checkpoint into a run that eval and sample use.",
)
app.command(
    "bfn.cli.share:card",
    name="card",
    help="Write a run's model card: evaluate it, draw samples, and put both into its README.md.",
)
app.command(
    "bfn.cli.share:push",
    name="push",
    help="Upload a run's model, recipe and card to the Hugging Face hub.",
)
app.command("bfn.cli.sample:command", name="sample", help="Draw samples from a run.")
app.command(
    "bfn.cli.solvers:solvers",
    name="solvers",
    help="Measure samples of a run by solver and network calls, as a table and a picture.",
)
app.command(
    "bfn.cli.infill:infill",
    name="infill",
    help="Fill in what is missing from a picture, a text or an array.",
)
app.command("bfn.cli.figures:figures", name="figures", help="Redraw the paper's figures.")
app.command(
    "bfn.cli.compress:compress",
    name="compress",
    help="Store files in an archive, at the rate of a model's loss.",
)
app.command(
    "bfn.cli.decompress:decompress", name="decompress", help="Restore the files of an archive."
)
app.command(
    "bfn.cli.inspect:inspect",
    name="inspect",
    help="Show what an archive holds and where its bits went.",
)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
