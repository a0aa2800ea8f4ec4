"""Data in the host's memory, on a GPU: batches arrive complete, and nothing waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bfn
from bfn.data.base import DataSet, Rows
from bfn.data.formats import ArrayFormat
from bfn.data.forms import Encoded
from bfn.recipe import Train
from bfn.train import step as loading
from bfn.train.step import AHEAD, Loader
from support import tiny_runs, toys

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WIDTH = 1 << 14
BATCH = 64  # 4 MB of float32
CYCLES = 400_000_000  # some tenths of a second


def numbers(count: int = 1000) -> DataSet:
    x = torch.rand(count, WIDTH, generator=torch.Generator().manual_seed(0)) * 2 - 1
    labels = {"train": torch.arange(count)}
    splits = {"train": x, "validation": x[:5], "test": x[:0]}
    return Rows("numbers", ArrayFormat((WIDTH,), Encoded()), splits, labels=labels)


def expected(data: DataSet, step: int, rows: range) -> tuple[Tensor, Tensor]:
    indices = data.indices(0, step, BATCH)[rows.start : rows.stop]
    return data.split("train")[indices], indices


@pytest.fixture
def found() -> Iterator[Loader]:
    data = numbers()
    rows = [range(BATCH // 2), range(BATCH // 2, BATCH)]
    settings = Train(batch=BATCH, accumulate=2, data_memory="host")
    found = Loader(data, settings, rows, torch.empty(0, device="cuda").device)
    # The first allocation is slow and may wait for all running work; then torch keeps it.
    assert found.stream is not None
    with torch.cuda.stream(found.stream):
        parts = [found.data.stored("train", torch.arange(BATCH // 2)) for _ in range(4 * AHEAD + 8)]
        pinned = [
            tensor.pin_memory() for values, labels in parts for tensor in (values, *labels.values())
        ]
        copies = [tensor.to(found.device) for tensor in pinned]
    torch.cuda.synchronize()
    del pinned, copies
    yield found
    found.close()
    torch.cuda.synchronize()


def check(found: Loader, step: int, batches: list[tuple[Tensor, Tensor]]) -> None:
    for (values, label), rows in zip(batches, found.rows, strict=True):
        assert values.device.type == label.device.type == "cuda"
        x, indices = expected(found.data, step, rows)
        assert torch.equal(values.cpu(), x), step
        assert torch.equal(label.cpu(), indices), step


def test_a_batch_is_not_read_before_it_has_arrived(found: Loader) -> None:
    """The copies are held up behind a long wait on their stream; the reader has to wait as well."""
    assert found.stream is not None
    with torch.cuda.stream(found.stream):
        torch.cuda._sleep(CYCLES)
    read = [(v.clone(), labels["label"].clone()) for v, labels in found.batches(0)]
    check(found, 0, read)


def test_a_batch_is_not_written_over_before_it_was_read(found: Loader) -> None:
    """Steps are queued behind a long wait, and their batches let go: others come meanwhile."""
    steps = 3 * AHEAD + 4
    check(found, 0, [(v, labels["label"]) for v, labels in found.batches(0)])
    torch.cuda._sleep(CYCLES)
    read = [
        [(v.clone(), labels["label"].clone()) for v, labels in found.batches(step)]
        for step in range(1, steps)
    ]
    for step, batches in enumerate(read, start=1):
        check(found, step, batches)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_copies_are_queued_and_nothing_waits_for_them(found: Loader) -> None:
    """Neither the thread nor the loop waits for a stream that is busy."""
    assert found.stream is not None
    list(found.batches(0))
    torch.cuda.synchronize()
    while not all(coming.done() for coming in found.coming):
        time.sleep(0.01)
    done = torch.cuda.Event()
    with torch.cuda.stream(found.stream):
        torch.cuda._sleep(5 * CYCLES)
        done.record()
    # The first ones are on the device already; the last one is queued behind the wait.
    try:
        torch.cuda.set_sync_debug_mode("error")
        for step in range(1, AHEAD + 2):
            list(found.batches(step))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not done.query(), "the batches of a busy stream were waited for"


def test_free_memory_counts_what_torch_keeps() -> None:
    device = torch.empty(0, device="cuda").device
    total = torch.cuda.get_device_properties(device).total_memory
    before = loading.free_memory(device)
    assert 0 < before <= total
    held = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    during = loading.free_memory(device)
    del held
    assert during <= before - (1 << 27)
    assert loading.free_memory(device) > during + (1 << 27)


@pytest.mark.parametrize("kind", toys.KINDS)
def test_losses_are_those_of_data_on_the_device(kind: str) -> None:
    x = toys.data(kind, (50, 2, 3))
    losses = []
    for memory in ("device", "host"):
        result = bfn.train.fit(
            toys.model(kind), x, labels=torch.arange(50) % 3, steps=12, batch=8, log_every=1,
            accumulate=2, label_dropout=0.3, device="cuda", precision="float32",
            compile="no", data_memory=memory, display=False,
        )  # fmt: skip
        losses.append([line["loss"] for line in result.history])
    # Sums on a GPU may be added up in another order each time.
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert len(set(losses[0])) == 12


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_a_compiled_run_with_validation(tmp_path: Path) -> None:
    """CUDA graphs are recorded while the thread copies."""
    lines = []
    for memory in ("device", "host"):
        recipe = tiny_runs.read(
            tmp_path, "text", net__dropout=0.0, train__device="cuda", train__compile="yes",
            train__log_every=1, train__validate_every=6, train__data_memory=memory,
        )  # fmt: skip
        lines.append(bfn.train.run(recipe, tmp_path / memory, display=False).history)
    for one, other in zip(*lines, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=5e-2)
    assert lines[1][5]["validation"] == pytest.approx(lines[0][5]["validation"], rel=5e-2)
