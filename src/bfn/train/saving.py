"""What a run leaves on disk, and how it goes on from there.

A checkpoint holds whole tensors, also of weights that are spread over processes, so any number of
processes can go on from it. The last `keep` are kept, and the one with the best validation. The
exported model is the averaged weights of the newest checkpoint; with validation, of the best one.

Only the first process writes; all of them take part in gathering what is spread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from bfn.data.base import DataSet
from bfn.device import ran_out
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.progress import Display
from bfn.recipe.sections import Train
from bfn.runs import status
from bfn.runs.folder import BOARD, RunFolder, checkpoint_steps
from bfn.times import ImportanceTimes, Times
from bfn.train import checkpoint, shards
from bfn.train.board import Board
from bfn.train.checkpoint import Checkpoint, Damaged
from bfn.train.distributed import World
from bfn.train.ema import EMA
from bfn.train.initial import short
from bfn.train.validation import Validation
from bfn.train.window import Values, Window


class Run(Protocol):
    """What a trainer has that is saved: see `bfn.train.loop`."""

    settings: Train
    folder: RunFolder | None
    world: World
    display: Display
    model: BFN
    config: dict[str, Any]
    data: DataSet
    digest: str
    ema: EMA
    optimiser: torch.optim.AdamW
    times: Times
    window: Window
    validation: Validation | None
    step: int
    history: list[dict[str, Any]]
    best: Best
    first: list[float]


@dataclass(frozen=True)
class Best:
    """The best validation so far, in the data's unit, and the looks since."""

    step: int = 0
    value: float = float("inf")
    since: int = 0

    def after(self, step: int, value: float) -> tuple[Best, bool]:
        """With one more look; says whether it was better."""
        if value < self.value:
            return Best(step, value), True
        return Best(self.step, self.value, self.since + 1), False

    @property
    def looks(self) -> str:
        return f"{self.since} look{'s' if self.since > 1 else ''}"


