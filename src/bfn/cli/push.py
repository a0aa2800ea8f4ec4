"""`bfn push`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bfn.cli.options import Trust


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
    from bfn.cli.card import card_of_run
    from bfn.cli.evaluate import recipe_with_data
    from bfn.runs.folder import RunFolder
    from bfn.saving import hub
    from bfn.saving.card import README

    folder = RunFolder(run, trust=trust)
    recipe = recipe_with_data(folder)
    model = folder.load_model()
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for pattern in hub.SHARED:
            for file in run.glob(pattern):
                shutil.copyfile(file, copy / file.name)
        (copy / hub.RECIPE).write_text(recipe.without_places().to_toml())
        if not (run / README).exists():
            card = card_of_run(recipe, repository, folder.data().get("data", ""))
            card.write(copy, model.net, model.head, model.data_format)
        address = hub.upload(copy, repository, private=private or None, token=token)
    print(f"{run} is at {address}")
