"""`run`: what a run folder holds, which folders it takes, and what it refuses before it writes."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

import bfn
from bfn.cli.app import main
from bfn.device import find_device
from bfn.errors import BFNError
from bfn.recipe import build
from bfn.runs import status
from bfn.runs.folder import RunFolder
from bfn.train import checkpoint, loop
from bfn.train.step import Trainer
from support import tiny_runs
from support.tiny_runs import after, assert_same, contents, metrics, run


def same_tensors(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_run_folder(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, train__sample_every=6)
    result = run(recipe, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.recipe() == recipe
    assert {path.name for path in folder.path.iterdir()} == {
        *("recipe.toml", "config.json", "model.safetensors", "metrics.jsonl", "checkpoints"),
        *("samples", "status.json", ".lock", "data.json", "trained-on.npy"),
    }
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step-8", "step-12"}
    ema = checkpoint.load(folder.checkpoints / "step-12").tensors["ema"]
    assert same_tensors(dict(folder.load_model().net.state_dict()), ema)
    assert same_tensors(dict(result.model.net.state_dict()), ema)
    assert not result.model.training
    assert folder.format() == build.data(recipe).format
    for path in folder.path.rglob("[!.]*"):
        assert path.is_dir() or path.suffix in {
            ".toml",
            ".json",
            ".jsonl",
            ".safetensors",
            ".png",
            ".npy",
        }


# Folders that hold something already.


def test_force_keeps_the_old_run_under_another_name(tmp_path: Path) -> None:
    recipe, out = tiny_runs.read(tmp_path, "text", train__steps=2), tmp_path / "run"
    run(recipe, out)
    (out / "notes.md").write_text("mine")
    before = contents(out)
    with pytest.raises(BFNError, match=r"already holds a run; continue it with --resume, rep"):
        run(recipe, out)
    assert contents(out) == before
    for i in (1, 2):
        display = tiny_runs.Recorder()
        run(tiny_runs.read(tmp_path, "text", train__steps=4), out, force=True, display=display)
        assert display.messages[0] == f"the previous run is now in '{out}.replaced-{i}'"
        assert [line["step"] for line in metrics(out)] == [2, 4]
    assert contents(tmp_path / "run.replaced-1") == before
    assert (tmp_path / "run.replaced-2" / "checkpoints" / "step-4").is_dir()
    # A run that fails to start has lost nothing either.
    with pytest.raises(ZeroDivisionError):
        run(recipe, out, force=True, stop=lambda: 1 / 0)
    assert (tmp_path / "run.replaced-3" / "checkpoints" / "step-4").is_dir()


@pytest.mark.parametrize("what", ["moved", "deleted", "replaced"])
@pytest.mark.parametrize("due", ["log_every", "checkpoint_every", "sample_every"])
def test_a_folder_that_goes_away_ends_its_training(what: str, due: str, tmp_path: Path) -> None:
    """When something is to be written; nothing is written where it was, and it can be resumed."""
    every: dict[str, object] = {"train__log_every": 100, "train__checkpoint_every": 100}
    every[f"train__{due}"] = 4
    recipe, out, there = tiny_runs.read(tmp_path, "text", **every), tmp_path / "run", tmp_path / "b"
    seen: list[int] = []

    def remove() -> bool:
        seen.append(1)
        if len(seen) == 6:
            shutil.rmtree(out) if what == "deleted" else out.rename(there)
            if what == "replaced":
                out.mkdir()
                (out / "notes.md").write_text("mine")
        return False

    with pytest.raises(BFNError, match="was moved or deleted during training; if it was"):
        run(recipe, out, stop=remove)
    assert len(seen) == 8
    left = {out / "notes.md"} if what == "replaced" else set()
    assert set(out.rglob("*")) == left
    if what != "deleted":
        run(recipe, there, resume=True)
        run(recipe, tmp_path / "whole")
        assert_same(there, tmp_path / "whole")


def test_force_does_not_touch_a_run_that_is_being_trained(tmp_path: Path) -> None:
    recipe, out = tiny_runs.read(tmp_path, "text", train__steps=2), tmp_path / "run"
    run(recipe, out)
    lock = status.Lock(out)
    lock.take()
    before = contents(out)
    for how in ({"force": True}, {"resume": True}):
        with pytest.raises(BFNError, match=rf"is being trained by process {os.getpid()} on"):
            run(recipe, out, **how)
    lock.release()
    assert contents(out) == before
    assert not (tmp_path / "run.replaced-1").exists()


@pytest.mark.parametrize(
    ("left", "how", "sentence"),
    [
        ({"config.json": "mine"}, {}, "holds other files"),
        ({"config.json": "mine"}, {"force": True}, "holds other files"),
        ({"checkpoints/step-2/state.json": "{}"}, {"force": True}, "holds other files and no rec"),
        (
            {"recipe.toml": "", "model.safetensors": "", "config.json": "{}"},
            {"resume": True},
            "holds a model without checkpoints",
        ),
    ],
)
def test_what_would_be_lost_is_refused(
    left: dict[str, str], how: dict[str, bool], sentence: str, tmp_path: Path
) -> None:
    for name, text in left.items():
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text(text)
    before = contents(tmp_path / "run")
    with pytest.raises(BFNError, match=sentence):
        run(tiny_runs.read(tmp_path, "text"), tmp_path / "run", **how)
    assert contents(tmp_path / "run") == before
    (tmp_path / "file").touch()
    with pytest.raises(BFNError, match="is a file"):
        run(tiny_runs.read(tmp_path, "text"), tmp_path / "file", **how)


# What does not fit together.


@pytest.mark.parametrize(
    ("kind", "overrides", "sentence"),
    [
        ("discretised", {"net__outputs": 1}, r"the network returned shape"),
        ("discretised", {"net__image_size": 16}, r"images are 8 x 8"),
        (
            "discretised",
            {"net__class": "torch.nn:Linear", "net__in_features": 3, "net__out_features": 4},
            r"the network Linear failed on examples of the data \(TypeError in .*: .*forward",
        ),
        ("text", {"train__device": "warp"}, r"train.device = 'warp' is not available"),
        ("text", {"train__tensorboard": True}, r"tensorboard, which is not installed; .*bfn\[tens"),
        ("text", {"train__init": "nowhere"}, r"there is no run folder 'nowhere'"),
    ],
)
def test_mismatches_are_reported_before_anything_is_written(
    kind: str, overrides: dict, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(BFNError, match=sentence):
        run(tiny_runs.read(tmp_path, kind, **overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_second_gpu_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels launched without torch, and recordings, would otherwise go to the first."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    there = lambda size, device: SimpleNamespace(device=torch.device(device))  # noqa: E731
    monkeypatch.setattr(torch, "empty", there)
    assert find_device("cuda:1") == torch.device("cuda:1")
    assert find_device("cpu") == torch.device("cpu")
    assert chosen == [torch.device("cuda:1")]


@pytest.mark.parametrize("name", ["hpu", "privateuseone", "meta", "xla", "vulkan", "cuda:99", ""])
def test_devices_that_compute_nothing_here_are_refused(name: str) -> None:
    with pytest.raises(BFNError, match=f"device = {name!r} is not available on this machine"):
        find_device(name, "device")


# Errors of a step.

TOO_LARGE = r"memory ran out: step 1 does not fit with"


@pytest.mark.parametrize(
    ("error", "overrides", "sentence"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), {}, rf"{TOO_LARGE} 8 .*accumulate = 2 or "),
        (RuntimeError("[...] can't allocate memory: you tried"), {}, rf"{TOO_LARGE} 8 "),
        (MemoryError(), {"batch": 6, "accumulate": 2}, rf"{TOO_LARGE} 3 examples .* = 3 or more"),
        (MemoryError(), {"batch": 5}, rf"{TOO_LARGE} 5 examples at once; .* = 5 or more"),
        (MemoryError(), {"batch": 4, "accumulate": 4}, "a single example is too large in step 1"),
        (InternalTorchDynamoError("no g++"), {}, r"could not be compiled \(no g\+\+\)"),
        (RuntimeError("a bug"), {}, r"^a bug$"),
    ],
)
def test_errors_of_a_step(
    error: Exception,
    overrides: dict,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(trainer: Trainer) -> None:
        raise error

    monkeypatch.setattr(Trainer, "advance", fail)
    given = {f"train__{key}": value for key, value in overrides.items()}
    with pytest.raises((BFNError, RuntimeError), match=sentence) as caught:
        run(tiny_runs.read(tmp_path, "text", **given), tmp_path / "run")
    assert tiny_runs.status(tmp_path / "run")["status"] == "failed"
    assert tiny_runs.status(tmp_path / "run")["message"] == str(caught.value)


# Weights of another model.


def test_init_gives_weights_and_a_fresh_optimiser(tmp_path: Path) -> None:
    """One step from the exported weights, made by hand, is the first step of the new run."""
    source = tmp_path / "first"
    run(tiny_runs.read(tmp_path, "text", train__steps=3), source)
    recipe = tiny_runs.read(tmp_path, "text", train__init=str(source), train__seed=5)
    run(recipe, tmp_path / "second", stop=after(1))
    found = checkpoint.load(tmp_path / "second" / "checkpoints" / "step-1").tensors
    trainer = Trainer(bfn.BFN.from_pretrained(source), build.data(recipe), recipe.train)
    trainer.model.train()
    trainer.advance()
    assert same_tensors(found["weights"], dict(trainer.model.net.state_dict()))
    assert float(found["optimiser"]["0.step"]) == 1.0
    # It is part of the recipe, so the run can be repeated.
    assert RunFolder(tmp_path / "second").recipe().train.init == str(source)
    # A start that was cut short begins with the same weights; a resumed run needs them no more.
    run(recipe, tmp_path / "whole")
    folder = RunFolder(tmp_path / "third")
    folder.open(recipe)
    folder.close()
    run(recipe, folder.path, resume=True)
    shutil.rmtree(source)
    run(recipe, tmp_path / "second", resume=True)
    names = ("whole", "second", "third")
    assert len({(tmp_path / name / "model.safetensors").read_bytes() for name in names}) == 1


@pytest.mark.parametrize(
    "overrides", [{"net__width": 32}, {"net__layers": 2}, {"net__class": "bfn.nn:UNet"}]
)
def test_weights_that_do_not_fit(overrides: dict, tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path, "text", train__steps=1), tmp_path / "first")
    recipe = tiny_runs.read(tmp_path, "text", train__init=str(tmp_path / "first"), **overrides)
    with pytest.raises(BFNError, match=r"first' do not fit this network \(.+\); give it the same"):
        run(recipe, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_a_run_does_not_start_from_itself(tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path, "text", train__steps=2), tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for name in ("run", "link"):
        again = tiny_runs.read(tmp_path, "text", train__init=str(tmp_path / name))
        with pytest.raises(BFNError, match=r"is both the run to start from and the new"):
            run(again, tmp_path / "run", force=True)
    assert not (tmp_path / "run.replaced-1").exists()


def test_starting_from_another_flow_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["train", str(tiny_runs.write(tmp_path)), "--train.steps", "2"]
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert main([*common, "--out", first]) == 0
    capsys.readouterr()
    assert main([*common, "--out", second, "--init", first, "--flow.sigma_1", "0.1"]) == 0
    err = " ".join(capsys.readouterr().err.split())
    assert "had another flow: GaussianFlow(schedule=Exponential(sigma_1=0.05" in err
    assert tiny_runs.status(tmp_path / "second")["status"] == "finished"


def test_seconds_end_a_run_and_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of a second per reading: the run ends by it, and a resumed one goes on by it."""
    clock = itertools.count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    long = {"train__steps": 1000, "train__decay": 1.0, "train__log_every": 1}
    fit = run(tiny_runs.read(tmp_path, "text", train__seconds=12.0, **long), tmp_path / "run")
    assert 3 <= fit.step <= 12
    rates = [line["learning_rate"] for line in fit.history]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.5 * rates[0]
    longer = tiny_runs.read(tmp_path, "text", train__seconds=24.0, **long)
    more = run(longer, tmp_path / "run", resume=True)
    assert fit.step < more.step <= 2 * fit.step + 2
