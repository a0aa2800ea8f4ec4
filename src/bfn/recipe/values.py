"""Values of recipe keys, from TOML files and command lines, checked against type hints.

Values in a file have a type; a command line gives `Text`, which is parsed as the key's type.
Nothing is rounded or guessed: 1.5 is not a whole number.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import math
import tomllib
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Literal, Union

from bfn.errors import BFNError, did_you_mean

_LISTS = (tuple, list, collections.abc.Sequence)
_UNIONS = (Union, types.UnionType)
_PLAIN: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "a string in quotes"),
    types.NoneType: (types.NoneType, "nothing"),
}
"""What is accepted for each plain type, and its name in error messages."""


class Text(str):
    """A value as typed on a command line; its type is not known yet."""


class _Mismatch(Exception):
    """A value does not have the expected type."""


def typed(name: str, value: Any, hint: Any, where: str = "") -> Any:
    """The value converted to the type `hint`, or an error; unknown types accept anything."""
    if isinstance(value, Text) and hint in (str, str | None):
        return str(value)
    for candidate in _readings(value) if isinstance(value, Text) else (value,):
        with contextlib.suppress(_Mismatch):
            return _match(candidate, hint)
    near = did_you_mean(value, _literals(hint)) if isinstance(value, str) else ""
    raise BFNError(f"{name} = {value!r}{where} is not valid; expected {_expected(hint)}{near}")


def plain(text: Text) -> Any:
    """A command-line value of unknown type: a TOML value if it parses as one, else a string."""
    return next(iter(_readings(text)))


def _readings(text: str) -> Iterable[Any]:
    """The text as a TOML value, as a TOML list without brackets, and as a plain string."""
    for form in (text, f"[{text}]"):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            yield tomllib.loads(f"value = {form}")["value"]
    if "," in text:
        yield [next(iter(_readings(item)), item) for item in text.split(",")]
    yield str(text)


def _match(value: Any, hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        for each in arguments:
            with contextlib.suppress(_Mismatch):
                return _match(value, each)
        raise _Mismatch
    if origin is Literal:
        if value == math.inf and "inf" in arguments:  # TOML's own infinity
            return "inf"
        if value not in arguments:
            raise _Mismatch
        return value
    if origin in _LISTS and arguments:
        return _match_items(value, origin, arguments)
    if hint in _PLAIN:
        accepted, _ = _PLAIN[hint]
        # In Python, booleans are integers.
        if not isinstance(value, accepted) or isinstance(value, bool) != (hint is bool):
            raise _Mismatch
        try:
            return float(value) if hint is float else value
        except OverflowError:
            raise _Mismatch from None
    return value


def _match_items(value: Any, origin: Any, hints: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        raise _Mismatch
    if not _is_pair(origin, hints):
        hints = (hints[0],) * len(value)
    if len(hints) != len(value):
        raise _Mismatch
    items = [_match(item, hint) for item, hint in zip(value, hints, strict=True)]
    return tuple(items) if origin is tuple else items


def _is_pair(origin: Any, hints: tuple[Any, ...]) -> bool:
    """Whether a list has a fixed length, as tuple[float, float] has."""
    return origin is tuple and Ellipsis not in hints


def _expected(hint: Any) -> str:
    """A description of the values of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        *others, last = map(str, arguments)
        return f"{', '.join(others)} or {last}" if others else last
    if origin in _UNIONS:
        kinds = [_expected(each) for each in arguments if each is not types.NoneType]
        return " or ".join(dict.fromkeys(kinds))
    if origin in _LISTS and arguments:
        length = f" of {len(arguments)} values" if _is_pair(origin, arguments) else ""
        return f"a list{length}, each {_expected(arguments[0])}"
    name = getattr(hint, "__name__", hint)
    return _PLAIN[hint][1] if hint in _PLAIN else f"a value of type {name}"


def _literals(hint: Any) -> list[str]:
    """The strings that a hint names."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return [each for each in arguments if isinstance(each, str)]
    return [name for each in arguments for name in _literals(each)]


def signature(function: Callable[..., Any]) -> tuple[dict[str, Any], set[str], bool]:
    """Type hints of a function's named arguments, the required ones, and whether it has **kwargs.

    Hints that cannot be resolved check nothing.
    """
    hints: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        hints = typing.get_type_hints(function.__init__ if isinstance(function, type) else function)
    known, required, open_ended = {}, set(), False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            known[name] = hints.get(name, Any)
            if parameter.default is parameter.empty:
                required.add(name)
    return known, required, open_ended
