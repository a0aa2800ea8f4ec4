"""Examples of different lengths: padding costs nothing, is never seen, and the length is data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn import loss, noise
from bfn.nn import MLP, Transformer
from support.lengths import LONGEST, atoms, molecules, transformer, two_lengths
from support.mistakes import assert_refused
from support.toys import KINDS, calls, data, generator, standard_error

pytestmark = pytest.mark.usefixtures("double")
LOSSES: dict[str, Callable[..., Tensor]] = {
    "continuous_time": loss.continuous_time,
    "discrete_time": lambda m, x, **k: loss.discrete_time(m, x, 5, **k),
    "all_steps": lambda m, x, **k: loss.discrete_time(m, x, 3, steps="all", **k),
    "objective": lambda m, x, **k: loss.objective(m, x, **k).value,
    "mixture": lambda m, x, **k: loss.objective(m, x, "mixture", 7, **k).value,
    "reconstruction": lambda m, x, times=None, **k: loss.reconstruction(m, x, **k),
}
every_loss = pytest.mark.parametrize("name", LOSSES)
CASES = [*KINDS, "posterior"]
LENGTHS = torch.tensor([LONGEST, 4, 1, 3])
TIMES = torch.tensor([0.3, 0.9, 0.6, 0.05])


def case(name: str) -> tuple[bfn.BFN, Tensor]:
    kind = "discretised" if name == "posterior" else name
    options = {"head": "posterior"} if name == "posterior" else {}
    return transformer(kind, **options), data(kind, (len(LENGTHS), LONGEST))


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of a shorter sequence is the beginning of the longer one's, in every call."""

    def normal(shape: Any, source: noise.Keyed, device: Any = None, dtype: Any = None) -> Tensor:
        rows = [
            torch.randn((LONGEST, *shape[2:]), generator=g, dtype=dtype)[: shape[1]]
            for g in source.generators
        ]
        return torch.stack(rows)

    monkeypatch.setattr(noise, "normal", normal)


@every_loss
@pytest.mark.parametrize("kind", CASES)
def test_a_padded_batch_costs_what_its_examples_cost(
    kind: str, name: str, same_noise: None
) -> None:
    """Whatever the padding holds: here -1 or NaN, which no data can be."""
    model, x = case(kind)
    model.lengths = bfn.Lengths.of(LENGTHS, LONGEST)
    given = model.flow.padded(x, torch.arange(LONGEST) < LENGTHS[:, None])
    padded = LOSSES[name](model, given, times=TIMES, length=LENGTHS, generator=keyed())
    padded.sum().backward()
    gradients = {key: p.grad.clone() for key, p in model.named_parameters()}
    model.zero_grad()
    for i, length in enumerate(LENGTHS):
        row, source = slice(i, i + 1), noise.Keyed([i])
        given = {"times": TIMES[row], "generator": source}
        everything = torch.ones(1, int(length), dtype=torch.bool)
        alone = LOSSES[name](model, x[row, :length], mask=everything, **given)
        alone.sum().backward()
        paid = model.lengths.cost(length[None]) if name == "reconstruction" else 0.0
        torch.testing.assert_close(padded[row], alone + paid, rtol=1e-9, atol=1e-9)
    for key, p in model.named_parameters():
        scale = float(gradients[key].abs().max()) + 1e-9
        torch.testing.assert_close(p.grad, gradients[key], rtol=1e-7, atol=1e-9 * scale + 1e-12)


def keyed() -> noise.Keyed:
    return noise.Keyed(range(len(LENGTHS)))


