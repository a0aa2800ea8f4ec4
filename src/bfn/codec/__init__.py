"""Lossless coding: the loss as the length of a file.

`compress` turns data into bytes with a model, and `decompress` restores them; `bfn.codec.pack.pack`
and `unpack` do the same for files. `Codec` is the code itself. Names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bfn.errors import lazy

if TYPE_CHECKING:
    from bfn.codec.coder import Codec, Coded
    from bfn.codec.pack import compress, decompress

__all__ = ["Codec", "Coded", "compress", "decompress"]
__getattr__ = lazy(
    __name__,
    {
        "Codec": "bfn.codec.coder:Codec",
        "Coded": "bfn.codec.coder:Coded",
        "compress": "bfn.codec.pack:compress",
        "decompress": "bfn.codec.pack:decompress",
    },
)
