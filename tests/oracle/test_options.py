"""Every way to call the losses estimates the same number, in every type."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

import bfn
from bfn.times import ImportanceTimes

from . import monte_carlo, reference, rows
from .monte_carlo import seed
from .rows import Row

# The rows themselves are tested more finely; a wrong option is wrong by a factor.
BATCH = 2048
averaged = functools.partial(monte_carlo.averaged, batch=BATCH)
assert_mean = functools.partial(monte_carlo.assert_mean, precision=0.006)
EACH_KIND = (rows.TWO_BITS, rows.TWO_CLASSES, rows.TWO_BINS)


def points(row: Row) -> reference.Array:
    K = row.make().source.K
    return reference.bin_points(K) if row is rows.TWO_BINS else reference.class_points(K)


@pytest.mark.parametrize("row", EACH_KIND, ids=str)
class TestOptions:
    """Every way to call the losses estimates the same number."""

    def test_all_steps(self, row: Row) -> None:
        cost = averaged(row.make(), bfn.loss.discrete_time, 5, "all")
        assert_mean(cost, row.total[5] - row.L_r, seed=seed("all", row))

    def test_given_steps(self, row: Row) -> None:
        """Step i alone costs what the entropies say, and n times that is returned."""
        toy, n, i = row.make(), 5, 4
        steps = torch.full((BATCH,), i)
        accuracies = toy.model.flow.schedule.beta(torch.tensor([(i - 1) / n, i / n])).numpy()
        P = toy.source.joint.numpy()
        expected = n * reference.discrete_time(P, points(row), accuracies, 4.0)
        cost = averaged(toy, bfn.loss.discrete_time, n, steps)
        assert_mean(cost, expected, seed=seed("given", row))

    def test_more_draws(self, row: Row) -> None:
        cost = averaged(row.make(), bfn.loss.discrete_time, 2, draws=3)
        assert_mean(cost, row.total[2] - row.L_r, seed=seed("draws", row))

    def test_independent_times(self, row: Row) -> None:
        toy = row.make()
        cost = averaged(toy, bfn.loss.discrete_time, 10, times=bfn.loss.independent)
        assert_mean(cost, row.total[10] - row.L_r, seed=seed("independent", row))
        cost = averaged(toy, bfn.loss.continuous_time, times=bfn.loss.independent)
        assert_mean(cost, row.L_inf, seed=seed("independent, continuous", row))

    def test_importance_sampled_times(self, row: Row) -> None:
        """t = u^2 with weight 1 / density = 2 sqrt(t): another sampler, the same integral."""

        def squares(batch, generator=None, *, device=None, dtype=torch.float32):
            t = bfn.noise.uniform((batch,), generator, device=device, dtype=dtype).square()
            return t, 2.0 * t.sqrt()

        toy = row.make()
        cost = averaged(toy, bfn.loss.continuous_time, times=squares)
        assert_mean(cost, row.L_inf, seed=seed("importance", row))
        cost = averaged(toy, bfn.loss.discrete_time, 5, times=squares)
        assert_mean(cost, row.total[5] - row.L_r, seed=seed("steps", row))

    def test_learned_times(self, row: Row) -> None:
        """Importance sampling that learns from past batches is unbiased in each of them."""
        toy, times = row.make(), ImportanceTimes()
        fresh = averaged(toy, bfn.loss.continuous_time, times=times)

        def cost(generator: torch.Generator) -> Tensor:
            loss = fresh(generator)
            times.update(loss)
            return loss

        assert_mean(cost, row.L_inf, seed=seed("learned", row))
        assert float(times.density().std()) > 0.1  # it has learned something

    def test_keyed_noise(self, row: Row) -> None:
        """One generator per example, as evaluation draws its noise."""
        toy, batch = row.make(), 512

        def cost(generator: torch.Generator) -> Tensor:
            x = toy.sample(batch, generator)
            keys = torch.randint(2**62, (batch,), generator=generator).tolist()
            times = bfn.loss.independent
            return bfn.loss.discrete_time(
                toy.model, x, 10, times=times, generator=bfn.noise.Keyed(keys)
            )

        expected = row.total[10] - row.L_r
        assert_mean(cost, expected, seed=seed("keyed", row))

    def test_earlier_reconstruction(self, row: Row) -> None:
        toy, t = row.make(), 0.6
        beta = float(toy.model.flow.schedule.beta(torch.tensor(t)))
        expected = reference.reconstruction(toy.source.joint.numpy(), points(row), beta, 4.0)
        cost = averaged(toy, bfn.loss.reconstruction, t)
        assert_mean(cost, expected, seed=seed("earlier", row))

    def test_float32(self, row: Row) -> None:
        """The types that users have."""
        torch.set_default_dtype(torch.float32)
        toy = row.make()
        for kind, loss, arguments, expected in (
            ("L^n", bfn.loss.discrete_time, (10,), row.total[10] - row.L_r),
            ("L^inf", bfn.loss.continuous_time, (), row.L_inf),
        ):
            cost = averaged(toy, loss, *arguments)
            assert cost(torch.Generator()).dtype == torch.float32
            assert_mean(cost, expected, seed=seed("float32", kind, row))
