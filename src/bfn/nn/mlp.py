"""A residual network of fully connected layers, for vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.errors import BFNError
from bfn.nn.blocks import zeroed
from bfn.nn.embed import Conditioning, known_marker, mark_known, unet_times
from bfn.nn.shapes import check_times, json_arguments


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


class MLP(nn.Module):
    """All variables of a vector together, in any order.

        x = W (features || 2 t - 1) + W_known known,  output = readout(norm(layers(x, c)) || x)

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
        known: whether forward() may be told which variables are known exactly.
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
    ) -> None:
        super().__init__()
        self.arguments = json_arguments(locals())
        self.variables, self.inputs, self.outputs = variables, inputs, outputs
        self.conditioning = Conditioning(unet_times(width), width, width, labels)
        self.project = nn.Linear(variables * inputs + 1, width)
        self.known = known_marker(known, variables, width)
        self.layers = nn.ModuleList(MLPLayer(width, width, dropout) for _ in range(layers))
        self.last_norm = nn.LayerNorm(width)
        self.readout = nn.Linear(2 * width, variables * outputs)

    def forward(
        self,
        features: Tensor,
        t: Tensor,
        label: Tensor | None = None,
        known: Tensor | None = None,
    ) -> Tensor:
        """features (B, D[, inputs]), t and label (B,), known (B, D) -> (B, D[, outputs])."""
        shape = tuple(features.shape)
        expected = (self.variables,) if self.inputs == 1 else (self.variables, self.inputs)
        if shape[1:] != expected:
            raise BFNError(
                f"features have shape {shape}, but the network was built for "
                f"({', '.join(map(str, ('B', *expected)))}); reshape them, or change its variables "
                "or inputs"
            )
        check_times(t, shape[0])
        c = self.conditioning(t, label)
        time = (2.0 * t - 1.0).to(features.dtype)[:, None]
        x = self.project(torch.cat((features.flatten(1), time), dim=1))
        if known is not None:
            x = x + mark_known(self.known, known, shape[:2], axis=1)
        stream = x
        for layer in self.layers:
            stream = layer(stream, c)
        output = self.readout(torch.cat((self.last_norm(stream), x), dim=1))
        return output if self.outputs == 1 else output.unflatten(1, (self.variables, self.outputs))
