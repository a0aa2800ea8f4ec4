"""Where a saved model is found, and the card that tells others what it is.

A model is in a folder, inside the package, or on the Hugging Face hub. The hub is reached through
huggingface_hub, an optional extra, for names of the form owner/name that are not folders here. Its
files are no safer than those of any other folder: code that they name is run only if the user
trusts them.

The card is README.md beside a saved model; it says what the model is and how good it is.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from bfn.errors import BFNError, did_you_mean, require_extra
from bfn.output.base import Head
from bfn.saving.serialise import CONFIG, WEIGHTS

RECIPE, README, SAMPLE = "recipe.toml", "README.md", "sample"
SHARED = (CONFIG, WEIGHTS, RECIPE, README, f"{SAMPLE}.*")
"""What is uploaded and downloaded; a run's checkpoints and metrics stay where they are."""

_SHIPPED = Path(__file__).parents[1] / "pretrained"
_NAME = r"\w[\w.-]*"
_USE = """```python
import bfn

{code}
```"""
_MODEL = """model = bfn.BFN.from_pretrained("{name}")
x = bfn.generate(model, shape={shape}, steps=100)"""
_TABLE = """table = bfn.Table.load("{name}")
rows = table.sample(16)"""


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


@dataclass(frozen=True)
class Card:
    """What a model's own files do not say.

    Args:
        title: the heading.
        data: what it was trained on, in sentences.
        recipe: the recipe it was trained with, as TOML.
        losses: a table in Markdown.
        sample: a picture or a text file that the model drew; it is copied beside the card.
        name: the model's folder or name on the hub, for the example.
    """

    title: str = "A Bayesian Flow Network"
    data: str = ""
    recipe: str = ""
    losses: str = ""
    sample: Path | None = None
    name: str = "FOLDER"

    def write(
        self, folder: Path, net: nn.Module, head: Head, format: Mapping[str, Any] | None
    ) -> None:
        """Write README.md and a copy of the sample beside a saved model of this network and head.

        The format is `BFN.data_format`. Sections with nothing to say are left out, except for
        the data.
        """
        if self.sample is not None:
            kept = folder / f"{SAMPLE}{self.sample.suffix}"
            if self.sample.resolve() != kept.resolve():
                shutil.copyfile(self.sample, kept)
        network, parameters = type(net).__name__, sum(p.numel() for p in net.parameters())
        parts = [
            "---\nlibrary_name: bfn\ntags:\n- bayesian-flow-network\n---",
            f"# {self.title}",
            f"A Bayesian Flow Network of {head.kind} data: a `{network}` of {parameters:,} "
            "parameters, saved by `bfn`.",
            _USE.format(code=self._code(format)),
            "## Data",
            " ".join(filter(None, (self.data, _sentence(format)))) or "Not stated.",
        ]
        for heading, text in (
            ("Losses", self.losses),
            ("A sample", self._sample()),
            ("Recipe", f"```toml\n{self.recipe.strip()}\n```" if self.recipe else ""),
        ):
            if text:
                parts += [f"## {heading}", text]
        (folder / README).write_text("\n\n".join(parts) + "\n", encoding="utf-8")

    def _code(self, format: Mapping[str, Any] | None) -> str:
        if format is not None and format.get("medium") == "table":
            return _TABLE.format(name=self.name)
        return _MODEL.format(name=self.name, shape=_batch(format))

    def _sample(self) -> str:
        if self.sample is None:
            return ""
        if self.sample.suffix == ".txt":
            return f"```text\n{self.sample.read_text(encoding='utf-8').rstrip()}\n```"
        link = "!" if self.sample.suffix == ".png" else ""
        return f"{link}[drawn by the model]({SAMPLE}{self.sample.suffix})"


def _batch(format: Mapping[str, Any] | None) -> str:
    """What to ask `bfn.generate` for: 16 examples."""
    if format is None:
        return "(16, ...)"
    if format.get("medium") == "mixed":
        return "16"
    return f"(16, {format['length'] if format.get('medium') == 'text' else _sizes(format)})"


def _sizes(variable: Mapping[str, Any]) -> str:
    return ", ".join(map(str, variable["shape"]))


def _sentence(format: Mapping[str, Any] | None) -> str:
    """What one example is."""
    if format is None:
        return ""
    if format.get("medium") == "text":
        alphabet = format["alphabet"]
        of = "bytes" if alphabet is None else f"characters out of {len(alphabet)}"
        up_to = "a line of up to " if format.get("lines") else ""
        return f"An example is {up_to}{format['length']} {of}."
    if format.get("medium") == "mixed":
        each = (
            f"{name} of shape ({_sizes(variable)})"
            + (f" with {variable['K']} classes" if variable["K"] else "")
            for name, variable in format["variables"].items()
        )
        return f"An example has the variables {', '.join(each)}."
    if format.get("medium") == "table":
        return f"An example is a row with the columns {', '.join(format['names'])}."
    form = format["form"]
    bins = f", K = {form['K']}" if form.get("K") else ""
    return f"An example has the shape ({_sizes(format)}) and is {form['name']}{bins}."
