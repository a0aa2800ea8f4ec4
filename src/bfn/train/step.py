"""A training step and its batch: one for all data types, networks and losses.

Everything random in step s (times, noise, dropout, augmentation) is drawn from generators seeded by
(seed, s), and the examples of step s are a function of (seed, s). So a checkpoint needs no
generator states, and a resumed run repeats the uninterrupted one: on a CPU, bit for bit.

Batches of data that the device holds are cut there when a step needs them, and those of a torch
Dataset or a DataLoader are read then. Data in the host's memory are cut by a thread, which copies
the batches of the next steps to the device during the current one: from pinned memory and on a
stream of its own, so that neither waits for the other. Only stored values and labels are
prefetched; everything random is drawn later, on the device, so the result does not depend on where
the data are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bfn import loss, noise
from bfn.data.base import DataSet, Stored
from bfn.device import on_device
from bfn.errors import BFNError
from bfn.flow import BayesianFlow
from bfn.loss import ImportanceTimes
from bfn.model import BFN
from bfn.nn.accelerate import Accelerated
from bfn.recipe import Train
from bfn.train.checkpoint import State
from bfn.train.monitor import Window
from bfn.train.optim import EMA, learning_rate, optimiser, time_sampler
from bfn.train.parallel import World, full, shard

AHEAD = 3
"""The number of steps whose batches are prefetched."""

FRACTION = 0.25
"""The fraction of a GPU's free memory that data may take; the network needs the rest."""


class Micro(NamedTuple):
    """The results of a micro-batch, on the device."""

    loss: Tensor
    """The mean of the bound, in nats per variable: ()."""
    t: Tensor
    """The times: (B,)."""
    nats: Tensor
    """The bound's cost of every example at its time, without the time's weight: (B,)."""
    minimised: Tensor
    """The objective likewise: (B,)."""


