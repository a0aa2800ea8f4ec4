"""`bfn card` and `bfn push`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfn.cli.app import Whole
from bfn.errors import BFNError

if TYPE_CHECKING:
    from bfn.recipe import Recipe
    from bfn.runs.folder import RunFolder


def card(
    run: Path,
    /,
    *,
    steps: str | None = None,
    split: str | None = None,
    repeats: Whole | None = None,
    crops: Whole | None = None,
    n: Whole | None = None,
    sample_steps: Whole | None = None,
    device: str | None = None,
    force: bool = False,
) -> None:
    """Write a run's model card: evaluate it, draw samples, and put both into its README.md.

    Parameters
    ----------
    run
        The run folder.
    steps
        The n of each row of the table, as in 10,25,100,inf.
    split
        train, validation or test.
    repeats
        Passes over the split with fresh noise.
    crops
        Crops at random positions of a text; 0 for windows that do not overlap.
    n
        Number of samples.
    sample_steps
        Bayesian updates of the samples.
    device
        cpu, cuda, ...; auto is cuda where there is one.
    force
        Replace the card that is there.
    """
    from bfn.cli.drawing import draw, with_labels
    from bfn.cli.evaluate import comparable, measure_with_progress
    from bfn.device import find_device
    from bfn.plots.sheets import suffix, write_sheet
    from bfn.recipe import build
    from bfn.recipe.values import Text
    from bfn.runs.folder import RunFolder
    from bfn.share import card_of_run

    folder = RunFolder(run)
    recipe = _recipe(folder)
    readme = run / "README.md"
    if readme.exists() and not force:
        raise BFNError(f"{str(readme)!r} exists; give --force to replace it")
    evaluation = recipe.eval.updated(
        steps=steps and Text(steps), split=split, repeats=repeats, crops=crops
    )
    sampling = recipe.sample.updated(n=n, steps=sample_steps)
    model = folder.load_model().to(find_device(device or evaluation.device, "device"))
    format = folder.format()
    picture = run / f"sample{suffix(format)}"  # a missing extra says so before the work
    data = build.data(recipe)
    result = measure_with_progress(model, data, evaluation)
    sampling, columns = with_labels(model, sampling, n is not None)
    write_sheet(picture, format, draw(model, format, sampling), columns)
    written = card_of_run(
        recipe,
        result,
        split=evaluation.split,
        published=comparable(recipe.published, result, evaluation),
        sample=picture,
        name=run.name,
    )
    written.write(run, model.config(), sum(p.numel() for p in model.net.parameters()))
    print(f"{readme}: {result.examples} examples evaluated, {sampling.n} samples drawn")


def push(run: Path, repository: str, /, *, private: bool = False, token: str | None = None) -> None:
    """Upload a run's model, recipe and card to the Hugging Face hub.

    Parameters
    ----------
    run
        The run folder.
    repository
        owner/name; it is created if there is none.
    private
        Create it for yourself alone.
    token
        Of the hub, unless you have logged in there.
    """
    from bfn import hub
    from bfn.runs.folder import RunFolder
    from bfn.share import card_of_run

    folder = RunFolder(run)
    recipe = _recipe(folder)
    model = folder.load_model()
    with tempfile.TemporaryDirectory() as away:
        for pattern in hub.SHARED:
            for file in run.glob(pattern):
                shutil.copyfile(file, Path(away) / file.name)
        (Path(away) / "recipe.toml").write_text(recipe.without_places().to_toml())
        if not (run / "README.md").exists():
            parameters = sum(p.numel() for p in model.net.parameters())
            card_of_run(recipe, name=repository).write(Path(away), model.config(), parameters)
        address = hub.upload(Path(away), repository, private=private or None, token=token)
    print(f"{run} is at {address}")


def _recipe(folder: RunFolder) -> Recipe:
    recipe = folder.recipe()
    if not recipe.data:
        raise BFNError(
            f"the run {str(folder.path)!r} was trained on data given in Python; share its model "
            "there, with model.push_to_hub(name, card=bfn.card.Card(...))"
        )
    return recipe


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