@every_loss
def test_a_padded_batch_of_mixed_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for variables that share a length; what is not of that length always exists."""

    def normal(shape: Any, source: noise.Keyed, device: Any = None, dtype: Any = None) -> Tensor:
        rows = [torch.randn((), generator=g, dtype=dtype) for g in source.generators]
        return torch.stack(rows).reshape(-1, *(1,) * (len(shape) - 1)).expand(shape).clone()

    monkeypatch.setattr(noise, "normal", normal)
    model, x = atoms(), molecules(LENGTHS)
    model.lengths = bfn.Lengths.of(LENGTHS, LONGEST)
    packed = model.flow.pack(x, model.dtype)
    given = model.flow.unpack(model.flow.padded(packed, model.existing(packed, None, LENGTHS)))
    padded = LOSSES[name](model, given, times=TIMES, length=LENGTHS, generator=keyed())
    mask = torch.arange(LONGEST) < LENGTHS[:, None]
    for given in (mask, {"types": mask, "coordinates": mask}):
        by_mask = LOSSES[name](model, x, times=TIMES, mask=given, generator=keyed())
        paid = model.lengths.cost(LENGTHS) if name == "reconstruction" else 0.0
        torch.testing.assert_close(by_mask + paid, padded)
    for i, length in enumerate(LENGTHS.tolist()):
        small = atoms(length)
        small.net = model.net
        part = {key: v[i : i + 1, :length] for key, v in x.items() if key != "charge"}
        part["charge"] = x["charge"][i : i + 1]
        given = {"times": TIMES[i : i + 1], "generator": noise.Keyed([i])}
        alone = LOSSES[name](small, part, mask=torch.ones(1, length, dtype=torch.bool), **given)
        paid = model.lengths.cost(LENGTHS[i : i + 1]) if name == "reconstruction" else 0.0
        torch.testing.assert_close(padded[i : i + 1], alone + paid, rtol=1e-9, atol=1e-9)


def test_the_bound_is_the_entropy_of_length_and_content() -> None:
    """With the exact posterior as the network; L^n is above L^inf, as it is without lengths."""
    lines = two_lengths()
    x, lengths = lines.sample(40_000, generator(0))
    given: dict[str, Any] = {"length": lengths, "generator": generator(1)}
    with torch.no_grad():
        last = loss.reconstruction(lines.model, x, **given)
        nats = loss.continuous_time(lines.model, x, **given) + last
        steps = loss.discrete_time(lines.model, x, 40, **given) + last
    error = standard_error(nats)
    assert abs(float(nats.mean()) - lines.entropy) < 4 * error < 0.1
    assert -4 * error < float(steps.mean()) - lines.entropy < 0.2
    # The length's own part, exactly: its cost beside that of the content.
    mask = torch.arange(lines.longest) < lengths[:, None]
    rest = loss.reconstruction(lines.model, x, mask=mask, generator=generator(1))
    both = loss.reconstruction(lines.model, x, length=lengths, generator=generator(1))
    H = -sum(p * math.log(p) for p in lines.law.values())
    assert float((both - rest).mean()) == pytest.approx(H, rel=1e-9)


def test_the_law_of_lengths() -> None:
    law = bfn.Lengths.of(torch.tensor([2, 2, 2, 4]), 4)
    p = torch.tensor([0.5, 3.5, 0.5, 1.5]) / 6.0
    assert torch.tensor(law.log_p).exp().tolist() == pytest.approx(p.tolist(), rel=1e-4)
    torch.testing.assert_close(law.cost(torch.tensor([2, 1])), -p[[1, 0]].log(), atol=2e-5, rtol=0)
    drawn = law.sample(20_000, generator(0))
    shares = torch.bincount(drawn, minlength=5)[1:] / len(drawn)
    assert float((shares - p).abs().max()) < 0.015
    least = law.sample(20_000, generator(0), least=3)
    assert sorted(set(least.tolist())) == [3, 4]
    assert float((least == 4).double().mean()) == pytest.approx(0.75, abs=0.015)


def test_the_law_is_saved_with_the_model(tmp_path: Any) -> None:
    model = transformer("discrete")
    model.lengths = bfn.Lengths.of(LENGTHS, LONGEST)
    model.save_pretrained(tmp_path)
    assert bfn.BFN.from_pretrained(tmp_path).lengths == model.lengths


def test_mistakes() -> None:
    model, x = case("discrete")
    mask = torch.arange(LONGEST) < LENGTHS[:, None]
    mixed, molecule = atoms(), molecules(LENGTHS)
    with_law, _ = case("discrete")
    with_law.lengths = bfn.Lengths.of(LENGTHS, LONGEST)
    blind = bfn.discrete(MLP(LONGEST, 4, 4, width=8, layers=1), 4)
    nothing = mask & False

    def cost(model: bfn.BFN = model, x: Any = x, **given: Any) -> Callable[[], Tensor]:
        return lambda: loss.continuous_time(model, x, **given)

    def draw(**given: Any) -> Callable[[], Tensor]:
        return lambda: bfn.generate(with_law, (2, LONGEST), **given)

    for call, words in (
        (cost(length=LENGTHS + 1), "has length 7; expected 1 to 6"),
        (cost(length=LENGTHS - 1), "has length 0; expected 1 to 6"),
        (cost(length=LENGTHS.double()), "torch.float64 of shape (4,); expected a whole number"),
        (cost(length=LENGTHS[:2]), "of shape (2,); expected a whole number for each example, (4,)"),
        (cost(length=LENGTHS, mask=mask), "a mask and lengths both say"),
        (cost(mask=nothing), "hides an entire example"),
        (cost(mask=mask.long()), "the mask is torch.int64; expected a torch.bool"),
        (cost(mask=mask[:, :3]), "the mask has shape (4, 3), but x has (4, 6)"),
        (cost(mask=[True]), "the mask is list"),
        (cost(blind, mask=mask), "the network, MLP, does not take a mask of the variables that"),
        (cost(with_law), "different lengths; give length="),
        (lambda: loss.reconstruction(model, x, length=LENGTHS), "has no distribution of lengths"),
        (cost(mixed, molecule, mask=mask[:, :4]), "no variable has such a first axis"),
        (cost(mixed, molecule, mask={"type": mask}), "the variable 'type' of the mask is unknown"),
        (cost(mixed, molecule, mask={"types": mask[:2]}), "in the variable 'types'"),
        (cost(mixed, molecule, length=9), "has length 9; expected 1 to 6"),
        (lambda: bfn.codec.Codec(with_law, (LONGEST,), 3), "different lengths cannot be coded"),
        (lambda: bfn.generate(with_law, (2, 4)), "up to 6 long, but the shape has room for 4"),
        (draw(length=7), "has length 7; expected 1 to 6"),
        (draw(length=0), "has length 0; expected 1 to 6"),
        (draw(length=[1, 2, 3]), "for each example, (2,)"),
        (draw(length="2"), "length = '2'; expected a whole number"),
        (draw(mask=torch.zeros(2, 6) > 0), "hides an entire example"),
    ):
        assert_refused(call, words)


@pytest.mark.parametrize("kind", ["MLP", "MixedMLP"])
def test_vectors_of_different_lengths(kind: str) -> None:
    """An MLP sees which variables exist but no padding, and learns the joint of both."""
    lines = two_lengths()
    x, lengths = lines.sample(4_000, generator(0))
    garbled = torch.where(torch.arange(3) < lengths[:, None], x, 2 - x.clamp_min(0))
    torch.manual_seed(0)
    if kind == "MLP":
        model = bfn.discrete(MLP(3, 3, 3, width=32, layers=1, mask=True), 3, 4.0)
    else:
        variables = {"x": bfn.Variable("discrete", (3,), K=3, beta_1=4.0)}
        net = bfn.nn.MixedMLP.of(variables, width=32, layers=1, mask=True)
        model = bfn.mixed(net, variables)

    def given(x: Tensor) -> Any:
        return x if kind == "MLP" else {"x": x}

    how: dict[str, Any] = {"display": False, "learning_rate": 1e-2, "ema_decay": 0.9}
    bfn.train.fit(model, given(x), lengths=lengths, steps=120, batch=256, **how)
    costs = [
        loss.continuous_time(model, given(each), length=lengths, generator=generator(1))
        for each in (x, garbled)
    ]
    assert torch.equal(*costs)
    shape: Any = (4_000, 3) if kind == "MLP" else 4_000
    drawn = bfn.generate(model, shape, 20, generator=generator(0))
    assert distance(lines, lines_of(drawn if kind == "MLP" else drawn["x"])) < 0.08
    # What exists is seen: the first class alone has another law than among three.
    alone = bfn.generate(model, shape, 20, length=1, generator=generator(1))
    first = alone[:, 0] if kind == "MLP" else alone["x"][:, 0]
    shares = torch.bincount(first, minlength=3) / len(first)
    assert float((shares - torch.tensor([0.7, 0.2, 0.1])).abs().max()) < 0.06


# Generation.


def lines_of(x: Tensor) -> list[tuple[int, ...]]:
    return [tuple(k for k in row if k >= 0) for row in x.tolist()]


def distance(lines: Any, drawn: list[tuple[int, ...]]) -> float:
    """The total variation between a sample and the joint law of length and content."""
    joint, counts = lines.joint(), Counter(drawn)
    assert set(counts) <= set(joint)
    return 0.5 * sum(abs(counts[line] / len(drawn) - p) for line, p in joint.items())


@pytest.mark.parametrize("solver", ["ancestral", "ode2"])
def test_samples_follow_the_joint_of_length_and_content(solver: str) -> None:
    lines, n = two_lengths(), 8000
    x = bfn.generate(lines.model, (n, 3), 50, solver=solver, generator=generator(0))
    assert distance(lines, lines_of(x)) < 0.035  # true samples: 0.02
    # A length that is given: the first class alone has another law than among three.
    x = bfn.generate(lines.model, (n, 3), 50, solver=solver, length=1, generator=generator(1))
    assert bool((x[:, 1:] == -1).all())
    shares = torch.bincount(x[:, 0], minlength=3) / n
    assert float((shares - torch.tensor([0.7, 0.2, 0.1])).abs().max()) < 0.02


@pytest.mark.parametrize("particles", [1, 8])
def test_completions_follow_the_conditional_of_their_length(particles: int) -> None:
    lines, n = two_lengths(), 2000
    x, seen = torch.tensor([0, 2, 0]).expand(n, 3), torch.tensor([False, True, False])
    how: dict[str, Any] = {"particles": particles}
    how["observed"] = "known" if particles == 1 else "schedule"
    # Only lines of three have a second class, so that is the length.
    filled = bfn.infill(lines.model, x, seen, 40, generator=generator(0), **how)
    law = lines.sources[3].joint[:, 2]
    shares = torch.bincount(filled[:, 0] * 3 + filled[:, 2], minlength=9) / n
    assert 0.5 * float((shares - (law / law.sum()).flatten()).abs().sum()) < 0.06
    first = bfn.infill(lines.model, x[:8], ~seen & False, 3, length=[1, 3] * 4, seed=0)
    assert (first >= 0).sum(1).tolist() == [1, 3] * 4
    assert_refused(lambda: bfn.infill(lines.model, x, seen, length=1), "beyond the length 1")


def test_mixed_data_of_different_lengths() -> None:
    model = atoms()
    x = bfn.generate(model, 4, 5, length=LENGTHS, seed=3)
    exists = torch.arange(LONGEST) < LENGTHS[:, None]
    assert torch.equal(x["types"] >= 0, exists)
    assert torch.equal(x["coordinates"].isfinite(), exists[..., None].expand(4, LONGEST, 3))
    assert bool(x["charge"].isfinite().all())
    one = bfn.generate(model, 2, 5, length=LENGTHS[:2], seed=3)
    for name, value in one.items():
        torch.testing.assert_close(value, x[name][:2], equal_nan=True)
    model.lengths = bfn.Lengths.of(torch.full((10_000,), 4), LONGEST)
    drawn = bfn.generate(model, 5, 2, seed=0)
    assert (drawn["types"] >= 0).sum(1).tolist() == [4] * 5
    # What is known lies within the length.
    known = {"types": x["types"][:1]}
    seen = {"types": (torch.arange(LONGEST) == 5)[None]}
    assert int((bfn.infill(model, known, seen, 2, seed=0)["types"] >= 0).sum()) == 6


@pytest.mark.parametrize("through", [True, False])
def test_a_guide_sees_nothing_of_the_padding(through: bool) -> None:
    """The expected data beyond the length are the same, whatever the network puts out there."""
    model, seen = transformer("continuous"), []

    def score(x: Tensor) -> Tensor:
        seen.append(x[:, 2:].detach())
        return x.sum(1)

    guided = bfn.guidance.Guided(model, score, through=through)
    x = bfn.generate(guided, (3, LONGEST), 4, length=2, seed=0)
    assert all(bool((part == 0.0).all()) for part in seen)
    assert bool(x[:, :2].isfinite().all())
    assert bool(x[:, 2:].isnan().all())


def test_the_network_sees_nothing_of_what_does_not_exist() -> None:
    """Whatever the padding holds."""
    model, x = transformer("discrete"), data("discrete", (len(LENGTHS), LONGEST))
    seen = calls(model.net)
    loss.continuous_time(model, x, length=LENGTHS, generator=generator(0))
    bfn.generate(model, x.shape, 3, length=LENGTHS, seed=0)
    bfn.infill(model, x, x > 9, 3, length=LENGTHS, particles=2, seed=0)
    assert len(seen) == 9
    for features, _, cond in seen:
        part = features[~cond["mask"]]
        torch.testing.assert_close(part, torch.full_like(part, 2.0 / 4.0 - 1.0))


def test_what_is_known_may_have_a_length() -> None:
    """Known and missing variables cost nothing; the rest costs the same, whatever pads it."""
    net = Transformer(LONGEST, 4, 4, width=16, layers=1, heads=2, known=True)
    model, x = bfn.discrete(net, 4), data("discrete", (len(LENGTHS), LONGEST))
    exists, known = torch.arange(LONGEST) < LENGTHS[:, None], torch.arange(LONGEST) < 3
    given: dict[str, Any] = {"known": known.expand(x.shape), "length": LENGTHS}
    nats = loss.continuous_time(model, x, TIMES, keyed(), **given)
    again = loss.continuous_time(model, x.masked_fill(~exists, 3), TIMES, keyed(), **given)
    assert torch.equal(nats, again)
    assert (nats == 0).tolist() == (LENGTHS <= 3).tolist()
