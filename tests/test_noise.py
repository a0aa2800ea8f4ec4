"""Random numbers: seeds, keys and devices."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from bfn import noise
from support.toys import generator


@pytest.mark.parametrize("draw", [noise.normal, noise.uniform])
def test_a_part_has_the_rows_of_the_whole(draw) -> None:
    whole = draw((6, 3), generator(1))
    for rows in (range(2), range(2, 6)):
        part = draw((len(rows), 3), noise.Part(generator(1), rows, 6))
        assert torch.equal(part, whole[rows.start : rows.stop])


@pytest.mark.parametrize("draw", [noise.normal, noise.uniform])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_seeds_give_equal_numbers(draw, dtype: torch.dtype) -> None:
    a, b = (draw((3, 4), generator(s), dtype=dtype) for s in (1, 1))
    assert torch.equal(a, b)
    assert a.dtype == dtype
    assert not torch.equal(a, draw((3, 4), generator(2), dtype=dtype))
    torch.manual_seed(3)
    first = draw((3, 4), None, dtype=dtype)
    torch.manual_seed(3)
    assert torch.equal(first, draw((3, 4), None, dtype=dtype))


@pytest.mark.parametrize(("draw", "law"), [(noise.normal, "norm"), (noise.uniform, "uniform")])
def test_laws(draw, law: str) -> None:
    for source in (generator(4), noise.Keyed(range(50))):
        values = draw((50, 200), source, dtype=torch.float64).flatten().numpy()
        assert stats.kstest(values, law).pvalue > 1e-3


@pytest.mark.parametrize("draw", [noise.normal, noise.uniform])
@pytest.mark.parametrize("shape", [(), (5, 7)])
def test_keyed_noise_belongs_to_the_example(draw, shape: tuple[int, ...]) -> None:
    seeds = [noise.seed(0, i) for i in range(6)]
    together = draw((6, *shape), noise.Keyed(seeds))
    for order in ([5, 0, 3], [2], [1, 4]):
        apart = draw((len(order), *shape), noise.Keyed([seeds[i] for i in order]))
        assert torch.equal(apart, together[order])
    # A second draw goes on, and is still the example's own.
    a, b = noise.Keyed(seeds), noise.Keyed(seeds[2:3])
    draw((6, *shape), a), draw((1, *shape), b)
    assert torch.equal(draw((6, *shape), a)[2:3], draw((1, *shape), b))


@pytest.mark.parametrize(("draw", "law"), [(noise.normal, "norm"), (noise.uniform, "uniform")])
def test_no_number_of_many_small_draws_comes_twice(draw, law: str) -> None:
    source, shapes = noise.Keyed(range(20)), [(), (3,), (2, 5), (64,), (65,)]
    drawn = [draw((20, *shape), source, dtype=torch.float64) for shape in shapes for _ in range(9)]
    values = torch.cat([each.reshape(20, -1) for each in drawn], 1)
    assert len(values.unique()) == values.numel()
    assert stats.kstest(values.flatten().numpy(), law).pvalue > 1e-3


def test_numbers_are_moved_to_the_device() -> None:
    for source in (generator(5), noise.Keyed([1, 2]), None):
        assert noise.normal((2, 3), source, device="meta").device.type == "meta"


def test_seeds_of_near_keys_are_unrelated() -> None:
    keys = [(s, i) for s in range(30) for i in range(30)] + [("a", 1), ("a1",), (1,), (11,)]
    seeds = [noise.seed(*key) for key in keys]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**63 for s in seeds)
    assert stats.kstest([s / 2**63 for s in seeds], "uniform").pvalue > 1e-3
    assert noise.seed(1, 2) == noise.seed(1, 2)
    assert noise.seed(1, 2, "x") != noise.seed(1, 2)
