"""The kernels against torch's own functions in float64, on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bfn.nn import blocks

pytestmark = pytest.mark.skipif(blocks.kernels is None, reason="needs a CUDA device and triton")


def threshold(p: float) -> int:
    return round(p * 2**16)


def mask(shape: torch.Size, seed: Tensor, p: float) -> Tensor:
    """What dropout keeps, computed with integers: 32 bits for every two channels."""
    batch, channels, height, width = shape
    low, high = seed.tolist()
    h = torch.arange(batch * height * width * channels // 2) ^ low
    h = ((h ^ (h >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    h = (h ^ (h >> 15)) ^ high
    h = (h * 0x846CA68B) & 0xFFFFFFFF
    h = h ^ (h >> 16)
    kept = torch.stack((h & 0xFFFF, h >> 16), -1) >= threshold(p)
    return kept.reshape(batch, height, width, channels).permute(0, 3, 1, 2)


def plain(x, shift, weight, bias, seed, groups, silu, p) -> Tensor:
    if shift is not None:
        x = x + shift[:, :, None, None]
    y = F.group_norm(x, groups, weight, bias)
    if silu:
        y = F.silu(y)
    return y if seed is None else y * mask(x.shape, seed, p).to(y) / (1.0 - threshold(p) / 2**16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((3, 128, 28, 28), 32),
        ((2, 128, 32, 32), 32),
        ((2, 384, 7, 9), 32),
        ((2, 96, 5, 5), 8),
        ((1, 64, 1, 3), 1),
        ((2, 66, 3, 3), 2),
    ],
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
    compare([y, *found], [expected, *gradients], dtype)


def values(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def compare(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    bound = 2e-5 if dtype == torch.float32 else 6e-3
    for a, b in zip(found, expected, strict=True):
        a = a.double().cpu()
        assert torch.isfinite(a).all()
        assert (a - b).norm() <= bound * b.norm() + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("outputs", ["both", "norm", "sum"])
@pytest.mark.parametrize("shape", [(3, 50, 768), (5, 7, 96), (3000, 1, 64)])
def test_sum_and_norm(shape, outputs, biased, dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, branch, *slopes = (values(*shape, generator=generator) for _ in range(4))
    x, branch, *slopes = ((3.0 * v + 1.0).to(dtype).double() for v in (x, branch, *slopes))
    bias, weight, offset = (values(shape[-1], generator=generator).float() for _ in range(3))

    def run(x, branch, bias, weight, offset, slopes, fused: bool) -> list[Tensor]:
        given = [v for v in (x, branch, bias, weight, offset) if v is not None]
        given = [v.detach().requires_grad_() for v in given]
        a, b, *rest = given
        bias = rest[0] if biased else None
        if fused:
            both = blocks.kernels.add_norm(a, b, bias, *rest[-2:])[:2]
        else:
            total = a + b + (bias if biased else 0.0)
            both = total, F.layer_norm(total, shape[-1:], *rest[-2:])
        wanted = {"both": (0, 1), "norm": (1,), "sum": (0,)}[outputs]
        loss = sum((both[i].double() * slopes[i]).sum() for i in wanted)
        found = torch.autograd.grad(loss, given, allow_unused=True)
        return [*both, *(g for g in found if g is not None and float(g.abs().max()) > 0)]

    exact = run(
        x, branch, bias.double() if biased else None, weight.double(), offset.double(), slopes,
        False,
    )  # fmt: skip
    moved = [v.to("cuda", dtype) for v in (x, branch)]
    vectors = [
        v.cuda() if v is not None else None for v in (bias if biased else None, weight, offset)
    ]
    compare(run(*moved, *vectors, [s.cuda() for s in slopes], True), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 64, 256), (3, 7, 100), (5000, 12)])
def test_gelu_of_a_product_and_its_bias(shape, dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    h, slope = (3.0 * values(*shape, generator=generator) for _ in range(2))
    h, slope = h.to(dtype).double(), slope.to(dtype).double()
    bias = values(shape[-1], generator=generator).float()
    a, b = h.requires_grad_(), bias.double().requires_grad_()
    y = F.gelu(a + b, approximate="tanh")
    expected = [y, *torch.autograd.grad(y, (a, b), slope)]
    a, b = h.detach().to("cuda", dtype).requires_grad_(), bias.cuda().requires_grad_()
    y = blocks.kernels.bias_gelu(a, b)
    compare([y, *torch.autograd.grad(y, (a, b), slope.to("cuda", dtype))], expected, dtype)


def test_fractions_kept_by_dropout() -> None:
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
