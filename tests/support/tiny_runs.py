"""Small recipes that train in a second, one per data type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import bfn
from bfn import recipe as config
from bfn.progress import Display
from bfn.train import checkpoint

_IMAGES = """
[net]
class = "bfn.nn:UNet"
outputs = {outputs}
width = 8
multipliers = [1, 2]
blocks = 1
heads = 2
groups = 4
dropout = 0.2
image_size = 8
"""
_TRAIN = """
[train]
steps = 12
batch = 8
learning_rate = 3e-3
ema_decay = 0.99
log_every = 2
checkpoint_every = 4
device = "cpu"

[eval]
steps = [3, "inf"]
split = "validation"

[sample]
n = 4
steps = 3
"""
RECIPES = {
    "discretised": '[data]\nsource = "digits"\n'
    + _IMAGES.format(outputs=2)
    + '[flow]\nkind = "discretised"\nK = 17\nsigma_1 = 0.05\n'
    + _TRAIN,
    "binary": '[data]\nsource = "digits"\nform = "binary"\n'
    + _IMAGES.format(outputs=1)
    + '[flow]\nkind = "discrete"\nK = 2\nbeta_1 = 4.0\n'
    + _TRAIN,
    "continuous": '[data]\nsource = "digits"\nform = "continuous"\n'
    + _IMAGES.format(outputs=1)
    + '[flow]\nkind = "continuous"\nsigma_1 = 0.05\n'
    + '[flow.reconstruction]\nclass = "bfn:Bins"\nK = 17\nsigma = 0.05\n'
    + _TRAIN,
    "text": """
[data]
source = "manual"
length = 8

[net]
class = "bfn.nn:Transformer"
length = 8
width = 16
layers = 1
heads = 2
dropout = 0.1

[flow]
kind = "discrete"
K = 27
beta_1 = 0.75
"""
    + _TRAIN,
}


def write(folder: Path, kind: str = "discretised") -> Path:
    """The recipe as a file of its own."""
    path = folder / f"tiny-{kind}.toml"
    path.write_text(RECIPES[kind])
    return path


def read(folder: Path, kind: str = "discretised", **overrides: object) -> config.Recipe:
    """The recipe, with overrides as train__steps=4."""
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return config.read(write(folder, kind), given)


def run(recipe: config.Recipe, folder: Path, **options: Any) -> bfn.train.Fit:
    return bfn.train.run(recipe, folder, **{"display": False, **options})


def after(steps: int) -> Callable[[], bool]:
    """A `stop` that ends training after this many steps of this call."""
    seen: list[int] = []
    return lambda: seen.append(1) or len(seen) >= steps


def status(run: Path) -> dict[str, Any]:
    return json.loads((run / "status.json").read_text())


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics without the speed."""
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for line in lines:
        assert line.pop("examples_per_second") > 0
    return lines


def tensors(run: Path, step: int) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, as group.name."""
    found = checkpoint.load(run / "checkpoints" / f"step-{step}")
    return {f"{group}.{name}": t for group, all in found.tensors.items() for name, t in all.items()}


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run but its lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def assert_same(one: Path, other: Path, step: int = 12) -> None:
    """Two runs ended bit for bit alike: every tensor, the exported model, the lines of metrics."""
    a, b = tensors(one, step), tensors(other, step)
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    configs = [json.loads((run / "config.json").read_text()) for run in (one, other)]
    assert configs[0] == configs[1]
    assert metrics(one) == metrics(other)


class Recorder(Display):
    """A display that keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def say(self, message: str) -> None:
        self.messages.append(message)
