"""The batches of training steps, and what of them is hidden or known.

Batches of data that the device holds are cut there, when a step asks for them, and those of a torch
Dataset or a DataLoader are read then. Data in the host's memory are cut by a thread, which copies
the batches of the next steps to the device while the present one is computed: from pinned memory
and on a stream of its own, so that neither waits for the other.

What is fetched ahead are stored values and labels, a function of (seed, step) alone. Everything
random is drawn later, on the device and from the step's own generator, so the result does not
depend on where the data are.

With `train.known`, an example is given a random subset of its variables with some probability. Each
variable has a score, and those whose scores lie below a random place between the lowest and the
highest are known: never all of them. Scores are, for one half of these examples each,

    random numbers         variables known here and there, any share of them alike;
    u . position           variables on one side of a line: the upper half of a picture, the
                           beginning or the end of a text, a subset of the named variables of
                           mixed data.

u is a random direction, more often than not nearly along one axis. Where groups of the named
variables of mixed data are given (`train.known_groups`), each group has one random score instead,
and is known whole or not at all; variables in none of them are never known.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfn import noise
from bfn.data.base import DataSet, Stored
from bfn.errors import BFNError
from bfn.flow import BayesianFlow
from bfn.recipe import Train

AHEAD = 3
"""The number of steps whose batches are fetched ahead."""

FRACTION = 0.25
"""The fraction of a GPU's free memory that data may take; the network needs the rest."""


class Fetched(NamedTuple):
    """The micro-batches of a step, and the event that follows their copy to a GPU."""

    batches: list[Stored]
    copied: torch.cuda.Event | torch.Event | None


class Loader:
    """Places the data, and hands out the stored values of each step's examples.

    `rows` are this process's slices of a step's batch, one for each micro-batch, and `device` is
    where they are wanted. The data are moved as `settings.data_memory` says.
    """

    def __init__(
        self,
        data: DataSet,
        settings: Train,
        rows: list[range],
        device: torch.device,
        say: Callable[[str], Any] = lambda sentence: None,
    ) -> None:
        self.data, self.settings, self.rows, self.device = data, settings, rows, device
        held = settings.data_memory == "device"
        if settings.data_memory == "auto":
            there = data.split("train").device == device
            held = there or data.nbytes <= FRACTION * free_memory(device)
            if not held:
                say(
                    f"{data.name} stays in the host's memory: its {data.nbytes / 2**30:.1f} GiB "
                    f"are more than {FRACTION:.0%} of what is free on {device}"
                )
        data.to(device, hold=held)
        if not data.repeatable and rows != [range(settings.batch)]:
            raise BFNError(
                "batches that come ready made cannot be shared by several processes, nor cut by "
                "train.accumulate; give an array or a torch Dataset instead"
            )
        self.ahead = 0 if held or not data.in_memory else AHEAD
        self.stream = torch.cuda.Stream(device) if self.ahead and device.type == "cuda" else None
        self._thread: ThreadPoolExecutor | None = None
        self.coming: deque[Future[Fetched]] = deque()
        self._next = 0

    def batches(self, step: int) -> Iterable[Stored]:
        """The stored values and labels of each micro-batch of a step, on the device.

        An error in the thread is raised here. Steps are expected in order; any other step works
        too, but is not fetched ahead.
        """
        if not self.ahead:
            return self._cut(step)
        if self._thread is None or step != self._next:
            self.close()
            self._thread = ThreadPoolExecutor(1, "bfn-loader")
        self._next = step + 1
        while len(self.coming) <= self.ahead:
            self.coming.append(self._thread.submit(self._fetch, step + len(self.coming)))
        fetched = self.coming.popleft().result()
        if fetched.copied is None:
            return [_each(batch, lambda v: v.to(self.device)) for batch in fetched.batches]
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(fetched.copied)
        for values, labels in fetched.batches:
            for tensor in (values, *labels.values()):
                # Its memory belongs to the other stream, which must not reuse it before this one
                # has read it.
                tensor.record_stream(stream)
        return fetched.batches

    def close(self) -> None:
        """End the thread after the present batch."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._thread = None
        self.coming.clear()

    def _cut(self, step: int) -> Iterator[Stored]:
        return self.data.step(self.settings.seed, step, self.settings.batch, self.rows)

    def _fetch(self, step: int) -> Fetched:
        """Cut and copy a step's batches; called in the thread."""
        batches = list(self._cut(step))
        if self.stream is None:
            return Fetched(batches, None)
        # A thread has its own current device and stream.
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            # torch does not reuse the pinned memory before the copy is done.
            copies = [_each(batch, self._copied) for batch in batches]
            return Fetched(copies, self.stream.record_event())

    def _copied(self, values: Tensor) -> Tensor:
        return values.pin_memory().to(self.device, non_blocking=True)


def _each(batch: Stored, change: Callable[[Tensor], Tensor]) -> Stored:
    values, labels = batch
    return change(values), {name: change(label) for name, label in labels.items()}


def free_memory(device: torch.device) -> float:
    """Free bytes on a GPU; infinity for other devices."""
    if device.type != "cuda":
        return math.inf
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def hide_labels(
    labels: dict[str, Tensor], probability: float, generator: noise.Source
) -> dict[str, Tensor]:
    """Replace each label by -1, "no label", with some probability (classifier-free guidance)."""
    if not probability:
        return labels
    label = labels["label"]
    u = noise.uniform(label.shape, generator, device=label.device)
    return {**labels, "label": label.masked_fill(u < probability, -1)}


def check_labels(data: DataSet, settings: Train) -> None:
    """Refuse to hide labels that are not there."""
    if settings.label_dropout and "train" not in data.labels:
        raise BFNError(
            f"train.label_dropout = {settings.label_dropout} hides labels, but {data.name} comes "
            "without labels; leave it out, or train on data that has them"
        )


def draw_known(
    flow: BayesianFlow,
    x: Tensor,
    probability: float,
    generator: noise.Source,
    groups: Sequence[Sequence[str]] = (),
) -> Tensor:
    """A mask in the shape of the data, (B, *shape), true where a variable is known."""
    batch, device = len(x), x.device
    chosen, scattered, place = noise.uniform((batch, 3), generator, device=device).T
    if groups:
        each = noise.uniform((batch, len(groups)), generator, device=device)
        # A score of 1, for what is in no group, lies below no place.
        each = torch.cat([each, each.new_ones(batch, 1)], 1)
        score = each[:, flow.grouped(groups).to(device)]
    else:
        anywhere = noise.uniform(x.shape, generator, device=device).flatten(1)
        positions = flow.positions(x.shape[1:], device)
        towards = noise.uniform((batch, positions.shape[-1]), generator, device=device)
        aside = (2.0 * towards - 1.0).pow(3) @ positions.flatten(0, -2).T
        score = torch.where((scattered < 0.5)[:, None], anywhere, aside)
    low, high = score.amin(1), score.amax(1)
    known = score < (low + place * (high - low))[:, None]
    return (known & (chosen < probability)[:, None]).reshape(x.shape)
