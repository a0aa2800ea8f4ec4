"""Build a recipe's data set and model. Nothing here depends on the data type."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from bfn import data as data_sets
from bfn import noise
from bfn.data.base import DataSet
from bfn.errors import BFNError, did_you_mean, import_name
from bfn.model import BFN, KINDS
from bfn.recipe.recipe import FREE, SUGGESTED, Recipe
from bfn.recipe.sections import COMMAND_LINE, SECTIONS
from bfn.recipe.values import signature, typed
from bfn.saving import serialise


def settled(recipe: Recipe) -> Recipe:
    """The recipe with the command line's values in the types that they are used in.

    Only what a section names knows that 2024 is a folder, and that "a,b" is no list.
    """
    sections = {section: dict(getattr(recipe, section)) for section in FREE}
    for path, text in recipe.texts.items():
        section, _, key = path.partition(".")
        if section not in FREE or sections[section].get(FREE[section]) == SUGGESTED:
            continue  # what is left to the data knows the types itself
        hints, *_ = signature(called(recipe, section)[1])
        if key in hints:
            value = typed(path, text, hints[key], COMMAND_LINE)
            sections[section][key] = list(value) if isinstance(value, tuple) else value
    return dataclasses.replace(recipe, **sections)


def takes(recipe: Recipe, section: str, key: str) -> bool:
    """Whether what a section names has such an argument."""
    return key in signature(called(recipe, section)[1])[0]


def data(recipe: Recipe) -> DataSet:
    """The recipe's data set."""
    name, function, arguments = called(recipe, "data")
    return function(**_checked(recipe, "data", name, function, arguments))


def model(recipe: Recipe) -> BFN:
    """The recipe's model, untrained; its weights follow from train.seed alone."""
    return around(recipe, network)


def around(recipe: Recipe, network: Callable[[Recipe], nn.Module]) -> BFN:
    """The recipe's flow and head around any network."""
    kind, factory, flow = called(recipe, "flow")
    flow = _checked(recipe, "flow", kind, factory, flow, given=("net",))
    flow = {key: _construct(recipe, f"flow.{key}", value) for key, value in flow.items()}
    net = network(recipe)
    try:
        return factory(net, **flow)
    except TypeError as error:
        # Only the head knows which further keys it takes.
        unknown = re.search(r"argument '(\w+)'", str(error))
        key = unknown[1] if unknown else ""
        hint = did_you_mean(key, signature(factory)[0])
        where = recipe.origin.get(f"flow.{key}", "")
        raise BFNError(
            f"unknown key flow.{key}{where}: {kind} data take no such argument{hint}"
        ) from None


def network(recipe: Recipe) -> nn.Module:
    name, cls, arguments = called(recipe, "net")
    arguments = _checked(recipe, "net", name, cls, arguments)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(noise.seed(recipe.train.seed, "weights"))
        try:
            return cls(**arguments)
        except BFNError as error:
            key = str(error).partition(" ")[0]
            raise BFNError(f"{'net.' if key in signature(cls)[0] else ''}{error}") from None
        except (TypeError, ValueError, RuntimeError) as error:
            raise BFNError(f"the network {name} cannot be built: {error}") from error


def called(recipe: Recipe, section: str) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    """The function or class that a section names, and its arguments."""
    recipe.check_trust()  # the whole of it, before anything is imported
    arguments = dict(getattr(recipe, section))
    chooser = FREE[section]
    if chooser not in arguments:
        raise BFNError(
            f"the recipe {recipe.name!r} has no {section}.{chooser}; it must say which "
            f"{section} to use"
        )
    name = typed(f"{section}.{chooser}", arguments.pop(chooser), str)
    if section == "data":
        return name, data_sets.source(name, trust=True), arguments
    if section == "net":
        cls = serialise.find_class(name, trust=True)
        if not issubclass(cls, nn.Module):
            raise BFNError(f"net.class = {name!r} is not a torch.nn.Module")
        return name, cls, arguments
    factory = import_name(name, trust=True) if ":" in name else KINDS.get(name)
    if factory is None:
        hint = did_you_mean(name, KINDS) or f"; expected {', '.join(KINDS)}"
        raise BFNError(f"unknown flow.kind {name!r}{recipe.origin.get('flow.kind', '')}{hint}")
    return name, factory, arguments


def _checked(
    recipe: Recipe,
    section: str,
    name: str,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    given: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The arguments converted to their types; refuses the first that does not fit."""
    known, required, open_ended = signature(function)
    known = {key: hint for key, hint in known.items() if key not in given}
    result = {}
    for key, value in arguments.items():
        where = recipe.origin.get(f"{section}.{key}", "")
        if key not in known and not open_ended:
            expected = f"; expected {', '.join(known) or 'none'}"
            if (section, key) == ("data", "path"):
                expected = "; for data of your own use bfn train images, text or array"
            for title, other in reversed(SECTIONS.items()):
                if hasattr(other, key):
                    expected = f"; did you mean '{title}.{key}'?"
            hint = did_you_mean(key, known) or expected
            raise BFNError(
                f"unknown key {section}.{key}{where}: {name} takes no such argument{hint}"
            )
        value = recipe.texts.get(f"{section}.{key}", value)
        result[key] = typed(f"{section}.{key}", value, known.get(key, Any), where)
    for key in sorted(required - set(given) - set(arguments)):
        raise BFNError(
            f"{section}.{key} is missing: {name} needs it; give --{section}.{key}, or add it to "
            "the recipe"
        )
    return result


def _construct(recipe: Recipe, key: str, value: Any) -> Any:
    """Every table with a `class`, also inside of others, as an object; lists as tuples."""
    if not isinstance(value, Mapping):
        return tuple(value) if isinstance(value, list) else value
    arguments = {name: _construct(recipe, f"{key}.{name}", each) for name, each in value.items()}
    if "class" not in arguments:
        return arguments
    try:
        cls = serialise.find_class(str(arguments.pop("class")), trust=True)
        return cls(**arguments)
    except TypeError as error:
        raise BFNError(
            f"{key} = {dict(value)}{recipe.origin.get(key, '')} does not describe an object "
            f"({error}); expected a table with its class and the class's arguments"
        ) from None
