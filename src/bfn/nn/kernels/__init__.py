"""Triton kernels that fuse several passes over memory into one.

Each has an equivalent in plain torch in `bfn.nn.blocks`, which runs everywhere else.
Importing this package needs triton.
"""

from __future__ import annotations

from bfn.nn.kernels.gelu import bias_gelu
from bfn.nn.kernels.group_norm import group_norm_act
from bfn.nn.kernels.layer_norm import add_norm

__all__ = ["add_norm", "bias_gelu", "group_norm_act"]
