"""Data sets: `load(source, **arguments)` returns a `DataSet`.

A source is a function that returns a data set. The shipped ones are named in `SOURCES`; any other
is given as "package.module:function". Nothing is imported before it is needed.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from bfn.errors import BFNError, did_you_mean

if TYPE_CHECKING:
    from bfn.data.array import from_arrays
    from bfn.data.base import DataSet, Rows, Stream
    from bfn.data.formats import ArrayFormat, Format, ImageFormat, TextFormat

SOURCES: dict[str, str] = {
    "digits": "bfn.data.known:digits",
    "manual": "bfn.data.known:manual",
    "mnist": "bfn.data.known:mnist",
    "cifar10": "bfn.data.known:cifar10",
    "text8": "bfn.data.known:text8",
    "images": "bfn.data.images:images",
    "text": "bfn.data.text:text",
    "array": "bfn.data.array:array",
}

_LAZY = {
    "DataSet": "base",
    "Rows": "base",
    "Stream": "base",
    "from_arrays": "array",
    "Format": "formats",
    "ImageFormat": "formats",
    "ArrayFormat": "formats",
    "TextFormat": "formats",
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
    "from_arrays",
    "load",
    "read_format",
    "source",
]


def load(name: str, **arguments: Any) -> DataSet:
    """The data set of a source, e.g. `load("digits", form="binary")`.

    Numbers may come as text (`bins="16"`), as they do from a command line.
    """
    function = source(name)
    known = inspect.signature(function).parameters
    kinds = {parameter.kind for parameter in known.values()}
    for key in arguments:
        if key not in known and inspect.Parameter.VAR_KEYWORD not in kinds:
            hint = did_you_mean(key, known) or f"; expected {', '.join(known) or 'no arguments'}"
            raise BFNError(f"the data source {name!r} takes no {key!r}{hint}")
    for key, parameter in known.items():
        optional = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is parameter.empty and not optional and key not in arguments:
            raise BFNError(f"the data source {name!r} needs {key!r}; give it, as in {key}=...")
    hints = get_type_hints(function)
    return function(
        **{key: _convert(name, key, value, hints.get(key, Any)) for key, value in arguments.items()}
    )


def source(name: str) -> Callable[..., DataSet]:
    """The function behind a source's name, or behind "package.module:function"."""
    module, colon, attribute = SOURCES.get(name, name).partition(":")
    if not colon:
        hint = did_you_mean(name, SOURCES)
        raise BFNError(
            f"unknown data source {name!r}{hint}; expected one of {', '.join(SOURCES)}, or "
            "package.module:function"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BFNError(f"the data source {name!r} cannot be imported: {error}") from error


def read_format(description: dict[str, Any]) -> Format:
    """The format that `DataSet.format.describe()` described: decodes without the data."""
    from bfn.data import formats

    return formats.read(description)


def _convert(name: str, key: str, value: Any, hint: Any) -> Any:
    """A value in the type of its argument; text is read as the number or truth it spells."""
    kinds = set(get_args(hint)) or {hint}
    simple = {str, int, float, bool, type(None)}
    if hint is Any or type(value) in kinds or (kinds - simple and not isinstance(value, str)):
        return value
    if isinstance(value, os.PathLike) and str in kinds:
        return os.fspath(value)
    if type(value) is int and float in kinds:
        return float(value)
    if isinstance(value, str):
        if bool in kinds and value.lower() in ("true", "false"):
            return value.lower() == "true"
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                if kind in kinds:
                    return kind(value)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    wanted = " or ".join(word for kind, word in words.items() if kind in kinds)
    raise BFNError(f"{key} = {value!r} of the data source {name!r} should be {wanted}")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"bfn.data.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'bfn.data' has no attribute {name!r}")
