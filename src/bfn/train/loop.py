"""The training loop: one for all data types, networks and losses.

Everything random in step s (times, noise, dropout, dynamic data) is drawn from generators seeded by
(seed, s, rank), and the examples of step s are a function of (seed, s). So a checkpoint needs no
generator states, and a resumed run repeats the uninterrupted one: on a CPU, bit for bit.

Losses stay on the device until they are logged; no step waits for the one before it. Before a line
is logged or a checkpoint written they are looked at, so that no checkpoint follows a loss or a
gradient that is not finite.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bfn import loss, noise
from bfn.data.base import DataSet
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.nn.accelerate import Accelerated
from bfn.times import ImportanceTimes, Times, independent, stratified
from bfn.train import checkpoint
from bfn.train.config import Train
from bfn.train.ema import EMA
from bfn.train.folder import RunFolder
from bfn.train.outcome import Diverged, Interrupted
from bfn.train.progress import Display, Silent


class Trainer:
    """The state of one training run and what a step does to it.

    Args:
        model: trained in place, on settings.device.
        data: moved to that device too.
        settings: the [train] section of a recipe.
        folder: where checkpoints, metrics and the exported model go; None keeps all in memory.
        display: shows progress and messages.
        sheet: called with the step, with averaged weights in place, every `sample_every` steps.
        stop: asked after every step; when it says True, the run ends there as if it were finished.
    """

    def __init__(
        self,
        model: BFN,
        data: DataSet,
        settings: Train,
        *,
        folder: RunFolder | None = None,
        display: Display | None = None,
        sheet: Callable[[int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.settings, self.folder = settings, folder
        self.display = display or Silent()
        self.sheet, self.stop = sheet, stop
        self.device = find_device(settings.device)
        self.model, self.data = model.to(self.device), data.to(self.device)
        _check_labels(model, data, settings)
        # Before anything copies the weights: it may change how they lie in memory.
        self.fast = accelerated(self.model, settings)
        self.rank = 0
        self.step = 0
        self.ema = EMA(model.net, settings.ema_decay)
        self.optimiser = _adamw(model, settings)
        self.times = _time_sampler(settings.times)
        self.history: list[dict[str, Any]] = []
        self._pending: list[tuple[Tensor, Tensor]] = []  # (loss, gradient norm) of steps unlogged
        self._last_checkpoint: str | None = None
        self._clock = time.monotonic()

    # One step.

    def advance(self) -> None:
        """One step: batch, loss, gradient, update, average."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.settings, self.step)
        self.optimiser.zero_grad(set_to_none=True)
        value = self.objective()
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimiser.step()
        self.step += 1
        self.ema.update(self.model.net, self.step)
        self._pending.append((value.detach(), norm.detach()))

    def objective(self) -> Tensor:
        """The mean loss of the step's batch, in nats per variable.

        Per variable, so that one bound on the gradient's norm suits examples of any size.
        """
        settings = self.settings
        key = (settings.seed, self.step, self.rank)
        torch.manual_seed(noise.seed("dropout", *key))
        generator = torch.Generator(self.device).manual_seed(noise.seed(*key))
        indices = self.data.indices(settings.seed, self.step, settings.batch)
        x, labels = self.data.batch("train", indices, generator)
        labels = self._hide(labels, generator)
        given: dict[str, Any] = {"times": self.times, "generator": generator, **labels}
        if settings.loss_steps == "inf":
            nats = loss.continuous_time(self.fast, x, **given)
        else:
            nats = loss.discrete_time(self.fast, x, int(settings.loss_steps), **given)
        if isinstance(self.times, ImportanceTimes):
            self.times.update(nats)
        return nats.mean() / self.data.format.dimensions

    def _hide(self, labels: dict[str, Tensor], generator: noise.Source) -> dict[str, Tensor]:
        """Every label is replaced by -1, "no label", with probability label_dropout."""
        if not self.settings.label_dropout:
            return labels
        label = labels["label"]
        u = noise.uniform(label.shape, generator, device=label.device)
        return {**labels, "label": label.masked_fill(u < self.settings.label_dropout, -1)}

    # The run.

    def run(self) -> None:
        """Train from the present step to the last, saving along the way."""
        settings, display = self.settings, self.display
        devices = [] if self.device.type == "cpu" else [self.device]
        self.model.train()
        self._clock = time.monotonic()
        with torch.random.fork_rng(devices), _signals() as caught, display:
            display.begin(self.step, settings.steps)
            while self.step < settings.steps:
                self.advance()
                over = self.stop is not None and self.stop()
                last = over or self.step == settings.steps
                if self.step % settings.log_every == 0:
                    self.log()
                    self._pending.clear()
                elif last:
                    self.log()  # of an unfinished window, which a longer run would go on with
                if last or caught or self.step % settings.checkpoint_every == 0:
                    self.save()
                if self.sheet and settings.sample_every and self.step % settings.sample_every == 0:
                    with self.ema.in_place(self.model.net):
                        self.sheet(self.step)
                display.advance(self.step)
                if caught:
                    raise Interrupted(self._farewell())
                if over:
                    break

    def log(self) -> None:
        """One line of metrics: means over the steps since the last one."""
        losses, norms = self._look()
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        nats = math.fsum(losses) / len(losses) * self.data.format.dimensions
        line = {
            "step": self.step,
            "loss": nats * self.data.format.scale,
            "unit": self.data.unit,
            "nats": nats,
            "gradient_norm": math.fsum(norms) / len(norms),
            "learning_rate": self.optimiser.param_groups[0]["lr"],
            "examples_per_second": round(len(losses) * self.settings.batch / max(seconds, 1e-9), 1),
        }
        self.history.append(line)
        if self.folder is not None:
            self.folder.log(line)
        self.display.show(line)

    def _look(self) -> tuple[list[float], list[float]]:
        """Losses and gradient norms since the last log; stops training if one is not finite."""
        if not self._pending:
            return [], []
        losses, norms = (torch.stack(part).tolist() for part in zip(*self._pending, strict=True))
        for i, pair in enumerate(zip(losses, norms, strict=True)):
            if not all(map(math.isfinite, pair)):
                step = self.step - len(losses) + i + 1
                what = (
                    f"the loss became {pair[0]}"
                    if not math.isfinite(pair[0])
                    else (f"the gradient's norm became {pair[1]}")
                )
                raise Diverged(f"{what} at step {step}; {self._advice()}")
        return losses, norms

    def _advice(self) -> str:
        smaller = f"a smaller train.learning_rate (now {self.settings.learning_rate:g})"
        if self._last_checkpoint is None:
            return f"there is no checkpoint before it: train again with {smaller} or train.clip"
        return (
            f"the last good checkpoint is {self._last_checkpoint}: train again with {smaller} or "
            "train.clip, or look for extreme examples in the data"
        )

    # Saving and going on.

    def save(self) -> None:
        """A checkpoint, and the averaged weights as the run's model."""
        losses, norms = self._look()
        if self.folder is None:
            return
        optimiser = self.optimiser.state_dict()["state"]
        tensors = {
            "weights": self.model.net.state_dict(),
            "ema": self.ema.weights,
            "optimiser": checkpoint.flatten_optimiser(optimiser),
        }
        if isinstance(self.times, ImportanceTimes):
            tensors["times"] = self.times.state_dict()
        path = checkpoint.save(
            self.folder.checkpoints,
            self.step,
            tensors,
            {"pending": list(zip(losses, norms, strict=True))},
            keep=self.settings.keep,
        )
        self._last_checkpoint = str(path)
        self.folder.export(self.model, self.ema.weights, self.data.format)

    def restore(self) -> None:
        """Go on from the newest whole checkpoint of the folder, if there is one."""
        assert self.folder is not None
        found = checkpoint.newest(self.folder.checkpoints, self.display.say)
        self.folder.open_metrics(found.step if found else 0)
        if found is None:
            return
        try:
            self._load(found.tensors)
        except (RuntimeError, KeyError, ValueError) as error:
            raise BFNError(
                f"the checkpoint {str(found.path)!r} is of another model than the run's "
                f"recipe.toml describes ({str(error).splitlines()[0]}); give another folder with "
                "--out, or start again with --force"
            ) from error
        self.step = found.step
        self.history = self.folder.metrics()
        self._pending = [
            (torch.tensor(value, device=self.device), torch.tensor(norm, device=self.device))
            for value, norm in found.state["pending"]
        ]
        self._last_checkpoint = str(found.path)

    def _load(self, tensors: Mapping[str, dict[str, Tensor]]) -> None:
        self.model.net.load_state_dict(tensors["weights"])
        self.ema.restore(tensors["ema"])
        state = self.optimiser.state_dict()
        state["state"] = checkpoint.unflatten_optimiser(tensors["optimiser"])
        self.optimiser.load_state_dict(state)
        for weight, moments in self.optimiser.state.items():
            for name, value in moments.items():
                if value.shape == weight.shape:  # in memory as the weights are
                    moments[name] = torch.empty_like(weight).copy_(value)
        if isinstance(self.times, ImportanceTimes):
            self.times.load_state_dict(tensors["times"])

    def _farewell(self) -> str:
        stopped = f"training was interrupted at step {self.step} of {self.settings.steps}"
        if self.folder is None:
            return stopped
        return f"{stopped}; its state is saved in {self.folder.path}: go on with --resume auto"


