"""Lossless coding: the loss as the length of a file.

`compress` turns data into bytes with a model, and `decompress` restores them; `pack` and `unpack`
do the same for files. `Codec` is the code itself. Names are loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfn.codec.coder import Codec, Coded
    from bfn.codec.pack import compress, decompress

_HOMES = {"Codec": "coder", "Coded": "coder", "compress": "pack", "decompress": "pack"}
__all__ = ["Codec", "Coded", "compress", "decompress"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bfn.codec' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"bfn.codec.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
