"""Recipes: a TOML file with the sections data, net, flow, train, eval and sample.

    [data]   source = "digits"        and the source's own arguments
    [net]    class = "bfn.nn:UNet"    and the constructor's arguments
    [flow]   kind = "discretised"     and the arguments of bfn.discretised
    [train]  [eval]  [sample]         the dataclasses below
    [published]                       results to be shown beside one's own

The first key of data, net and flow names a function or class (a shipped one, or
"package.module:name"); the section's other keys are its arguments, checked against its signature
when it is called. Overriding that first key drops the arguments meant for the old one.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from bfn.errors import BFNError
from bfn.recipe import shipped as recipes
from bfn.recipe import values
from bfn.recipe.values import Mismatch, Text

FREE = {"data": "source", "net": "class", "flow": "kind"}
"""Sections of free arguments, and the key that says whose arguments they are."""

PLACES = ("dir", "path")
"""Keys of [data] that say where files lie on one's own machine."""


def option(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    infinite: bool = False,
):
    """A dataclass field with its meaning (for --help) and its bounds."""
    bounds = {"least": least, "above": above, "most": most, "infinite": infinite}
    return field(default=default, metadata={"meaning": meaning, **bounds})


class Section:
    """Typed keys with bounds."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            self.check(each.name, getattr(self, each.name), "")

    @classmethod
    def title(cls) -> str:
        return cls.__name__.lower()

    @classmethod
    def check(cls, name: str, value: Any, where: str) -> None:
        metadata = cls.__dataclass_fields__[name].metadata  # pyright: ignore[reportAttributeAccessIssue]
        least, above, most = (metadata[bound] for bound in ("least", "above", "most"))
        for item in value if isinstance(value, tuple) else (value,):
            given = f"{cls.title()}.{name} = {item}{where}"
            if isinstance(item, float) and math.isnan(item):
                raise BFNError(f"{given} is not a number; expected one")
            if least is not None and not item >= least:
                raise BFNError(f"{given} is too small; expected {least} or more")
            if above is not None and not item > above:
                raise BFNError(f"{given} is too small; expected more than {above}")
            if most is not None and not item <= most:
                raise BFNError(f"{given} is too large; expected {most} or less")
            if isinstance(item, float) and not (metadata["infinite"] or math.isfinite(item)):
                raise BFNError(f"{given} is too large; expected a finite number")

    @classmethod
    def read(cls, given: Mapping[str, Any], origin: Mapping[str, str]) -> Self:
        hints = typing.get_type_hints(cls)
        arguments = {}
        for key, value in given.items():
            name = f"{cls.title()}.{key}"
            where = origin.get(name, "")
            if key not in hints:
                raise BFNError(f"unknown key {name}{where}{_nearest(name, cls, hints)}")
            arguments[key] = typed(name, value, hints[key], where)
            cls.check(key, arguments[key], where)
        return cls(**arguments)

    def updated(self, given: Mapping[str, Any]) -> Self:
        """The section with some keys given anew on a command line, as its options."""
        origin = {f"{self.title()}.{key}": " on the command line" for key in given}
        mine = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # pyright: ignore[reportArgumentType]
        return self.read({**mine, **given}, origin)


def _nearest(name: str, cls: type[Section], keys: typing.Iterable[str]) -> str:
    keys = list(keys)
    hint = values.nearest(name.rpartition(".")[2], keys, f"{cls.title()}.")
    return hint or f"; expected one of {', '.join(keys)}"


def typed(name: str, value: Any, hint: Any, where: str = "") -> Any:
    try:
        return values.conform(value, hint)
    except Mismatch as mismatch:
        raise BFNError(f"{name} = {value!r}{where} is not right; expected {mismatch}") from None


Steps = int | Literal["inf"]


@dataclass(frozen=True)
class Train(Section):
    """How to train."""

    steps: int = option(1000, "optimiser steps", least=1)
    batch: int = option(64, "examples per step, of all processes together", least=1, most=10**7)
    accumulate: int = option(
        1, "parts into which a step's batch is cut, one after another, to save memory", least=1
    )
    loss_steps: Steps = option("inf", "train on L^n for this n; inf for L^inf")  # noqa: RUF009
    times: Literal["stratified", "independent", "importance"] = option(
        "stratified", "how a batch's times are drawn; importance learns where the loss is"
    )
    learning_rate: float = option(1e-3, "of AdamW, at its highest", above=0)
    betas: tuple[float, float] = option((0.9, 0.99), "of AdamW", least=0)
    weight_decay: float = option(0.01, "of AdamW, on weights of two or more axes", least=0)
    warmup: int = option(0, "steps over which the learning rate rises from 0", least=0)
    decay: float = option(0.0, "last share of the steps, over which it falls to 0", least=0, most=1)
    clip: float = option(
        5.0, "largest gradient norm (of nats per variable); inf for none", above=0, infinite=True
    )
    label_dropout: float = option(
        0.0,
        "probability with which a label is hidden, for guidance without a classifier",
        least=0,
        most=1,
    )
    ema_decay: float = option(0.9999, "of the weights' moving average, once warm", least=0)
    seed: int = option(0, "of initial weights, order of the data, times and noise")
    init: str = option("", "start with the weights of this run or model; empty for fresh ones")
    log_every: int = option(50, "steps per line of metrics.jsonl", least=1)
    checkpoint_every: int = option(500, "steps per checkpoint", least=1)
    keep: int = option(2, "checkpoints to keep, beside the best", least=1)
    validate_every: int = option(0, "steps per look at the validation split; 0 for none", least=0)
    validate_examples: int = option(1000, "examples of it to look at; 0 for all", least=0)
    patience: int = option(
        0, "looks without a better result after which training ends; 0 for never", least=0
    )
    sample_every: int = option(0, "steps per sheet of samples; 0 for none", least=0)
    device: str = option("auto", "cpu, cuda, ...; auto is cuda where there is one")
    data_memory: Literal["auto", "device", "host"] = option(
        "auto", "where the data lie; auto is the host if they take much of a GPU's memory"
    )
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "of products and convolutions; auto is bfloat16 on a GPU"
    )
    compile: Literal["auto", "yes", "no"] = option(
        "auto", "compile the network; auto does on a GPU"
    )
    sharding: Literal["none", "full"] = option(
        "none", "of several processes: full spreads the weights over them (FSDP)"
    )
    tensorboard: bool = option(False, "also write the metrics for TensorBoard")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.loss_steps, int) and self.loss_steps < 1:
            raise BFNError(f"train.loss_steps = {self.loss_steps}; expected 1 or more, or inf")
        for name, share in (("ema_decay", self.ema_decay), ("betas", max(self.betas))):
            if not share < 1:
                raise BFNError(f"train.{name} = {share} is too large; expected less than 1")
        if self.patience and not self.validate_every:
            raise BFNError(
                f"train.patience = {self.patience} needs a validation to be patient with; give "
                "train.validate_every too"
            )
        if self.batch % self.accumulate:
            raise BFNError(
                f"train.batch = {self.batch} cannot be cut into train.accumulate = "
                f"{self.accumulate} equal parts; give a multiple of {self.accumulate}"
            )


@dataclass(frozen=True)
class Eval(Section):
    """How to evaluate."""

    steps: tuple[Steps, ...] = option((10, 25, 100, "inf"), "the n of each row; inf for L^inf")
    split: Literal["train", "validation", "test"] = option("test", "train, validation or test")
    batch: int = option(256, "examples at once; results do not depend on it", least=1)
    repeats: int = option(1, "passes with fresh noise, averaged", least=1)
    crops: int = option(0, "random crops of a text; 0 for windows that do not overlap", least=0)
    seed: int = option(0, "of the noise")
    device: str = option("auto", "cpu, cuda, ...; auto is cuda where there is one")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.steps or any(isinstance(n, int) and n < 1 for n in self.steps):
            raise BFNError(f"eval.steps = {list(self.steps)}; expected counts of 1 or more, or inf")


@dataclass(frozen=True)
class Sample(Section):
    """How to draw samples."""

    n: int = option(64, "number of samples", least=1)
    steps: int = option(50, "Bayesian updates; one more network call than that", least=1)
    final: Literal["sample", "mode"] = option("sample", "how the last output becomes data")
    solver: str = option("sde2", "the step rule; ancestral is the paper's")
    grid: str = option("auto", "the spacing of the steps; auto is the solver's own")
    label: str = option("", "a label, several in turn as in 3,7, or each; empty for none")
    guidance: float = option(1.0, "multiplies what the label adds to the prediction", least=0)
    batch: int = option(256, "samples at once; results do not depend on it", least=1)
    seed: int = option(0, "of the noise")
    device: str = option("auto", "cpu, cuda, ...; auto is cuda where there is one")


@dataclass(frozen=True)
class Published(Section):
    """Results that others have published for a recipe."""

    unit: str = option("", "of the results")
    steps: tuple[Steps, ...] = option((), "the n of each result")
    total: tuple[float, ...] = option((), "L^n + L^r for each n")
    reconstruction: float = option(0.0, "L^r, which is included in them", least=0)
    updates: int = option(0, "steps of training", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.steps) != len(self.total):
            raise BFNError(
                f"published.total has {len(self.total)} results for {len(self.steps)} numbers of "
                "steps; give one for each"
            )

    def result(self, n: float) -> float | None:
        """The result for n steps (math.inf for L^inf), if there is one."""
        counts = [math.inf if each == "inf" else each for each in self.steps]
        return self.total[counts.index(n)] if n in counts else None


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `origin` says where each key was given, for error messages."""

    name: str
    description: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    net: dict[str, Any] = field(default_factory=dict)
    flow: dict[str, Any] = field(default_factory=dict)
    train: Train = Train()
    eval: Eval = Eval()
    sample: Sample = Sample()
    parameters: int = 0
    """Of the network, where the recipe alone decides; 0 if it is not known."""
    published: Published = Published()
    origin: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def document(self) -> dict[str, Any]:
        """Every key with its value: sections of plain values."""
        document = dataclasses.asdict(self)
        del document["origin"]
        if not self.parameters:
            del document["parameters"]
        if self.published == Published():
            del document["published"]
        return document

    def differences(self, other: Recipe) -> list[str]:
        """The keys, as section.key, that the two do not share."""
        mine, theirs = self.document(), other.document()
        return [
            f"{section}.{key}"
            for section in (*FREE, *SECTIONS)
            for key in {**mine[section], **theirs[section]}
            if mine[section].get(key) != theirs[section].get(key)
        ]

    def without_places(self) -> Recipe:
        """For others: without the places of files on one's own machine."""
        data = {key: value for key, value in self.data.items() if key not in PLACES}
        return dataclasses.replace(self, data=data)

    def with_steps(self, steps: int) -> Recipe:
        return dataclasses.replace(self, train=dataclasses.replace(self.train, steps=steps))

    def to_toml(self) -> str:
        return values.to_toml(self.document())


