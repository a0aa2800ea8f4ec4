"""Many examples in batches: the same whatever the batch, with little memory, and counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bfn
from bfn import noise
from bfn.sampling.batches import in_batches
from support.toys import KINDS, model

every_kind = pytest.mark.parametrize("kind", KINDS)
OPTIONS: dict[str, Any] = {"solver": "sde2"}


@every_kind
@pytest.mark.parametrize("static", [False, True])
def test_results_do_not_depend_on_the_batch(
    kind: str, static: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bfn_model, sizes = model(kind).double(), []
    forward = bfn_model.net.forward

    def watched(features: torch.Tensor, *rest: Any, **cond: Any) -> torch.Tensor:
        sizes.append(len(features))
        return forward(features, *rest, **cond)

    monkeypatch.setattr(bfn_model.net, "forward", watched)
    label = torch.arange(7) % 3
    whole = in_batches(bfn_model, 7, (3,), 4, seed=5, label=label, **OPTIONS)
    for batch in (1, 3, 100):
        sizes.clear()
        apart = in_batches(
            bfn_model, 7, (3,), 4, batch=batch, seed=5, label=label, static=static, **OPTIONS
        )
        torch.testing.assert_close(apart, whole, rtol=1e-9, atol=1e-9)
        assert set(sizes) == ({3, 1} if batch == 3 and not static else {min(batch, 7)})
    few = in_batches(bfn_model, 2, (3,), 4, seed=5, label=label[:2], **OPTIONS)
    torch.testing.assert_close(few, whole[:2], rtol=1e-9, atol=1e-9)
    keys = noise.Keyed([noise.seed("sample", 5, i) for i in range(7)])
    direct = bfn.generate(bfn_model, (7, 3), 4, generator=keys, label=label, **OPTIONS)
    torch.testing.assert_close(direct, whole)
    seeded = bfn.generate(bfn_model, (7, 3), 4, seed=5, label=label, **OPTIONS)
    assert torch.equal(seeded, direct)
    assert not torch.equal(in_batches(bfn_model, 7, (3,), 4, seed=6, **OPTIONS), whole)


def test_progress_is_of_calls_and_the_callback_sees_the_first_batch() -> None:
    reports, seen = [], []
    in_batches(
        model("binary"),
        5,
        (3,),
        batch=2,
        calls=4,
        progress=lambda done, total: reports.append((done, total)),
        callback=lambda i, t, theta, output: seen.append((i, len(theta.V))),
    )
    assert {total for _, total in reports} == {20}
    done = [each for each, _ in reports]
    assert done == sorted(done)
    assert done[-1] == 20
    assert len(done) == 12
    assert seen == [(0, 2), (1, 2), (2, 2), (3, 2)]


def test_the_batch_is_halved_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bfn_model, messages = model("continuous").double(), []
    whole = in_batches(bfn_model, 9, (3,), 3, seed=1)
    forward = bfn_model.net.forward

    def small(features: torch.Tensor, *rest: Any, **cond: Any) -> torch.Tensor:
        if len(features) > 2:
            raise torch.OutOfMemoryError("no room")
        return forward(features, *rest, **cond)

    monkeypatch.setattr(bfn_model.net, "forward", small)
    found = in_batches(bfn_model, 9, (3,), 3, seed=1, say=messages.append)
    torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-9)
    assert messages == [f"memory ran out; going on with {size} examples at once" for size in (4, 2)]


def test_completions_come_in_batches_too() -> None:
    """Completions of one example or of several; particles count towards the batch."""
    bfn_model, sizes, reports = model("discrete").double(), set(), []
    x, mask = torch.tensor([1, 3, 0]), torch.tensor([True, False, True])
    ways: list[dict[str, Any]] = [{}, {"particles": 3}, {"resample": 1, "solver": "sde2"}]
    for options in ways:
        whole = in_batches(bfn_model, 5, (3,), 4, known=(x, mask), label=2, seed=5, **options)
        assert torch.equal(whole[:, mask], x[mask].expand(5, 2))
        keys = noise.Keyed([noise.seed("sample", 5, i) for i in range(5)])
        direct = bfn.infill(bfn_model, x.expand(5, 3), mask, 4, generator=keys, label=2, **options)
        assert torch.equal(direct, whole)
        seeded = bfn.infill(bfn_model, x.expand(5, 3), mask, 4, seed=5, label=2, **options)
        assert torch.equal(seeded, whole)
        each = torch.arange(15).reshape(5, 3) % 4
        direct = bfn.infill(bfn_model, each, mask, 4, seed=5, **options)
        several = in_batches(bfn_model, 5, (3,), 4, known=(each, mask), batch=2, seed=5, **options)
        assert torch.equal(several, direct)
        reports.clear()
        apart = in_batches(
            *(bfn_model, 5, (3,), 4),
            known=(x, mask),
            batch=6,
            label=2,
            seed=5,
            callback=lambda i, t, theta, output: sizes.add(len(theta.V)),
            progress=lambda done, total: reports.append((done, total)),
            **options,
        )
        assert torch.equal(apart, whole)
        calls = 5 * (4 * (1 + options.get("resample", 0)) + 1)
        assert reports[-1] == (calls, calls)
    assert sizes == {5, 6}


def test_lengths_of_another_number_are_refused() -> None:
    with pytest.raises(bfn.BFNError, match="5 lengths were given for 10 examples"):
        in_batches(model("discrete"), 10, (8,), 2, batch=5, length=torch.tensor([1, 2, 3, 4, 5]))


def test_every_condition_with_one_entry_per_example_is_divided() -> None:
    """A user's network may take other conditions; one value for all examples stays as it is."""

    class Wishing(torch.nn.Module):
        def forward(
            self, features: torch.Tensor, t: torch.Tensor, wish: torch.Tensor, strength: Any
        ) -> torch.Tensor:
            assert strength.shape == (7,)
            wished = torch.nn.functional.one_hot(wish, 4).to(features)
            return (strength.sum() * wished).unsqueeze(1).expand_as(features)

    wishing = bfn.discrete(Wishing(), K=4, beta_1=2.0)
    wish = torch.tensor([3, 1, 2, 2, 0])
    cond: dict[str, Any] = {"wish": wish, "strength": torch.full((7,), 20.0)}
    x = in_batches(wishing, 5, (3,), 4, batch=3, **cond)
    assert torch.equal(x, wish.unsqueeze(1).expand(5, 3))
    known = (torch.tensor([1, 0, 0]), torch.tensor([True, False, False]))
    for particles in (1, 4):
        x = in_batches(wishing, 5, (3,), 4, batch=8, known=known, particles=particles, **cond)
        assert torch.equal(x[:, 1:], wish.unsqueeze(1).expand(5, 2))
