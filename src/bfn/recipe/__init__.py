"""Recipes: TOML files with the sections data, net, flow, train, eval and sample.

    recipe = bfn.recipe.read("digits", {"train.steps": 500})

    [data]   source = "digits"        and the source's own arguments
    [net]    class = "bfn.nn:UNet"    and the constructor's arguments
    [flow]   kind = "discretised"     and the arguments of bfn.discretised
    [train]  [eval]  [sample]         the dataclasses `Train`, `Eval` and `Sample`

The first key of data, net and flow names a function or class (a shipped one, or
"package.module:name"); the section's other keys are its arguments, checked against its signature
when it is called. Overriding that first key drops the arguments meant for the old one.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from bfn.errors import BFNError, did_you_mean, is_ours, require_trust, suggestion, without_none
from bfn.recipe.values import Text, plain, typed

_SHIPPED = Path(__file__).parent / "shipped"

COMMAND_LINE = " on the command line"
"""Where a key comes from, for error messages."""


def option(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    infinite: bool = False,
):
    """A dataclass field with its help text and its bounds."""
    bounds = {"least": least, "above": above, "most": most, "infinite": infinite}
    sentence = f"{meaning[0].upper()}{meaning[1:]}."
    return field(default=default, metadata={"meaning": sentence, **bounds})


class Section:
    """Typed keys with bounds. Subclasses are dataclasses of `option` fields."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls) -> None:
        """Add the keys' help texts to the docstring, for help() and the documentation."""
        options = {key: each for key, each in vars(cls).items() if isinstance(each, Field)}
        lines = [f"    {key}: {each.metadata['meaning']}" for key, each in options.items()]
        cls.__doc__ = "\n".join([f"{cls.__doc__}\n\nArgs:", *lines])

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            self.check(each.name, getattr(self, each.name), "")

    @classmethod
    def title(cls) -> str:
        return cls.__name__.lower()

    @classmethod
    def check(cls, key: str, value: Any, where: str) -> None:
        """Refuse a value out of its bounds."""
        bounds = cls.__dataclass_fields__[key].metadata
        least, above, most = (bounds[name] for name in ("least", "above", "most"))
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, str):
                continue
            setting = f"{cls.title()}.{key} = {item}{where}"
            if isinstance(item, float) and math.isnan(item):
                raise BFNError(f"{setting} is not a number; expected one")
            if least is not None and item < least:
                raise BFNError(f"{setting} is too small; expected {least} or more")
            if above is not None and item <= above:
                raise BFNError(f"{setting} is too small; expected more than {above}")
            if most is not None and item > most:
                raise BFNError(f"{setting} is too large; expected {most} or less")
            if isinstance(item, float) and math.isinf(item) and not bounds["infinite"]:
                raise BFNError(f"{setting} is too large; expected a finite number")

    @classmethod
    def read(cls, given: Mapping[str, Any], origin: Mapping[str, str]) -> Self:
        """The section from a recipe's table; `origin` says where each section.key comes from."""
        known = [each.name for each in dataclasses.fields(cls)]
        hints = typing.get_type_hints(cls)
        arguments = {}
        for key, value in given.items():
            name = f"{cls.title()}.{key}"
            where = origin.get(name, "")
            if key not in known:
                near = did_you_mean(key, known, lambda near: repr(f"{cls.title()}.{near}"))
                hint = near or f"; expected one of {', '.join(known)}"
                raise BFNError(f"unknown key {name}{where}{hint}")
            arguments[key] = typed(name, value, hints[key], where)
            cls.check(key, arguments[key], where)
        return cls(**arguments)

    def updated(self, **changes: Any) -> Self:
        """A copy with some keys from the command line; None leaves a key unchanged."""
        changes = without_none(**changes)
        own = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        origin = {f"{self.title()}.{key}": COMMAND_LINE for key in changes}
        return self.read(own | changes, origin)


Steps = int | Literal["inf"]
_DEVICE = "device, such as cpu or cuda; auto uses a GPU if there is one"


