"""Group normalisation of channels-last images on a GPU: one read and one write each way.

torch's own kernel wants (B, C, H, W) in memory, the convolutions (B, H, W, C), so every
normalisation costs two copies, and the sum before it and the SiLU and dropout after it one pass
each. Here a program takes some groups of one example and reads them twice, for the moments and
then, from the cache, for the result. The backward pass needs only the input and two numbers per
group; the dropout's mask is a hash of the seed and the position, and is recomputed.
"""

# A kernel's branches on constants are decided when it is compiled; decorators lack types.
# pyright: reportPossiblyUnboundVariable=false, reportFunctionMemberAccess=false
# pyright: reportMissingImports=false

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from bfn.nn.kernels.sigmoid import sigmoid

EPS = 1e-5


@triton.jit
def _channels(
    part, SIZE: tl.constexpr, HERE: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr
):
    """The channels of a part: which places of a block are used, their channel numbers, the numbers
    of channel pairs, and which place belongs to which group."""
    c = tl.arange(0, BLOCK)
    inside = c < HERE
    pair = part * (HERE // 2) + tl.arange(0, BLOCK // 2)
    member = ((c // SIZE)[:, None] == tl.arange(0, GROUPS)[None, :]) & inside[:, None]
    return inside, part * HERE + c, pair, member


@triton.jit
def _rows(start, PIXELS: tl.constexpr, ROWS: tl.constexpr):
    """ROWS pixels from `start` on; the last block is moved back to end at the last pixel."""
    return tl.minimum(start, PIXELS - ROWS) + tl.arange(0, ROWS)


@triton.jit
def _load(pointer, at, inside, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(pointer + at).to(tl.float32)
    return tl.load(pointer + at, mask=inside[None, :], other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, at, value, inside, EVEN: tl.constexpr):
    if EVEN:
        tl.store(pointer + at, value)
    else:
        tl.store(pointer + at, value, mask=inside[None, :])


@triton.jit
def _new(value, row, start, PIXELS: tl.constexpr, ROWS: tl.constexpr):
    """Zeros for the pixels that the last block repeats."""
    if PIXELS % ROWS:
        value = tl.where((row >= start)[:, None], value, 0.0)
    return value


@triton.jit
def _by_group(values, member):
    """The sum of each channel's group, at each channel."""
    sums = tl.sum(tl.where(member, values[:, None], 0.0), 0)
    return tl.sum(tl.where(member, sums[None, :], 0.0), 1)


@triton.jit
def _dropped(value, pixel, pair, low, high, C: tl.constexpr, THRESHOLD: tl.constexpr):
    """Apply dropout. Two channels share 32 well mixed bits, 16 for each."""
    h = (pixel[:, None] * (C // 2) + pair[None, :]).to(tl.uint32) ^ low
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15)) ^ high
    h = h * 0x846CA68B
    h ^= h >> 16
    bits = tl.interleave(h << 16, h)
    return tl.where(bits >= tl.full((), THRESHOLD << 16, tl.uint32), value, 0.0)


@triton.jit
def _forward(
    x, shift, weight, bias, seed, y, moments, EPS: tl.constexpr,
    PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, HERE: tl.constexpr,
    BLOCK: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
    SHIFT: tl.constexpr, SILU: tl.constexpr, DROPOUT: tl.constexpr, THRESHOLD: tl.constexpr,
):  # fmt: skip
    example, part = tl.program_id(0), tl.program_id(1)
    inside, channel, pair, member = _channels(part, SIZE, HERE, BLOCK, GROUPS)
    EVEN: tl.constexpr = HERE == BLOCK
    FAST: tl.constexpr = x.dtype.element_ty != tl.float32
    KEPT: tl.constexpr = 1.0 - THRESHOLD / 65536
    x += example.to(tl.int64) * PIXELS * C
    y += example.to(tl.int64) * PIXELS * C
    added = tl.zeros((BLOCK,), tl.float32)
    if SHIFT:
        added = tl.load(shift + example * C + channel, mask=inside, other=0.0).to(tl.float32)
    # Moments about the first pixel, so that a large mean loses no digits.
    pivot = tl.load(x + channel, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros((ROWS, BLOCK), tl.float32)
    second = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, PIXELS, ROWS, num_stages=STAGES):
        row = _rows(start, PIXELS, ROWS)
        value = _load(x, row[:, None] * C + channel[None, :], inside, EVEN) - pivot[None, :]
        value = _new(value, row, start, PIXELS, ROWS)
        first += value
        second += value * value
    ahead = tl.sum(first, 0) / PIXELS
    own = tl.sum(second, 0) - PIXELS * ahead * ahead
    centre = ahead + pivot + added
    mean = _by_group(centre, member) / SIZE
    away = centre - mean
    variance = _by_group(own + PIXELS * away * away, member) / (SIZE * PIXELS)
    inverse = 1.0 / tl.sqrt(variance + EPS)
    leader = inside & (channel % SIZE == 0)
    moments += (example * (C // SIZE) + channel // SIZE) * 2
    tl.store(moments, mean, mask=leader)
    tl.store(moments + 1, inverse, mask=leader)

    gain = tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32) * inverse
    offset = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    offset += (added - mean) * gain
    if DROPOUT:
        low, high = tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32)
        if not SILU:
            gain, offset = gain / KEPT, offset / KEPT
    for start in tl.range(0, PIXELS, ROWS, num_stages=STAGES):
        row = _rows(start, PIXELS, ROWS)
        at = row[:, None] * C + channel[None, :]
        value = _load(x, at, inside, EVEN) * gain[None, :] + offset[None, :]
        if SILU:
            value *= sigmoid(value, KEPT, FAST)
        if DROPOUT:
            value = _dropped(value, example * PIXELS + row, pair, low, high, C, THRESHOLD)
        _store(y, at, value, inside, EVEN)


@triton.jit
def _slope(value, slope, pixel, pair, low, high, C: tl.constexpr, SILU: tl.constexpr,
           DROPOUT: tl.constexpr, THRESHOLD: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """The gradient before the SiLU from the one after the dropout, up to the factor 1 / KEPT."""
    if DROPOUT:
        slope = _dropped(slope, pixel, pair, low, high, C, THRESHOLD)
    if SILU:
        s = sigmoid(value, 1.0, FAST)
        slope *= s + s * (value - value * s)
    return slope


@triton.jit
def _backward(
    dy, x, shift, weight, bias, seed, moments, dx, sums,
    PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, HERE: tl.constexpr,
    BLOCK: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
    SHIFT: tl.constexpr, SILU: tl.constexpr, DROPOUT: tl.constexpr, THRESHOLD: tl.constexpr,
):  # fmt: skip
    example, part = tl.program_id(0), tl.program_id(1)
    inside, channel, pair, member = _channels(part, SIZE, HERE, BLOCK, GROUPS)
    EVEN: tl.constexpr = HERE == BLOCK
    FAST: tl.constexpr = x.dtype.element_ty != tl.float32
    KEPT: tl.constexpr = 1.0 - THRESHOLD / 65536
    x += example.to(tl.int64) * PIXELS * C
    dy += example.to(tl.int64) * PIXELS * C
    dx += example.to(tl.int64) * PIXELS * C
    added = tl.zeros((BLOCK,), tl.float32)
    if SHIFT:
        added = tl.load(shift + example * C + channel, mask=inside, other=0.0).to(tl.float32)
    moments += (example * (C // SIZE) + channel // SIZE) * 2
    mean = tl.load(moments, mask=inside, other=0.0)
    inverse = tl.load(moments + 1, mask=inside, other=0.0)
    gain = tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    away = (added - mean) * inverse
    rise, level = inverse * gain, away * gain + offset
    low, high = 0, 0
    if DROPOUT:
        low, high = tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32)

    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    dgain = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, PIXELS, ROWS, num_stages=STAGES):
        row = _rows(start, PIXELS, ROWS)
        at = row[:, None] * C + channel[None, :]
        value = _load(x, at, inside, EVEN)
        slope = _new(_load(dy, at, inside, EVEN), row, start, PIXELS, ROWS)
        slope = _slope(
            value * rise[None, :] + level[None, :], slope, example * PIXELS + row, pair, low, high,
            C, SILU, DROPOUT, THRESHOLD, FAST,
        )  # fmt: skip
        dbias += slope
        dgain += slope * (value * inverse[None, :] + away[None, :])
    to_bias, to_gain = tl.sum(dbias, 0) / KEPT, tl.sum(dgain, 0) / KEPT
    # Sums per example; torch adds them over the batch.
    sums += example * C * 3
    tl.store(sums + channel, to_bias, mask=inside)
    tl.store(sums + C + channel, to_gain, mask=inside)
    shared = _by_group(gain * to_bias, member) / (SIZE * PIXELS)
    tilt = _by_group(gain * to_gain, member) / (SIZE * PIXELS)

    # dx = inverse (gain slope - shared - tilt normal), where normal = inverse x + away.
    by_slope = rise / KEPT
    by_value = -inverse * inverse * tilt
    constant = -inverse * (shared + tilt * away)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, PIXELS, ROWS, num_stages=STAGES):
        row = _rows(start, PIXELS, ROWS)
        at = row[:, None] * C + channel[None, :]
        value = _load(x, at, inside, EVEN)
        slope = _slope(
            value * rise[None, :] + level[None, :], _load(dy, at, inside, EVEN),
            example * PIXELS + row, pair, low, high, C, SILU, DROPOUT, THRESHOLD, FAST,
        )  # fmt: skip
        slope = slope * by_slope[None, :] + (value * by_value[None, :] + constant[None, :])
        _store(dx, at, slope, inside, EVEN)
        if SHIFT:
            total += _new(slope, row, start, PIXELS, ROWS)
    if SHIFT:
        tl.store(sums + 2 * C + channel, tl.sum(total, 0), mask=inside)


@functools.cache
def _plan(pixels: int, channels: int, groups: int) -> tuple[int, dict[str, int]]:
    """Number of programs per example, and the sizes they are compiled for."""
    size = channels // groups
    # Each part has an even number of channels: the fewest parts of at most 64, else the most.
    parts = [n for n in range(1, groups + 1) if groups % n == 0 and channels // n % 2 == 0]
    part = next((n for n in parts if channels // n <= 64), parts[-1])
    here = channels // part
    block = triton.next_power_of_2(here)
    tile = 4096 if pixels >= 512 else 2048
    sizes = {
        "PIXELS": pixels,
        "C": channels,
        "SIZE": size,
        "HERE": here,
        "BLOCK": block,
        "GROUPS": triton.next_power_of_2(here // size),
        "ROWS": min(max(tile // block, 1), 2 ** (pixels.bit_length() - 1)),
    }
    return part, sizes


def _threshold(p: float) -> int:
    """Values whose 16 random bits lie below it are dropped."""
    return min(round(p * 65536), 65535)


@triton_op("bfn::group_norm_act", mutates_args={})
def group_norm_act(
    x: Tensor,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor | None,
    groups: int,
    silu: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """dropout(silu(group_norm(x + shift))) and the groups' moments, (B, groups, 2).

    x is (B, C, H, W), channels last in memory. seed holds two int64 numbers below 2^32.
    """
    batch, channels, height, width = x.shape
    y = torch.empty_like(x)
    moments = torch.empty((batch, groups, 2), device=x.device, dtype=torch.float32)
    parts, sizes = _plan(height * width, channels, groups)
    wrap_triton(_forward)[(batch, parts)](
        x, x if shift is None else shift, weight, bias, x if seed is None else seed, y, moments,
        EPS=EPS, **sizes, STAGES=3, SHIFT=shift is not None, SILU=silu,
        DROPOUT=seed is not None, THRESHOLD=_threshold(dropout), num_warps=4,
    )  # fmt: skip
    return y, moments


@triton_op("bfn::group_norm_act_backward", mutates_args={})
def group_norm_act_backward(
    dy: Tensor,
    x: Tensor,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor | None,
    moments: Tensor,
    groups: int,
    silu: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and per example those of bias, weight and shift, (B, 3, C)."""
    batch, channels, height, width = x.shape
    dx = torch.empty_like(x)
    sums = torch.empty((batch, 3, channels), device=x.device, dtype=torch.float32)
    parts, sizes = _plan(height * width, channels, groups)
    wrap_triton(_backward)[(batch, parts)](
        dy, x, x if shift is None else shift, weight, bias, x if seed is None else seed, moments,
        dx, sums, **sizes, STAGES=3, SHIFT=shift is not None, SILU=silu,
        DROPOUT=seed is not None, THRESHOLD=_threshold(dropout), num_warps=4,
    )  # fmt: skip
    return dx, sums


def _remember(ctx, inputs, output) -> None:
    x, shift, weight, bias, seed, ctx.groups, ctx.silu, ctx.dropout = inputs
    ctx.save_for_backward(x, shift, weight, bias, seed, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, dy, _):
    x, shift, weight, bias, seed, moments = ctx.saved_tensors
    dy = dy.contiguous(memory_format=torch.channels_last)
    dx, sums = group_norm_act_backward(
        dy, x, shift, weight, bias, seed, moments, ctx.groups, ctx.silu, ctx.dropout
    )
    over_batch = sums[:, :2].sum(0)
    dshift = None if shift is None else sums[:, 2].to(shift.dtype)
    return dx, dshift, over_batch[1], over_batch[0], None, None, None, None


group_norm_act.register_autograd(_differentiate, setup_context=_remember)
