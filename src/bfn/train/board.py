"""Metrics for TensorBoard, if it is installed: pip install 'bfn[tensorboard]'."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bfn.errors import BFNError


def need() -> Any:
    """What writes the files, or the sentence that says how to add it."""
    try:
        importlib.import_module("tensorboard")
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError:
        raise BFNError(
            "train.tensorboard needs tensorboard, which is not installed; add it with: pip install "
            "'bfn[tensorboard]', or leave the key out"
        ) from None


class Board:
    """Writes lines of metrics as scalars. What lies beyond `step`, of a killed run, is hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        self._writer = need()(str(folder), purge_step=step + 1)

    def log(self, line: Mapping[str, Any]) -> None:
        for name, value in scalars(line):
            self._writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        self._writer.close()


def scalars(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a line under the names they are shown by."""
    for name, value in line.items():
        if name == "loss_by_time":
            for i, loss in enumerate(value):
                if loss is not None:
                    yield f"loss_by_time/{i / len(value):g} to {(i + 1) / len(value):g}", loss
        elif name != "step" and isinstance(value, int | float):
            group = "loss" if name in ("loss", "nats") or name.startswith("valid") else "training"
            yield f"{group}/{name}", value
