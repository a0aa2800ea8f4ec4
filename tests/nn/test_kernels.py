"""The fused group normalisation against torch's own in float64, on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bfn.nn import blocks

pytestmark = pytest.mark.skipif(blocks.kernels is None, reason="needs a CUDA device and triton")


def mask(shape: torch.Size, seed: Tensor, p: float) -> Tensor:
    """What dropout keeps, worked out with whole numbers."""
    batch, channels, height, width = shape
    low, high = seed.tolist()
    h = torch.arange(batch * channels * height * width) ^ low
    h = ((h ^ (h >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    h = (h ^ (h >> 15)) ^ high
    h = (h * 0x846CA68B) & 0xFFFFFFFF
    kept = (h ^ (h >> 16)) >= int(p * 2**32)
    return kept.reshape(batch, height, width, channels).permute(0, 3, 1, 2)


def plain(x, shift, weight, bias, seed, groups, silu, p) -> Tensor:
    if shift is not None:
        x = x + shift[:, :, None, None]
    y = F.group_norm(x, groups, weight, bias)
    if silu:
        y = F.silu(y)
    return y if seed is None else y * mask(x.shape, seed, p).to(y) / (1.0 - p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((3, 128, 28, 28), 32), ((2, 384, 7, 9), 32), ((2, 96, 5, 5), 8), ((1, 64, 1, 3), 1)],
)
def test_values_and_gradients(shape, groups, p, silu, shifted, dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, slope = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    x = (2.0 * x + 20.0).to(dtype)  # a mean far from 0
    shift = torch.randn(shape[:2], generator=generator).double() if shifted else None
    weight, bias = (torch.randn(shape[1], generator=generator).double() for _ in range(2))
    seed = torch.tensor([3_141_592_653, 271_828_182]) if p else None

    exact = [None if v is None else v.double().requires_grad_() for v in (x, shift, weight, bias)]
    expected = plain(*exact, seed, groups, silu, p)
    known = [v for v in exact if v is not None]
    gradients = torch.autograd.grad(expected, known, slope.to(dtype).double())

    given = [
        None if v is None else v.detach().to("cuda", t).requires_grad_()
        for v, t in zip(exact, (dtype, torch.float32, torch.float32, torch.float32), strict=True)
    ]
    last = given[0].detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    given[0] = last
    key = None if seed is None else seed.cuda()
    y, _ = blocks.kernels.group_norm_act(*given, key, groups, silu, p)
    assert y.is_contiguous(memory_format=torch.channels_last)
    found = torch.autograd.grad(y, [v for v in given if v is not None], slope.to("cuda", dtype))
    bound = 2e-5 if dtype == torch.float32 else 6e-3
    for a, b in zip((y, *found), (expected, *gradients), strict=True):
        a = a.double().cpu()
        assert torch.isfinite(a).all()
        assert (a - b).norm() <= bound * b.norm() + 1e-6


def test_shares_kept_by_dropout() -> None:
    x = torch.ones((64, 32, 16, 16), device="cuda").contiguous(memory_format=torch.channels_last)
    norm = blocks.GroupNormAct(32, 8, silu=False, dropout=0.3).cuda().train()
    torch.nn.init.ones_(norm.bias)
    torch.manual_seed(0)
    first, second = norm(x), norm(x)
    deviation = (0.3 * 0.7 / x.numel()) ** 0.5
    for y in (first, second):
        assert abs(float((y == 0).float().mean()) - 0.3) < 4 * deviation
    both = float(((first == 0) & (second == 0)).float().mean())
    assert abs(both - 0.09) < 4 * (0.09 * 0.91 / x.numel()) ** 0.5
    torch.manual_seed(0)
    assert torch.equal(norm(x), first)
