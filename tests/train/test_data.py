"""Data in the host's memory: the same training bit for bit, and a thread that ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from bfn.data.base import DataSet
from bfn.recipe import Train, build
from bfn.train import step as loading
from bfn.train.loop import Loop
from bfn.train.parallel import World
from bfn.train.step import AHEAD, FRACTION, Loader, Trainer
from support import tiny_runs
from support.tiny_runs import assert_same, run

CPU = torch.device("cpu")
LABELLED = {"data__labels": True, "net__labels": 10, "train__label_dropout": 0.3}


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("bfn-loader")]


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("discretised", {}),
        ("text", {"train__accumulate": 4, "train__validate_every": 4}),
        ("binary", {"train__accumulate": 2, **LABELLED}),
    ],
)
def test_training_is_the_same_bit_for_bit(kind: str, overrides: dict, tmp_path: Path) -> None:
    for memory in ("device", "host"):
        recipe = tiny_runs.read(
            tmp_path, kind, train__steps=6, train__data_memory=memory, **overrides
        )
        run(recipe, tmp_path / memory)
    assert_same(tmp_path / "device", tmp_path / "host", 6)
    assert not threads()


class Watched:
    """Notes which steps a data set is asked for, by which thread, and fails at one of them."""

    def __init__(self, data: DataSet, monkeypatch: pytest.MonkeyPatch, fails_at: int = -1) -> None:
        self.steps: list[int] = []
        self.names: set[str] = set()
        indices = data.indices

        def watched(seed: int, step: int, batch: int, split: str = "train"):
            self.steps.append(step)
            self.names.add(threading.current_thread().name)
            if step == fails_at:
                raise OSError(5, "the disk is gone")
            return indices(seed, step, batch, split)

        monkeypatch.setattr(data, "indices", watched)


def trainer(folder: Path, memory: str = "host") -> Trainer:
    recipe = tiny_runs.read(folder, "text", train__data_memory=memory)
    return Trainer(build.model(recipe), build.data(recipe), recipe.train)


def wait_for(what) -> None:
    for _ in range(1000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about in ten seconds")


def test_batches_are_fetched_ahead_by_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = trainer(tmp_path)
    watched = Watched(train.data, monkeypatch)
    for step in range(3):
        train.advance()
        wait_for(lambda: len(watched.steps) > step + AHEAD)  # noqa: B023
        time.sleep(0.05)
        assert watched.steps == list(range(step + AHEAD + 1)), "no further ahead"
    assert watched.names == {"bfn-loader_0"}
    assert threads() == ["bfn-loader_0"]
    Loop(train).run()
    assert train.state.step == 12
    assert watched.steps[:12] == list(range(12)), "and each step once"
    assert not threads()


def test_data_that_the_device_holds_need_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = trainer(tmp_path, "device")
    watched = Watched(train.data, monkeypatch)
    Loop(train).run()
    assert watched.steps == list(range(12))
    assert watched.names == {threading.current_thread().name}


def test_an_error_in_the_thread_is_raised_in_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As itself, and at the step that it is about; those before it are done."""
    train = trainer(tmp_path)
    watched = Watched(train.data, monkeypatch, fails_at=5)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        Loop(train).run()
    assert caught.value.errno == 5
    assert train.state.step == 5
    assert watched.names == {"bfn-loader_0"}
    assert not threads()


def test_a_process_with_a_loader_can_end() -> None:
    """Even if nobody closed it, and the thread has just been asked for more."""
    script = """
import torch
from bfn.data.forms import Encoded
from bfn.data.base import Rows
from bfn.data.formats import ArrayFormat
from bfn.recipe import Train
from bfn.train.step import Loader
x = torch.zeros(64, 3)
data = Rows("x", ArrayFormat((3,), Encoded()), dict.fromkeys(("train", "validation", "test"), x))
loader = Loader(data, Train(batch=8, data_memory="host"), [range(8)], torch.device("cpu"))
list(loader.batches(0))
raise SystemExit(7)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert result.returncode == 7, result.stderr
    assert not result.stderr


def test_steps_in_any_order_and_rows_of_any_process(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "binary", **LABELLED)
    data, settings = build.data(recipe), Train(batch=8, seed=3, data_memory="host")
    rows = World(0, 1).rows(8, 2)
    other = [range(r.start + 1, r.stop + 1) for r in rows[:1]]
    for share in (rows, other):
        found = Loader(data, settings, share, CPU)
        for step in (0, 1, 2, 7, 8, 3, 3, 4, 0):
            indices = data.indices(3, step, 8)
            batches = list(found.batches(step))
            assert len(batches) == len(share)
            for part, (values, labels) in zip(share, batches, strict=True):
                chosen = indices[part.start : part.stop]
                assert torch.equal(values, data.split("train")[chosen])
                assert values.dtype == torch.uint8
                assert torch.equal(labels["label"], data.labels["train"][chosen])
        found.close()
        found.close()
    assert not threads()


def test_auto_asks_how_much_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_runs.read(tmp_path, "binary", **LABELLED)
    data = build.data(recipe)
    assert data.nbytes == 1797 * (64 + 8)
    messages: list[str] = []
    settings = Train(batch=8)
    assert settings.data_memory == "auto"
    for free, ahead in (
        (float("inf"), 0), (data.nbytes / FRACTION, 0), (data.nbytes / FRACTION - 8, AHEAD),
    ):  # fmt: skip
        monkeypatch.setattr(loading, "free_memory", lambda device: free)  # noqa: B023
        there = torch.device("meta")
        assert (
            Loader(build.data(recipe), settings, [range(8)], there, messages.append).ahead == ahead
        )
        # Data that lie there already take nothing away.
        assert Loader(data, settings, [range(8)], CPU, messages.append).ahead == 0
    (sentence,) = messages
    assert sentence == (
        "digits stays in the host's memory: its 0.0 GiB are more than 25% of what is free on meta"
    )


def test_data_in_the_hosts_memory_give_batches_on_the_device(tmp_path: Path) -> None:
    """`meta` stands for a device here: only what is copied to it comes out on it."""
    data = build.data(tiny_runs.read(tmp_path, "discretised", **LABELLED))
    assert data.to("meta", hold=False) is data
    assert data.split("train").device == data.labels["train"].device == CPU
    x, cond = data.batch("validation", torch.arange(3))
    assert x.shape == (3, 1, 8, 8)
    assert {x.device.type, cond["label"].device.type} == {"meta"}
    values, labels = data.stored("validation", torch.arange(3))
    assert torch.equal(values, data.split("validation")[:3])
    assert torch.equal(labels["label"], data.labels["validation"][:3])
    for values, labels in Loader(
        data, Train(batch=8, data_memory="host"), [range(8)], torch.device("meta")
    ).batches(0):
        assert {values.device.type, labels["label"].device.type} == {"meta"}
    data.to("cpu")
    assert data.batch("validation", torch.arange(3))[0].device == CPU