class Trainer:
    """A model, its data, and the state that training steps change.

    The model is trained in place, on settings.device; the data are moved there too, if they fit.
    `augment` is applied to the x of every training batch, after it is encoded.
    """

    def __init__(
        self,
        model: BFN,
        data: DataSet,
        settings: Train,
        world: World | None = None,
        augment: Callable[[Tensor], Tensor] | None = None,
        say: Callable[[str], Any] = lambda sentence: None,
    ) -> None:
        self.settings, self.augment = settings, _of_rows(model, augment)
        self.world = world or World()
        self.model = on_device(model, self.world.device(settings.device), "train.device")
        self.device, self.data = self.model.device, data
        check_labels(data, settings)
        self.rows = self.world.rows(settings.batch, settings.accumulate)
        self.loader = Loader(data, settings, self.rows, self.device, say)
        # Before anything copies the weights, since it may change their memory layout.
        self.fast, self.joined = _join(self.model, self.data, settings, self.world)
        self.state = State(
            net=model.net,
            ema=EMA(model.net, settings.ema_decay),
            optimiser=optimiser(model, settings),
            times=time_sampler(settings.times),
        )
        self.window = Window(self.device)

    def advance(self) -> None:
        """One step: batch, loss, gradient, update, average."""
        settings, state = self.settings, self.state
        for group in state.optimiser.param_groups:
            group["lr"] = learning_rate(settings, state.step, state.seconds)
        state.optimiser.zero_grad(set_to_none=True)
        torch.manual_seed(noise.seed("dropout", settings.seed, state.step, self.world.rank))
        parts = []
        for rows, stored in zip(self.rows, self.loader.batches(state.step), strict=True):
            last = rows is self.rows[-1]
            with self.world.accumulating(self.joined.net, last=last):
                generator = self._source(rows)
                values, labels = stored
                x = self.augment(self.data.format.form.encode(values, generator))
                labels = hide_labels(labels, settings.label_dropout, generator)
                if settings.known:
                    groups = settings.known_groups
                    mask = draw_known(self.model.flow, x, settings.known, generator, groups)
                    labels = {**labels, "known": mask}
                parts.append(self.backward(x, labels, generator, 1 / len(self.rows)))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        state.optimiser.step()
        state.step += 1
        state.ema.update(state.net, state.step)
        batch = Micro(*map(_joined, zip(*parts, strict=True)))
        if isinstance(state.times, ImportanceTimes):
            state.times.learn(
                self.world.concatenate(batch.t), self.world.concatenate(batch.minimised)
            )
        self.window.add(batch.loss, full(norm).detach(), batch.t, batch.nats)

    def _source(self, rows: range) -> noise.Source:
        """The noise of some rows of the step's batch."""
        settings = self.settings
        key = noise.seed(settings.seed, self.state.step, 0)
        generator = torch.Generator(self.device).manual_seed(key)
        if len(rows) == settings.batch:
            return generator
        return noise.Part(generator, rows, settings.batch)

    def backward(
        self, x: Tensor, cond: dict[str, Tensor], generator: noise.Source, weight: float
    ) -> Micro:
        """Add a micro-batch's part of the gradient of the step's mean objective.

        It is per variable, so that one clipping norm suits examples of any size.
        """
        drawn: list[tuple[Tensor, Tensor]] = []

        def times(*arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
            drawn.append(self.state.times(*arguments, **keywords))
            return drawn[-1]

        settings, dimensions = self.settings, self.data.format.dimensions
        minimised, bound = loss.objective(
            self.joined, x, settings.objective, settings.loss_steps, times, generator,
            power=settings.power, **cond,
        )  # fmt: skip
        (weight * minimised.mean() / dimensions).backward()
        ((t, weight_of_t),) = drawn
        return Micro(
            bound.mean() / dimensions, t, bound / weight_of_t, minimised.detach() / weight_of_t
        )

    def memory_advice(self) -> str:
        """What to do when memory runs out in a step."""
        parts, step = len(self.rows), self.state.step + 1
        examples = parts * len(self.rows[0])
        if examples == parts:
            return f"a single example is too large in step {step}; give a smaller network"
        more = next(n for n in range(parts + 1, examples + 1) if examples % n == 0)
        return (
            f"step {step} does not fit with {examples // parts} examples at once; give "
            f"train.accumulate = {more} or more, which splits the batch without changing "
            "the result"
        )


def _of_rows(model: BFN, augment: Callable[[Any], Any] | None) -> Callable[[Tensor], Tensor]:
    """Apply a user's augmentation, which sees unpacked data, to data packed into one tensor."""
    if augment is None:
        return lambda x: x
    return lambda x: model.pack(augment(model.flow.unpack(x)))


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    """One tensor for all micro-batches: the mean of numbers, the rows of several concatenated."""
    if len(parts) == 1:
        return parts[0]
    return torch.stack(parts).mean() if parts[0].dim() == 0 else torch.cat(parts)


def _join(model: BFN, data: DataSet, settings: Train, world: World) -> tuple[BFN, BFN]:
    """The model with shared weights, twice: fast, for this process; and joined, for training."""
    compile = {"auto": None, "yes": True, "no": False}[settings.compile]
    if world.shards(settings.sharding):
        # A compiled function would bypass the hooks that gather a sharded network's weights.
        net: nn.Module = Accelerated(model.net, settings.precision, False)
        shard(model.net, world)
        joined = net
    else:
        unused = world.size > 1 and has_unused_weights(model, data, settings.known)
        joined = net = Accelerated(model.net, settings.precision, compile)
        if world.size > 1:
            joined = DistributedDataParallel(net, find_unused_parameters=unused)
    fast, together = BFN(net, model.flow, model.head), BFN(joined, model.flow, model.head)
    fast.lengths = together.lengths = model.lengths
    return fast, together


def has_unused_weights(model: BFN, data: DataSet, known: float = 0.0) -> bool:
    """Whether some weights do not affect the loss; DDP needs to know."""
    generator = torch.Generator(model.device).manual_seed(0)
    x, labels = data.batch("train", data.indices(0, 0, 1), generator)
    cond: dict[str, Any] = {"generator": generator, **labels}
    if known:
        cond["known"] = draw_known(model.flow, x, known, generator)
    # Not in training mode, where one example may be too few and statistics would be updated.
    with model.evaluating(), torch.enable_grad():
        loss.continuous_time(model, x, **cond).sum().backward()
    unused = any(p.grad is None for p in model.parameters() if p.requires_grad)
    model.zero_grad(set_to_none=True)
    return unused


# Batches.


class Fetched(NamedTuple):
    """The micro-batches of a step, and the event that follows their copy to a GPU."""

    batches: list[Stored]
    copied: torch.cuda.Event | torch.Event | None


class Loader:
    """Places the data in memory, and returns the stored values of each step's examples.

    `rows` are this process's slices of a step's batch, one per micro-batch, and `device` is their
    destination. The data are moved according to `settings.data_memory`.
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
                "ready-made batches cannot be divided among processes or by train.accumulate; give "
                "an array or a torch Dataset instead"
            )
        self.ahead = 0 if held or not data.in_memory else AHEAD
        self.stream = torch.cuda.Stream(device) if self.ahead and device.type == "cuda" else None
        self._thread: ThreadPoolExecutor | None = None
        self.coming: deque[Future[Fetched]] = deque()
        self._next = 0

    def batches(self, step: int) -> Iterable[Stored]:
        """The stored values and labels of each micro-batch of a step, on the device.

        An error in the thread is raised here. Steps are expected in order; any other step works
        too, but is not prefetched.
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
                # Its memory belongs to the other stream, which must not reuse it before this stream
                # has read it.
                tensor.record_stream(stream)
        return fetched.batches

    def close(self) -> None:
        """Stop the thread after the current batch."""
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
    """Refuse to hide labels of data that have none."""
    if settings.label_dropout and "train" not in data.labels:
        raise BFNError(
            f"train.label_dropout = {settings.label_dropout} hides labels, but {data.name} has no "
            "labels; leave it out, or train on data with labels"
        )


def draw_known(
    flow: BayesianFlow,
    x: Tensor,
    probability: float,
    generator: noise.Source,
    groups: Sequence[Sequence[str]] = (),
) -> Tensor:
    """A mask in the shape of the data, (B, *shape), true where a variable is known.

    With some probability, a random subset of an example's variables is known. Each variable has a
    score, and those with scores below a random threshold between the lowest and the highest are
    known: never all of them. Scores are, for one half of these examples each,

        random numbers     variables known here and there, any fraction of them equally often;
        u . position       variables on one side of a line: the upper half of a picture, the
                           beginning or the end of a text, a subset of the named variables of
                           mixed data.

    u is a random direction, usually nearly along one axis. If groups of the named variables of
    mixed data are given, each group has one random score instead, and is known entirely or not at
    all; variables in no group are never known.
    """
    batch, device = len(x), x.device
    chosen, scattered, place = noise.uniform((batch, 3), generator, device=device).T
    if groups:
        each = noise.uniform((batch, len(groups)), generator, device=device)
        # A score of 1, for variables in no group, is below no threshold.
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
