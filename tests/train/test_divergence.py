"""A loss, a gradient or weights that are not finite stop the training and are never saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.runs.folder import RunFolder
from bfn.train import Diverged
from support.tiny_runs import status


class Bomb(torch.nn.Module):
    """A network whose output is not a number from a given call in training on."""

    def __init__(self, fuse: int) -> None:
        super().__init__()
        self.arguments = {"fuse": fuse}
        self.fuse = fuse
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        self.fuse -= self.training
        output = features[..., None] * self.weight
        return output * float("nan") if self.fuse < 0 else output


class Steep(Bomb):
    """An infinite slope, sqrt's at 0, with a finite value."""

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return features[..., None] * self.weight.abs().sqrt()


def fit(net: torch.nn.Module, out: Path | None, **settings: Any) -> bfn.train.Fit:
    model = bfn.discretised(net, K=17, sigma_1=0.1)
    given = {"steps": 20, "batch": 4, "log_every": 8, "checkpoint_every": 4, **settings}
    return bfn.train.fit(model, bfn.data.load("digits"), out=out, display=False, **given)


NO_GOOD = r"there is no good checkpoint before it: train again with a smaller train.learning_rate"
GOOD = r"the last good checkpoint is \S*step-4: train again .*learning_rate.*"


@pytest.mark.parametrize(
    ("net", "settings", "sentence", "kept"),
    [
        (Bomb(6), {}, rf"loss became nan at step 7; {GOOD}", [4]),
        (Bomb(2), {}, rf"loss became nan at step 3; {NO_GOOD}", []),
        # The checkpoint of the step before has the weights that the loss was computed with.
        (Bomb(4), {"log_every": 1}, rf"nan at step 5; {NO_GOOD}", [4]),
        (Bomb(8), {"log_every": 1}, rf"nan at step 9; {GOOD}", [4, 8]),
        (Steep(0), {}, r"gradient's norm became (nan|inf) at step 1; ", []),
        # The loss of the last step was computed before its weights.
        (
            Bomb(100),
            {"steps": 1, "learning_rate": 1e38},
            rf"weights overflowed at step 1; {NO_GOOD}",
            [],
        ),
    ],
)
def test_training_stops(
    net: torch.nn.Module, settings: dict, sentence: str, kept: list[int], tmp_path: Path
) -> None:
    with pytest.raises(Diverged, match=sentence) as caught:
        fit(net, tmp_path / "run", **settings)
    assert RunFolder(tmp_path / "run").steps() == kept
    assert (tmp_path / "run" / "model.safetensors").exists() == bool(kept)
    found = status(tmp_path / "run")
    assert (found["status"], found["message"]) == ("diverged", str(caught.value))
    assert f" at step {found['step']}; " in found["message"]


def test_without_a_folder() -> None:
    with pytest.raises(Diverged, match="weights overflowed at step 1; "):
        fit(Bomb(100), None, steps=1, learning_rate=1e38)