@dataclass(frozen=True)
class Train(Section):
    """How to train."""

    steps: int = option(1000, "optimiser steps", least=1)
    batch: int = option(64, "examples per step, over all processes", least=1, most=10**7)
    accumulate: int = option(
        1, "split each batch into this many equal parts, to save memory", least=1
    )
    loss_steps: Steps = option("inf", "train on L^n with this n; inf for L^inf", least=1)  # noqa: RUF009
    objective: Literal["auto", "bound", "log_prob", "mixture"] = option(
        "auto",
        "what to minimise: the bound (L^n), log_prob (-ln p_O), or a mixture of both; auto is "
        "log_prob for classes, mixture for bins, bound for continuous data",
    )
    power: float = option(
        1.0, "weight log_prob by (1 + power) t^power at time t; 0 for equal weights", least=0
    )
    times: Literal["stratified", "independent", "importance"] = option(
        "stratified", "how a batch's times are drawn; importance learns where the loss is large"
    )
    seconds: float = option(
        0.0, "stop after this many seconds even if steps remain; 0 for no limit", least=0
    )
    optimiser: Literal["adamw", "muon"] = option(
        "adamw", "optimiser; muon orthogonalises updates of matrices and uses adamw for the rest"
    )
    learning_rate: float = option(1e-3, "peak learning rate", above=0)
    betas: tuple[float, float] = option(
        (0.9, 0.99), "AdamW's decay rates for the gradient and its square", least=0
    )
    weight_decay: float = option(0.01, "weight decay, for weights with two or more axes", least=0)
    warmup: int = option(0, "steps over which the learning rate rises from 0", least=0)
    decay: float = option(
        0.0,
        "final fraction of the steps (or seconds) over which the learning rate falls to 0",
        least=0,
        most=1,
    )
    clip: float = option(
        5.0, "maximum gradient norm, in nats per variable; inf for none", above=0, infinite=True
    )
    label_dropout: float = option(
        0.0, "probability of hiding a label, for classifier-free guidance", least=0, most=1
    )
    known: float = option(
        0.0,
        "probability that a random subset of an example's variables is known, so that the model "
        "learns the rest given them",
        least=0,
        most=1,
    )
    known_groups: tuple[tuple[str, ...], ...] = option(
        (),
        "for mixed data, lists of variables that are known or unknown together; variables in no "
        "list are then never known",
    )
    ema_decay: float = option(
        0.9999,
        "decay of the moving average of the weights; it starts lower and warms up to this",
        least=0,
    )
    seed: int = option(0, "random seed for weights, data order, times and noise")
    init: str = option("", "start from the weights of this run or model; empty for fresh weights")
    log_every: int = option(50, "steps between lines in metrics.jsonl", least=1)
    checkpoint_every: int = option(500, "steps between checkpoints", least=1)
    keep: int = option(2, "checkpoints to keep, in addition to the best", least=1)
    validate_every: int = option(0, "steps between validations; 0 for none", least=0)
    validate_examples: int = option(1000, "examples per validation; 0 for all", least=0)
    patience: int = option(
        0, "stop after this many validations without improvement; 0 for never", least=0
    )
    tolerance: float = option(
        0.0, "count a validation within this fraction above the lowest as an improvement", least=0
    )
    sample_every: int = option(0, "steps between sheets of samples; 0 for none", least=0)
    device: str = option("auto", _DEVICE)
    data_memory: Literal["auto", "device", "host"] = option(
        "auto", "where to keep the data; auto is the GPU unless they would fill much of its memory"
    )
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto",
        "precision of matrix products and convolutions; auto uses bfloat16 on a GPU, and for "
        "tables on a CPU that has instructions for it",
    )
    compile: Literal["auto", "yes", "no"] = option(
        "auto", "whether to compile the network; auto does so on a GPU"
    )
    sharding: Literal["none", "full"] = option(
        "none", "with several processes, full shards the weights across them (FSDP)"
    )
    tensorboard: bool = option(False, "also write the metrics for TensorBoard")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, largest in (("ema_decay", self.ema_decay), ("betas", max(self.betas))):
            if largest >= 1:
                raise BFNError(f"train.{name} = {largest} is too large; expected less than 1")
        if self.known_groups and not self.known:
            raise BFNError(
                "train.known_groups has no effect while train.known = 0; give train.known a "
                "probability, such as 0.5"
            )
        if self.patience and not self.validate_every:
            raise BFNError(
                f"train.patience = {self.patience} counts validations, but validation is off; give "
                "train.validate_every too"
            )


@dataclass(frozen=True)
class Eval(Section):
    """How to evaluate."""

    steps: tuple[Steps, ...] = option(
        (10, 25, 100, "inf"), "numbers of steps n, such as 10,25,inf; inf for L^inf", least=1
    )
    split: Literal["train", "validation", "test"] = option("test", "the split to evaluate")
    batch: int = option(
        256, "examples per batch; halved if memory runs out, with the same results", least=1
    )
    repeats: int = option(1, "passes over the split with fresh noise, averaged", least=1)
    crops: int = option(
        0, "number of random crops of a text; 0 for non-overlapping windows", least=0
    )
    seed: int = option(0, "random seed for the noise")
    device: str = option("auto", _DEVICE)


@dataclass(frozen=True)
class Sample(Section):
    """How to draw samples."""

    n: int = option(64, "number of samples", least=1)
    steps: int = option(50, "Bayesian updates; n updates take n + 1 network calls", least=1)
    final: Literal["sample", "mode"] = option(
        "sample", "the last step: sample draws from the final output, mode takes its mode"
    )
    solver: str = option("sde2", "solver: ancestral (the paper's), sde, sde2, ode or ode2")
    grid: str = option(
        "auto", "spacing of the steps: time, power or geometric; auto is the solver's default"
    )
    label: str = option(
        "", "a label by name or number, several such as 3,7, or each for all; empty for none"
    )
    guidance: float = option(
        1.0, "strength of label guidance: 1 is as trained, 2 exaggerates the label", least=0
    )
    batch: int = option(
        256, "samples per batch; halved if memory runs out, with the same results", least=1
    )
    seed: int = option(0, "random seed for the noise")
    device: str = option("auto", _DEVICE)


