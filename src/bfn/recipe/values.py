"""Typed values from TOML files and command lines: strict, and wrong ones named in a sentence.

A file gives values that have a type already; a command line gives `Text`, which is read as whatever
the key's type asks for. Nothing is rounded or guessed: 1.5 is not a whole number.
"""

from __future__ import annotations

import collections.abc
import difflib
import inspect
import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union

from bfn.errors import BFNError


class Text(str):
    """A value as typed on a command line; its type is not known yet."""


class Mismatch(Exception):
    """A value is not of the expected type; the message says what was expected."""


def conform(value: Any, hint: Any) -> Any:
    """The value as the type `hint`, or `Mismatch`. Types it does not know are let through."""
    if isinstance(value, Text):
        return _conform_text(value, hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value in arguments:
            return value
        if "inf" in arguments and value == math.inf:  # TOML's own infinity
            return "inf"
        raise Mismatch(" or ".join(map(repr, arguments)) + _suggest(value, arguments))
    if origin in (Union, types.UnionType):
        return _conform_union(value, arguments)
    if origin in (tuple, list, collections.abc.Sequence):
        return _conform_items(value, origin, arguments)
    if hint is bool:
        return _require(isinstance(value, bool), value, "true or false")
    if hint is int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return _require(whole, value, "a whole number")
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_require(number, value, "a number"))
    if hint is str:
        return _require(isinstance(value, str), value, "a text in quotes")
    if hint is None or hint is type(None):
        return _require(value is None, value, "nothing")
    return value


def _require(condition: bool, value: Any, expected: str) -> Any:
    if not condition:
        raise Mismatch(expected)
    return value


def _conform_union(value: Any, hints: tuple[Any, ...]) -> Any:
    expected = []
    for hint in hints:
        try:
            return conform(value, hint)
        except Mismatch as mismatch:
            if hint is not type(None):
                expected.append(str(mismatch))
    raise Mismatch(" or ".join(dict.fromkeys(expected)))


def _conform_items(value: Any, origin: Any, hints: tuple[Any, ...]) -> Any:
    one_type = origin is not tuple or (len(hints) == 2 and hints[1] is Ellipsis)
    if not isinstance(value, list | tuple):
        several = "" if one_type else f" of {len(hints)} values"
        raise Mismatch(f"a list{several}, each {_expected(hints[0])}" if hints else "a list")
    kinds = (hints[0],) * len(value) if one_type and hints else hints
    if not hints:
        return list(value)
    if len(kinds) != len(value):
        raise Mismatch(f"a list of {len(kinds)} values")
    try:
        items = [conform(item, kind) for item, kind in zip(value, kinds, strict=True)]
    except Mismatch as mismatch:
        raise Mismatch(f"a list, each {mismatch}") from None
    return tuple(items) if origin is tuple else items


def _expected(hint: Any) -> str:
    """What a value of this type would have to be."""
    try:
        conform(object(), hint)
    except Mismatch as mismatch:
        return str(mismatch)
    return "of any kind"


def _conform_text(text: Text, hint: Any) -> Any:
    """Read as a TOML value where that fits, as a list without its brackets, or as it stands."""
    failures = []
    for candidate in _readings(text):
        try:
            return conform(candidate, hint)
        except Mismatch as mismatch:
            failures.append(mismatch)
    raise failures[0]


def _readings(text: str) -> Iterable[Any]:
    for form in (text, f"[{text}]"):
        try:
            yield tomllib.loads(f"value = {form}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    if "," in text:
        yield [next(iter(_readings(item)), item) for item in text.split(",")]
    yield str(text)


def plain(text: Text) -> Any:
    """A command-line value of unknown type: a TOML value if it reads as one, or else a string."""
    return next(iter(_readings(text)))


def nearest(name: str, known: Iterable[str], prefix: str = "", suffix: str = "") -> str:
    """ "; did you mean 'prefix.x.suffix'?" or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {prefix + near[0] + suffix!r}?" if near else ""


def _suggest(value: Any, known: Iterable[Any]) -> str:
    return (
        nearest(value, [k for k in known if isinstance(k, str)]) if isinstance(value, str) else ""
    )


def signature(function: Callable[..., Any]) -> tuple[dict[str, Any], set[str], bool]:
    """What a function can be told by name: hints of its parameters, those it needs, any others?"""
    target = function.__init__ if isinstance(function, type) else function
    try:
        hints = typing.get_type_hints(target)
    except Exception:
        hints = {}  # hints that cannot be resolved check nothing
    known, needed, others = {}, set(), False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            others = True
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            known[name] = hints.get(name, Any)
            if parameter.default is parameter.empty:
                needed.add(name)
    return known, needed, others


def to_toml(document: Mapping[str, Any]) -> str:
    """A document of tables of plain values, as TOML."""
    return "\n".join(_table(document, ())).strip() + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[str]:
    if path:
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _table(value, (*path, key))


def _key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isinf(value) or math.isnan(value):
            return str(value)
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise BFNError(f"{value!r} cannot be written to a recipe; expected numbers, texts and lists")
