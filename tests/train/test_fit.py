"""`fit` in a few lines, with a user's own network and data."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.data.tensors import as_data_set
from bfn.errors import BFNError

K = 4


class Net(nn.Module):
    """Logits of two coordinates from both."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.arguments = {"width": width}
        self.layers = nn.Sequential(
            nn.Linear(2 * K + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 2 * K),
        )  # fmt: skip

    def forward(self, features: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        assert label is None or label.shape == t.shape
        inputs = torch.cat([features.flatten(1), t[:, None]], 1)
        return self.layers(inputs).unflatten(1, (2, K))


@pytest.fixture
def x() -> Tensor:
    """Two equal coordinates: ln 4 nats in all, though each alone looks uniform."""
    first = torch.randint(K, (500, 1), generator=torch.Generator().manual_seed(0))
    return first.expand(-1, 2).contiguous()


def model() -> bfn.BFN:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return bfn.discrete(Net(), K=K, beta_1=3.0)


def test_learns_a_dependent_source(x: Tensor) -> None:
    """Near the entropy ln 4; coordinates coded one by one would cost 2 ln 4."""
    trained = model()
    state = torch.random.get_rng_state()
    result = bfn.train.fit(
        trained, x, steps=400, batch=128, learning_rate=1e-2, decay=0.5, display=False
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert result.model is trained
    assert result.folder is None
    assert not trained.training
    found = bfn.evaluate.evaluate(trained, x, steps=["inf"])
    assert found.rows[0].total.nats == pytest.approx(math.log(4), abs=0.15)
    assert result.history[-1]["nats"] < result.history[0]["nats"]
    samples = bfn.generate(trained, (500, 2), steps=30, generator=torch.Generator().manual_seed(1))
    assert (samples[:, 0] == samples[:, 1]).float().mean() > 0.9


def test_hidden_labels(x: Tensor, tmp_path: Path) -> None:
    """Each label becomes -1 with the given probability, drawn after nothing but the data."""
    heard: list[Tensor] = []

    class Listening(Net):
        def forward(self, features: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
            assert label is not None
            heard.extend([label] if self.training else [])
            return super().forward(features, t, label)

    trained = bfn.discrete(Listening(), K=K, beta_1=3.0)
    labels = x[:, 0] + 1
    data = as_data_set(trained, x, labels)
    bfn.train.fit(trained, data, steps=3, batch=256, label_dropout=0.3, display=False)
    for step, label in enumerate(heard):
        generator = torch.Generator().manual_seed(bfn.noise.seed(0, step, 0))
        hidden = torch.rand(256, generator=generator) < 0.3
        expected = torch.where(hidden, -1, labels[data.indices(0, step, 256)])
        assert torch.equal(label, expected)
        assert 0.2 < float(hidden.float().mean()) < 0.4

    with pytest.raises(BFNError, match=r"label_dropout = 0.3 hides labels, but the data comes"):
        bfn.train.fit(model(), x, label_dropout=0.3, out=tmp_path / "run", display=False)
    assert not (tmp_path / "run").exists()
    with pytest.raises(BFNError, match=r"label_dropout = 1.5 is too large; expected 1 or less"):
        bfn.train.fit(model(), data, label_dropout=1.5, display=False)


def test_arguments_that_need_a_folder(x: Tensor) -> None:
    with pytest.raises(BFNError, match=r"resume=True continues .* with out="):
        bfn.train.fit(model(), x, steps=2, resume=True, display=False)
    with pytest.raises(BFNError, match="writes into a run folder; give one with out="):
        bfn.train.fit(model(), x, tensorboard=True, display=False)


def test_bad_data(x: Tensor) -> None:
    with pytest.raises(BFNError, match="outside the range"):
        bfn.train.fit(model(), x + 3, display=False)
    real = bfn.continuous(torch.nn.Linear(2, 2), sigma_1=0.1)
    with pytest.raises(BFNError, match=r"data are torch.float64 .* give data.to.torch.float32."):
        bfn.train.fit(real, torch.rand(8, 2).double(), display=False)
    with pytest.raises(BFNError, match=r"model is of type Linear; expected a BFN"):
        bfn.train.fit(torch.nn.Linear(2, 2), x)  # pyright: ignore
    with pytest.raises(BFNError, match=r"data are of type list; expected a tensor"):
        bfn.train.fit(model(), [1, 2], steps=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BFNError, match=r"the data have shape \(500,\)"):
        bfn.train.fit(model(), x[:, 0], display=False)
    with pytest.raises(BFNError, match="one label to each"):
        bfn.train.fit(model(), x, labels=x[:3, 0], display=False)


def test_labels_beside_a_data_set() -> None:
    net = bfn.nn.UNet(outputs=2, width=16, multipliers=(1,), blocks=1, groups=8, image_size=8)
    with pytest.raises(BFNError, match="a data set has labels of its own"):
        bfn.train.fit(
            bfn.discretised(net, K=17, sigma_1=0.1), bfn.data.load("digits"), steps=1, batch=4,
            labels=torch.zeros(1797, dtype=torch.int64), display=False,
        )  # fmt: skip


def test_a_device_of_torch(x: Tensor) -> None:
    fit = bfn.train.fit(model(), x, steps=1, batch=4, device=torch.device("cpu"), display=False)
    assert fit.step == 1


def test_network_that_cannot_be_saved_says_so_first(x: Tensor, tmp_path: Path) -> None:
    nameless = model()
    del nameless.net.arguments
    with pytest.raises(BFNError, match="does not remember how it was built"):
        bfn.train.fit(nameless, x, out=tmp_path / "run", steps=1, display=False)
    assert not (tmp_path / "run").exists()
    bfn.train.fit(nameless, x, steps=1, batch=4, display=False)
