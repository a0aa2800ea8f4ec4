"""`bfn train`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from bfn import recipe as config
from bfn import train as training
from bfn.cli import rank
from bfn.errors import BFNError
from bfn.recipe.fitted import is_open
from bfn.recipe.values import Text
from bfn.runs.folder import RunFolder
from bfn.train.start import check_same


def train(
    name: str,
    out: Path | None,
    resume: bool,
    force: bool,
    init: str | None,
    overrides: Mapping[str, Text],
) -> None:
    if init is not None:
        if "train.init" in overrides:
            raise BFNError("--init and --train.init are the same; give one of them")
        if not init:
            raise BFNError("--init is empty; give the folder of a run or the name of a model")
        overrides = {**overrides, "train.init": Text(init)}
    folder = RunFolder(out or Path("runs") / config.read(name).name)
    if resume and force:
        raise BFNError("--resume goes on and --force starts again; give one of them")
    if resume and folder.is_run():
        recipe = _resumed(name, folder, overrides)
    else:
        recipe = config.read(name, overrides)
    fit = training.run(recipe, folder.path, resume=resume, force=force)
    if fit.history and rank() == 0:
        line = fit.history[-1]
        print(f"{folder.path}: step {fit.step}, loss {line['loss']:.4f} {line['unit']}")


def _resumed(name: str, folder: RunFolder, overrides: Mapping[str, Text]) -> config.Recipe:
    """A run goes on with its own recipe; the command line may override it, within limits."""
    before, asked = folder.recipe(), config.read(name)
    if before.name != asked.name:
        raise BFNError(
            f"{str(folder.path)!r} is a run of the recipe {before.name!r}, not of {asked.name!r}; "
            "resume it with its own recipe, or give another folder with --out"
        )
    own = config.read(folder.path / "recipe.toml", overrides)
    check_same(before, own)
    # What the recipe left open, the run's own recipe has from its data.
    differing = [
        key for key in own.differences(asked) if key not in overrides and not is_open(asked, key)
    ]
    if differing and rank() == 0:
        print(
            f"going on with the run's own recipe.toml, which differs in {', '.join(differing)}",
            file=sys.stderr,
        )
    return own
