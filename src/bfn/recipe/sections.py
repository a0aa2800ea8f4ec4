"""The sections [train], [eval], [sample] and [published] of a recipe: typed keys with bounds."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from typing import Any, ClassVar, Literal, Self

from bfn.errors import BFNError, did_you_mean
from bfn.recipe.values import typed

COMMAND_LINE = " on the command line"
"""Where a key was given, for error messages."""


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
    sentence = f"{meaning[0].upper()}{meaning[1:]}."
    return field(default=default, metadata={"meaning": sentence, **bounds})


class Section:
    """Typed keys with bounds. Subclasses are dataclasses of `option` fields."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls) -> None:
        """Let the docstring say what the keys mean, for help() and the documentation."""
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
            given = f"{cls.title()}.{key} = {item}{where}"
            if isinstance(item, float) and math.isnan(item):
                raise BFNError(f"{given} is not a number; expected one")
            if least is not None and item < least:
                raise BFNError(f"{given} is too small; expected {least} or more")
            if above is not None and item <= above:
                raise BFNError(f"{given} is too small; expected more than {above}")
            if most is not None and item > most:
                raise BFNError(f"{given} is too large; expected {most} or less")
            if isinstance(item, float) and math.isinf(item) and not bounds["infinite"]:
                raise BFNError(f"{given} is too large; expected a finite number")

    @classmethod
    def read(cls, given: Mapping[str, Any], origin: Mapping[str, str]) -> Self:
        """The section of a recipe's table; `origin` says where each section.key was given."""
        known = [each.name for each in dataclasses.fields(cls)]
        hints = typing.get_type_hints(cls)
        arguments = {}
        for key, value in given.items():
            name = f"{cls.title()}.{key}"
            where = origin.get(name, "")
            if key not in known:
                near = did_you_mean(key, known, f"{cls.title()}.")
                hint = near or f"; expected one of {', '.join(known)}"
                raise BFNError(f"unknown key {name}{where}{hint}")
            arguments[key] = typed(name, value, hints[key], where)
            cls.check(key, arguments[key], where)
        return cls(**arguments)

    def updated(self, **given: Any) -> Self:
        """A copy with some keys from the command line; those that are None stay as they are."""
        given = {key: value for key, value in given.items() if value is not None}
        own = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        origin = {f"{self.title()}.{key}": COMMAND_LINE for key in given}
        return self.read(own | given, origin)


Steps = int | Literal["inf"]
_DEVICE = "device, such as cpu or cuda; auto is cuda if there is one"


