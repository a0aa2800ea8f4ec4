"""`bfn train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bfn.cli import rank
from bfn.cli.options import Out, Overrides, Trust, is_own
from bfn.errors import BFNError
from bfn.recipe import Recipe, read
from bfn.recipe.values import Text

TABLES = (".csv", ".tsv", ".parquet", ".gz", ".xlsx", ".xls", ".json", ".feather")
"""The endings of tables; reading one that cannot be read says so."""

if TYPE_CHECKING:
    from bfn.runs.folder import RunFolder


def train(
    recipe: str,
    /,
    *,
    out: Out | None = None,
    resume: bool = False,
    init: str | None = None,
    force: bool = False,
    trust: Trust = False,
    overrides: Overrides,
) -> None:
    """Train a recipe.

    Every value of the recipe can be changed as `--section.key VALUE`, lists as `1,2,3`. For the
    keys of a recipe, their values and meanings, ask `bfn train RECIPE --help`.

    For several processes: `torchrun --nproc_per_node=N -m bfn train RECIPE ...`

    Args:
        recipe: The name of a shipped recipe (see `bfn recipes`), the path of a .toml file, or a
            table to model: a .csv, .tsv or .parquet file.
        out: The run folder; runs/NAME by default.
        resume: Continue the run in the folder from its newest checkpoint; start one if there is
            none.
        init: Start from the weights of this run, shipped model or owner/name on the hub, with a
            fresh optimiser.
        force: Rename the run in the folder to NAME.replaced-1, and start a new one.
    """
    from bfn import train as training
    from bfn.runs.folder import RunFolder

    name = None
    if Path(recipe).suffix.lower() in TABLES:
        name = Path(recipe.removesuffix(".gz")).stem
        overrides = {"data.path": Text(recipe), **overrides}
        recipe = "table"
    if init is not None:
        overrides = {**overrides, "train.init": Text(init)}
    if resume and force:
        raise BFNError("--resume continues a run and --force starts again; give one of them")
    asked = read(recipe, trust=trust or is_own(recipe))
    folder = RunFolder(out or Path("runs") / (name or asked.name), trust=trust)
    if resume and folder.is_run():
        resolved = _resumed(asked, folder, overrides)
    else:
        resolved = read(recipe, overrides, trust=asked.trust)
    fit = training.run(resolved, folder.path, resume=resume, force=force)
    if fit.history and rank() == 0:
        line = fit.history[-1]
        print(f"{folder.path}: step {fit.step}, loss {line['loss']:.4f} {line['unit']}")


def _resumed(asked: Recipe, folder: RunFolder, overrides: dict[str, Text]) -> Recipe:
    """The run's own recipe, with what the command line may change for a resumed run."""
    from bfn.recipe.build import settled
    from bfn.recipe.fitted import is_open

    before = folder.recipe()
    if before.name != asked.name:
        raise BFNError(
            f"{str(folder.path)!r} is a run of the recipe {before.name!r}, not of {asked.name!r}; "
            "resume it with its own recipe, or give another folder with --out"
        )
    same_code = asked.trust and before.code().items() <= asked.code().items()
    own = settled(folder.recipe(overrides, trust=before.trust or same_code))
    folder.check_same(own)
    # What the recipe left open, the run filled in from its data.
    differing = [
        key for key in own.differences(asked) if key not in overrides and not is_open(asked, key)
    ]
    if differing and rank() == 0:
        print(
            f"continuing with the run's own recipe.toml, which differs in {', '.join(differing)}",
            file=sys.stderr,
        )
    return own
