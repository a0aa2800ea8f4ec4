"""Where a saved model is: in a folder, inside the package, or on the Hugging Face hub.

The hub is reached through huggingface_hub, an optional extra, for names of the form owner/name that
are not folders here. Its files are as foreign as those of any other folder: whoever reads them runs
no code that they name, unless the user trusts them.
"""

from __future__ import annotations

import re
from pathlib import Path

from bfn.errors import BFNError, did_you_mean, require_extra
from bfn.saving.card import README, SAMPLE
from bfn.saving.serialise import CONFIG, WEIGHTS

RECIPE = "recipe.toml"
SHARED = (CONFIG, WEIGHTS, RECIPE, README, f"{SAMPLE}.*")
"""What is uploaded and downloaded; a run's checkpoints and metrics stay where they are."""

_SHIPPED = Path(__file__).parents[1] / "pretrained"
_NAME = r"\w[\w.-]*"


def shipped() -> list[str]:
    """The names of the models inside the package."""
    return sorted(path.parent.name for path in _SHIPPED.glob(f"*/{CONFIG}"))


def locate(name: str | Path, *, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a model: a folder as it is, a shipped name, or owner/name from the hub.

    A folder comes before a shipped name if it holds a model, and before the hub if it exists. A
    name that is found nowhere is returned as a path, for its reader to complain about.
    """
    text, path = str(name), Path(name).expanduser()
    if any((path / file).is_file() for file in (CONFIG, RECIPE)):
        return path
    if text in shipped():
        return _SHIPPED / text
    if path.exists():
        return path
    if re.fullmatch(f"{_NAME}/{_NAME}", text, re.ASCII) and not path.parent.is_dir():
        return download(text, revision=revision, token=token)
    if "/" not in text and (near := did_you_mean(text, shipped())):
        raise BFNError(f"there is no run folder {text!r}{near}")
    return path


def download(repository: str, *, revision: str | None = None, token: str | None = None) -> Path:
    """Fetch a model from the hub, or find it in the hub's own cache; returns its folder."""
    missing = f"there is no run folder {repository!r} here"
    hub = require_extra("huggingface_hub", "hub", f"{missing}, and fetching it from the hub")
    try:
        folder = hub.snapshot_download(
            repository, revision=revision, token=token, allow_patterns=list(SHARED)
        )
    except Exception as error:  # dozens of types, from the hub's client and its own libraries
        raise BFNError(
            f"{missing}, and it could not be fetched from the hub ({_reason(error)}); check the "
            "name, the connection, and that you may read it"
        ) from error
    return Path(folder)


def upload(
    folder: Path,
    repository: str,
    *,
    private: bool | None = None,
    token: str | None = None,
) -> str:
    """Upload a folder's model, creating the repository if need be; returns its address."""
    hub = require_extra("huggingface_hub", "hub", "uploading a model")
    try:
        api = hub.HfApi(token=token)
        created = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=created.repo_id,
            folder_path=str(folder),
            allow_patterns=list(SHARED),
            commit_message="Upload model",
        )
    except Exception as error:
        raise BFNError(
            f"the model could not be uploaded to {repository!r} ({_reason(error)}); check the name "
            "and the connection, and log in with: hf auth login"
        ) from error
    return str(created)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