@dataclass(frozen=True)
class Train(Section):
    """How to train."""

    steps: int = option(1000, "optimiser steps", least=1)
    batch: int = option(64, "examples per step, over all processes", least=1, most=10**7)
    accumulate: int = option(
        1, "process each batch in this many equal parts, to save memory", least=1
    )
    loss_steps: Steps = option("inf", "train on L^n for this n; inf for L^inf", least=1)  # noqa: RUF009
    objective: Literal["auto", "bound", "log_prob", "mixture"] = option(
        "auto",
        "what is minimised: the bound (L^n), log_prob (-ln p_O), or the mixture of both; auto "
        "is log_prob for classes, mixture for bins, bound for continuous data",
    )
    power: float = option(
        1.0, "log_prob counts (1 + power) t^power at time t: 0 for all times alike", least=0
    )
    times: Literal["stratified", "independent", "importance"] = option(
        "stratified", "how a batch's times are drawn; importance learns where the loss is"
    )
    seconds: float = option(
        0.0,
        "end after this many seconds of training, if the steps take longer; 0 for no limit",
        least=0,
    )
    optimiser: Literal["adamw", "muon"] = option(
        "adamw", "muon orthogonalises the steps of matrices, and moves the rest as adamw does"
    )
    learning_rate: float = option(1e-3, "peak learning rate", above=0)
    betas: tuple[float, float] = option(
        (0.9, 0.99), "decays of AdamW's moving averages of the gradient and of its square", least=0
    )
    weight_decay: float = option(0.01, "weight decay, for weights with two or more axes", least=0)
    warmup: int = option(0, "steps over which the learning rate rises from 0", least=0)
    decay: float = option(
        0.0,
        "fraction of the steps (or seconds), at the end, over which the rate falls to 0",
        least=0,
        most=1,
    )
    clip: float = option(
        5.0, "largest gradient norm, in nats per variable; inf for none", above=0, infinite=True
    )
    label_dropout: float = option(
        0.0, "probability of hiding a label, for classifier-free guidance", least=0, most=1
    )
    known: float = option(
        0.0,
        "probability that an example comes with a random subset of its variables known, to learn "
        "the rest given them",
        least=0,
        most=1,
    )
    known_groups: tuple[tuple[str, ...], ...] = option(
        (),
        "lists of named variables of mixed data that are known or unknown together; the others are "
        "then never known",
    )
    ema_decay: float = option(
        0.9999,
        "decay of the weights' moving average; it starts lower and warms up to this",
        least=0,
    )
    seed: int = option(0, "random seed for weights, data order, times and noise")
    init: str = option("", "start from the weights of this run or model; empty for fresh weights")
    log_every: int = option(50, "steps between lines of metrics.jsonl", least=1)
    checkpoint_every: int = option(500, "steps between checkpoints", least=1)
    keep: int = option(2, "checkpoints to keep, besides the best", least=1)
    validate_every: int = option(0, "steps between validations; 0 for none", least=0)
    validate_examples: int = option(1000, "examples per validation; 0 for all", least=0)
    patience: int = option(
        0, "stop after this many validations without improvement; 0 for never", least=0
    )
    tolerance: float = option(
        0.0, "count a validation as improvement that is above the lowest by this share", least=0
    )
    sample_every: int = option(0, "steps between sheets of samples; 0 for none", least=0)
    device: str = option("auto", _DEVICE)
    data_memory: Literal["auto", "device", "host"] = option(
        "auto", "where the data live; auto is the host if they would take much of a GPU's memory"
    )
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "precision of matrix products and convolutions; auto is bfloat16 on a GPU"
    )
    compile: Literal["auto", "yes", "no"] = option(
        "auto", "compile the network; auto does so on a GPU"
    )
    sharding: Literal["none", "full"] = option(
        "none", "with several processes, full spreads the weights over them (FSDP)"
    )
    tensorboard: bool = option(False, "also write the metrics for TensorBoard")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, largest in (("ema_decay", self.ema_decay), ("betas", max(self.betas))):
            if largest >= 1:
                raise BFNError(f"train.{name} = {largest} is too large; expected less than 1")
        if self.known_groups and not self.known:
            raise BFNError(
                "train.known_groups says what may be known together, but train.known = 0 makes "
                "nothing known; give a probability, such as 0.5"
            )
        if self.patience and not self.validate_every:
            raise BFNError(
                f"train.patience = {self.patience} counts validations, but there are none; give "
                "train.validate_every too"
            )


@dataclass(frozen=True)
class Eval(Section):
    """How to evaluate."""

    steps: tuple[Steps, ...] = option(
        (10, 25, 100, "inf"), "numbers of steps n, as in 10,25,inf; inf for L^inf", least=1
    )
    split: Literal["train", "validation", "test"] = option(
        "test", "the part of the data to evaluate"
    )
    batch: int = option(
        256, "examples at once; fewer if memory runs out, with the same results", least=1
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
    steps: int = option(50, "Bayesian updates; they take one more network call", least=1)
    final: Literal["sample", "mode"] = option(
        "sample", "last step: sample draws from the last output, mode takes its most probable value"
    )
    solver: str = option("sde2", "the step rule: ancestral (the paper's), sde, sde2, ode or ode2")
    grid: str = option(
        "auto", "spacing of the steps: time, power or geometric; auto is the solver's own"
    )
    label: str = option(
        "", "a label by name or number, several as in 3,7, or each for all; empty for none"
    )
    guidance: float = option(
        1.0, "strength of the label's effect: 1 is as learned, 2 exaggerates it", least=0
    )
    batch: int = option(
        256, "samples at once; fewer if memory runs out, with the same results", least=1
    )
    seed: int = option(0, "random seed for the noise")
    device: str = option("auto", _DEVICE)


@dataclass(frozen=True)
class Published(Section):
    """Results that others have published for a recipe."""

    unit: str = option("", "unit of the results")
    steps: tuple[Steps, ...] = option((), "the n of each result")
    total: tuple[float, ...] = option((), "L^n + L^r for each n")
    reconstruction: float = option(0.0, "L^r, which is included in the totals", least=0)
    updates: int = option(0, "training steps", least=0)

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


SECTIONS: dict[str, type[Section]] = {"train": Train, "eval": Eval, "sample": Sample}
