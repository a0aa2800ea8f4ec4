"""The training loop: steps, and what is due after them: metrics, validation, saving, samples.

No step waits for the one before it. Losses are checked when they have arrived from the device, and
always before a checkpoint is written, so that no checkpoint follows a loss or a gradient that is
not finite. A line of metrics ends at every checkpoint, so a run that is killed and resumed writes
the same lines as an uninterrupted one. A run that is stopped has one more line, at the step of its
last checkpoint.

Ctrl-C, SIGTERM and SIGHUP end the training after the current step and save its state.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from bfn.data.base import SPLITS
from bfn.device import memory_errors
from bfn.errors import Diverged, Interrupted, WriteFailed
from bfn.nn.accelerate import compiling
from bfn.progress import Display
from bfn.recipe import Recipe
from bfn.runs import status
from bfn.runs.folder import BOARD, RunFolder
from bfn.train import checkpoint
from bfn.train.monitor import Reading, Samples, Validation, Values, scalars, summary_writer
from bfn.train.parallel import gathered, load_weights, local
from bfn.train.step import Trainer

_ECHO = 3.0  # seconds within which a launcher may forward a signal that this process also got
_HANGUP = getattr(signal, "SIGHUP", None)  # sent when the terminal closes; not on Windows


class Loop:
    """Trains from the current step to the last, and logs metrics.

    Without a folder, everything stays in memory. `identity` is that of `checkpoint.save`. `stop` is
    called after every step; when it returns True, the run ends there as if it had finished.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder | None = None,
        identity: Mapping[str, Any] | None = None,
        display: Display | None = None,
        samples: Samples | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.trainer, self.state, self.settings = trainer, trainer.state, trainer.settings
        self.world, self.format = trainer.world, trainer.data.format
        self.folder, self.identity = folder, identity or {}
        self.display = display or Display()
        self.samples, self.stop = samples, stop
        self.scale = trainer.data.scale("train")
        """The data's unit per nat of an example."""
        self.validation = None
        if self.settings.validate_every:
            self.validation = Validation(trainer.data, self.settings, self.world)
        self.history: list[dict[str, Any]] = []
        self.saved_step: int | None = None
        """The step of the newest checkpoint."""
        self._board: Any = None
        """TensorBoard's writer."""
        self._unread: deque[tuple[dict[str, Any], Reading]] = deque()
        self._clock = time.monotonic()
        self._signals: list[int] = []
        self._steps_ahead: deque[torch.cuda.Event] = deque()

    # Before and after.

    def open(self, recipe: Recipe, *, resume: bool, force: bool) -> None:
        """Open the run folder; with `force`, an existing run is renamed first."""
        folder = self.folder
        if folder is None:
            return
        replaced = self.world.on_main(lambda: folder.open(recipe, resume=resume, force=force))
        if replaced is not None:
            self.display.say(f"the previous run is now in {str(replaced)!r}")

    def restore(self, recipe: Recipe, *, resume: bool) -> None:
        """Continue from the newest intact checkpoint of the folder, if there is one."""
        folder, state = self.folder, self.state
        if folder is None:
            return
        with memory_errors(lambda: "the model and its checkpoint are too large for it"):
            restored = checkpoint.restore(
                folder.checkpoints, state, self.identity, self.world, self.display.say,
                validating=self.validation is not None,
            )  # fmt: skip

        def open_files() -> None:
            folder.open_metrics(state.step)
            if self.settings.tensorboard:
                # This hides what a killed run logged after its checkpoint.
                board = str(folder.path / BOARD)
                self._board = summary_writer()(board, purge_step=state.step + 1)

        self.world.on_main(open_files)
        if restored:
            self.saved_step = state.step
            self.history = folder.metrics()
            # A kill may have come between the checkpoint and its export.
            self._export(gathered(state.ema.weights, keep=self.world.main))
        elif resume:
            self.display.say(
                f"{str(folder.path)!r} has no checkpoint to resume from; starting a new run"
            )
        if resume:  # only now, so that a run that cannot be resumed keeps its recipe
            self.world.on_main(lambda: folder.write_recipe(recipe))

    def finished(self) -> bool:
        state, settings = self.state, self.settings
        late = 0.0 < settings.seconds <= state.seconds
        return state.step >= settings.steps or late or self._out_of_patience()

    def _out_of_patience(self) -> bool:
        return bool(self.settings.patience) and self.state.best.since >= self.settings.patience

    def report(self, what: str, message: str = "", step: int | None = None) -> None:
        """Write the run's status; the step is the current one unless given."""
        if self.folder is None or not self.world.main or not self.folder.is_here():
            return
        state, best = self.state, self.state.best
        values = {
            "step": state.step if step is None else step,
            "steps": self.settings.steps,
            "unit": self.trainer.data.unit,
            "loss": self.history[-1]["loss"] if self.history else None,
            "best": {"step": best.step, "validation": best.value} if best.step else None,
            "exported_step": self.saved_step if state.best_weights is None else best.step,
            "message": message,
        }
        status.write(self.folder.path, what, values)

    def close(self) -> None:
        """Give the model the final weights of the run, and close the files."""
        model = self.trainer.model
        if not self.world.lost:  # a GPU might wait forever for a dead process
            load_weights(model.net, self.state.exported())
        model.eval()
        model.train_known = self.settings.known
        if self._board is not None:
            self._board.close()
        if self.folder is not None:
            self.folder.close()

    # The loop.

    def run(self) -> None:
        """Train from the current step to the last, and record how it ended in the status."""
        state, settings, data, say = self.state, self.settings, self.trainer.data, self.display.say
        if self.finished():
            limit = "seconds" if 0.0 < settings.seconds <= state.seconds else "patience"
            more = f"; to continue, give a larger train.{limit}"
            say(f"the run is finished: step {state.step}{more * (state.step < settings.steps)}")
            self.report(status.FINISHED)
            return
        parameters = sum(p.numel() for p in state.net.parameters())
        say(f"{data.name}: {data.summary()}; {parameters:,} parameters on {self.trainer.device}")
        self.world.on_main(self._record_data)
        if state.step:
            others = "" if data.repeatable else ", with the next batches of the source"
            say(f"resuming from step {state.step}{others}")
        self.report(status.RUNNING)
        try:
            with self.world.guard(), memory_errors(self.trainer.memory_advice), compiling():
                self._take_steps()
        except BaseException as error:
            ending, at = status.FAILED, None
            if isinstance(error, Diverged):
                ending, at = status.DIVERGED, error.step
            elif isinstance(error, KeyboardInterrupt):
                ending = status.INTERRUPTED
            self.report(ending, message=str(error), step=at)
            raise
        self.report(status.FINISHED)

    def _record_data(self) -> None:
        """Record the training data, and report how many held-out examples repeat it."""
        if self.folder is None:
            return
        data = self.trainer.data
        fingerprints = data.fingerprints()
        self.folder.write_data(self.identity["data"], data.summary(), fingerprints)
        for split in SPLITS[1:]:
            seen = data.seen(split, fingerprints)
            if seen.any():
                self.display.say(
                    f"{seen.sum()} of the {len(seen)} {split} examples also occur in the "
                    "training data"
                )

    def _take_steps(self) -> None:
        """Train until the last step, or until patience, `stop` or a signal ends the training."""
        trainer, state, world = self.trainer, self.state, self.world
        devices = [] if trainer.device.type == "cpu" else [trainer.device]
        trainer.model.train()
        self._clock = time.monotonic()
        with (
            torch.random.fork_rng(devices),
            signals(launched=world.size > 1) as self._signals,
            self.display,
            contextlib.closing(trainer.loader),
        ):
            self.display.advance(state.step, self.settings.steps)
            over, began = self.finished(), time.monotonic() - state.seconds
            while not over:
                trainer.advance()
                self._keep_time(began)
                asked = self.stop is not None and self.stop()
                if not self.finished() and trainer.data.ended:
                    self.display.say(f"training stops at step {state.step}: no more batches")
                    asked = True
                interrupted, asked = world.any_a_step_ago(bool(self._signals), asked)
                over = self._after_step(interrupted, asked)
                self.display.advance(state.step, self._expected_steps())
                if interrupted and not over:
                    raise Interrupted(self._interruption_message())
            world.check_alive()

    def _keep_time(self, began: float) -> None:
        """Measure the training time so far; with train.seconds, all processes agree on it."""
        self.state.seconds = time.monotonic() - began
        if self.settings.seconds:
            if self.trainer.device.type == "cuda":
                # A host that runs ahead of its GPU would measure too little.
                self._steps_ahead.append(torch.cuda.Event())
                self._steps_ahead[-1].record()
                if len(self._steps_ahead) > 2:
                    self._steps_ahead.popleft().synchronize()
            self.state.seconds = self.world.broadcast(self.state.seconds)

    def _expected_steps(self) -> int:
        """The total steps of the run, or an estimate of those that its seconds allow."""
        settings, state = self.settings, self.state
        if not settings.seconds:
            return settings.steps
        spent = min(1.0, state.seconds / settings.seconds)
        return min(settings.steps, math.ceil(state.step / max(spent, 1e-9)))

    def _after_step(self, interrupted: bool, asked: bool) -> bool:
        """Do everything that is due after a step; returns whether training is over."""
        settings, step = self.settings, self.state.step
        better = False
        measured: dict[str, float] = {}
        if self.validation is not None and step % settings.validate_every == 0:
            measured, better = self._validate(self.validation)
        over = asked or self.finished()
        saving = over or interrupted or better or step % settings.checkpoint_every == 0
        if saving or measured or step % settings.log_every == 0:
            self._log(measured)
        # Logging does not wait, but processes must stop together, and validation has synchronised.
        self._write_lines(wait=self.world.size > 1 or bool(measured))
        if saving:
            self._save()
        due = settings.sample_every and step % settings.sample_every == 0
        if self.folder and self.samples and due and not interrupted:
            self.world.on_main(self.folder.check_here)
            with self.state.ema.in_place(self.state.net):
                self.samples.write(step, lambda: bool(self._signals))
        return over

    def _validate(self, validation: Validation) -> tuple[dict[str, float], bool]:
        """Validate the averaged weights; also returns whether they are the best so far."""
        state, unit = self.state, self.trainer.data.unit
        # Broken weights are never the best.
        self._checked(self.trainer.window.read(self.world), state.step)
        with state.ema.in_place(state.net):
            bound, reconstruction = validation.measure(self.trainer.fast)
        if math.isnan(bound + reconstruction):
            raise self._diverged("the validation loss became nan", state.step, state.step)
        scale = validation.scale
        measured = {
            "validation": (bound + reconstruction) * scale,
            "validation_loss": bound * scale,
            "validation_reconstruction": reconstruction * scale,
        }
        state.best, better = state.best.after(
            state.step, measured["validation"], self.settings.tolerance
        )
        if better:
            state.best_weights = gathered(state.ema.weights)
        if self._out_of_patience():
            self.display.say(
                f"training stops at step {state.step} after {state.best.since} validations without "
                f"improvement; the best was {state.best.value:.4f} {unit} at step {state.best.step}"
            )
        return measured, better

    # Metrics.

    def _log(self, measured: dict[str, float]) -> None:
        """Start a line of metrics: means over the steps since the last line, and measurements."""
        rate = self.state.optimiser.param_groups[0]["lr"]
        begun = {"step": self.state.step, **measured, "learning_rate": rate}
        self._unread.append((begun, self.trainer.window.read(self.world)))
        self.trainer.window.clear()

    def _write_lines(self, *, wait: bool = True) -> None:
        """Write the lines whose numbers have arrived, or wait for all of them."""
        while self._unread and (wait or self._unread[0][1].ready()):
            begun, reading = self._unread.popleft()
            line = self._line(begun, self._checked(reading, begun["step"]))
            self.history.append(line)
            if self.folder is not None and self.world.main:
                self.folder.log(line)
            if self._board is not None:
                for name, value in scalars(line):
                    self._board.add_scalar(name, value, line["step"])
            self.display.show(line)

    def _line(self, begun: dict[str, Any], values: Values) -> dict[str, Any]:
        now = time.monotonic()
        seconds, self._clock = max(now - self._clock, 1e-9), now
        examples = len(values.losses) * self.settings.batch
        nats = values.loss * self.format.dimensions
        return {
            "step": begun["step"],
            "loss": nats * self.scale,
            "unit": self.trainer.data.unit,
            "nats": nats,
            **begun,
            "gradient_norm": values.norm,
            "loss_by_time": values.by_time(self.scale),
            "examples_per_second": round(examples / seconds, 1),
        }

    def _checked(self, reading: Reading, step: int) -> Values:
        """The numbers of a window that ends with a step; raises `Diverged` if one is not finite."""
        self.world.check_alive()
        values = reading.values()
        broken = values.broken()
        if broken is None:
            return values
        place, what = broken
        at = step - len(values.losses) + place + 1
        # It was computed with the weights of the step before.
        raise self._diverged(what, at, at - 1)

    def _diverged(self, what: str, step: int, weights: int) -> Diverged:
        """The error for what broke at a step, computed with the weights of step `weights`."""
        fallback = "there is no earlier good checkpoint"
        if self.folder is not None and self.saved_step is not None:
            good = [s for s in self.folder.steps() if s <= min(weights - 1, self.saved_step)]
            if good:
                fallback = f"the last good checkpoint is {self.folder.checkpoints}/step-{good[-1]}"
        return Diverged(
            f"{what} at step {step}; {fallback}: train again with a smaller train.learning_rate "
            f"(now {self.settings.learning_rate:g}) or train.clip, or look for extreme examples in "
            "the data",
            step,
        )

    # Saving.

    def _save(self) -> None:
        """Write a checkpoint, and export the run's model."""
        self._write_lines()
        state = self.state
        learned = [p for p in state.net.parameters() if p.requires_grad]
        finite = torch.stack([local(p).isfinite().all() for p in learned]).all()
        (overflowed,) = self.world.any(not finite)
        if overflowed:
            raise self._diverged("the weights overflowed", state.step, state.step)
        if self.folder is None:
            return
        self.world.on_main(self.folder.check_here)
        try:
            average = checkpoint.save(
                self.folder.checkpoints, state, self.identity, self.settings.keep, self.world
            )
        except WriteFailed:
            if self.world.main:
                self.folder.check_here()  # it may have been moved just now
            raise
        self.saved_step = state.step
        self._export(average)
        self.report(status.RUNNING)

    def _export(self, average: dict[str, torch.Tensor]) -> None:
        folder, best = self.folder, self.state.best_weights
        assert folder is not None
        weights = average if best is None else best
        config = {**self.identity["model"], "train_known": self.settings.known}
        self.world.on_main(lambda: folder.export(config, weights))

    def _interruption_message(self) -> str:
        stopped = f"training was interrupted at step {self.state.step} of {self.settings.steps}"
        if self.folder is None:
            return stopped
        return (
            f"{stopped}; its state is saved in {self.folder.path}: continue it with --resume "
            "(resume=True in Python)"
        )


@contextlib.contextmanager
def signals(*, launched: bool = False) -> Iterator[list[int]]:
    """A list that gets the first signal; a second signal stops the program at once.

    A closing terminal may send SIGHUP twice, which counts once; under nohup it is ignored. A
    process `launched` by torchrun may get the same signal twice, so a second one counts only after
    a few seconds."""
    caught: list[int] = []
    first = 0.0

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        now = time.monotonic()
        if caught and number != _HANGUP and not (launched and now - first < _ECHO):
            raise KeyboardInterrupt
        if not caught:
            first = now
            caught.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if _HANGUP is not None and signal.getsignal(_HANGUP) is not signal.SIG_IGN:
        numbers.append(_HANGUP)
    before: dict[int, Any] = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield caught
    except BaseException:
        if launched:
            # The launcher kills the remaining processes of a failed training; this one is about to
            # report the reason, and must not be interrupted.
            before[signal.SIGTERM] = signal.SIG_IGN
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
