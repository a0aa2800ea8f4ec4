"""Recipes: a TOML file with the sections data, net, flow, train, eval and sample.

    [data]   source = "digits"        and the source's own arguments
    [net]    class = "bfn.nn:UNet"    and the constructor's arguments
    [flow]   kind = "discretised"     and the arguments of bfn.discretised
    [train]  [eval]  [sample]         the dataclasses of `bfn.recipe.sections`
    [published]                       published results, to compare with

The first key of data, net and flow names a function or class (a shipped one, or
"package.module:name"); the section's other keys are its arguments, checked against its signature
when it is called. Overriding that first key drops the arguments meant for the old one.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bfn.errors import BFNError, did_you_mean, is_ours, require_trust
from bfn.recipe import shipped
from bfn.recipe.sections import COMMAND_LINE, SECTIONS, Eval, Published, Sample, Train
from bfn.recipe.values import Text, plain, typed

FREE = {"data": "source", "net": "class", "flow": "kind"}
"""Sections of free arguments, and the key that says whose arguments they are."""

SUGGESTED = "suggested"
"""A value that is filled in to suit the data: see `bfn.recipe.fitted`."""

PLACES = ("dir", "path")
"""Keys of [data] that say where files are on this machine."""

FORGIVING = ("skip_corrupt", "unknown")
"""Keys of [data] that say what to do with what does not fit."""

_TABLES = (*FREE, *SECTIONS)
_TOP: dict[str, type] = {"name": str, "description": str, "parameters": int}


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `origin` says where each key was given, for error messages."""

    name: str
    description: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    net: dict[str, Any] = field(default_factory=dict)
    flow: dict[str, Any] = field(default_factory=dict)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    sample: Sample = field(default_factory=Sample)
    parameters: int = 0
    """Parameters of the network, if the recipe alone decides them, or else 0."""
    published: Published = field(default_factory=Published)
    origin: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    texts: Mapping[str, Text] = field(default_factory=dict, compare=False, repr=False)
    """Arguments in data, net and flow as the command line has them; `build.settled` types them."""
    trust: bool = field(default=False, compare=False, repr=False)
    """Whether code that is not part of bfn may be run because the recipe names it."""

    def document(self) -> dict[str, Any]:
        """Every key with its value: sections of plain values."""
        document = dataclasses.asdict(self)
        del document["origin"], document["texts"], document["trust"]
        if not self.parameters:
            del document["parameters"]
        if self.published == Published():
            del document["published"]
        return document

    def code(self) -> dict[str, str]:
        """The names of code that is not part of bfn, by their keys."""
        # Sources and kinds are called with arguments: not even bfn's other functions are safe.
        called = {"data.source": self.data.get("source"), "flow.kind": self.flow.get("kind")}
        classes = {"net.class": self.net.get("class")}
        if classes["net.class"] == SUGGESTED:
            classes.clear()
        for key, value in self.flow.items():
            if isinstance(value, Mapping):
                classes[f"flow.{key}.class"] = value.get("class")
        found = {key: name for key, name in called.items() if ":" in str(name)}
        found |= {key: name for key, name in classes.items() if name and not is_ours(name)}
        return {key: name for key, name in found.items() if isinstance(name, str)}

    def check_trust(self) -> None:
        """Refuse to run code that a recipe names, unless it is trusted or the user typed it."""
        for key, name in self.code().items():
            require_trust(name, self.trust or self.origin.get(key) == COMMAND_LINE)

    def differences(self, other: Recipe) -> list[str]:
        """The keys, as section.key, whose values differ."""
        mine, theirs = self.document(), other.document()
        return [
            f"{section}.{key}"
            for section in _TABLES
            for key in {**mine[section], **theirs[section]}
            if mine[section].get(key) != theirs[section].get(key)
        ]

    def without_places(self) -> Recipe:
        """For others: without the paths of files on this machine."""
        data = {key: value for key, value in self.data.items() if key not in PLACES}
        return dataclasses.replace(self, data=data)

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(self.document())


