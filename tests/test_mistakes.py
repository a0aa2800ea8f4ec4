"""A mistake in Python gets one sentence: schedules, models, losses, generation, guidance, coding.

Mistakes with files, tables, training and the command line have tables of their own, where what they
need is made.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn import evaluate, loss, noise
from bfn.codec import Codec, stack
from bfn.codec.message import MessageGrid
from bfn.flow import CategoricalFlow, GaussianFlow
from bfn.guidance import ClassifierFree, Guided, read_labels
from bfn.nn import MLP, MixedMLP
from bfn.output import BinnedHead, CategoricalHead, FreeBinnedHead, PointHead
from bfn.output.binned import SmoothBinnedHead
from bfn.output.bins import discretise
from bfn.plots import style
from bfn.recipe.suggest import suggest_beta_1, suggest_sigma_1
from bfn.sampling import quality, solvers
from bfn.sampling.batches import in_batches
from bfn.schedule import Exponential, Logarithmic, Quadratic, Windowed
from bfn.tables import compare
from bfn.tables.frame import read
from bfn.train.training import Fit
from support.mistakes import assert_refused
from support.toys import KINDS, Toy, data, generator, model

NET: Any = nn.Identity()
SEEN = torch.tensor([True, False, True])
TEXT = torch.tensor([[0, 1, 2, 3, 0]] * 3)
MASK = torch.tensor([True, False, True, False, False])
BITS = torch.tensor([0] * 60 + [1] * 140)[:, None]
BOUNDS = [0.0, -1.0, math.nan, math.inf]
WORDS = ["", "two", "1.5", "1,,2", "all"]
NO_MODELS = ["digits", Toy(), None, Fit(model("continuous"), 1, [], None)]
Table = list[tuple[Any, ...]]
"""A call, and words of the sentence that it gets."""


def of(function: Callable[..., Any], *fixed: Any, **given: Any) -> Callable[..., Callable]:
    """Calls of a function with some arguments that are wrong, beside those that are given."""
    return lambda **wrong: lambda: function(*[make() for make in fixed], **{**given, **wrong})


def each(make: Callable[[Any], object], values: list[Any], *words: str) -> Table:
    """The same mistake with several values, which the words may name."""
    return [(lambda v=v: make(v), *(word.format(v) for word in words)) for v in values]


def low(x: Tensor) -> Tensor:
    """Scores small numbers high."""
    return -x.flatten(1).square().sum(1)


def unet(labels: int) -> bfn.BFN:
    net = bfn.nn.UNet(labels=labels, width=8, multipliers=(1,), blocks=1, groups=4, heads=2)
    return bfn.continuous(net, 0.1)


def digits() -> Any:
    return bfn.data.load("digits", form="continuous")


def masked(net: nn.Module, known: Any) -> Callable[[], Tensor]:
    x = data("continuous", (4, 3))
    return lambda: loss.continuous_time(bfn.continuous(net), x, known=known)


def guided(guide: Any) -> Callable[[], Tensor]:
    return lambda: bfn.generate(Guided(bfn.continuous(Toy()), guide), (2, 3), 2)


SCHEDULES: Table = [
    *each(Exponential, [*BOUNDS, 1.0, 1.5], "sigma_1 = {} is not strictly between 0 and 1"),
    *each(Quadratic, BOUNDS, "beta_1 = {} is not positive"),
    *each(lambda end: Logarithmic(27, end), [*BOUNDS, 12.0], "beta_1 = {} is not", "at most 11.9"),
    *each(
        lambda end: Windowed(Quadratic(3.0), 0.5, end), [0.5, 0.1, 1.5], "from 0.5 to {}", "[0, 1]"
    ),
    (lambda: Logarithmic(1, 3.0), "K = 1", "at least 2"),
    (lambda: suggest_beta_1(1), "K = 1;"),
    (lambda: suggest_beta_1(2.5), "K = 2.5"),  # pyright: ignore
    (lambda: suggest_beta_1(27, cost=5.0), "cost = 5.0"),
    (lambda: suggest_sigma_1(0), "K = 0"),
    (lambda: suggest_sigma_1(), "either K"),
    (lambda: suggest_sigma_1(4, noise=0.1), "either K"),
    (lambda: suggest_sigma_1(noise=-1.0), "noise = -1.0"),
    (lambda: suggest_sigma_1(noise=0.1, cost=0.2), "cost = 0.2"),
    (lambda: noise.normal((3, 4), noise.Keyed([1, 2])), "2 generators for a batch of 3"),
    (lambda: loss.ImportanceTimes(floor=0.0), "floor = 0.0"),
    (
        lambda: loss.ImportanceTimes(bins=10).load_state_dict(loss.ImportanceTimes().state_dict()),
        "64 intervals, these 10",
    ),
]

MODELS: Table = [
    (lambda: bfn.discrete(NET, 1, 4.0), "K = 1", "at least 2"),
    (lambda: bfn.discretised(NET, 1, 0.1), "K = 1", "at least 2"),
    (lambda: discretise(torch.zeros(3), 1), "K = 1", "at least 2"),
    (lambda: FreeBinnedHead(0), "K = 0", "at least 2"),
    (lambda: bfn.continuous(NET, schedule="exponental"), "'exponental'", "mean 'exponential'"),
    (lambda: bfn.discrete(NET, 3, schedule=3.0), "schedule = 3.0", "or an object"),  # pyright: ignore
    (
        lambda: bfn.discrete(NET, 3, 4.0, schedule=bfn.Quadratic(5.0)),
        "schedule = Quadratic(beta_1=5.0) already sets",
        "leave out 4.0",
    ),
    (lambda: CategoricalFlow(2, bfn.Quadratic(1.0)), "K = 2", "BinaryFlow"),
    (lambda: CategoricalHead(2), "K = 2", "at least 3"),
    (lambda: CategoricalHead(2**22 + 1).symbols(), "K = 4194305 symbols", "at most 2^22"),
    (lambda: bfn.discrete(NET, 3, 1.0, head="prior"), "head = 'prior'", "'posterior'"),
    (lambda: bfn.discretised(NET, 2.5, 0.1), "K = 2.5", "at least 2"),  # pyright: ignore
    (lambda: bfn.discrete(NET, "7", 1.0), "K = '7'", "at least"),  # pyright: ignore
    (lambda: bfn.continuous(NET, t_min=math.nan), "t_min = nan", "a small time"),
    (lambda: bfn.discretised(NET, 4, t_min=2.0), "t_min = 2.0", "a small time"),
    (lambda: bfn.continuous(NET, reconstruction=0.03), "reconstruction = 0.03", "bfn.Bins"),  # pyright: ignore
    (lambda: bfn.Bins(1, 0.1), "K = 1", "at least 2"),
    (lambda: bfn.Bins(8, 0.0), "sigma = 0.0", "positive"),
    (lambda: bfn.Bins(8, math.nan), "sigma = nan", "positive"),
    (lambda: bfn.MeasurementNoise(-1.0), "sigma = -1.0", "positive"),
    (lambda: bfn.MeasurementNoise(math.inf), "sigma = inf", "positive"),
    (lambda: PointHead(x_min=1.0, x_max=-1.0), "(x_min, x_max) = (1.0, -1.0)", "first"),
    (lambda: BinnedHead(8, sigma_x=(2.0, 1.0)), "sigma_x = (2.0, 1.0)", "first"),
    *each(lambda k: SmoothBinnedHead(48, spikes=(k,)), [48, -1, 0.5], "expected bins of 0 to 47"),
    (lambda: GaussianFlow(0.02), "schedule = 0.02", "bfn.Exponential"),  # pyright: ignore
    (lambda: bfn.continuous(NET, 1.0), "sigma_1 = 1.0", "between 0 and 1"),
    (lambda: bfn.continuous(NET, math.nan), "sigma_1 = nan", "between 0 and 1"),
    (lambda: bfn.discrete(NET, 5, 0.0), "beta_1 = 0.0", "positive"),
    (lambda: bfn.Variable("integer"), "unknown kind 'integer'"),
    (lambda: bfn.Variable("discrete", K=1), "K = 1 classes"),
    (lambda: bfn.Variable("discrete", sigma_1=0.1), "it takes no argument sigma_1"),
    (lambda: bfn.Variable("continuous", K=3), "cannot be made: it takes no argument K"),
    (lambda: bfn.Variable("discrete"), "cannot be made: it needs the argument K"),
    (lambda: bfn.Variable("continuous", (0,)), "shape = 0"),
    (lambda: bfn.mixed(NET, {}), "expected a dict with at least one"),
    (lambda: bfn.mixed(NET, {"a": {"kind": "nope"}}), "in the variable 'a'"),  # pyright: ignore
    (lambda: MixedMLP.of({"a": 3}), "expected a bfn.Variable by every name"),  # pyright: ignore
    (lambda: MixedMLP.of([1]), "expected a bfn.Variable by every name"),  # pyright: ignore
    (lambda: bfn.Lengths.of([3, 4], 3), "has length 4; expected 1 to 3"),
]

continuous, in_steps, left = loss.continuous_time, loss.discrete_time, loss.reconstruction
LOSSES: Table = [
    (in_steps, {"n": 0}, "n = 0", "at least 1"),
    (in_steps, {"n": -4}, "n = -4", "at least 1"),
    (in_steps, {"n": 2.5}, "n = 2.5", "whole number"),
    (in_steps, {"n": math.inf}, "n = inf", "whole number"),
    (in_steps, {"n": 3, "draws": 0}, "draws = 0; at least 1"),
    (in_steps, {"n": 3, "steps": "some"}, "steps = 'some'; expected \"all\""),
    (in_steps, {"n": 3, "steps": torch.tensor([1])}, "shape (1,)", "one whole number", "(2,)"),
    (in_steps, {"n": 3, "steps": torch.ones(2)}, "float32; expected one whole number"),
    (in_steps, {"n": 3, "steps": torch.tensor([0, 1])}, "between 0 and 1; expected 1 to n = 3"),
    (in_steps, {"n": 3, "steps": torch.tensor([4, 1])}, "between 1 and 4; expected 1 to n = 3"),
    (in_steps, {"n": 3, "times": torch.full((2,), 9.0)}, "9.0; expected 0 to 1"),
    (in_steps, {"n": 3, "times": 0.5}, "times = 0.5; expected a time sampler"),
    (in_steps, {"n": 3, "x": torch.tensor(1)}, "expected a batch"),
    (continuous, {"times": torch.ones(3)}, "shape (3,); expected one per example, (2,)"),
    (continuous, {"times": torch.full((2,), 1.1)}, "and 1.1", "; expected 0 to 1"),
    (continuous, {"times": torch.full((2,), -0.1)}, "between -0.1", "; expected 0 to 1"),
    (continuous, {"times": torch.tensor([math.nan, 0])}, "nan; expected 0 to 1"),
    (continuous, {"times": "stratified"}, "times = 'stratified'; expected a time sampler"),
    (continuous, {"times": loss.stratified, "generator": noise.Keyed([1, 2])}, "keyed", "loss.ind"),
    (continuous, {"generator": 3}, "generator = 3; expected a torch.Generator"),
    (continuous, {"x": [[0.1, 0.2]]}, "x is a list; expected a tensor"),
    (left, {"t": 1.5}, "t = 1.5 is not a time between 0 and 1"),
    (left, {"t": math.nan}, "t = nan is not a time between 0 and 1"),
    (loss.objective, {"kind": "likelihood"}, "'likelihood'; expected auto, bound, log_prob, mix"),
]
DATA: Table = [
    ("continuous", [0.0, 1.5], "1.5", "[-1.0, 1.0]"),
    ("continuous", [0.0, math.nan], "nan", "finite"),
    ("discretised", [0.0, 1.2], "1.2", "[-1, 1]"),
    ("discretised", [0.0, 0.1], "0.1", "K = 5"),
    ("discretised", [0.0, -1.0], "-1.0", "K = 5"),
    ("discretised", [0.0, math.nan], "nan", "finite"),
    ("discrete", [0, 4], "4", "0 to 3"),
    ("discrete", [-1, 3], "-1", "0 to 3"),
    ("binary", [0, 2], "2", "0 to 1"),
    ("continuous", [0, 1], "torch.int64", "float32"),
    ("discretised", [0, 1], "torch.int64", "float32"),
    ("discrete", [0.0, 1.0], "torch.float32", "int64"),
    ("binary", [True, False], "torch.bool", "int64"),
]

draw = of(bfn.generate, lambda: model("discretised"), shape=(2, 3), steps=2)
labelled, plain = (
    of(bfn.generate, net, shape=(2, 1, 4, 4), steps=2)
    for net in (lambda: unet(10), lambda: unet(0))
)
fill = of(bfn.infill, lambda: model("discrete"), x=TEXT, mask=MASK, steps=3)
batches = of(in_batches, lambda: model("continuous"), n=3, shape=(3,))
GENERATION: Table = [
    (draw(steps=0), "steps = 0", "a whole number, at least 1"),
    (draw(shape=16), "shape = 16", "positive sizes, the batch first"),
    (draw(shape=(2.5, 3)), "shape = (2.5, 3)", "positive sizes"),
    (draw(first=2.0), "first = 2.0", "a time of at least 0 and below 1"),
    (draw(dtype=torch.int64), "dtype = torch.int64", "torch.float32 or torch.float64"),
    (draw(scale=3.0), "scale = 3.0", "no effect without a guide"),
    (draw(guide=3), "guide = 3", "a function of the expected data"),
    (draw(calls=1), "calls = 1", "a whole number, at least 2"),
    (draw(final="mean"), "'mean'", '"sample" or "mode"'),
    (draw(solver="euler"), "unknown solver 'euler'", "expected ancestral"),
    (draw(solver=solvers.ode), "unknown solver", "expected ancestral"),
    (draw(solver="ancestrl"), "'ancestrl'", "did you mean 'ancestral'"),
    (draw(grid="powr"), "'powr'", "did you mean 'power'"),
    (draw(generator=noise.Keyed([1, 2, 3])), "3 generators", "batch of 2"),
    (draw(seed=1, generator=generator(1)), "seed = 1 and a generator", "give one"),
    (draw(seed="1"), "seed = '1'", "expected a whole number"),
    (draw(guidance="2"), "guidance = '2'", "a number of 0 or more"),
    (draw(solvr="ode"), "'solvr' is not an argument of generate", "did you mean 'solver'?"),
    (draw(known=torch.zeros(3)), "the mask is NoneType", "expected a torch.bool tensor"),
    (draw(known=(torch.zeros(3), [True])), "the mask is list", "a torch.bool tensor"),
    (draw(known=(torch.zeros(4), SEEN)), "are 4 examples", "expected 2 of shape (3,)"),
    (draw(known=(torch.full((3,), 2.0), SEEN)), "x contains 2.0", "outside the range of the bins"),
    (draw(known=(torch.zeros(3), SEEN[:2])), "the mask has shape (2,)", "one example's, (3,)"),
    (draw(known=(torch.zeros(3), SEEN, 3)), "known = 3 items", "x, and a mask"),
    (draw(known=3), "x is a int", "expected a tensor"),
    (draw(temperature=0.5), "'temperature' is not an argument", "Toy, does not take it"),
    (
        of(bfn.generate, lambda: bfn.discretised(MLP(3, outputs=2, width=8), K=5))(
            shape=(2, 3), known=(torch.zeros(3), SEEN)
        ),
        "the network, MLP, does not take known variables",
        "bfn.infill",
    ),
    (lambda: bfn.generate("digits", (2, 3), 2), "the model is 'digits'; expected a bfn.BFN"),  # pyright: ignore
    (lambda: bfn.generate(Toy(), (2, 3), 2), "the model is a Toy; expected a bfn.BFN"),  # pyright: ignore
    (lambda: bfn.generate(None, (2, 3), 2), "the model is a NoneType; expected a bfn.BFN"),  # pyright: ignore
    *each(lambda m: bfn.infill(m, TEXT, MASK, 2), NO_MODELS, "; expected a bfn.BFN"),
    *each(lambda m: Guided(m, low), NO_MODELS, "; expected a bfn.BFN"),
    *each(lambda m: ClassifierFree(m, 2.0), NO_MODELS, "; expected a bfn.BFN"),
    (fill(mask=MASK[:4]), "mask has shape (4,), but x has (3, 5)"),
    (fill(mask=MASK.float()), "mask is torch.float32"),
    (fill(x=TEXT + 7), "x contains 9"),
    (fill(calls=3, resample=2), "calls = 3; one step, taken 3 times, and", "at least 4"),
    (fill(calls=20, resample=4), "calls = 20; with every step", "5 n + 1", "give 16 or 21"),
    (fill(resample=-1), "resample = -1"),
    (fill(jump=0), "jump = 0"),
    (fill(particles=0), "particles = 0"),
    (fill(particels=3), "'particels' is not an argument of infill, ", "did you mean 'particles'"),
    (fill(observed="yes"), "observed = 'yes'"),
    (fill(label=[1, 2]), "2 labels were given for 3 examples"),
    (fill(particles=2, solver="ode"), "particles need the solver 'ancestral'"),
    (fill(particles=2, observed="known"), "particles need", "observed='schedule'"),
    (fill(particles=2, resample=1), "particles need", "without resample"),
    (fill(particles=2, since=0.5), "particles need", "without resample or since"),
    (fill(since=1.0), "since = 1.0; expected a time of at least 0 and below 1"),
    (batches(n=0), "n = 0; expected a whole number, at least 1"),
    (batches(batch="2"), "batch = '2'"),
    (batches(calls=1), "calls = 1; one step and the final call need a whole number, at least 2"),
    (batches(label=[1, 2]), "2 labels were given for 3 examples"),
]

GUIDANCE: Table = [
    (labelled(label=10), "label = 10 is out of range; the model has the labels 0 to 9"),
    (labelled(label=[0, 12]), "label = 12 is out of range"),
    (labelled(label=[0, 1, 2]), "3 labels were given for 2 examples; give one for each"),
    (labelled(label="disc"), "label = 'disc' is not a label; expected a whole number"),
    (labelled(label=1.5), "label = 1.5; expected a whole number"),
    (plain(label=3), "a label was given to a model without labels; train one"),
    (labelled(guidance=2.0), "guidance = 2 scales the effect of label, which was not given"),
    (labelled(guidance=-1.0, label=3), "guidance = -1.0; expected a number of 0 or more"),
    (plain(guide=low, scale=math.nan), "scale = nan; expected a finite number"),
    *each(lambda text: read_labels(unet(3), text), WORDS, " is not a label; expected a whole"),
    (lambda: read_labels(model("binary"), "each"), "'each' needs the number of labels"),
    (
        lambda: ClassifierFree(ClassifierFree(model("binary"), 2.0), 2.0),  # pyright: ignore
        "wrap the model in ClassifierFree first",
    ),
    (guided(lambda x: (x.sum(-1) * 0.0).sqrt()), "gradient is NaN"),
    (guided(lambda x: x.sum()), "returned shape ()"),
    (guided(lambda x: x), "returned shape (2, 3)"),
    (guided(lambda x: 1.0), "returned float"),
    (guided(lambda x: x.detach().sum(-1)), "no gradient"),
    (lambda: Guided(model("binary"), torch.sum, of="x"), "of = 'x'"),  # pyright: ignore
    (lambda: Guided(Guided(model("binary"), low), low), "add both scores in one guide"),
    (masked(MLP(3, width=8), SEEN), "the network, MLP, does not take known variables"),
    (masked(Toy(), SEEN.float()), "the mask is torch.float32; expected a torch.bool tensor"),
    (masked(Toy(), [True, False, False]), "the mask is list; expected a torch.bool tensor"),
    (masked(Toy(), SEEN[:2]), "the mask has shape (2,), but x has (4, 3)"),
]

measure = of(evaluate.evaluate, model=bfn.discrete(MLP(1, width=8), K=2), data=BITS)
sde = of(quality.compare, lambda: model("continuous"), digits, solvers=["sde"], calls=[2], n=20)
MEASURES: Table = [
    (measure(steps=[0]), "expected inf, or a whole number, at least 1"),
    (measure(steps=["many"]), "expected inf, or a whole number, at least 1"),
    (measure(steps=[]), "steps is empty"),
    (measure(steps=5), "steps = 5; expected a list, such as [10, 25, 'inf']"),
    (measure(steps="inf"), "steps = 'inf'; expected a list"),
    (measure(model="digits"), "the model is 'digits'; expected a bfn.BFN"),
    (measure(batch=0), "batch = 0"),
    (measure(repeats=0), "repeats = 0"),
    (measure(crops=-1), "crops = -1"),
    (measure(crops=5), "is not a text"),
    (measure(known=BITS[0] > -1), "everything is known; leave some variables out"),
    (measure(known=BITS > 0), "the mask has shape (200, 1), but x has (1, 1)"),
    (measure(known=BITS[0]), "the mask is torch.int64; expected a torch.bool tensor"),
    (measure(known="all"), "the mask is str"),
    (measure(known=BITS[0] < 0), "the network, MLP, does not take known variables"),
    (lambda: evaluate.independent_entropy(digits()), "continuous"),
    (lambda: quality.quality(digits(), "test", 10, {"word"}), "digits is not a text"),
    (lambda: quality.TwoSamples(digits(), "test", 3), "n = 3 with 297 examples"),
    (sde(n="6"), "n = '6'; expected a whole number"),
    (sde(repeats=0), "repeats = 0; expected a whole number"),
]

MEAN = np.random.default_rng(7).normal(0.0, 30.0, (3, 40))
CELL, PAIR = np.rint(MEAN).astype(np.int64), np.array([[5, 9]] * 3)
code = of(Codec, lambda: model("discretised"), shape=(1, 4, 4), steps=5, lanes=3)


def encode(x: Any) -> Callable[[], Any]:
    return lambda: code()().encode([x])


def coded(model: Callable[[], bfn.BFN], x: Any) -> Callable[[], Any]:
    return lambda: Codec(model(), x.shape[1:], 3).encode([x])


def filled() -> stack.Stacks:
    stacks = stack.Stacks(3)
    for lane in range(3):
        stacks.put(lane, bytes(range(1, 201)) * 4)
    return stacks


CODING: Table = [
    (code(steps=0), "steps = 0"),
    (encode(torch.zeros(3, 4, 4)), "block 0 is"),
    (encode(torch.full((3, 1, 4, 4), 0.1)), "not the centre"),
    (encode(torch.full((3, 1, 4, 4), math.nan)), "outside the range"),
    (encode(torch.zeros(3, 1, 4, 4).long()), "has type"),
    (encode([1, 2]), "x is a list; expected a tensor"),
    (lambda: code()().encode({"x": TEXT}), "expected a list of blocks: for one, give"),
    (lambda: Codec(model("continuous", reconstruction=None), (4,), 3), "reconstruction=bfn.Bins"),
    (lambda: Codec(bfn.discretised(Toy(P=2), 2**22 + 1, 0.1), (4,), 3), "too many to code"),
    (coded(lambda: bfn.discrete(Toy(scale=math.nan), 2, 4.0), BITS[:4]), "not finite"),
    (lambda: stack.gaussian(MEAN, 2.5, 20).push(filled(), CELL + 21), "damaged"),
    # It does not wrap round to a symbol of the alphabet.
    (lambda: stack.gaussian(MEAN, 2.5, 20).push(filled(), CELL + 2**32), "damaged"),
    # Beyond its own size, not the largest.
    (lambda: stack.uniform(PAIR).push(filled(), PAIR[:, ::-1] - 2), "damaged"),
    (lambda: stack.Stacks(1).put(0, b"\1\2\3\4\0\0\0\0"), "damaged"),
    (lambda: stack.gaussian(MEAN * np.nan, 2.5, 20), "not finite"),
    (lambda: stack.cut_gaussian(MEAN, np.abs(MEAN) * np.inf, 17), "not finite"),
    (lambda: stack.table(MEAN[..., None] * np.nan), "not finite"),
    (lambda: MessageGrid.of(GaussianFlow(Exponential(0.02)), 5, spacing=1e-9), "too fine"),
    (lambda: MessageGrid.of(GaussianFlow(Exponential(1e-8)), 1, 0.5).pushed(1, 2.0), "more steps"),
]


@pytest.mark.parametrize(
    "mistake",
    [*SCHEDULES, *MODELS, *GENERATION, *GUIDANCE, *MEASURES, *CODING],
    ids=lambda mistake: mistake[1],
)
def test_mistakes(mistake: tuple[Any, ...]) -> None:
    assert_refused(*mistake)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mistake", LOSSES, ids=lambda mistake: mistake[2])
def test_mistakes_with_losses(mistake: tuple[Any, ...], kind: str) -> None:
    function, wrong, *words = mistake
    given = {"x": data(kind, (2, 3)), **wrong}
    assert_refused(lambda: function(model(kind), **given), *words)


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: m.check(x),
        loss.continuous_time,
        lambda m, x: loss.discrete_time(m, x, 3),
        loss.reconstruction,
    ],
    ids=["check", "continuous", "discrete", "reconstruction"],
)
@pytest.mark.parametrize("mistake", DATA, ids=lambda mistake: f"{mistake[0]} {mistake[2]}")
def test_mistakes_with_data(mistake: tuple[Any, ...], use: Callable[..., object]) -> None:
    kind, values, *words = mistake
    assert_refused(lambda: use(model(kind), torch.tensor([values])), *words)


ROWS = {"x": list(range(9))}
EXTRAS: Table = [
    ("sklearn", lambda: compare(ROWS, ROWS), "compare"),
    ("matplotlib", lambda: style.load("matplotlib"), "plot"),
    ("PIL.Image", lambda: style.load("PIL.Image"), "plot"),
    ("pyarrow", lambda: read(ROWS), "tables"),
]


@pytest.mark.parametrize(("module", "call", "extra"), EXTRAS)
def test_missing_extras(module: str, call: Any, extra: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert_refused(call, f"not installed; add it with: pip install 'bfn[{extra}]'")
