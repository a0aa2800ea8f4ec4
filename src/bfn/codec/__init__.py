"""Lossless coding: the loss as the length of a file.

`Codec` turns data into bytes and back with a model (this half); the container that holds the bytes,
and the files that go into it, are the other half. Names are loaded when first used.
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
