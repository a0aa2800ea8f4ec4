"""Data sets: `load(source, **arguments)` returns a `DataSet`.

A source is a function that returns a data set. The shipped ones are named in `SOURCES`; any other
is given as "package.module:function". Nothing is imported before it is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bfn.errors import BFNError, did_you_mean, import_name, lazy, require_trust

if TYPE_CHECKING:
    from bfn.data import array, images, known, text
    from bfn.data.array import from_arrays
    from bfn.data.base import DataSet, Rows, Stream
    from bfn.data.formats import ArrayFormat, Format, ImageFormat, TextFormat, read_format

SOURCES: dict[str, str] = {
    "digits": "bfn.data.known:digits",
    "manual": "bfn.data.known:manual",
    "mnist": "bfn.data.known:mnist",
    "cifar10": "bfn.data.known:cifar10",
    "text8": "bfn.data.known:text8",
    "images": "bfn.data.images:images",
    "text": "bfn.data.text:text",
    "array": "bfn.data.array:array",
    "table": "bfn.tables.source:table",
}

__all__ = [
    "SOURCES",
    "ArrayFormat",
    "DataSet",
    "Format",
    "ImageFormat",
    "Rows",
    "Stream",
    "TextFormat",
    "array",
    "from_arrays",
    "images",
    "known",
    "load",
    "read_format",
    "source",
    "text",
]

_FORMATS = ("Format", "ImageFormat", "ArrayFormat", "TextFormat", "read_format")
__getattr__ = lazy(
    __name__,
    {name: f"bfn.data.{name}" for name in ("array", "images", "known", "text")}
    | {name: f"bfn.data.base:{name}" for name in ("DataSet", "Rows", "Stream")}
    | {name: f"bfn.data.formats:{name}" for name in _FORMATS}
    | {"from_arrays": "bfn.data.array:from_arrays"},
)


def load(name: str, **arguments: Any) -> DataSet:
    """The data set of a source, e.g. `load("digits", form="binary")`."""
    function = source(name, trust=True)
    signature = inspect.signature(function)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        known = ", ".join(signature.parameters)
        raise BFNError(f"{error}; the data source {name!r} takes {known}") from None
    return function(**arguments)


def source(name: str, *, trust: bool = False) -> Callable[..., DataSet]:
    """The function behind a source's name, or, with trust, behind "package.module:function"."""
    if name not in SOURCES and ":" not in name:
        expected = f"; expected {', '.join(SOURCES)}, or package.module:function"
        raise BFNError(f"unknown data source {name!r}{did_you_mean(name, SOURCES) or expected}")
    if name in SOURCES:
        return import_name(SOURCES[name], trust=False)
    # A source is called with arguments, so even bfn's other functions are not safe.
    require_trust(name, trust)
    return import_name(name, trust=True)


def bits_of(medium: str) -> str:
    """The name of bits per variable; needs no torch."""
    return f"bits per {({'text': 'character', 'table': 'value'}).get(medium, 'dimension')}"
