"""What the loop does between steps: validation, samples, and the end if training diverges."""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.errors import BFNError
from bfn.recipe import build
from bfn.runs.folder import RunFolder
from bfn.train import Diverged, Interrupted, checkpoint, monitor
from bfn.train.monitor import Validation
from bfn.train.parallel import World
from support import tiny_runs
from support.tiny_runs import after, metrics, run, status


@pytest.fixture
def totals(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The totals that validations will find, one after another, in nats."""
    values: list[float] = []
    monkeypatch.setattr(Validation, "measure", lambda *_: (values.pop(0), 0.0))
    return values


@pytest.mark.parametrize(("kind", "loss_steps"), [("discretised", "inf"), ("binary", 5)])
def test_the_loss_of_chosen_examples_with_their_own_noise(
    kind: str, loss_steps: object, tmp_path: Path
) -> None:
    """Example by example, retyped: its noise is its own, its time its place in a fixed order."""
    recipe = tiny_runs.read(
        tmp_path, kind, train__validate_every=1, train__validate_examples=11,
        train__loss_steps=loss_steps,
    )  # fmt: skip
    data, model = build.data(recipe), build.model(recipe)
    found = Validation(data, recipe.train, World()).measure(model)

    def generator(use: str) -> torch.Generator:
        return torch.Generator().manual_seed(bfn.noise.seed("validation", use))

    every = data.examples("validation")
    examples = every[torch.randperm(len(every), generator=generator("examples"))[:11]]
    order = torch.randperm(11, generator=generator("order"))
    u = torch.rand((), generator=generator("times"), dtype=torch.float64)
    nats, reconstructions = [], []
    model.eval()
    for i, place in zip(examples.tolist(), order.tolist(), strict=True):

        def keyed(use: str, i: int = i) -> bfn.noise.Keyed:
            return bfn.noise.Keyed([bfn.noise.seed("validation", use, i)])

        x, _ = data.batch("validation", torch.tensor([i]), keyed("data"))
        t = torch.tensor([(float(u) + place / 11) % 1.0])
        if loss_steps == "inf":
            value = bfn.loss.continuous_time(model, x, times=t, generator=keyed("loss"))
        else:
            value = bfn.loss.discrete_time(model, x, 5, times=t, generator=keyed("loss"))
        nats.append(value.item())
        value = bfn.loss.reconstruction(model, x, generator=keyed("reconstruction"))
        reconstructions.append(value.item())
    expected = (math.fsum(nats) / 11, math.fsum(reconstructions) / 11)
    assert found == pytest.approx(expected, rel=1e-5)
    assert len({*nats}) > 5


def test_noise_is_fixed_and_training_undisturbed(tmp_path: Path) -> None:
    """Validation moves no weight, and another seed of training does not move validation."""
    plain = tiny_runs.read(tmp_path, "text")
    validated = tiny_runs.read(
        tmp_path, "text", train__validate_every=2, train__validate_examples=20
    )
    run(plain, tmp_path / "plain")
    run(validated, tmp_path / "validated")
    a, b = metrics(tmp_path / "plain"), metrics(tmp_path / "validated")
    for line in b:
        assert line["validation"] == pytest.approx(
            line.pop("validation_loss") + line.pop("validation_reconstruction")
        )
        del line["validation"]
    assert a == b
    ones = [
        tiny_runs.read(tmp_path, "text", train__seed=s, train__validate_every=1) for s in (0, 1)
    ]
    data, model = build.data(ones[0]), build.model(ones[0])
    found = [Validation(data, one.train, World()) for one in ones]
    assert found[0].measure(model) == found[1].measure(model)


@pytest.mark.parametrize(("batch", "sizes"), [(8, [8, 8, 8]), (64, [20])])
def test_every_call_has_one_size(batch: int, sizes: list[int], tmp_path: Path) -> None:
    """For 20 examples and any batch; the result does not depend on it."""
    recipe = tiny_runs.read(
        tmp_path, train__validate_every=1, train__validate_examples=20, train__batch=batch
    )
    model, data = build.model(recipe), build.data(recipe)
    seen: list[int] = []
    model.net.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    found = Validation(data, recipe.train, World()).measure(model)
    assert seen == [size for size in sizes for _ in range(2)]  # the loss, and the reconstruction
    alone = tiny_runs.read(
        tmp_path, train__validate_every=1, train__validate_examples=20, train__batch=3
    )
    again = Validation(data, alone.train, World()).measure(model)
    assert found == pytest.approx(again, rel=1e-5)


def test_the_average_is_validated_and_lines_come_at_its_steps(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text", train__validate_every=5, train__validate_examples=20)
    model = run(recipe, tmp_path / "run").model
    found = metrics(tmp_path / "run")
    assert [line["step"] for line in found] == [2, 4, 5, 6, 8, 10, 12]
    assert [line["step"] for line in found if "validation" in line] == [5, 10]
    best = min(
        (line for line in found if "validation" in line), key=lambda line: line["validation"]
    )
    kept = checkpoint.load(tmp_path / "run" / "checkpoints" / f"step-{best['step']}")
    data = build.data(recipe)
    model.net.load_state_dict(kept.tensors["ema"])
    again = Validation(data, recipe.train, World()).measure(model)
    assert sum(again) * data.format.scale == best["validation"]


def test_the_best_is_kept_and_exported(totals: list[float], tmp_path: Path) -> None:
    totals += [9.0, 5.0, 7.0, 8.0, 6.0, 7.0]
    recipe = tiny_runs.read(tmp_path, "text", train__validate_every=2, train__keep=1)
    result = run(recipe, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert {p.name for p in folder.checkpoints.iterdir()} == {"step-4", "step-12"}
    best = checkpoint.load(folder.checkpoints / "step-4").tensors["ema"]
    for model in (folder.load_model(), result.model):
        assert all(torch.equal(value, best[n]) for n, value in model.net.state_dict().items())
    found = status(folder.path)
    scale = build.data(recipe).format.scale
    assert found["best"] == {"step": 4, "validation": pytest.approx(5.0 * scale)}
    assert (found["status"], found["step"], found["exported_step"]) == ("finished", 12, 4)
    # Without validation the newest takes its place, also when no step is left to take.
    display = tiny_runs.Recorder()
    without = tiny_runs.read(tmp_path, "text", train__keep=1)
    run(without, folder.path, resume=True, display=display)
    assert (
        "validation is off now: the best model so far, of step 4, is replaced"
        in display.messages[0]
    )
    newest = checkpoint.load(folder.checkpoints / "step-12").tensors["ema"]
    exported = folder.load_model().net.state_dict()
    assert all(torch.equal(value, newest[n]) for n, value in exported.items())
    found = status(folder.path)
    assert (found["status"], found["step"], found["exported_step"]) == ("finished", 12, 12)


def test_a_lost_best_checkpoint_is_reported(totals: list[float], tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text", train__validate_every=2, train__keep=1)
    totals += [9.0, 5.0, 7.0]
    run(recipe, tmp_path / "run", stop=after(7))
    (tmp_path / "run" / "checkpoints" / "step-4" / "ema.safetensors").write_bytes(b"")
    totals += [8.0, 6.0, 7.0]

    display = tiny_runs.Recorder()
    run(recipe, tmp_path / "run", resume=True, display=display)
    assert any(
        "step-4' is damaged" in message and "the search for the best model starts over" in message
        for message in display.messages
    )
    assert status(tmp_path / "run")["best"]["step"] == 10


def test_a_validation_that_is_not_a_number(totals: list[float], tmp_path: Path) -> None:
    totals += [9.0, float("nan")]
    recipe = tiny_runs.read(tmp_path, "text", train__validate_every=2)
    with pytest.raises(Diverged, match=r"validation loss became nan at step 4; .*good .*step-2: "):
        run(recipe, tmp_path / "run")
    assert status(tmp_path / "run")["status"] == "diverged"


def test_patience(totals: list[float], tmp_path: Path) -> None:
    """Counted on when a run is resumed; a validation within the tolerance does not count."""
    totals += [9.0, 5.0, 5.4, 6.0, 6.0]
    given = {"train__validate_every": 2, "train__patience": 2, "train__tolerance": 0.1}
    recipe = tiny_runs.read(tmp_path, "text", **given)
    run(recipe, tmp_path / "run", stop=after(9))
    result = run(recipe, tmp_path / "run", resume=True)
    assert result.step == 10
    assert (
        status(tmp_path / "run")["exported_step"] == status(tmp_path / "run")["best"]["step"] == 6
    )
    best = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-6").tensors["ema"]
    assert all(torch.equal(v, best[n]) for n, v in result.model.net.state_dict().items())
    assert status(tmp_path / "run")["status"] == "finished"
    display = tiny_runs.Recorder()
    assert run(recipe, tmp_path / "run", resume=True, display=display).step == 10
    (message,) = display.messages
    assert message == "the run is finished: step 10; to continue, give a larger train.patience"
    more = tiny_runs.read(tmp_path, "text", train__validate_every=2, train__patience=3)
    totals += [6.0]
    assert run(more, tmp_path / "run", resume=True).step == 12


@pytest.mark.parametrize(
    ("tolerance", "totals", "step", "since"),
    [
        (0.0, [9.0, 5.0, 5.0, 6.0], 2, 2),
        (0.0, [math.inf] * 3, 0, 3),
        # The last that is nearly as good as the lowest, not as the last of these.
        (0.1, [5.0, 5.4, 5.49, 5.6, 5.6], 3, 2),
        (0.1, [-5.0, -4.6, -4.4], 2, 1),
    ],
)
def test_the_best_so_far(tolerance: float, totals: list[float], step: int, since: int) -> None:
    best = checkpoint.Best()
    for i, total in enumerate(totals, start=1):
        best, better = best.after(i, total, tolerance)
        assert better == (best.step == i)
    assert (best.step, best.since) == (step, since)


def test_without_a_folder(totals: list[float]) -> None:
    """`fit` in memory ends with the best weights too."""
    data = bfn.data.load("digits")
    weights = []

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2))

        def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            if not self.training and len(weights) < 3:
                weights.append(self.weight.detach().clone())
            return features[..., None] * self.weight

    totals += [3.0, 2.0, 4.0]
    model = bfn.discretised(Net(), K=17, sigma_1=0.1)
    result = bfn.train.fit(model, data, steps=6, batch=4, validate_every=2, display=False)
    halfway = bfn.discretised(Net(), K=17, sigma_1=0.1)
    totals += [3.0]
    bfn.train.fit(halfway, data, steps=4, batch=4, validate_every=4, display=False)
    assert torch.equal(result.model.net.weight, halfway.net.weight)  # pyright: ignore


# Samples.


def test_samples_do_not_disturb_the_training(tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path), tmp_path / "plain")
    run(tiny_runs.read(tmp_path, train__sample_every=6), tmp_path / "sampled")
    drawn = {path.name for path in (tmp_path / "sampled" / "samples").iterdir()}
    assert drawn == {"step-6.png", "step-12.png"}
    assert metrics(tmp_path / "plain") == metrics(tmp_path / "sampled")


def test_a_missing_extra_leaves_the_samples_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    display = tiny_runs.Recorder()
    recipe = tiny_runs.read(tmp_path, train__sample_every=1, train__steps=2)
    assert run(recipe, tmp_path / "run", display=display).step == 2
    assert not (tmp_path / "run" / "samples").exists()
    assert any(
        "no samples will be drawn during training: " in message for message in display.messages
    )


def test_samples_that_cannot_be_drawn_say_so_first(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text", train__sample_every=3, sample__label="3")
    with pytest.raises(BFNError, match="without labels"):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes = Path.write_bytes

    def full(path: Path, content: bytes) -> None:
        samples = path.parent.name == "samples"
        write_bytes(path, content[: len(content) // 2] if samples else content)
        if samples:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    display = tiny_runs.Recorder()
    recipe = tiny_runs.read(tmp_path, "text", train__sample_every=5)
    assert run(recipe, tmp_path / "run", display=display).step == 12
    assert [
        message
        for message in display.messages
        if "step-5.txt' could not be written (No space" in message
    ]
    assert not list((tmp_path / "run" / "samples").iterdir())  # neither complete nor partial


def test_a_signal_ends_the_drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_runs.read(tmp_path, "text", train__sample_every=3, sample__steps=50)
    run(tiny_runs.read(tmp_path, "text"), tmp_path / "whole")
    original = monitor.sample_as

    def draw(*arguments, progress=None, **keywords):
        def look(done: int, count: int) -> None:
            if done == 10 * recipe.sample.n:
                os.kill(os.getpid(), signal.SIGTERM)
            assert progress is not None
            progress(done, count)
            assert done < 11 * recipe.sample.n

        return original(*arguments, progress=look if progress else None, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(monitor, "sample_as", draw)
        with pytest.raises(Interrupted, match="interrupted at step 4 of 12; its state is saved"):
            run(recipe, tmp_path / "run")
    assert not list((tmp_path / "run").glob("samples/*"))
    run(recipe, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


# Divergence.


class Bomb(torch.nn.Module):
    """A network whose output is not a number from a given call in training on."""

    def __init__(self, fuse: int) -> None:
        super().__init__()
        self.arguments = {"fuse": fuse}
        self.fuse = fuse
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        self.fuse -= self.training
        output = features[..., None] * self.weight
        return output * float("nan") if self.fuse < 0 else output


class Steep(Bomb):
    """An infinite slope, sqrt's at 0, with a finite value."""

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return features[..., None] * self.weight.abs().sqrt()


def fit(net: torch.nn.Module, out: Path | None, **settings: Any) -> bfn.train.Fit:
    model = bfn.discretised(net, K=17, sigma_1=0.1)
    given = {"steps": 20, "batch": 4, "log_every": 8, "checkpoint_every": 4, **settings}
    return bfn.train.fit(model, bfn.data.load("digits"), out=out, display=False, **given)


NO_GOOD = r"there is no earlier good checkpoint: train again with a smaller train.learning_rate"
GOOD = r"the last good checkpoint is \S*step-4: train again .*learning_rate.*"


@pytest.mark.parametrize(
    ("net", "settings", "sentence", "kept"),
    [
        (Bomb(6), {}, rf"loss became nan at step 7; {GOOD}", [4]),
        (Bomb(2), {}, rf"loss became nan at step 3; {NO_GOOD}", []),
        # The checkpoint of the step before has the weights that the loss was computed with.
        (Bomb(4), {"log_every": 1}, rf"nan at step 5; {NO_GOOD}", [4]),
        (Bomb(8), {"log_every": 1}, rf"nan at step 9; {GOOD}", [4, 8]),
        (Steep(0), {}, r"gradient's norm became (nan|inf) at step 1; ", []),
        # The loss of the last step was computed before its weights.
        (
            Bomb(100),
            {"steps": 1, "learning_rate": 1e38},
            rf"weights overflowed at step 1; {NO_GOOD}",
            [],
        ),
    ],
)
def test_training_stops(
    net: torch.nn.Module, settings: dict, sentence: str, kept: list[int], tmp_path: Path
) -> None:
    with pytest.raises(Diverged, match=sentence) as caught:
        fit(net, tmp_path / "run", **settings)
    assert RunFolder(tmp_path / "run").steps() == kept
    assert (tmp_path / "run" / "model.safetensors").exists() == bool(kept)
    found = status(tmp_path / "run")
    assert (found["status"], found["message"]) == ("diverged", str(caught.value))
    assert f" at step {found['step']}; " in found["message"]


def test_divergence_without_a_folder() -> None:
    with pytest.raises(Diverged, match="weights overflowed at step 1; "):
        fit(Bomb(100), None, steps=1, learning_rate=1e38)
