"""A training step: one for all data types, networks and losses.

Everything random in step s (times, noise, dropout, augmentation) is drawn from generators seeded by
(seed, s), and the examples of step s are a function of (seed, s). So a checkpoint needs no
generator states, and a resumed run repeats the uninterrupted one: on a CPU, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bfn import loss, noise
from bfn.data.base import DataSet
from bfn.device import find_device
from bfn.model import BFN
from bfn.nn.accelerate import Accelerated
from bfn.recipe import Train
from bfn.times import ImportanceTimes
from bfn.train.checkpoint import State
from bfn.train.data import Loader, check_labels, draw_known, hide_labels
from bfn.train.monitor import Window
from bfn.train.optim import EMA, learning_rate, optimiser, time_sampler
from bfn.train.parallel import World, full, shard


class Micro(NamedTuple):
    """What is kept of a micro-batch; it stays on the device."""

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
        self.device = find_device(self.world.device(settings.device))
        self.model, self.data = model.to(self.device), data
        check_labels(data, settings)
        self.rows = self.world.rows(settings.batch, settings.accumulate)
        self.loader = Loader(data, settings, self.rows, self.device, say)
        # Before anything copies the weights: it may change how they lie in memory.
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

        It is per variable, so that one limit on the gradient's norm suits examples of any size.
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
            f"step {step} could not be made with {examples // parts} examples at once; give "
            f"train.accumulate = {more} or more, which cuts the batch into parts without changing "
            "the result"
        )


def _of_rows(model: BFN, augment: Callable[[Any], Any] | None) -> Callable[[Tensor], Tensor]:
    """An augmentation of data as users see them, for data as one tensor."""
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
    """Whether some weights take no part in the loss, which DDP must be told."""
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
