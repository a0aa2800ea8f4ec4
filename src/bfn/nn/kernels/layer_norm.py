"""Add a branch to the residual stream and normalise: one read and one write each way.

    s = x + branch + bias,    z = (s - mean(s)) / deviation(s) weight + offset,

over the last axis. The backward pass adds the gradients of both outputs, and also sums those of
the three vectors over the rows.
"""

# A kernel's branches on constants are decided when it is compiled; decorators lack types.
# pyright: reportPossiblyUnboundVariable=false, reportFunctionMemberAccess=false
# pyright: reportMissingImports=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

EPS = 1e-5
ROWS = 2
"""Rows that a program holds at a time."""
PROGRAMS = 1056
"""Programs in the backward pass, each with its own sums: eight per multiprocessor of an H200."""


@triton.jit
def _forward(
    x, branch, bias, weight, offset, total, z, moments, count,
    EPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    inside = c < WIDTH
    mask = (row < count)[:, None] & inside[None, :]
    at = row[:, None] * WIDTH + c[None, :]
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    value += tl.load(branch + at, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    # Rounded as it is stored, which is what the backward pass sees.
    kept = value.to(total.dtype.element_ty)
    tl.store(total + at, kept, mask=mask)
    value = kept.to(tl.float32)
    mean = tl.sum(value, 1) / WIDTH
    value = tl.where(mask, value - mean[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + EPS)
    tl.store(moments + row * 2, mean, mask=row < count)
    tl.store(moments + row * 2 + 1, inverse, mask=row < count)
    gain = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    constant = tl.load(offset + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(z + at, value * inverse[:, None] * gain[None, :] + constant[None, :], mask=mask)


@triton.jit
def _backward(
    dtotal, dz, total, weight, moments, dx, sums, count,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, BIAS: tl.constexpr,
    STREAM: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, BLOCK)
    inside = c < WIDTH
    gain = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    dgain = tl.zeros((ROWS, BLOCK), tl.float32)
    doffset = tl.zeros((ROWS, BLOCK), tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    step = tl.num_programs(0) * ROWS
    for start in tl.range(tl.program_id(0) * ROWS, count, step, num_stages=3):
        row = tl.arange(0, ROWS).to(tl.int64) + start
        present = row < count
        mask = present[:, None] & inside[None, :]
        at = row[:, None] * WIDTH + c[None, :]
        mean = tl.load(moments + row * 2, mask=present, other=0.0)
        inverse = tl.load(moments + row * 2 + 1, mask=present, other=0.0)
        normal = tl.load(total + at, mask=mask, other=0.0).to(tl.float32)
        normal = tl.where(mask, (normal - mean[:, None]) * inverse[:, None], 0.0)
        slope = tl.load(dz + at, mask=mask, other=0.0).to(tl.float32)
        dgain += slope * normal
        doffset += slope
        slope *= gain[None, :]
        shared = tl.sum(slope, 1) / WIDTH
        tilt = tl.sum(slope * normal, 1) / WIDTH
        slope = (slope - shared[:, None] - normal * tilt[:, None]) * inverse[:, None]
        if STREAM:
            slope += tl.load(dtotal + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx + at, slope, mask=mask)
        if BIAS:
            dbias += tl.where(mask, slope, 0.0)
    sums += tl.program_id(0) * 3 * WIDTH + c
    tl.store(sums, tl.sum(dgain, 0), mask=inside)
    tl.store(sums + WIDTH, tl.sum(doffset, 0), mask=inside)
    if BIAS:
        tl.store(sums + 2 * WIDTH, tl.sum(dbias, 0), mask=inside)


@triton_op("bfn::add_norm", mutates_args={})
def add_norm(
    x: Tensor, branch: Tensor, bias: Tensor | None, weight: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """x + branch + bias, its layer normalisation, and the rows' moments; x (..., width)."""
    width = x.shape[-1]
    count = x.numel() // width
    total, z = torch.empty_like(x), torch.empty_like(x)
    moments = torch.empty((count, 2), device=x.device, dtype=torch.float32)
    wrap_triton(_forward)[(triton.cdiv(count, ROWS),)](
        x, branch, x if bias is None else bias, weight, offset, total, z, moments, count,
        EPS=EPS, WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=ROWS,
        BIAS=bias is not None, num_warps=4,
    )  # fmt: skip
    return total, z, moments


@triton_op("bfn::add_norm_backward", mutates_args={})
def add_norm_backward(
    dtotal: Tensor | None, dz: Tensor, total: Tensor, weight: Tensor, moments: Tensor, bias: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of x and of branch, and parts of those of weight, offset and bias."""
    width = total.shape[-1]
    count = total.numel() // width
    programs = min(PROGRAMS, triton.cdiv(count, ROWS))
    dx = torch.empty_like(total)
    sums = torch.empty((programs, 3, width), device=total.device, dtype=torch.float32)
    wrap_triton(_backward)[(programs,)](
        dz if dtotal is None else dtotal, dz, total, weight, moments, dx, sums, count,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=ROWS, BIAS=bias,
        STREAM=dtotal is not None, num_warps=4,
    )  # fmt: skip
    return dx, sums


def _remember(ctx, inputs, output) -> None:
    _, _, bias, weight, _ = inputs
    ctx.bias = bias is not None
    ctx.save_for_backward(output[0], weight, output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _differentiate(ctx, dtotal, dz, _):
    total, weight, moments = ctx.saved_tensors
    if dz is None:
        dz = torch.zeros_like(total)
    if dtotal is not None:
        dtotal = dtotal.contiguous()
    dx, parts = add_norm_backward(dtotal, dz.contiguous(), total, weight, moments, ctx.bias)
    sums = parts.sum(0)
    return dx, dx, sums[2] if ctx.bias else None, sums[0], sums[1]


add_norm.register_autograd(_differentiate, setup_context=_remember)
