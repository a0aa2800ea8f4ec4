"""Build a recipe's data set and model, and fill in what depends on the data.

In the sections net and flow, a value may depend on the data:

    "data.K"         the number of bins or classes of a variable
    "data.length"    the number of variables of a sequence
    "data.channels"  the first axis of an example
    "suggested"      for sigma_1 or beta_1: `bfn.suggest_sigma_1` or `bfn.suggest_beta_1`;
                     for net.inputs: how many numbers the flow's head shows the network;
                     for flow.kind: the type of the data; for net.class: a network for their shape.
                     Either comes with all of its arguments, unless the recipe gives them.

If the data have labels that the recipe does not mention, `net.labels` is their number and
`train.label_dropout` is 0.1, so that samples can be drawn without labels and guided by them. With
`train.known`, `net.known` is true unless the recipe says otherwise.

The recipe in a run folder has numbers instead, the arguments that the data source chose, and
absolute paths, so that it works from any folder.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bfn import data as data_sets
from bfn import noise, saving
from bfn.data.base import DataSet
from bfn.errors import BFNError, did_you_mean, import_name, suggestion
from bfn.model import BFN, KINDS
from bfn.recipe import COMMAND_LINE, FREE, PLACES, SECTIONS, SUGGESTED, Recipe
from bfn.recipe.suggest import suggest_beta_1, suggest_sigma_1
from bfn.recipe.values import signature, typed

FROM_DATA: dict[str, Callable[[DataSet], int | None]] = {
    "data.K": lambda data: data.K,
    "data.length": lambda data: data.shape[0],
    "data.channels": lambda data: data.shape[0],
}
LABEL_DROPOUT = 0.1
_OPEN_SECTIONS = ("net", "flow")
SUGGESTIONS: dict[str, Callable[[int], float]] = {
    "beta_1": suggest_beta_1,
    "sigma_1": suggest_sigma_1,
}


def settled(recipe: Recipe) -> Recipe:
    """The recipe with the command line's values converted to their types.

    Only the function or class that a section names knows whether 2024 is a folder or a number.
    """
    sections = {section: dict(getattr(recipe, section)) for section in FREE}
    for path, text in recipe.texts.items():
        section, _, key = path.partition(".")
        if section not in FREE or sections[section].get(FREE[section]) == SUGGESTED:
            continue  # whatever fills in the value knows its types
        hints, *_ = signature(called(recipe, section)[1])
        if key in hints:
            value = typed(path, text, hints[key], COMMAND_LINE)
            sections[section][key] = list(value) if isinstance(value, tuple) else value
    return dataclasses.replace(recipe, **sections)


def takes(recipe: Recipe, section: str, key: str) -> bool:
    """Whether the function or class that a section names has this argument."""
    return key in signature(called(recipe, section)[1])[0]


def data(recipe: Recipe) -> DataSet:
    """The recipe's data set."""
    name, function, arguments = called(recipe, "data")
    return function(**_checked(recipe, "data", name, function, arguments))


def model(recipe: Recipe) -> BFN:
    """The recipe's model, untrained; its weights depend only on train.seed."""
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
        # Only the head knows its further keys.
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
    recipe.check_trust()  # of all sections, before anything is imported
    arguments = dict(getattr(recipe, section))
    chooser = FREE[section]
    if chooser not in arguments:
        raise BFNError(
            f"the recipe {recipe.name!r} has no {section}.{chooser}; add one to say which "
            f"{section} to use"
        )
    name = typed(f"{section}.{chooser}", arguments.pop(chooser), str)
    if section == "data":
        return name, data_sets.source(name, trust=True), arguments
    if section == "net":
        cls = saving.find_class(name, trust=True)
        if not issubclass(cls, nn.Module):
            raise BFNError(f"net.class = {name!r} is not a torch.nn.Module")
        return name, cls, arguments
    factory = import_name(name, trust=True) if ":" in name else KINDS.get(name)
    if factory is None:
        where = recipe.origin.get("flow.kind", "")
        raise BFNError(f"unknown flow.kind {name!r}{where}{suggestion(name, KINDS)}")
    return name, factory, arguments


