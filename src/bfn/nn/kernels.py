"""Group normalisation of channels-last images on a GPU: one read and one write each way.

torch's own kernel wants (B, C, H, W) in memory, the convolutions (B, H, W, C): between the two,
every normalisation costs two copies, and the sum before it, the SiLU and the dropout after it one
pass each. Here a program takes some groups of one example: it goes through them once for the
moments and once more, out of the cache, for the result. Nothing is kept for the backward pass but
the input and two numbers per group; the dropout's mask is a hash of the seed and the position, and
is worked out again.
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

EPS = 1e-5


@triton.jit
def _kept(at, low, high, THRESHOLD: tl.constexpr):
    """Whether dropout keeps the number at this position: 32 well mixed bits, compared."""
    h = at.to(tl.uint32) ^ low
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15)) ^ high
    h = h * 0x846CA68B
    return (h ^ (h >> 16)) >= tl.full((), THRESHOLD, tl.uint32)


@triton.jit
def _by_group(values, member):
    """The sum of each channel's group, at each channel."""
    sums = tl.sum(tl.where(member, values[:, None], 0.0), 0)
    return tl.sum(tl.where(member, sums[None, :], 0.0), 1)


@triton.jit
def _forward(
    x, shift, weight, bias, seed, y, moments, EPS: tl.constexpr,
    PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, HERE: tl.constexpr,
    BLOCK: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr,
    SHIFT: tl.constexpr, SILU: tl.constexpr, DROPOUT: tl.constexpr, THRESHOLD: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    example, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.arange(0, BLOCK)
    inside = c < HERE
    channel = part * HERE + c
    member = ((c // SIZE)[:, None] == tl.arange(0, GROUPS)[None, :]) & inside[:, None]
    x += example * PIXELS * C
    y += example * PIXELS * C
    added = tl.zeros((BLOCK,), tl.float32)
    if SHIFT:
        added = tl.load(shift + example * C + channel, mask=inside, other=0.0).to(tl.float32)
    # Moments about the first pixel, so that a large mean costs no digits.
    pivot = tl.load(x + channel, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros((ROWS, BLOCK), tl.float32)
    second = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, PIXELS, ROWS, num_stages=3):
        row = start + tl.arange(0, ROWS)
        mask = (row < PIXELS)[:, None] & inside[None, :]
        value = tl.load(x + row[:, None] * C + channel[None, :], mask=mask, other=0.0)
        value = tl.where(mask, value.to(tl.float32) - pivot[None, :], 0.0)
        first += value
        second += value * value
    ahead = tl.sum(first, 0) / PIXELS
    own = tl.sum(second, 0) - PIXELS * ahead * ahead
    centre = ahead + pivot + added
    mean = _by_group(centre, member) / SIZE
    away = centre - mean
    variance = _by_group(own + PIXELS * away * away, member) / (SIZE * PIXELS)
    inverse = 1.0 / tl.sqrt(variance + EPS)
    leader = inside & (c % SIZE == 0)
    moments += (example * (C // SIZE) + channel // SIZE) * 2
    tl.store(moments, mean, mask=leader)
    tl.store(moments + 1, inverse, mask=leader)

    gain = tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32) * inverse
    offset = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    offset += (added - mean) * gain
    if DROPOUT:
        low, high = tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32)
    for start in tl.range(0, PIXELS, ROWS, num_stages=3):
        row = start + tl.arange(0, ROWS)
        at = row[:, None] * C + channel[None, :]
        mask = (row < PIXELS)[:, None] & inside[None, :]
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        value = value * gain[None, :] + offset[None, :]
        if SILU:
            value = value * tl.sigmoid(value)
        if DROPOUT:
            kept = _kept(at + example * PIXELS * C, low, high, THRESHOLD)
            value = tl.where(kept, value * SCALE, 0.0)
        tl.store(y + at, value, mask=mask)


@triton.jit
def _backward(
    dy, x, shift, weight, bias, seed, moments, dx, sums,
    PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, HERE: tl.constexpr,
    BLOCK: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr,
    SHIFT: tl.constexpr, SILU: tl.constexpr, DROPOUT: tl.constexpr, THRESHOLD: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    example, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.arange(0, BLOCK)
    inside = c < HERE
    channel = part * HERE + c
    member = ((c // SIZE)[:, None] == tl.arange(0, GROUPS)[None, :]) & inside[:, None]
    x += example * PIXELS * C
    dy += example * PIXELS * C
    dx += example * PIXELS * C
    added = tl.zeros((BLOCK,), tl.float32)
    if SHIFT:
        added = tl.load(shift + example * C + channel, mask=inside, other=0.0).to(tl.float32)
    moments += (example * (C // SIZE) + channel // SIZE) * 2
    mean = tl.load(moments, mask=inside, other=0.0)
    inverse = tl.load(moments + 1, mask=inside, other=0.0)
    gain = tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    away = (added - mean) * inverse
    if DROPOUT:
        low, high = tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32)

    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    dgain = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, PIXELS, ROWS, num_stages=3):
        row = start + tl.arange(0, ROWS)
        at = row[:, None] * C + channel[None, :]
        mask = (row < PIXELS)[:, None] & inside[None, :]
        normal = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        normal = normal * inverse[None, :] + away[None, :]
        slope = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        if DROPOUT:
            kept = _kept(at + example * PIXELS * C, low, high, THRESHOLD)
            slope = tl.where(kept, slope * SCALE, 0.0)
        if SILU:
            value = normal * gain[None, :] + offset[None, :]
            sigmoid = tl.sigmoid(value)
            slope *= sigmoid * (1.0 + value * (1.0 - sigmoid))
        dbias += slope
        dgain += tl.where(mask, slope * normal, 0.0)
    to_bias, to_gain = tl.sum(dbias, 0), tl.sum(dgain, 0)
    # Sums of each example; those over the batch are torch's.
    sums += example * C * 3
    tl.store(sums + channel, to_bias, mask=inside)
    tl.store(sums + C + channel, to_gain, mask=inside)
    shared = _by_group(gain * to_bias, member) / (SIZE * PIXELS)
    tilt = _by_group(gain * to_gain, member) / (SIZE * PIXELS)

    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, PIXELS, ROWS, num_stages=3):
        row = start + tl.arange(0, ROWS)
        at = row[:, None] * C + channel[None, :]
        mask = (row < PIXELS)[:, None] & inside[None, :]
        normal = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        normal = normal * inverse[None, :] + away[None, :]
        slope = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        if DROPOUT:
            kept = _kept(at + example * PIXELS * C, low, high, THRESHOLD)
            slope = tl.where(kept, slope * SCALE, 0.0)
        if SILU:
            value = normal * gain[None, :] + offset[None, :]
            sigmoid = tl.sigmoid(value)
            slope *= sigmoid * (1.0 + value * (1.0 - sigmoid))
        slope = inverse[None, :] * (
            slope * gain[None, :] - shared[None, :] - normal * tilt[None, :]
        )
        tl.store(dx + at, slope, mask=mask)
        if SHIFT:
            total += tl.where(mask, slope, 0.0)
    if SHIFT:
        tl.store(sums + 2 * C + channel, tl.sum(total, 0), mask=inside)


@functools.cache
def _plan(pixels: int, channels: int, groups: int) -> tuple[int, dict[str, int]]:
    """How many programs share an example, and the sizes they are compiled for."""
    size = channels // groups
    parts = [n for n in range(1, groups + 1) if groups % n == 0]
    # The fewest parts of at most 64 channels, or of one group if that is larger.
    part = next((n for n in parts if channels // n <= 64), groups)
    here = channels // part
    block = triton.next_power_of_2(here)
    sizes = {
        "PIXELS": pixels,
        "C": channels,
        "SIZE": size,
        "HERE": here,
        "BLOCK": block,
        "GROUPS": triton.next_power_of_2(here // size),
        "ROWS": min(max(4096 // block, 1), triton.next_power_of_2(pixels)),
    }
    return part, sizes


def _dropout(p: float) -> dict[str, float]:
    """Numbers whose hash lies below the first are dropped, the others scaled by the second."""
    return {"THRESHOLD": int(p * 2**32), "SCALE": 1.0 / (1.0 - p)}


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
        EPS=EPS, **sizes, **_dropout(dropout), SHIFT=shift is not None, SILU=silu,
        DROPOUT=seed is not None, num_warps=8,
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
        dx, sums, **sizes, **_dropout(dropout), SHIFT=shift is not None, SILU=silu,
        DROPOUT=seed is not None, num_warps=8,
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