def read(
    recipe: str | Path, overrides: Mapping[str, Any] | None = None, *, trust: bool = False
) -> Recipe:
    """The recipe of a shipped name or a path, with overrides such as {"train.steps": 500}.

    Code that the file names is run only with `trust`; what the overrides name is the caller's own.
    """
    path = shipped.find(recipe)
    try:
        document = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BFNError(f"{str(path)!r} is not valid TOML: {error}") from None
    except OSError as error:
        raise BFNError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    return resolve(document, overrides or {}, name=path.stem, source=f" in {path}", trust=trust)


def resolve(
    document: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    name: str,
    source: str = "",
    trust: bool = False,
) -> Recipe:
    """A recipe from the tables of a document; `source` is named in error messages."""
    sections: dict[str, dict[str, Any]] = {key: {} for key in _TABLES}
    top: dict[str, Any] = {"name": name}
    origin: dict[str, str] = {}
    for key, value in document.items():
        if key in _TOP:
            top[key] = typed(key, value, _TOP[key], source)
        elif key not in (*sections, "published"):
            known = [*sections, "published", *_TOP]
            hint = did_you_mean(key, known) or f"; expected {', '.join(known)}"
            raise BFNError(f"unknown section {key}{source}{hint}")
        elif not isinstance(value, Mapping):
            raise BFNError(
                f"{key} = {value!r}{source} is not a section; write [{key}] above its keys"
            )
        elif key == "published":
            top[key] = Published.read(value, {f"{key}.{k}": source for k in value})
        else:
            sections[key].update(value)
            origin.update({f"{key}.{k}": source for k in value})
    if top["name"] in ("", "..") or Path(top["name"]).name != top["name"]:
        raise BFNError(
            f"name = {top['name']!r}{source} is not a valid run name; use one path component"
        )
    # What the recipe says about its network or its data does not hold for other ones.
    if any(key.startswith("net.") for key in overrides):
        top.pop("parameters", None)
    if any(key.startswith("data.") and key != "data.dir" for key in overrides):
        top.pop("published", None)
        top.pop("description", None)
    _override(sections, origin, overrides)
    typed_sections = {key: cls.read(sections[key], origin) for key, cls in SECTIONS.items()}
    free = {key: sections[key] for key in FREE}
    texts = {key: text for key, text in overrides.items() if isinstance(text, Text)}
    return Recipe(**top, **free, **typed_sections, origin=origin, texts=texts, trust=trust)  # pyright: ignore[reportArgumentType]


def _override(
    sections: dict[str, dict[str, Any]], origin: dict[str, str], overrides: Mapping[str, Any]
) -> None:
    for name in overrides:
        section, dot, key = name.partition(".")
        if not dot or section not in sections:
            names = [f"{each}.{key}" for each in sections]
            hint = did_you_mean(name, names) if dot else ""
            expected = f"; expected section.key with a section of {', '.join(sections)}"
            raise BFNError(f"unknown key {name!r}{COMMAND_LINE}{hint or expected}")
        own = SECTIONS.get(section)
        if own and not hasattr(own, key):
            for other, table in sections.items():
                if key in table or hasattr(SECTIONS.get(other), key):
                    raise BFNError(
                        f"unknown key {name}{COMMAND_LINE}; did you mean {f'{other}.{key}'!r}?"
                    )
    for section, chooser in FREE.items():
        chosen = overrides.get(f"{section}.{chooser}")
        if chosen is not None and chosen != sections[section].get(chooser):
            sections[section].clear()
    for name, value in overrides.items():
        # A name with a dot in it is in quotes, as in TOML.
        section, *path, last = (part.strip('"') for part in re.findall(r'"[^"]+"|[^."]+', name))
        table = sections[section]
        for step in path:
            inner = table.get(step, {})
            if not isinstance(inner, Mapping):
                raise BFNError(
                    f"unknown key {name}{COMMAND_LINE}: {section}.{step} = {inner!r} has no keys "
                    "of its own"
                )
            table[step] = dict(inner)
            table = table[step]
        if section in FREE and isinstance(value, Text):
            # The type is known only when the section's function is called.
            value = str(value) if last == FREE[section] and not path else plain(value)
        table[last] = value
        origin[name] = COMMAND_LINE
