"""The keys of a recipe with their values and help texts, for --help.

Typed sections hold their own help texts. The keys of data, net and flow are the arguments of a
function or class, whose docstring explains them under `Args:`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bfn.data import SOURCES
from bfn.model import KINDS
from bfn.recipe import FREE, SECTIONS, SUGGESTED, Recipe, Section, build

_CHOICES = {
    "data": f"The source of the data: {', '.join(SOURCES)}, or a function",
    "net": "The network: bfn.nn:UNet, bfn.nn:VDMUNet, bfn.nn:Transformer, bfn.nn:MLP, or a class",
    "flow": f"The data type: {', '.join(KINDS)}, or a function",
}


@dataclass(frozen=True)
class Key:
    """A key as section.key, and its value as it would be typed; None if it is required."""

    name: str
    value: str | None
    meaning: str
    choices: tuple[str, ...] = ()


def keys(recipe: Recipe) -> dict[str, list[Key]]:
    """The keys of every section, with the recipe's values or else the defaults."""
    free = {section: _arguments(recipe, section) for section in FREE}
    return free | {name: _options(getattr(recipe, name)) for name in SECTIONS}


def _options(section: Section) -> list[Key]:
    hints = typing.get_type_hints(type(section))
    return [
        Key(
            f"{section.title()}.{each.name}",
            _shown(getattr(section, each.name)),
            each.metadata["meaning"],
            typing.get_args(hint) if typing.get_origin(hint) is Literal else (),
        )
        for each in dataclasses.fields(section)
        for hint in (hints[each.name],)
    ]


def _arguments(recipe: Recipe, section: str) -> list[Key]:
    chooser = f"{_CHOICES[section]} of your own, as package.module:name."
    table = getattr(recipe, section)
    if table.get(FREE[section]) == SUGGESTED:
        # The arguments are known only once the data have been read.
        open_ = "By default chosen to suit the data, with all of its arguments."
        meanings = {FREE[section]: f"{chooser} {open_}"}
        return [Key(f"{section}.{k}", _shown(v), meanings.get(k, "")) for k, v in table.items()]
    name, function, arguments = build.called(recipe, section)
    explained = explanations(function)
    listed = [Key(f"{section}.{FREE[section]}", name, chooser)]
    for key, each in inspect.signature(function).parameters.items():
        meaning = explained.get(key, "")
        if each.kind is each.VAR_KEYWORD:
            listed += [Key(f"{section}.{k}", _shown(v), meaning) for k, v in arguments.items()]
        elif (section, key) != ("flow", "net"):
            value = arguments.pop(key, each.default)
            shown = None if value is each.empty else _shown(value)
            listed.append(Key(f"{section}.{key}", shown, meaning))
    return listed


def explanations(function: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says about each argument under `Args:`, as sentences."""
    _, _, listed = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    entries = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", listed, re.M)
    return {
        name: " ".join((text[0].upper() + text[1:]).split())
        for names, text in entries
        for name in names.split(", ")
    }


def _shown(value: Any) -> str:
    """A value as it would be typed after its key."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_shown(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
