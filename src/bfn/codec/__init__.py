"""Lossless coding: the loss as the length of a file.

`Codec` turns data into bytes and back with a model; `pack` and `unpack` do so for files, which an
`archive` holds. Names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfn.codec.coder import Codec, Coded

__all__ = ["Codec", "Coded"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bfn.codec' has no attribute {name!r}")
    value = getattr(importlib.import_module("bfn.codec.coder"), name)
    globals()[name] = value
    return value
