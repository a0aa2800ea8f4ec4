"""Functions of many numbers per variable, without holding them all.

A loss may need K logits, or dozens of quadrature nodes, for every variable. `sum_in_chunks` takes
the variables of each example a few at a time and computes value and derivative together, so that
only the derivative, of the inputs' own size, is kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bfn.flow.base import per_example
from bfn.output.base import refuse_second_derivatives


def sum_in_chunks(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    rest: Sequence[Tensor] = (),
    chunk: int | None = None,
) -> Tensor:
    """The sum over chunks of function(*inputs, *rest), each result (B,).

    All tensors are (B, D, ...); function sees (B, d, ...) slices with d <= chunk and must treat
    examples apart. Derivatives, once, with respect to the inputs.
    """
    size = max(1, chunk or inputs[0].shape[1])
    slices = zip(*(tensor.split(size, 1) for tensor in (*inputs, *rest)), strict=True)
    parts = [_PerExample.apply(function, len(inputs), *tensors) for tensors in slices]
    return torch.stack(parts).sum(0)  # pyright: ignore[reportArgumentType]


class _PerExample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], inputs: int, *tensors: Tensor) -> Tensor:
        wanted = any(ctx.needs_input_grad)
        leaves = [tensor.detach().requires_grad_(wanted) for tensor in tensors[:inputs]]
        with torch.set_grad_enabled(wanted):
            value = function(*leaves, *tensors[inputs:])
            if wanted:
                ctx.save_for_backward(*torch.autograd.grad(value.sum(), leaves))
        ctx.others = len(tensors) - inputs
        return value.detach()

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        (grad,) = grad_outputs
        slopes = (slope * per_example(grad, slope).to(slope.dtype) for slope in ctx.saved_tensors)
        return None, None, *slopes, *([None] * ctx.others)
