"""`fit` in a few lines, with a user's own network and data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bfn
from bfn.data.tensors import as_data_set
from bfn.errors import BFNError
from bfn.runs.folder import RunFolder
from support import tiny_runs

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


def model(**options: Any) -> bfn.BFN:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return bfn.discrete(Net(), K=K, beta_1=3.0, **options)


def test_learns_a_dependent_source(x: Tensor) -> None:
    """Near the entropy ln 4; coordinates that are coded one by one would cost 2 ln 4."""
    trained = model()
    state = torch.random.get_rng_state()
    result = bfn.train.fit(
        trained, x, steps=400, batch=128, learning_rate=1e-2, decay=0.5, display=False
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert result.model is trained
    assert result.folder is None
    assert not trained.training
    cost = bfn.evaluate.evaluate(trained, x, steps=["inf"], repeats=32).rows[0].total
    assert cost.standard_error < 0.03
    assert math.log(4) < cost.nats < math.log(4) + 0.3
    assert result.history[-1]["nats"] < result.history[0]["nats"]
    samples = bfn.generate(trained, (500, 2), steps=30, generator=torch.Generator().manual_seed(1))
    assert (samples[:, 0] == samples[:, 1]).float().mean() > 0.9


def test_hidden_labels(x: Tensor, tmp_path: Path) -> None:
    """Each label becomes -1 with the given probability, drawn after nothing but the data."""
    labels_seen: list[Tensor] = []

    class Listening(Net):
        def forward(self, features: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
            assert label is not None
            labels_seen.extend([label] if self.training else [])
            return super().forward(features, t, label)

    trained = bfn.discrete(Listening(), K=K, beta_1=3.0)
    labels = x[:, 0] + 1
    data = as_data_set(trained, x, labels)
    bfn.train.fit(trained, data, steps=3, batch=256, label_dropout=0.3, display=False)
    for step, label in enumerate(labels_seen):
        generator = torch.Generator().manual_seed(bfn.noise.seed(0, step, 0))
        hidden = torch.rand(256, generator=generator) < 0.3
        expected = torch.where(hidden, -1, labels[data.indices(0, step, 256)])
        assert torch.equal(label, expected)
    assert len(labels_seen) == 3


class Own(Dataset):
    """Examples that are read one by one; what is random in them comes from torch."""

    def __init__(self, x: Tensor, labels: Tensor | None = None, noisy: bool = False) -> None:
        self.x, self.labels, self.noisy = x, labels, noisy

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        x = (self.x[i] + int(torch.randint(K, ()))) % K if self.noisy else self.x[i].numpy()
        return x if self.labels is None else (x, int(self.labels[i]))


def losses(data: Any, **settings: Any) -> list[float]:
    given = {"steps": 6, "batch": 50, "log_every": 1, "display": False} | settings
    given = {key: value for key, value in given.items() if value is not None}
    plain = model(head="plain")  # which wants to know nothing of the data beforehand
    return [line["nats"] for line in bfn.train.fit(plain, data, **given).history]


def test_every_source_of_the_same_examples_trains_alike(x: Tensor) -> None:
    """Arrays of any type and a Dataset in one order; batches in the order they come in."""
    labels = x[:, 0]
    expected = losses(x, labels=labels)
    assert losses(x.numpy().astype("uint8"), labels=labels.numpy()) == expected
    assert losses(x.int(), labels=labels.tolist()) == expected
    assert losses(Own(x, labels)) == expected
    assert losses(TensorDataset(x, labels), accumulate=2) == pytest.approx(expected)
    noisy = Own(x, labels, noisy=True)  # it must not be read in a thread beside the step
    assert losses(noisy, data_memory="host") == losses(noisy)

    order = as_data_set(model(), x)
    rows = [order.indices(0, step, 50) for step in range(6)]
    batches = [(x[i], labels[i]) for i in rows]
    for ready in (batches, (pair for pair in batches), DataLoader(Pairs(batches), batch_size=None)):
        assert losses(ready, batch=None) == expected


class Pairs(IterableDataset):
    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def test_batches_go_on_and_end(x: Tensor) -> None:
    """What can be gone through again is, with its smaller last batch; an iterator ends."""
    result = bfn.train.fit(model(), DataLoader(Own(x[:120]), 50), steps=7, display=False)
    assert result.step == 7
    few = (x[:50] for _ in range(3))
    display = tiny_runs.Recorder()
    result = bfn.train.fit(model(), few, steps=7, log_every=2, display=display)
    assert (result.step, [line["step"] for line in result.history]) == (3, [2, 3])
    first, last = display.messages
    assert "batches of 50 examples to train on" in first
    assert last == "training stops at step 3: no more batches"
    exact = (x[:50] for _ in range(3))
    assert bfn.train.fit(model(), exact, steps=3, display=display).step == 3
    assert len(display.messages) == 3


def test_a_dataset_resumes_exactly_with_what_it_draws(x: Tensor, tmp_path: Path) -> None:
    data, augment = Own(x, noisy=True), lambda x: (x + torch.randint(K, (len(x), 1))) % K
    settings: dict[str, Any] = {"batch": 50, "augment": augment, "log_every": 1, "display": False}
    whole = bfn.train.fit(model(), data, steps=6, **settings)
    bfn.train.fit(model(), data, steps=3, out=tmp_path / "run", **settings)
    torch.manual_seed(77)
    resumed = bfn.train.fit(model(), data, steps=6, out=tmp_path / "run", resume=True, **settings)
    assert [line["loss"] for line in resumed.history] == [line["loss"] for line in whole.history]
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    settings.pop("augment")
    plain = bfn.train.fit(model(), data, steps=6, **settings)
    assert plain.history[-1]["loss"] != whole.history[-1]["loss"]
    with pytest.raises(BFNError, match="data are not those"):
        bfn.train.fit(model(), Own(x[:400]), steps=6, out=tmp_path / "run", resume=True, **settings)


def test_a_model_that_was_trained_without_known_variables_can_learn_them(x: Tensor) -> None:
    net = bfn.nn.MLP(x.shape[1], inputs=K, outputs=K, width=8, layers=1, known=True)
    plain = bfn.discrete(net, K=K, beta_1=1.0)
    for known in (0.0, 0.5):
        bfn.train.fit(plain, x, steps=1, batch=50, known=known, display=False)
        assert plain.train_known == known


def test_resuming_with_other_batches_is_reported(x: Tensor, tmp_path: Path) -> None:
    loader, display = DataLoader(Own(x), 50, shuffle=True), tiny_runs.Recorder()
    first = bfn.train.fit(model(), loader, steps=2, out=tmp_path / "run", display=False)
    torch.manual_seed(77)
    again = bfn.train.fit(
        model(), loader, steps=4, out=tmp_path / "run", resume=True, display=display
    )
    assert again.step == 4
    assert again.model.head == first.model.head
    assert RunFolder(tmp_path / "run").recipe().train.batch == 50
    message = "resuming from step 2, with the next batches of the source"
    assert display.messages[-1] == message


def test_augmentation_is_of_training_batches_only(x: Tensor) -> None:
    """All examples become 0: training learns that alone, and validation sees that it is wrong."""
    zeros = torch.zeros_like
    settings: dict[str, Any] = {"steps": 60, "batch": 64, "learning_rate": 1e-2, "display": False}
    settings |= {"augment": zeros, "validate_every": 60}
    result = bfn.train.fit(model(), x, validation=x[:200], **settings)
    line = result.history[-1]
    assert line["nats"] < 0.7
    assert line["validation"] * 2 * math.log(2) > 4.0
    message = f"Fit(step 60, loss {line['loss']:.4f} bits per dimension, validation "
    assert repr(result).startswith(message)
    other = bfn.train.fit(model(), x, validation=Own(x[:200]), **settings)
    assert other.history[-1]["validation"] == line["validation"]


def test_a_network_that_cannot_be_saved_can_be_trained(x: Tensor) -> None:
    nameless = model()
    del nameless.net.arguments
    bfn.train.fit(nameless, x, steps=1, batch=4, device=torch.device("cpu"), display=False)
    assert not nameless.training
