"""Triton kernels for a GPU: passes over memory that torch would make one by one, made at once.

Each has a plain twin in `bfn.nn.blocks`, which runs everywhere else and says what it computes.
Importing this package needs triton.
"""

from __future__ import annotations

from bfn.nn.kernels.gelu import bias_gelu
from bfn.nn.kernels.group_norm import group_norm_act
from bfn.nn.kernels.layer_norm import add_norm

__all__ = ["add_norm", "bias_gelu", "group_norm_act"]
