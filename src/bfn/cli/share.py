"""`bfn card`, `bfn push` and `bfn import`: sharing models, and importing published ones."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bfn.cli.options import EvalKeys, Force, Integer, Out, Overrides, Trust, chosen, device_key
from bfn.cli.sample import sample_with_progress, with_labels
from bfn.errors import BFNError, plural
from bfn.recipe import is_own, read

if TYPE_CHECKING:
    from bfn.evaluate import Evaluation
    from bfn.recipe import Recipe
    from bfn.saving import Card


def card(
    run: Path,
    /,
    *,
    keys: EvalKeys = None,
    n: Integer | None = None,
    sample_steps: Integer | None = None,
    force: Force = False,
    trust: Trust = False,
) -> None:
    """Evaluate a run and draw samples for its model card, README.md.

    Args:
        run: The run folder.
        n: Number of samples.
        sample_steps: Bayesian updates for the samples.
    """
    from bfn.cli.evaluate import compare_data, measure, recipe_with_data
    from bfn.device import on_device
    from bfn.plots.sheets import suffix, write_sheet
    from bfn.recipe import build
    from bfn.runs.folder import RunFolder

    folder = RunFolder(run, trust=trust)
    recipe = recipe_with_data(folder)
    readme = run / "README.md"
    if readme.exists() and not force:
        raise BFNError(f"{str(readme)!r} exists; give --force to replace it")
    evaluation = recipe.eval.updated(**chosen(keys))
    sampling = recipe.sample.updated(n=n, steps=sample_steps)
    key = device_key(chosen(keys), "eval")
    model = on_device(folder.load_model(), evaluation.device, key)
    format = folder.format()
    picture = run / f"sample{suffix(format)}"  # a missing extra is reported before the work
    data = build.data(recipe)
    compare_data(folder, model, data, evaluation.split, moved=False)
    result = measure(model, data, evaluation)
    sampling, columns = with_labels(model, sampling, n is not None)
    write_sheet(picture, format, sample_with_progress(model, format, sampling), columns)
    losses = in_markdown(result, evaluation.split)
    written = card_of_run(recipe, run.name, data.summary(), losses, picture)
    written.write(run, model.net, model.head, model.data_format)
    examples, samples = plural(result.examples, "example"), plural(sampling.n, "sample")
    print(f"{readme}: {examples} evaluated, {samples} drawn")


def card_of_run(
    recipe: Recipe, name: str, summary: str = "", losses: str = "", sample: Path | None = None
) -> Card:
    """The card of a model trained with a recipe and published under a name.

    The summary gives the size of each split.
    """
    from bfn.saving import Card

    sentences = [f"{recipe.description}."] if recipe.description else []
    if source := recipe.data.get("source"):
        place = recipe.data.get("path")
        of = f", of `{Path(place).name}`" if place else ""
        sentences.append(f"The data source is `{source}`{of}{summary and f': {summary}'}.")
    recipe = recipe.without_places()
    return Card(recipe.name, " ".join(sentences), recipe.to_toml(), losses, sample, name)


def in_markdown(result: Evaluation, split: str) -> str:
    """The table of an evaluation in Markdown, below a line that names the unit and the split."""
    lines = result.table()
    lines.insert(1, ["--:"] * len(lines[0]))
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    repeats = len(result.times)
    passes = "one pass" if repeats == 1 else f"{repeats} passes"
    examples = plural(result.examples, "example")
    return f"In {result.unit}: {examples} of the {split} split, {passes}.\n\n{text}"


def push(
    run: Path,
    repository: str,
    /,
    *,
    private: bool = False,
    token: str | None = None,
    trust: Trust = False,
) -> None:
    """Upload a run's model, recipe and card to the Hugging Face hub.

    Args:
        run: The run folder.
        repository: owner/name; it is created if it does not exist.
        private: Create it as a private repository.
        token: A token for the hub, unless you have logged in.
    """
    from bfn import saving
    from bfn.cli.evaluate import recipe_with_data
    from bfn.runs.folder import RunFolder

    folder = RunFolder(run, trust=trust)
    recipe = recipe_with_data(folder)
    model = folder.load_model()
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for pattern in saving.SHARED:
            for file in run.glob(pattern):
                shutil.copyfile(file, copy / file.name)
        (copy / saving.RECIPE).write_text(recipe.without_places().to_toml())
        if not (run / saving.README).exists():
            card = card_of_run(recipe, repository, folder.data().get("data", ""))
            card.write(copy, model.net, model.head, model.data_format)
        address = saving.upload(copy, repository, private=private or None, token=token)
    print(f"{run} is at {address}")


def import_(
    checkpoint: Path,
    recipe: str,
    /,
    *,
    out: Out | None = None,
    force: Force = False,
    trust: Trust = False,
    overrides: Overrides,
) -> None:
    """Turn a published checkpoint into a run.

    Args:
        checkpoint: A published .pt file of named tensors.
        recipe: The recipe it was trained with: a name (see `bfn recipes`) or the path of a .toml
            file. Override its keys with --section.key VALUE.
        out: The run folder; runs/NAME by default.
    """
    from bfn import published

    resolved = read(recipe, overrides, trust=trust or is_own(recipe))
    folder = out or Path("runs") / resolved.name
    model = published.import_run(checkpoint, resolved, folder, force=force)
    count = sum(p.numel() for p in model.net.parameters())
    print(f"{folder}: {count:,} parameters; next: bfn eval {folder} or bfn sample {folder}")
