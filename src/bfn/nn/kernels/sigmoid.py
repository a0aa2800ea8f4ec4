"""The sigmoid for kernels: most of the arithmetic of the activations."""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(value, scale, FAST: tl.constexpr):
    """1 / (scale + scale e^-value)."""
    if FAST:
        # Without subnormals and the last digits, which bfloat16 cannot show.
        power = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [value * -1.4426950408889634],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [power * scale + scale],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return tl.sigmoid(value) / scale
