"""Small checkpoints of the published networks, with inputs and outputs; and all their shapes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

FIXTURES = Path(__file__).parent / "fixtures"
SHAPES: dict[str, dict[str, Any]] = json.loads(
    gzip.decompress((FIXTURES / "shapes.json.gz").read_bytes())
)
"""Published tensor shapes and numbers of parameters of the four networks at full size."""
FAMILY = {
    "mnist_discrete": "mnist",
    "cifar10_continuous_256bins": "cifar10_continuous",
    "cifar10_continuous_16bins": "cifar10_continuous",
    "cifar10_discretized_256bins": "cifar10_discretised",
    "cifar10_discretized_16bins": "cifar10_discretised",
    "text8_discrete": "text8",
}
"""The network of every published configuration."""
SIZES: dict[str, dict[str, Any]] = {
    "mnist": {"width": 32, "multipliers": (1, 2), "blocks": 1, "heads": 4, "image_size": 8},
    "cifar10_continuous": {"width": 32, "blocks": 2, "image_size": 8},
    "cifar10_discretised": {"width": 32, "blocks": 2, "image_size": 8},
    "text8": {"width": 48, "layers": 2, "heads": 4, "length": 32},
}
"""Sizes of the small networks, where they differ from the published ones."""


def example(family: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A small checkpoint, and the network's input, t and output; images as (B, C, H, W[, P])."""
    with safe_open(FIXTURES / f"{family}.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    weights = {k.removeprefix("weights."): v for k, v in tensors.items() if k.startswith("weights")}
    values = {key: tensors[key] for key in ("input", "t", "output")}
    if family != "text8":  # (B, H, W, C), and (B, pixels, C, P) with P = 1 or 2 parameters
        values["input"] = values["input"].permute(0, 3, 1, 2)
        values["output"] = values["output"].unflatten(1, (8, 8)).permute(0, 3, 1, 2, 4)
    return weights, values


def full_size(family: str) -> dict[str, Tensor]:
    """The tensors of a published checkpoint, without their values."""
    shapes = SHAPES[family]["shapes"].items()
    return {key: torch.empty(shape, device="meta") for key, shape in shapes}
