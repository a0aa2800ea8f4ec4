"""A residual network of fully connected layers, for vectors and for mixed data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.errors import BFNError
from bfn.nn.blocks import (
    Conditioning,
    check_mask,
    check_times,
    json_arguments,
    known_marker,
    mark_known,
    unet_times,
    zeroed,
)


class MLPLayer(nn.Module):
    """x <- x + W_2 dropout(silu(W_1 norm(x) + W_c c))."""

    def __init__(self, width: int, condition: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 2 * width)
        self.condition = nn.Linear(condition, 2 * width)
        self.output = zeroed(nn.Linear(2 * width, width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        h = F.silu(self.hidden(self.norm(x)) + self.condition(c))
        return x + self.output(F.dropout(h, self.dropout, self.training))


class _Residual(nn.Module):
    """From rows of numbers, t and a label to rows of numbers.

    `marked` numbers of a row may be known, or not exist.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        marked: int,
        *,
        width: int,
        layers: int,
        dropout: float,
        labels: int,
        known: bool,
        mask: bool,
        condition: int | None = None,
    ) -> None:
        super().__init__()
        condition = condition or width
        self.conditioning = Conditioning(unet_times(condition), condition, condition, labels)
        self.project = nn.Linear(inputs + 1, width)
        self.layers = nn.ModuleList(MLPLayer(width, condition, dropout) for _ in range(layers))
        self.last_norm = nn.LayerNorm(width)
        self.readout = nn.Linear(2 * width, outputs)
        self.known = known_marker(known, marked, width)
        self.missing = known_marker(mask, marked, width)
        self.marked = marked

    def run(
        self,
        rows: Tensor,
        t: Tensor,
        label: Tensor | None,
        known: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        """known and mask are (B, marked)."""
        check_times(t, len(rows))
        # While sampling, t is one number that is seen as many.
        one = label is None and t.stride(0) == 0
        c = self.conditioning(t[:1] if one else t, label)
        time = (2.0 * t - 1.0).to(rows.dtype)[:, None]
        x = self.project(torch.cat((rows, time), dim=1))
        if known is not None:
            x = x + mark_known(self.known, known, (len(t), self.marked), axis=1)
        if mask is not None:
            check_mask("mask", mask, (len(t), self.marked), "exists")
            assert self.missing is not None  # `bfn.model.takes` says so
            x = x + self.missing(~mask)
        stream = x
        for layer in self.layers:
            stream = layer(stream, c)
        return self.readout(torch.cat((self.last_norm(stream), x), dim=1))


class MLP(_Residual):
    """All variables of a vector together, in any order.

        x = W (features || 2 t - 1) + W_known known + W_missing (1 - mask),
        output = readout(norm(layers(x, c)) || x)

    where || joins numbers and c is the conditioning on t and the label. The output starts as a
    projection of the input: all residual branches start at zero.

    Args:
        variables: the length D of the vectors.
        inputs: numbers per variable in the features (K for K > 2 classes, otherwise 1).
        outputs: parameters per variable P.
        width: width of the residual stream; even.
        layers: number of residual layers, each twice as wide inside.
        dropout: probability inside every layer.
        labels: number of class labels that forward() may be given; 0 for none.
        known: whether forward() takes a mask of the variables that are known exactly.
        mask: whether forward() takes a mask of the variables that exist, for examples of different
            lengths.
    """

    def __init__(
        self,
        variables: int,
        inputs: int = 1,
        outputs: int = 1,
        *,
        width: int = 256,
        layers: int = 4,
        dropout: float = 0.0,
        labels: int = 0,
        known: bool = False,
        mask: bool = False,
    ) -> None:
        arguments = json_arguments(locals())
        super().__init__(
            variables * inputs, variables * outputs, variables, width=width, layers=layers,
            dropout=dropout, labels=labels, known=known, mask=mask,
        )  # fmt: skip
        self.arguments = arguments
        self.variables, self.inputs, self.outputs = variables, inputs, outputs

    def forward(
        self,
        features: Tensor,
        t: Tensor,
        label: Tensor | None = None,
        known: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """features (B, D[, inputs]), t and label (B,), known, mask (B, D) -> (B, D[, outputs])."""
        shape = tuple(features.shape)
        expected = (self.variables,) if self.inputs == 1 else (self.variables, self.inputs)
        if shape[1:] != expected:
            raise BFNError(
                f"features have shape {shape}, but the network was built for "
                f"({', '.join(map(str, ('B', *expected)))}); reshape them, or change its variables "
                "or inputs"
            )
        output = self.run(features.flatten(1), t, label, known, mask)
        return output if self.outputs == 1 else output.unflatten(1, (self.variables, self.outputs))


class MixedMLP(_Residual):
    """All variables of mixed data together, as one vector: from dicts to dicts.

        variables = {"age": bfn.Variable("discretised", K=64), ...}
        net = bfn.nn.MixedMLP.of(variables, width=256)

    Args:
        inputs: the shape of the features of one example, by variable (`bfn.Variable.inputs`).
        outputs: the shape of the output for one example, by variable.
        width, layers, dropout, labels, known, mask: as in `MLP`.
        condition: length of the embedding of t and the label; by default the width.
    """

    def __init__(
        self,
        inputs: dict[str, Sequence[int]],
        outputs: dict[str, Sequence[int]],
        *,
        width: int = 256,
        layers: int = 4,
        dropout: float = 0.0,
        labels: int = 0,
        known: bool = False,
        mask: bool = False,
        condition: int | None = None,
    ) -> None:
        arguments = json_arguments(locals())
        for side in ("inputs", "outputs"):
            arguments[side] = {name: list(shape) for name, shape in arguments[side].items()}
        size_in, size_out = (sum(map(math.prod, side.values())) for side in (inputs, outputs))
        super().__init__(
            size_in, size_out, size_in, width=width, layers=layers, dropout=dropout,
            labels=labels, known=known, mask=mask, condition=condition,
        )  # fmt: skip
        self.arguments = arguments
        self.inputs, self.outputs = arguments["inputs"], arguments["outputs"]

    @classmethod
    def of(cls, variables: Mapping[str, Any], **arguments: Any) -> MixedMLP:
        """A network for these variables; the arguments are those of the class."""
        by_name = variables if isinstance(variables, Mapping) else {"": None}
        if not all(hasattr(variable, "outputs") for variable in by_name.values()):
            raise BFNError(
                f"variables = {variables!r:.80}; expected a bfn.Variable by every name, as in "
                "{'colour': bfn.Variable('discrete', K=3)}"
            )
        inputs = {name: variable.inputs for name, variable in variables.items()}
        outputs = {name: variable.outputs for name, variable in variables.items()}
        return cls(inputs, outputs, **arguments)

    def forward(
        self,
        features: Mapping[str, Tensor],
        t: Tensor,
        label: Tensor | None = None,
        known: Mapping[str, Tensor] | None = None,
        mask: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """features[name] (B, *inputs[name]), t and label (B,) -> (B, *outputs[name]) by name.

        known[name], in the shape of the data, is true where a variable is known, and mask[name]
        where it exists.
        """
        shapes = {name: list(value.shape[1:]) for name, value in features.items()}
        if shapes != self.inputs:
            raise BFNError(
                f"features have the shapes {shapes}, but the network was built for {self.inputs}; "
                "build it with MixedMLP.of and the model's own variables"
            )
        rows = torch.cat([features[name].reshape(len(t), -1) for name in self.inputs], 1)
        output = self.run(rows, t, label, _over(known, features), _over(mask, features))
        parts = output.split([math.prod(shape) for shape in self.outputs.values()], 1)
        return {
            name: part.reshape(len(t), *shape)
            for (name, shape), part in zip(self.outputs.items(), parts, strict=True)
        }


def _over(mask: Mapping[str, Tensor] | None, features: Mapping[str, Tensor]) -> Tensor | None:
    """Masks of the data as rows like those of the features, which may have an axis of classes."""
    if mask is None:
        return None
    rows = []
    for name, like in features.items():
        part = mask[name].reshape(mask[name].shape + (1,) * (like.dim() - mask[name].dim()))
        rows.append(part.expand_as(like).reshape(len(like), -1))
    return torch.cat(rows, 1)