class Saving:
    """The files of one trainer's run."""

    def __init__(self, trainer: Run) -> None:
        self.trainer = trainer
        self.last_checkpoint: Path | None = None
        self.best_weights: dict[str, Tensor] | None = None
        """Of the best validation, whole and on the host."""
        self.board: Board | None = None
        folder = trainer.folder
        writes = folder is not None and trainer.world.main
        self.status = status.Status(folder.path) if folder and writes else None

    # Writing.

    def log(self, line: Mapping[str, Any]) -> None:
        if self.trainer.folder is not None and self.trainer.world.main:
            self.trainer.folder.log(line)
            if self.board is not None:
                self.board.log(line)

    def keep_best(self) -> None:
        """Remember the averaged weights as the best."""
        self.best_weights = self.gathered(self.trainer.ema.weights, everywhere=True)

    def save(self, values: Values) -> None:
        """A checkpoint with the numbers of the unfinished window, and the model."""
        trainer = self.trainer
        if trainer.folder is None:
            return
        tensors = {
            "weights": self.gathered(trainer.model.net.state_dict()),
            "ema": self.gathered(trainer.ema.weights),
            "optimiser": self.gathered(
                checkpoint.flatten_optimiser(trainer.optimiser.state_dict()["state"])
            ),
            "window": trainer.window.state(values),
        }
        if isinstance(trainer.times, ImportanceTimes):
            tensors["times"] = trainer.times.state_dict()
        state: dict[str, Any] = {
            "first": trainer.first,
            "data": trainer.digest,
            "model": json.loads(json.dumps(trainer.config)),  # as it will be read
        }
        if trainer.validation is not None:
            state["best"] = asdict(trainer.best)
        target = trainer.folder.checkpoints

        def write() -> None:
            path = checkpoint.save(target, trainer.step, tensors, state, trainer.settings.keep)
            self.last_checkpoint = path
            self._export(tensors["ema"])

        trainer.world.on_main(write)
        self.last_checkpoint = target / f"step-{trainer.step}"
        self.tell(status.RUNNING)

    def export(self) -> None:
        """The model again, as a kill may have come between a checkpoint and its export."""
        weights = self.gathered(self.trainer.ema.weights)
        self.trainer.world.on_main(lambda: self._export(weights))

    def _export(self, average: dict[str, Tensor]) -> None:
        trainer = self.trainer
        assert trainer.folder is not None
        weights = average if self.best_weights is None else self.best_weights
        trainer.folder.export(trainer.config, weights, trainer.data.format)

    def gathered(
        self, tensors: Mapping[str, Tensor], *, everywhere: bool = False
    ) -> dict[str, Tensor]:
        """Whole tensors on the host of the first process; the others help to gather them."""
        whole = {}
        for name, value in tensors.items():
            value = shards.full(value.detach())
            if self.trainer.world.main or everywhere:
                whole[name] = value.to("cpu", copy=True)
        return whole

    # The run's status.

    def beat(self) -> None:
        """A sign of life, now and then."""
        self.tell(status.RUNNING, now=False)

    def tell(self, what: str, *, now: bool = True, message: str = "") -> None:
        trainer = self.trainer
        if self.status is None:
            return
        best = trainer.best if trainer.best.step else None
        values = {
            "step": trainer.step,
            "steps": trainer.settings.steps,
            "unit": trainer.data.unit,
            "loss": trainer.history[-1]["loss"] if trainer.history else None,
            "best": {"step": best.step, "validation": best.value} if best else None,
            "exported_step": self.exported_step(),
            "message": message,
        }
        self.status.tell(what, values, now=now)

    def exported_step(self) -> int | None:
        """Of the weights in model.safetensors."""
        if self.best_weights is not None:
            return self.trainer.best.step
        return _step(self.last_checkpoint) if self.last_checkpoint else None

    def good_before(self, step: int) -> Path | None:
        """The newest checkpoint of this run before a step."""
        last = self.last_checkpoint
        if last is None:
            return None
        newest = min(step - 1, _step(last))
        steps = [each for each in checkpoint_steps(last.parent) if each <= newest]
        return last.with_name(f"step-{steps[-1]}") if steps else None

    def close(self) -> None:
        if self.board is not None:
            self.board.close()

    # Going on.

    def restore(self) -> None:
        """Load the newest whole checkpoint, if there is one; all processes load the same one."""
        trainer = self.trainer
        folder = trainer.folder
        assert folder is not None
        found: Checkpoint | None = None

        def look() -> None:
            nonlocal found
            found = checkpoint.newest(folder.checkpoints, trainer.display.say)
            if found is not None:
                self._check_same(found)

        trainer.world.on_main(look)
        step = trainer.world.share(found.step if found else None)
        if step is not None:
            self._go_on_from(found or checkpoint.load(folder.checkpoints / f"step-{step}"))

        def open_files() -> None:
            folder.open_metrics(trainer.step)
            if trainer.settings.tensorboard:
                self.board = Board(folder.path / BOARD, trainer.step)

        trainer.world.on_main(open_files)
        trainer.history = folder.metrics() if trainer.step else []

    def _go_on_from(self, found: Checkpoint) -> None:
        try:
            self._load(found)
        except (RuntimeError, KeyError, ValueError) as error:
            if ran_out(error):
                raise
            reason = str(error).strip().rpartition("\n")[2].strip()  # torch's first says little
            raise BFNError(
                f"the checkpoint {str(found.path)!r} is of another network than the run's is now "
                f"({reason}); give another folder with --out, or start again with --force"
            ) from error
        self.trainer.step = found.step
        self.last_checkpoint = found.path

    def _check_same(self, found: Checkpoint) -> None:
        """A run goes on with the data and the model that it had."""
        trainer = self.trainer
        assert trainer.folder is not None
        run = str(trainer.folder.path)
        now = json.loads(json.dumps(trainer.config))
        before = found.state.get("model", now)
        for part in ("net", "flow", "head"):
            # In words: where a class of one's own lies may change.
            old, new = short(before[part]), short(now[part])
            if old != new:
                raise BFNError(
                    f"the run in {run!r} was started with the {part} {old}, not {new}; give it the "
                    "same again, or another folder with --out"
                )
        if found.state.get("data", trainer.digest) != trainer.digest:
            raise BFNError(
                f"the data are not those that the run in {run!r} was started with; give it the "
                f"same again, or start another run from its model with --init {run} and another "
                "--out"
            )

    def _load(self, found: Checkpoint) -> None:
        trainer, tensors = self.trainer, found.tensors
        load_weights(trainer.model.net, tensors["weights"])
        trainer.ema.restore(tensors["ema"])
        state = trainer.optimiser.state_dict()
        flat = checkpoint.unflatten_optimiser(tensors["optimiser"])
        parameters = [p for group in trainer.optimiser.param_groups for p in group["params"]]
        state["state"] = {
            i: {name: shards.like(value, parameters[i]) for name, value in entry.items()}
            for i, entry in flat.items()
        }
        trainer.optimiser.load_state_dict(state)
        if isinstance(trainer.times, ImportanceTimes):
            trainer.times.load_state_dict(tensors["times"])
        trainer.first = list(found.state.get("first", []))
        trainer.window.restore(tensors["window"], trainer.world)
        if found.state.get("best"):
            self._load_best(found, Best(**found.state["best"]))

    def _load_best(self, found: Checkpoint, best: Best) -> None:
        trainer = self.trainer
        if trainer.validation is None:
            if best.step:
                trainer.display.say(
                    f"validation is off now: the best so far, {best.value:.4f} {trainer.data.unit} "
                    f"at step {best.step}, gives way to the newest"
                )
            return
        if best.step == 0:  # none was better than nothing
            trainer.best = best
            return
        if best.step != found.step:
            assert trainer.folder is not None
            try:
                found = checkpoint.load(trainer.folder.checkpoints / f"step-{best.step}")
            except Damaged as error:
                trainer.display.say(f"{error}; the best is looked for anew")
                return
        trainer.best, self.best_weights = best, dict(found.tensors["ema"])


@torch.no_grad()
def load_weights(net: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Whole tensors into a network, also where this process keeps parts of them."""
    own = net.state_dict()
    cut = {name: shards.like(value, own.get(name)) for name, value in weights.items()}
    net.load_state_dict(cut)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