SECTIONS: dict[str, type[Section]] = {"train": Train, "eval": Eval, "sample": Sample}
_TOP: dict[str, type] = {"name": str, "description": str, "parameters": int}


def read(recipe: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a shipped name or a path, with overrides such as {"train.steps": 500}."""
    path = recipes.find(recipe)
    try:
        document = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BFNError(f"{str(path)!r} is not valid TOML: {error}") from None
    except OSError as error:
        raise BFNError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    return resolve(document, overrides or {}, name=path.stem, source=f" in {path}")


def resolve(
    document: Mapping[str, Any], overrides: Mapping[str, Any], *, name: str, source: str = ""
) -> Recipe:
    """A recipe from the tables of a document; `source` is named in error messages."""
    sections: dict[str, dict[str, Any]] = {key: {} for key in (*FREE, *SECTIONS)}
    top: dict[str, Any] = {"name": name}
    origin: dict[str, str] = {}
    for key, value in document.items():
        if key in _TOP:
            top[key] = typed(key, value, _TOP[key], source)
            if key == "name" and (value in ("", "..") or Path(value).name != value):
                raise BFNError(f"name = {value!r}{source} is no name for a run's folder; mend it")
        elif key not in (*sections, "published"):
            known = [*sections, "published", *_TOP]
            hint = values.nearest(key, known) or f"; expected {', '.join(known)}"
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
    # What is known of the recipe does not hold for another network, or for other data.
    if any(key.startswith("net.") for key in overrides):
        top.pop("parameters", None)
    if any(key.startswith("data.") and key != "data.dir" for key in overrides):
        top.pop("published", None)
    _override(sections, origin, overrides)
    typed_sections = {key: cls.read(sections[key], origin) for key, cls in SECTIONS.items()}
    free = {key: sections[key] for key in FREE}
    return Recipe(**top, **free, **typed_sections, origin=origin)  # pyright: ignore[reportArgumentType]


def _override(
    sections: dict[str, dict[str, Any]], origin: dict[str, str], overrides: Mapping[str, Any]
) -> None:
    split = []
    for name, value in overrides.items():
        section, dot, key = name.partition(".")
        if not dot or section not in sections:
            near = values.nearest(section, sections, suffix=f".{key}") if dot else ""
            hint = near or f"; expected section.key with a section of {', '.join(sections)}"
            raise BFNError(f"unknown key {name!r} on the command line{hint}")
        if isinstance(value, str) and not _is_text(value):
            raise BFNError(
                f"{name} = {value!r} on the command line is not text in UTF-8, which recipes are "
                "written in; give the file or folder another name"
            )
        split.append((section, key, value))
    for section, chooser in FREE.items():
        chosen = [value for s, key, value in split if (s, key) == (section, chooser)]
        if chosen and chosen[0] != sections[section].get(chooser):
            sections[section].clear()
    for section, key, value in split:
        *path, last = key.split(".")
        table = sections[section]
        for step in path:
            inner = table.get(step, {})
            if not isinstance(inner, Mapping):
                raise BFNError(
                    f"unknown key {section}.{key} on the command line: {section}.{step} = "
                    f"{inner!r} has no keys of its own"
                )
            table[step] = dict(inner)
            table = table[step]
        if section in FREE and isinstance(value, Text):
            value = str(value) if key == FREE[section] else values.plain(value)
        table[last] = value
        origin[f"{section}.{key}"] = " on the command line"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def options() -> Sequence[tuple[str, str, Any, str]]:
    """(key, type, default, meaning) of every typed key, for --help."""
    rows = []
    for title, cls in SECTIONS.items():
        for each in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
            rows.append((f"{title}.{each.name}", each.type, each.default, each.metadata["meaning"]))
    return rows
