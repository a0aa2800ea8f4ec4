"""Recipes for data that are not known yet: values that depend on them are filled in later.

In the sections net and flow a value may be

    "data.K"         the number of bins or classes of a variable
    "data.length"    the number of variables of a sequence
    "data.channels"  the first axis of an example
    "suggested"      for sigma_1 or beta_1: what `bfn.suggest_sigma_1` or `bfn.suggest_beta_1` says

Where the data have labels and the recipe says nothing of them, `net.labels` is how many there are,
and `train.label_dropout` is 0.1, so that samples can be drawn without labels and guided by them.

The recipe in a run folder has numbers instead, the arguments that the data's source chose itself,
and whole paths, so that it works from every folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bfn import suggest
from bfn.data.base import DataSet
from bfn.errors import BFNError
from bfn.recipe import build
from bfn.recipe.recipe import PLACES, Recipe
from bfn.recipe.values import signature

FROM_DATA: dict[str, Callable[[DataSet], int | None]] = {
    "data.K": lambda data: data.K,
    "data.length": lambda data: data.shape[0],
    "data.channels": lambda data: data.shape[0],
}
SUGGESTED = "suggested"
LABEL_DROPOUT = 0.1
_SECTIONS = ("net", "flow")
SUGGESTIONS: dict[str, Callable[[int], float]] = {
    "beta_1": suggest.suggest_beta_1,
    "sigma_1": suggest.suggest_sigma_1,
}


def fitted(recipe: Recipe, data: DataSet) -> Recipe:
    """The recipe with every such value filled in."""
    replaced = {section: _table(section, getattr(recipe, section), data) for section in _SECTIONS}
    texts = {path: text for path, text in recipe.texts.items() if not is_open(recipe, path)}
    recipe = dataclasses.replace(recipe, texts=texts, **replaced)
    complete = build.settled(_with_labels(recipe, data))
    places = {key: _whole(complete.data[key]) for key in PLACES if key in complete.data}
    return dataclasses.replace(complete, data=complete.data | places | data.chosen)


def is_open(recipe: Recipe, name: str) -> bool:
    """Whether the value of section.key depends on the data."""
    section, _, key = name.partition(".")
    if name in ("net.labels", "train.label_dropout"):
        return name not in recipe.origin
    if section == "data":
        return key not in recipe.data
    return section in _SECTIONS and _is_open(getattr(recipe, section).get(key))


def _whole(place: str) -> str:
    """The whole path of what is there; anything else, such as an address, as it is."""
    path = Path(place).expanduser()
    return str(path.absolute()) if path.exists() else place


def _is_open(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_open, value.values()))
    return isinstance(value, str) and (value in FROM_DATA or value == SUGGESTED)


def _table(path: str, table: Mapping[str, Any], data: DataSet) -> dict[str, Any]:
    return {key: _value(f"{path}.{key}", key, value, data) for key, value in table.items()}


def _value(path: str, key: str, value: Any, data: DataSet) -> Any:
    if isinstance(value, Mapping):
        return _table(path, value, data)
    if not _is_open(value):
        return value
    if value == SUGGESTED and key not in SUGGESTIONS:
        raise BFNError(
            f"{path} = {value!r} cannot be suggested; expected a number, or this word for "
            f"{' or '.join(SUGGESTIONS)}"
        )
    number = FROM_DATA["data.K" if value == SUGGESTED else value](data)
    if number is None:
        raise BFNError(
            f"{path} = {value!r} needs data in bins or classes, but {data.name} is continuous; "
            "give data.bins a number, or choose another flow.kind"
        )
    return SUGGESTIONS[key](number) if value == SUGGESTED else number


def _with_labels(recipe: Recipe, data: DataSet) -> Recipe:
    """The recipe with the number of labels; refuses a number that does not fit the data."""
    given, count = recipe.net.get("labels"), data.label_count
    if isinstance(given, int) and given and count == 0:
        raise BFNError(
            f"net.labels = {given}, but {data.name} comes without labels; give --data.labels true "
            "if it has them, or leave net.labels out"
        )
    if isinstance(given, int) and given < count:
        raise BFNError(
            f"net.labels = {given}, but {data.name} has {count} labels; leave net.labels out, and "
            "it is filled in"
        )
    if not count or given is not None:
        return recipe
    known, *_ = signature(build.called(recipe, "net")[1])
    if "labels" not in known:
        return recipe  # a network of the user's own, which may do without the number
    train = recipe.train
    if "train.label_dropout" not in recipe.origin:
        train = dataclasses.replace(train, label_dropout=LABEL_DROPOUT)
    net = {**recipe.net, "labels": count}
    return dataclasses.replace(recipe, net=net, train=train, parameters=0)