SECTIONS: dict[str, type[Section]] = {"train": Train, "eval": Eval, "sample": Sample}

FREE = {"data": "source", "net": "class", "flow": "kind"}
"""Sections of free arguments, and the key that names the function they belong to."""

SUGGESTED = "suggested"
"""A value to be filled in from the data: see `bfn.recipe.build`."""

PLACES = ("dir", "path")
"""Keys of [data] that locate files on this machine."""

FORGIVING = ("skip_corrupt", "unknown")
"""Keys of [data] that say what to do with unsuitable files."""

_TABLES = (*FREE, *SECTIONS)
_TOP = ("name", "description")

_FORMER = ("parameters", "published")
"""What recipes of earlier development versions also have; it is ignored."""


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `origin` says where each key comes from, for error messages."""

    name: str
    description: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    net: dict[str, Any] = field(default_factory=dict)
    flow: dict[str, Any] = field(default_factory=dict)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    sample: Sample = field(default_factory=Sample)
    origin: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    texts: Mapping[str, Text] = field(default_factory=dict, compare=False, repr=False)
    """Untyped arguments of data, net and flow from the command line; see `build.settled`."""
    trust: bool = field(default=False, compare=False, repr=False)
    """Whether code that the recipe names, but is not part of bfn, may be run."""

    def document(self) -> dict[str, Any]:
        """Every key with its value: sections of plain values."""
        document = dataclasses.asdict(self)
        del document["origin"], document["texts"], document["trust"]
        return document

    def code(self) -> dict[str, str]:
        """The names of code that is not part of bfn, by key."""
        # Sources and kinds are called with arguments, so even bfn's other functions are not safe.
        called = {"data.source": self.data.get("source"), "flow.kind": self.flow.get("kind")}
        classes = {"net.class": self.net.get("class")}
        if classes["net.class"] == SUGGESTED:
            classes.clear()
        for key, value in self.flow.items():
            if isinstance(value, Mapping):
                classes[f"flow.{key}.class"] = value.get("class")
        foreign = {key: name for key, name in called.items() if ":" in str(name)}
        foreign |= {key: name for key, name in classes.items() if name and not is_ours(name)}
        return {key: name for key, name in foreign.items() if isinstance(name, str)}

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
        """The recipe for publication: without the paths of files on this machine."""
        data = {key: value for key, value in self.data.items() if key not in PLACES}
        return dataclasses.replace(self, data=data)

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(self.document())


def names() -> list[str]:
    """The recipes that come with the package: one TOML file each."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def find(recipe: str | Path) -> Path:
    """The file of a shipped recipe, or the path of another one."""
    path = Path(recipe)
    if str(recipe) in names():
        return _SHIPPED / f"{recipe}.toml"
    if (path / "recipe.toml").is_file():
        raise BFNError(
            f"{str(recipe)!r} is a run folder; bfn train {path}/recipe.toml --out {path} --resume "
            "continues the run"
        )
    if path.suffix == ".toml" or len(path.parts) > 1:
        if path.is_file():
            return path
        raise BFNError(f"there is no recipe file {str(recipe)!r}; give the path of a .toml file")
    expected = f"; expected {', '.join(names())}, or the path of a .toml file"
    raise BFNError(f"unknown recipe {str(recipe)!r}{did_you_mean(recipe, names()) or expected}")


def is_own(recipe: str | Path) -> bool:
    """Whether a recipe is a file in the current folder: it may name the user's own code."""
    return Path(recipe).absolute().parent == Path.cwd()


def read(
    recipe: str | Path, overrides: Mapping[str, Any] | None = None, *, trust: bool = False
) -> Recipe:
    """The recipe of a shipped name or a path, with overrides such as {"train.steps": 500}.

    Code that the file names runs only with `trust`; code in the overrides is the caller's own.
    """
    path = find(recipe)
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
    top = {"name": name}
    origin: dict[str, str] = {}
    for key, value in document.items():
        if key in _TOP:
            top[key] = typed(key, value, str, source)
        elif key in _FORMER:
            continue
        elif key not in sections:
            raise BFNError(f"unknown section {key}{source}{suggestion(key, [*sections, *_TOP])}")
        elif not isinstance(value, Mapping):
            raise BFNError(
                f"{key} = {value!r}{source} is not a section; write [{key}] above its keys"
            )
        else:
            sections[key].update(value)
            origin.update({f"{key}.{k}": source for k in value})
    if top["name"] in ("", "..") or Path(top["name"]).name != top["name"]:
        raise BFNError(
            f"name = {top['name']!r}{source} is not a valid run name; use one path component"
        )
    # What the recipe says about its own data does not apply to others.
    if any(key.startswith("data.") and key != "data.dir" for key in overrides):
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
            expected = f"; expected section.key, where section is one of {', '.join(sections)}"
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
        # A name that contains a dot is quoted, as in TOML.
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
