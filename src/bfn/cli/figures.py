"""`bfn figures`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from bfn.errors import BFNError

if TYPE_CHECKING:
    from bfn.plots.measure import Run


def figures(
    *,
    out: Path = Path("figures"),
    only: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    format: Literal["png", "pdf", "svg"] = "png",
    run: Path | None = None,
    split: str = "test",
    examples: int = 256,
    until: float | None = None,
    seed: int = 0,
    force: bool = False,
) -> None:
    """Redraw the paper's explanatory figures, or with --run its figures of a trained run.

    Parameters
    ----------
    out
        The folder for the figures.
    only
        Names of figures. Explanatory: updates, update-distribution, continuous-flow,
        input-variance, continuous-messages, discretised-output, discretised-messages, entropy,
        simplex-flow, binary-flow. Of a run: samples, distributions, losses, and letters for text.
    format
        png, or pdf and svg for vector graphics.
    run
        The folder of a trained run, the name of a shipped model, or owner/name on the hub.
    split
        Of a run's data: train, validation or test.
    examples
        The most examples of the split that a run's losses are averaged over.
    until
        The last time at which a run's distributions are shown.
    seed
        Of a run's noise.
    force
        Replace figures that exist.
    """
    from bfn import plots as drawing
    from bfn.plots.sheets import need

    need("matplotlib")
    if run is None:
        names = drawing.choose(only)
        paths = _places(out, names, format, force)
        _make(out)
        for name, path in paths.items():
            drawing.draw(name, path)
            print(f"{path}: {drawing.EXPLANATORY[name].caption}")
        return
    if examples < 2:
        raise BFNError(f"--examples {examples} is too few to average over; give at least 2")
    if until is not None and not 0.0 < until <= 1.0:
        raise BFNError(f"--until {until:g} is not a time after 0 and up to 1")
    medium, load = _open(run, split, seed, examples, until)
    names = drawing.choose(only, medium)
    paths = _places(out, names, format, force)
    loaded = load()
    _make(out)
    for name, path in paths.items():
        _draw(name, loaded, path)
        print(f"{path}: {drawing.OF_RUN[name].caption}")


def _places(out: Path, names: Sequence[str], format: str, force: bool) -> dict[str, Path]:
    """Where each figure goes; refused before anything is drawn."""
    paths = {name: out / f"{name}.{format}" for name in names}
    if out.exists() and not out.is_dir():
        raise BFNError(f"{str(out)!r} is a file; give another folder with --out")
    for path in paths.values():
        if path.is_dir():
            raise BFNError(f"{str(path)!r} is a folder; give another place with --out")
        if path.exists() and not force:
            raise BFNError(
                f"{str(path)!r} exists; give --force to replace it, or another folder with --out"
            )
    return paths


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BFNError(
            f"the folder {str(out)!r} cannot be made ({error.strerror}); give another with --out"
        ) from None


def _open(
    path: Path, split: str, seed: int, examples: int, until: float | None
) -> tuple[str, Callable[[], Run]]:
    """The medium of a run's data, and a function that loads the rest."""
    from bfn.hub import locate
    from bfn.runs.folder import RunFolder

    folder = RunFolder(locate(path))
    recipe = folder.recipe()
    if not recipe.data:
        raise BFNError(
            f"the run {str(path)!r} was trained on data given in Python; its figures need a data "
            "source that the recipe names"
        )

    def load() -> Run:
        from bfn.device import find_device
        from bfn.plots.measure import Run
        from bfn.recipe import build

        model, data = folder.load_model(), build.data(recipe)
        data.examples(split)  # an unknown or empty split is answered here
        return Run(model.to(find_device("auto")), data, recipe.sample, split, seed, examples, until)

    return folder.format().medium, load


def _draw(name: str, run: Run, path: Path) -> None:
    from bfn import plots as drawing
    from bfn.progress import waiting

    with waiting(f"drawing {name}") as (report, _):
        drawing.draw_run(name, dataclasses.replace(run, progress=report), path)
