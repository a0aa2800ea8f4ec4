"""GELU (in its tanh form) of a product, with the bias added in the same pass.

    u = h + bias,    y = u / (1 + e^-a),    a = 2 sqrt(2 / pi) (u + 0.044715 u^3).

The backward pass also sums the bias's gradient over the rows.
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

from bfn.nn.kernels.sigmoid import sigmoid

ROWS, BLOCK = 32, 128
PROGRAMS = 44
"""Programs per column of blocks in the backward pass, each with its own sums."""


@triton.jit
def _load(pointer, at, mask, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(pointer + at).to(tl.float32)
    return tl.load(pointer + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, at, value, mask, EVEN: tl.constexpr):
    if EVEN:
        tl.store(pointer + at, value)
    else:
        tl.store(pointer + at, value, mask=mask)


@triton.jit
def _forward(
    h, bias, y, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    FAST: tl.constexpr = h.dtype.element_ty != tl.float32
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mask = (row < count)[:, None] & (c < WIDTH)[None, :]
    at = row[:, None] * WIDTH + c[None, :]
    added = tl.load(bias + c, mask=c < WIDTH, other=0.0).to(tl.float32)
    u = _load(h, at, mask, EVEN) + added[None, :]
    argument = u * (1.5957691216057308 + 0.07135481627260025 * u * u)
    _store(y, at, u * sigmoid(argument, 1.0, FAST), mask, EVEN)


@triton.jit
def _backward(
    dy, h, bias, dh, sums, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    FAST: tl.constexpr = h.dtype.element_ty != tl.float32
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    added = tl.load(bias + c, mask=c < WIDTH, other=0.0).to(tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    step = tl.num_programs(0) * ROWS
    for start in tl.range(tl.program_id(0) * ROWS, count, step, num_stages=3):
        row = tl.arange(0, ROWS).to(tl.int64) + start
        mask = (row < count)[:, None] & (c < WIDTH)[None, :]
        at = row[:, None] * WIDTH + c[None, :]
        u = _load(h, at, mask, EVEN) + added[None, :]
        square = u * u
        s = sigmoid(u * (1.5957691216057308 + 0.07135481627260025 * square), 1.0, FAST)
        growth = u * (1.5957691216057308 + 0.21406444881780076 * square)
        slope = _load(dy, at, mask, EVEN) * (s + growth * (s - s * s))
        _store(dh, at, slope, mask, EVEN)
        dbias += slope
    tl.store(sums + tl.program_id(0) * WIDTH + c, tl.sum(dbias, 0), mask=c < WIDTH)


def _even(count: int, width: int) -> bool:
    return count % ROWS == 0 and width % BLOCK == 0


@triton_op("bfn::bias_gelu", mutates_args={})
def bias_gelu(h: Tensor, bias: Tensor) -> Tensor:
    """gelu(h + bias); h (..., width) and contiguous."""
    width = h.shape[-1]
    count = h.numel() // width
    y = torch.empty_like(h)
    wrap_triton(_forward)[(triton.cdiv(count, ROWS), triton.cdiv(width, BLOCK))](
        h, bias, y, count, WIDTH=width, BLOCK=BLOCK, ROWS=ROWS, EVEN=_even(count, width),
        num_warps=4,
    )  # fmt: skip
    return y


@triton_op("bfn::bias_gelu_backward", mutates_args={})
def bias_gelu_backward(dy: Tensor, h: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of h, and parts of the bias's."""
    width = h.shape[-1]
    count = h.numel() // width
    programs = min(PROGRAMS, triton.cdiv(count, ROWS))
    dh = torch.empty_like(h)
    sums = torch.empty((programs, width), device=h.device, dtype=torch.float32)
    wrap_triton(_backward)[(programs, triton.cdiv(width, BLOCK))](
        dy, h, bias, dh, sums, count, WIDTH=width, BLOCK=BLOCK, ROWS=ROWS,
        EVEN=_even(count, width), num_warps=4,
    )  # fmt: skip
    return dh, sums


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, dy):
    dh, parts = bias_gelu_backward(dy.contiguous(), *ctx.saved_tensors)
    return dh, parts.sum(0)


bias_gelu.register_autograd(_differentiate, setup_context=_remember)