def learning_rate(settings: Train, step: int) -> float:
    """Of the step after `step` steps: a linear rise, a plateau, and a linear fall."""
    rise = (step + 1) / settings.warmup if settings.warmup else 1.0
    length = settings.decay * settings.steps
    fall = (settings.steps - step) / length if length else 1.0
    return settings.learning_rate * max(0.0, min(1.0, rise, fall))


def _check_labels(model: BFN, data: DataSet, settings: Train) -> None:
    if not settings.label_dropout:
        return
    given = f"train.label_dropout = {settings.label_dropout} hides labels, but"
    if "train" not in data.labels:
        raise BFNError(
            f"{given} {data.name} comes without labels; leave it out, or train on data that has "
            "them"
        )
    if getattr(model.net, "arguments", {}).get("labels") == 0:
        raise BFNError(f"{given} the network takes none; build it with labels=N, or leave it out")


def _time_sampler(name: str) -> Times:
    samplers: dict[str, Times] = {"stratified": stratified, "independent": independent}
    return samplers.get(name) or ImportanceTimes()


def _adamw(model: BFN, settings: Train) -> torch.optim.AdamW:
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        # Biases and gains are few and have no reason to shrink.
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas, fused=True)


def accelerated(model: BFN, settings: Train) -> BFN:
    """The same model, sharing its weights, whose network runs as fast as the device can."""
    compile = {"auto": None, "yes": True, "no": False}[settings.compile]
    net = Accelerated(model.net, settings.precision, compile)
    return BFN(net, model.flow, model.head)


def find_device(name: str, key: str = "train.device") -> torch.device:
    """A device by name; "auto" is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise BFNError(
            f"{key} = {name!r} is not to be had here; expected cpu, auto, or a device that "
            "torch can use"
        ) from None


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that fills when Ctrl-C or SIGTERM comes; a second one stops the program at once."""
    caught: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
