"""The model card: README.md beside a saved model, saying what it is and how good it is."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from bfn.output.base import Head

README, SAMPLE = "README.md", "sample"

_USE = """```python
import bfn

{code}
```"""
_MODEL = """model = bfn.BFN.from_pretrained("{name}")
x = bfn.generate(model, shape={shape}, steps=100)"""
_TABLE = """table = bfn.Table.load("{name}")
rows = table.sample(16)"""


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
        some = "a line of up to " if format.get("lines") else ""
        return f"An example is {some}{format['length']} {of}."
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
