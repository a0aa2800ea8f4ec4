"""The training loop: one for all data types, networks and losses.

Everything random in step s (times, noise, dropout, dynamic data) is drawn from generators seeded by
(seed, s), and the examples of step s are a function of (seed, s). So a checkpoint needs no
generator states, and a resumed run repeats the uninterrupted one: on a CPU, bit for bit.

Losses stay on the device until they are logged; no step waits for the one before it. Before a
checkpoint is written they are looked at, so that none follows a loss or a gradient that is not
finite.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfn import loss, noise
from bfn.data.base import DataSet
from bfn.device import find_device
from bfn.errors import Diverged, Interrupted
from bfn.model import BFN
from bfn.progress import Display, Silent
from bfn.recipe.sections import Train
from bfn.runs.folder import RunFolder
from bfn.times import ImportanceTimes
from bfn.train import shards
from bfn.train.distributed import World
from bfn.train.ema import EMA
from bfn.train.labels import check_labels, hide
from bfn.train.loader import Loader
from bfn.train.networks import join
from bfn.train.optimiser import adamw, learning_rate, time_sampler
from bfn.train.saving import Best, Saving
from bfn.train.signals import signals
from bfn.train.validation import Validation
from bfn.train.window import Reading, Values, Window

EXPLODED = 20.0
"""So many times the loss at the run's beginning is too much for the mean of a line. (A learning
rate a hundred times too high was seen to cost 4 times as much for a while before it came back.)"""
BEGINNING = 16
"""Examples whose loss is taken for the one at the beginning."""
LEAST = 1.0
"""Nats per variable that it counts for at least. A trained network may begin with much less, and
its loss may scatter by more than its mean; an untrained one has 1 to 10."""


class Micro(NamedTuple):
    """What is kept of a micro-batch: nothing of it is read back."""

    loss: Tensor
    """The mean loss, in nats per variable: ()."""
    t: Tensor
    """The times: (B,)."""
    nats: Tensor
    """The loss of every example at its time, in nats, without the time's weight: (B,)."""