def _checked(
    recipe: Recipe,
    section: str,
    name: str,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    given: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The arguments converted to their types; refuses unknown, missing and invalid ones."""
    known, required, open_ended = signature(function)
    known = {key: hint for key, hint in known.items() if key not in given}
    result = {}
    for key, value in arguments.items():
        where = recipe.origin.get(f"{section}.{key}", "")
        if key not in known and not open_ended:
            expected = f"; expected {', '.join(known) or 'none'}"
            if (section, key) == ("data", "path"):
                expected = "; for your own data use bfn train images, text or array"
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
    """Turn every table with a `class`, nested ones too, into an object, and lists into tuples."""
    if not isinstance(value, Mapping):
        return tuple(value) if isinstance(value, list) else value
    arguments = {name: _construct(recipe, f"{key}.{name}", each) for name, each in value.items()}
    if "class" not in arguments:
        return arguments
    try:
        cls = saving.find_class(str(arguments.pop("class")), trust=True)
        return cls(**arguments)
    except TypeError as error:
        raise BFNError(
            f"{key} = {dict(value)}{recipe.origin.get(key, '')} does not describe an object "
            f"({error}); expected a table with its class and the class's arguments"
        ) from None


# Values that depend on the data.


def fitted(recipe: Recipe, data: DataSet) -> Recipe:
    """The recipe with every value that depends on the data filled in."""
    if data.format.form.kind == "table":
        return _placed(recipe, data)  # the data provide the model
    texts = {path: text for path, text in recipe.texts.items() if not is_open(recipe, path)}
    flow = _table("flow", _suggested_flow(recipe.flow, data), data)
    recipe = dataclasses.replace(recipe, texts=texts, flow=flow)
    _check_kind(recipe, data)
    _check_K(recipe, data)
    net = _table("net", _with_inputs(_suggested_network(recipe, data), recipe, data), data)
    recipe = dataclasses.replace(recipe, net=net)
    return _placed(settled(_with_known(_with_labels(recipe, data))), data)


def _placed(complete: Recipe, data: DataSet) -> Recipe:
    """The recipe with absolute paths and the arguments that the data source chose."""
    places = {key: _absolute(complete.data[key]) for key in PLACES if key in complete.data}
    # A user's own source may leave choices to `bfn.data.from_arrays`, and not take these keys.
    chosen = {k: v for k, v in data.chosen.items() if takes(complete, "data", k)}
    return dataclasses.replace(complete, data=complete.data | places | chosen)


def is_open(recipe: Recipe, name: str) -> bool:
    """Whether the value of section.key depends on the data."""
    section, _, key = name.partition(".")
    if name in ("net.labels", "net.known", "train.label_dropout"):
        return name not in recipe.origin
    if section == "data":
        return key not in recipe.data
    if section not in _OPEN_SECTIONS:
        return False
    table = getattr(recipe, section)
    return _is_open(table.get(key)) or (table.get(FREE[section]) == SUGGESTED and key not in table)


def _absolute(place: str) -> str:
    """The absolute path of an existing file; anything else, such as a URL, unchanged."""
    path = Path(place).expanduser()
    return str(path.absolute()) if path.exists() else place


def _is_open(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_open, value.values()))
    return isinstance(value, str) and (value in FROM_DATA or value == SUGGESTED)


def _continuous(sigma_1: float = 0.01, **given: Any) -> dict[str, Any]:
    # L^r in 256 bins, as in a byte; a Gaussian of deviation sigma_1 is left at t = 1.
    bins = {"class": "bfn:Bins", "K": 256, "sigma": sigma_1}
    return {"sigma_1": sigma_1, "reconstruction": bins, **given}


FLOWS: dict[str, Callable[..., dict[str, Any]]] = {
    "continuous": _continuous,
    "discretised": lambda **given: {"K": "data.K", "sigma_1": SUGGESTED, **given},
    "discrete": lambda **given: {"K": "data.K", "beta_1": SUGGESTED, **given},
}
"""The arguments suggested for each kind of flow, given some."""


def _suggested_flow(flow: dict[str, Any], data: DataSet) -> dict[str, Any]:
    if flow.get("kind") != SUGGESTED:
        return flow
    kind = data.format.form.kind
    if kind not in FLOWS:
        raise BFNError(f"no flow can be suggested for {kind} data; name one with --flow.kind")
    return {"kind": kind, **FLOWS[kind](**{k: v for k, v in flow.items() if k != "kind"})}


def _suggested_network(recipe: Recipe, data: DataSet) -> dict[str, Any]:
    if recipe.net.get("class") != SUGGESTED:
        return recipe.net
    model, inputs = _without_network(recipe, data)
    numbers = {"inputs": inputs, "outputs": model.head.parameters}
    arguments = {key: value for key, value in recipe.net.items() if key != "class"}
    sequences = {"class": "bfn.nn:Transformer", "width": 256, "layers": 6, "heads": 8}
    match data.shape:
        case (variables,) if inputs == 1:
            net = {"class": "bfn.nn:MLP", "variables": variables, "width": 256, "layers": 4}
        case (length,):
            net = {**sequences, "length": length, "dropout": 0.1}
        case (length, channels):
            net = {**sequences, "length": length, "channels": channels, "dropout": 0.1}
        case (channels, height, width):
            net = {"class": "bfn.nn:UNet", "channels": channels, "width": 64, "blocks": 2}
            net |= {"multipliers": _multipliers(height, width), "dropout": 0.1}
        case shape:
            raise BFNError(
                f"{data.name} has examples of shape {shape}, for which bfn has no network; flatten "
                "them, or give your own network with --net.class"
            )
    return net | numbers | arguments


def _with_inputs(net: dict[str, Any], recipe: Recipe, data: DataSet) -> dict[str, Any]:
    if net.get("inputs") != SUGGESTED:
        return net
    return {**net, "inputs": _without_network(recipe, data)[1]}


def _without_network(recipe: Recipe, data: DataSet) -> tuple[BFN, int]:
    """The recipe's flow and head, and how many numbers per variable a network sees."""
    model = around(recipe, lambda _: nn.Identity())
    features = model.head.features(model.flow, model.flow.prior((1, *data.shape)))
    return model, features.shape[-1] if features.dim() > 1 + len(data.shape) else 1


def _multipliers(height: int, width: int) -> list[int]:
    """A U-Net's levels: sides are halved while even and at least 8, up to 4 times."""
    multipliers = [1]
    while not (height % 2 or width % 2) and min(height, width) >= 8 and len(multipliers) < 5:
        height, width = height // 2, width // 2
        multipliers.append(2)
    return multipliers


def _check_kind(recipe: Recipe, data: DataSet) -> None:
    """Refuse classes in a flow for real numbers, and vice versa."""
    kind, needed = recipe.flow.get("kind"), data.format.form.kind
    if kind in FLOWS and kind != needed and "discrete" in (kind, needed):
        raise BFNError(
            f"flow.kind = {kind!r}{recipe.origin.get('flow.kind', '')} does not fit {data.name}, "
            f"whose values are {needed}; give another data.form, or --flow.kind suggested and "
            "--net.class suggested"
        )


def _check_K(recipe: Recipe, data: DataSet) -> None:
    """Refuse a number of bins or classes that the data do not have."""
    K = recipe.flow.get("K")
    if recipe.flow.get("kind") not in FLOWS or not isinstance(K, int) or K == data.K:
        return  # K may mean something else to a user's own flow
    has = "no bins or classes" if data.K is None else f"{data.K} bins or classes"
    where = recipe.origin.get("flow.K", "")
    ways = [f"--flow.K {data.K}"] * (data.K is not None)
    ways += [f"--data.bins {K}"] * takes(recipe, "data", "bins")
    raise BFNError(
        f"flow.K = {K}{where} does not fit {data.name}, which has {has}; give "
        f"{' or '.join(ways) or 'another flow.kind'}"
    )


def _table(path: str, table: Mapping[str, Any], data: DataSet) -> dict[str, Any]:
    return {key: _value(f"{path}.{key}", key, value, data) for key, value in table.items()}


def _value(path: str, key: str, value: Any, data: DataSet) -> Any:
    if isinstance(value, Mapping):
        return _table(path, value, data)
    if not _is_open(value):
        return value
    if value == SUGGESTED and key not in SUGGESTIONS:
        raise BFNError(
            f"{path} = {value!r} is not possible here; expected a number (only "
            f"{', '.join(SUGGESTIONS)} and net.inputs can be suggested)"
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
    labels, count = recipe.net.get("labels"), data.label_count
    if isinstance(labels, int) and labels and count == 0:
        raise BFNError(
            f"net.labels = {labels}, but {data.name} was loaded without labels; give --data.labels "
            "true if it has them, or leave net.labels out"
        )
    if isinstance(labels, int) and labels < count:
        raise BFNError(
            f"net.labels = {labels}, but {data.name} has {count} labels; leave net.labels out to "
            "have it filled in"
        )
    # A user's own network may not need the number.
    if not count or labels is not None or not takes(recipe, "net", "labels"):
        return recipe
    train = recipe.train
    if "train.label_dropout" not in recipe.origin:
        train = dataclasses.replace(train, label_dropout=LABEL_DROPOUT)
    net = {**recipe.net, "labels": count}
    return dataclasses.replace(recipe, net=net, train=train)


def _with_known(recipe: Recipe) -> Recipe:
    """With train.known, the recipe with a network that takes a mask of the known variables."""
    if not recipe.train.known or "known" in recipe.net or not takes(recipe, "net", "known"):
        return recipe
    return dataclasses.replace(recipe, net={**recipe.net, "known": True})
