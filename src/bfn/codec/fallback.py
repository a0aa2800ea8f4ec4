"""Bytes that no model describes: coded by the standard library's own compressors.

Headers of arrays, the ends of texts and, if the user allows it, whole files. Each piece is at most
`PIECE` bytes long and is stored in the shortest of three ways, which its first byte names: as it
is, deflated, or by LZMA. Reading never makes more than the promised number of bytes, whatever the
stored ones say.
"""

from __future__ import annotations

import lzma
import zlib

from bfn.errors import BFNError

PIECE = 1 << 22

_PLAIN, _DEFLATE, _LZMA = 0, 1, 2
# All of this is part of the file format. Streams are raw: the container has lengths and checksums.
_USUAL = (
    b"PK\x01\x02\x14\x03\x2d\x00\x00\x00\x00\x00\x00\x00\x21\x00images.npylabels.npy"
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x01PK\x05\x06\x00\x00\x00\x00\x01\x00\x01\x00"
    b"PK\x03\x04\x2d\x00\x00\x00\x00\x00\x00\x00\x21\x00\xff\xff\xff\xff\xff\xff\xff\xff"
    b"\x09\x00\x14\x00arr_0.npy\x01\x00\x10\x00\x00\x00\x00\x00\x00\x00"
    b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i8''<f4''<i4''|b1''|u1', 'fortran_order': False, "
    b"'shape': (3, 32, 32), (28, 28), (10000, 1, 8, 8), }" + 80 * b" " + b"\n"
)
"""How the headers of arrays begin and end; deflated, they then take few bytes."""
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": PIECE}]


def encode(data: bytes) -> bytes:
    """A piece of at most `PIECE` bytes, in the shortest of the three ways."""
    if len(data) > PIECE:
        raise ValueError(f"a piece of {len(data)} bytes; at most {PIECE} are coded at once")
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=_USUAL)
    deflated = deflate.compress(data) + deflate.flush()
    ways = [
        bytes([_PLAIN]) + data,
        bytes([_DEFLATE]) + deflated,
        bytes([_LZMA]) + lzma.compress(data, lzma.FORMAT_RAW, filters=_FILTERS),
    ]
    return min(ways, key=len)


def decode(payload: bytes, size: int) -> bytes:
    """The `size` bytes that were encoded; `BFNError` if they are not that many."""
    way, stored = payload[:1], payload[1:]
    try:
        if way == bytes([_PLAIN]):
            data, ended = stored, True
        elif way == bytes([_DEFLATE]):
            inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=_USUAL)
            data = inflate.decompress(stored, size + 1)
            ended = inflate.eof and not inflate.unused_data
        elif way == bytes([_LZMA]):
            unpack = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS)
            data = unpack.decompress(stored, size + 1)
            ended = unpack.eof and not unpack.unused_data
        else:
            data, ended = b"", False
    except (zlib.error, lzma.LZMAError) as error:
        raise BFNError(f"bytes stored without the model are damaged ({error})") from None
    if not ended or len(data) != size:
        raise BFNError(f"bytes stored without the model are damaged: expected {size} of them")
    return data