class Trainer:
    """The state of one training run and what a step does to it.

    Args:
        model: trained in place, on settings.device.
        data: moved to that device too, if it fits (settings.data_memory).
        settings: the [train] section of a recipe.
        folder: where checkpoints, metrics and the exported model go; None keeps all in memory.
        display: shows progress and messages.
        sheet: called with averaged weights in place every `sample_every` steps, with the step and
            a function that says whether a signal has come, so that there is no time for it.
        stop: asked after every step; when it says True, the run ends there as if it were finished.
        world: the processes that train together.
    """

    def __init__(
        self,
        model: BFN,
        data: DataSet,
        settings: Train,
        *,
        folder: RunFolder | None = None,
        display: Display | None = None,
        sheet: Callable[[int, Callable[[], bool]], None] | None = None,
        stop: Callable[[], bool] | None = None,
        world: World | None = None,
    ) -> None:
        self.settings, self.folder = settings, folder
        self.display = display or Silent()
        self.sheet, self.stop = sheet, stop
        self.world = world or World()
        self.device = find_device(self.world.device(settings.device))
        self.model, self.data = model.to(self.device), data
        check_labels(model, data, settings)
        # Before they lie on a GPU.
        self.digest = data.digest() if folder is not None and self.world.main else ""
        self.rows = self.world.rows(settings.batch, settings.accumulate)
        self.loader = Loader(data, settings, self.rows, self.device, self.display.say)
        self.validation = None
        if settings.validate_every:
            self.validation = Validation(self.data, settings, self.world)
        # A network that cannot be saved says so now; and sharding gives its class another name.
        self.config = model.config() if folder is not None else {}
        # Before anything copies the weights: it may change how they lie in memory.
        self.fast, self.joined = join(self.model, self.data, settings, self.world)
        self.step = 0
        self.ema = EMA(model.net, settings.ema_decay)
        self.optimiser = adamw(model, settings)
        self.times = time_sampler(settings.times)
        self.best = Best()
        self.first: list[float] = []
        """Losses of the steps that hold the first examples."""
        self.saving = Saving(self)
        self.window = Window(self.device)
        self.history: list[dict[str, Any]] = []
        self._unread: deque[tuple[dict[str, Any], Reading]] = deque()
        self._clock, self._timed = time.monotonic(), 0
        self._caught: list[int] = []

    # One step.

    def advance(self) -> None:
        """One step: batch, loss, gradient, update, average."""
        settings = self.settings
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(settings, self.step)
        self.optimiser.zero_grad(set_to_none=True)
        torch.manual_seed(noise.seed("dropout", settings.seed, self.step, self.world.rank))
        parts = []
        for rows, stored in zip(self.rows, self.loader.batches(self.step), strict=True):
            last = rows is self.rows[-1]
            with self.world.accumulating(self.joined.net, last=last):
                generator = self._source(rows)
                values, labels = stored
                x = self.data.format.form.encode(values, generator)
                labels = hide(labels, settings.label_dropout, generator)
                parts.append(self._backward(x, labels, generator, 1 / len(self.rows)))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimiser.step()
        self.step += 1
        self.ema.update(self.model.net, self.step)
        whole = Micro(*map(_joined, zip(*parts, strict=True)))
        if isinstance(self.times, ImportanceTimes):
            self.times.learn(self.world.gather(whole.t), self.world.gather(whole.nats))
        self.window.add(whole.loss, shards.full(norm).detach(), whole.t, whole.nats)

    def _source(self, rows: range) -> noise.Source:
        """The noise of some rows of the step's batch."""
        settings = self.settings
        key = noise.seed(settings.seed, self.step, 0)
        generator = torch.Generator(self.device).manual_seed(key)
        return (
            generator
            if len(rows) == settings.batch
            else noise.Part(generator, rows, settings.batch)
        )

    def _backward(
        self, x: Tensor, cond: dict[str, Tensor], generator: noise.Source, share: float
    ) -> Micro:
        """Add a micro-batch's part of the gradient of the step's mean loss.

        The loss is per variable, so that one bound on the gradient's norm suits examples of any
        size.
        """
        drawn: list[tuple[Tensor, Tensor]] = []

        def times(*arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
            drawn.append(self.times(*arguments, **keywords))
            return drawn[-1]

        given: dict[str, Any] = {"times": times, "generator": generator, **cond}
        if self.settings.loss_steps == "inf":
            nats = loss.continuous_time(self.joined, x, **given)
        else:
            nats = loss.discrete_time(self.joined, x, int(self.settings.loss_steps), **given)
        value = nats.mean() / self.data.format.dimensions
        (share * value).backward()
        ((t, weight),) = drawn
        return Micro(value.detach(), t, nats.detach() / weight)

    # The run.

    def run(self) -> None:
        """Train from the present step to the last, saving along the way."""
        settings, display = self.settings, self.display
        devices = [] if self.device.type == "cpu" else [self.device]
        self.model.train()
        # The first window may hold steps of another process, which this clock has not seen.
        self._clock, self._timed = time.monotonic(), self.step
        launched = self.world.size > 1
        with (
            torch.random.fork_rng(devices),
            signals(launched=launched) as caught,
            display,
            contextlib.closing(self.loader),
        ):
            self._caught = caught
            display.begin(self.step, settings.steps)
            while self.step < settings.steps and not self.exhausted():
                self.advance()
                asked = self.stop is not None and self.stop()
                caught_now, over = self.world.agree(bool(caught), asked)
                over = self._after(caught_now, over)
                display.advance(self.step)
                if caught_now and not over:
                    raise Interrupted(self._farewell())
                if over:
                    break
            self.world.settle()

    def _after(self, caught: bool, over: bool) -> bool:
        """All that is due after a step; says whether training is over."""
        settings, step = self.settings, self.step
        better = False
        measured: dict[str, float] = {}
        if self.validation is not None and step % settings.validate_every == 0:
            measured, better = self._validate(self.validation)
        over = over or step == settings.steps or self.exhausted()
        if step % settings.log_every == 0 or measured:
            self.log(measured)
            self.window.clear()
        elif over:
            self.log()  # of an unfinished window, which a longer run would go on with
        if self.world.size == 1:
            self._write_lines(wait=False)
        if over or caught or better or step % settings.checkpoint_every == 0:
            self.save()
        due = settings.sample_every and step % settings.sample_every == 0
        if self.sheet and due and not caught:
            with self.ema.in_place(self.model.net):
                self.sheet(step, lambda: bool(self._caught))
        self.saving.beat()
        return over

    def _validate(self, validation: Validation) -> tuple[dict[str, float], bool]:
        """Measure the averaged weights; says whether they are the best so far."""
        self._check()  # of exploded weights none is the best
        with self.ema.in_place(self.model.net):
            found = validation.measure(self.fast)
        if math.isnan(found.total):
            raise self._diverged(f"the validation loss became nan at step {self.step}", self.step)
        scale = self.data.format.scale
        measured = {
            "validation": found.total * scale,
            "validation_loss": found.loss * scale,
            "validation_reconstruction": found.reconstruction * scale,
        }
        self.best, better = self.best.after(self.step, measured["validation"])
        if better:
            self.saving.keep_best()
        if self.exhausted():
            self.display.say(
                f"no better validation in {self.best.looks}: training ends at step {self.step}; "
                f"the best was {self.best.value:.4f} {self.data.unit} at step {self.best.step}"
            )
        return measured, better

    def exhausted(self) -> bool:
        """Whether patience has run out."""
        return bool(self.settings.patience) and self.best.since >= self.settings.patience

    def log(self, measured: dict[str, float] | None = None) -> None:
        """One line of metrics: means over the steps since the last one, and what was measured."""
        line = {
            "step": self.step,
            "learning_rate": self.optimiser.param_groups[0]["lr"],
            "measured": measured or {},
        }
        self._unread.append((line, self.window.read(self.world)))
        # A line waits for nothing; but processes stop together, and a validation waited already.
        if self.world.size > 1 or measured:
            self._write_lines()

    def _write_lines(self, *, wait: bool = True) -> None:
        """Write the lines whose numbers have arrived; or wait for all of them."""
        while self._unread and (wait or self._unread[0][1].ready()):
            line, reading = self._unread.popleft()
            self._write(line, self._checked(reading, line["step"]))

    def _write(self, begun: dict[str, Any], values: Values) -> None:
        now = time.monotonic()
        seconds, self._clock = max(now - self._clock, 1e-9), now
        steps, self._timed = begun["step"] - self._timed, begun["step"]
        format = self.data.format
        nats = values.loss * format.dimensions
        line: dict[str, Any] = {
            "step": begun["step"],
            "loss": nats * format.scale,
            "unit": self.data.unit,
            "nats": nats,
            **begun["measured"],
            "gradient_norm": values.norm,
            "learning_rate": begun["learning_rate"],
            "loss_by_time": values.by_time(format.scale),
            "examples_per_second": round(steps * self.settings.batch / seconds, 1),
        }
        self.history.append(line)
        self.saving.log(line)
        self.display.show(line)

    def _check(self) -> Values:
        """The values of the unfinished window, checked."""
        return self._checked(self.window.read(self.world), self.step)

    def _checked(self, reading: Reading, step: int) -> Values:
        """The values; training stops if one of them is not finite, or the loss explodes."""
        self.world.listen()
        values = reading.values()
        broken = values.broken(self._bound(values, step))
        if broken is None:
            return values
        place, what = broken
        at = step - len(values.losses) + place + 1
        # The weights before that step are those that it was computed with.
        raise self._diverged(f"{what} at step {at}", at - 1)

    def _diverged(self, what: str, weights: int) -> Diverged:
        """What to do after something broke that the weights of a step may have to do with."""
        smaller = f"a smaller train.learning_rate (now {self.settings.learning_rate:g})"
        last = self.saving.good_before(weights)
        if last is None:
            return Diverged(
                f"{what}; there is no good checkpoint before it: train again with {smaller} or "
                f"train.clip{' (--force replaces this run)' if self.folder else ''}"
            )
        exported = self.saving.exported_step()
        from_there = ""
        if self.folder is not None and exported is not None and exported < weights:
            from_there = f" (--init {self.folder.path} starts from the run's model)"
        return Diverged(
            f"{what}; the last good checkpoint is {last}: train again with {smaller} or train.clip"
            f"{from_there}, or look for extreme examples in the data"
        )

    def _bound(self, values: Values, step: int) -> float:
        """A mean loss, in nats per variable, that no training comes back from.

        It is known after the first step, or the first few of small batches.
        """
        few = -(-BEGINNING // self.settings.batch)
        for earlier, value in enumerate(values.losses, step - len(values.losses)):
            if earlier == len(self.first) < few:
                self.first.append(value)
        if len(self.first) < few:
            return math.inf
        return EXPLODED * max(LEAST, math.fsum(map(abs, self.first)) / few)

    # Saving and going on.

    def save(self) -> None:
        """A checkpoint, and the averaged weights as the run's model."""
        self._write_lines()
        values = self._check()
        learned = [p for p in self.model.parameters() if p.requires_grad]
        finite = torch.stack([shards.local(p).isfinite().all() for p in learned]).all()
        (overflowed,) = self.world.any(not finite)
        if overflowed:
            raise self._diverged(f"the weights overflowed at step {self.step}", self.step)
        self.saving.save(values)

    def restore(self) -> None:
        """Go on from the newest whole checkpoint of the folder, if there is one."""
        self.saving.restore()

    def _farewell(self) -> str:
        stopped = f"training was interrupted at step {self.step} of {self.settings.steps}"
        if self.folder is None:
            return stopped
        return f"{stopped}; its state is saved in {self.folder.path}: go on with --resume auto"


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    """One tensor for all micro-batches: the mean of numbers, rows after rows."""
    if len(parts) == 1:
        return parts[0]
    return torch.stack(parts).mean() if parts[0].dim() == 0 else torch.cat(parts)
