"""Where a saved model is: in a folder, inside the package, or on the Hugging Face hub.

The hub is reached through huggingface_hub, an optional extra, for names of the form owner/name that
are not folders here. A model from the hub may name only classes and data sources of this package:
names of other code would be imported, and called, when it is loaded.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bfn.card import README, SAMPLE
from bfn.errors import BFNError, did_you_mean, require_extra
from bfn.serialise import CONFIG, WEIGHTS

RECIPE = "recipe.toml"
SHARED = (CONFIG, WEIGHTS, RECIPE, README, f"{SAMPLE}.*")
"""What is uploaded and downloaded; a run's checkpoints and metrics stay where they are."""

_SHIPPED = Path(__file__).parent / "pretrained"
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
    check_own_code(Path(folder), repository)
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


def check_own_code(folder: Path, name: str) -> None:
    """Refuse a downloaded model that names code outside this package."""
    for file, read in ((CONFIG, json.loads), (RECIPE, tomllib.loads)):
        try:
            document = read((folder / file).read_text())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise BFNError(f"{file} of {name!r} is damaged ({error}); fetch it again") from None
        for key, value in _walk(document):
            foreign = key == "class" and not re.match(r"bfn[.:]", str(value))
            # A source is called with arguments, so not even our own functions are safe.
            if foreign or (key == "source" and ":" in str(value)):
                raise BFNError(
                    f"{name!r} names {str(value)!r}, which is not part of bfn and could run any "
                    f"code; if you trust it, load the folder {str(folder)!r}"
                )


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from _walk(inner)
        else:
            yield str(key), inner


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
