"""The training loop: exact resuming, interruption, divergence, and that it learns."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

import bfn
from bfn.device import find_device
from bfn.errors import BFNError, Unwritten
from bfn.plots import sheets as pictures
from bfn.recipe import build
from bfn.recipe.sections import Train
from bfn.runs.folder import RunFolder
from bfn.train import Diverged, Interrupted, Trainer, checkpoint, loop, sheets
from bfn.train.optimiser import learning_rate
from bfn.train.saving import Saving
from support import tiny_runs


def run(recipe, folder: Path, **keywords):
    return bfn.train.run(recipe, folder, display=False, **keywords)


def told(folder: Path) -> dict:
    return json.loads((folder / "status.json").read_text())


def metrics(folder: Path) -> list[dict]:
    """The lines without what a clock decides."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert line.pop("examples_per_second") > 0
    return lines


def same_tensors(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def after(steps: int):
    """A `stop` that ends training after so many steps of this call."""
    seen = []
    return lambda: seen.append(1) or len(seen) >= steps


@pytest.mark.parametrize("kind", tiny_runs.RECIPES)
@pytest.mark.parametrize("at", [4, 7])
def test_resumed_run_equals_the_uninterrupted_one(kind: str, at: int, tmp_path: Path) -> None:
    """Bit for bit: weights, average, optimiser, metrics; at a checkpoint's own step and between."""
    recipe = tiny_runs.read(tmp_path, kind)
    run(recipe, tmp_path / "whole")
    torch.manual_seed(at)  # whatever the state of the process was
    run(recipe, tmp_path / "parts", stop=after(at))
    assert (tmp_path / "parts" / "checkpoints" / f"step-{at}").is_dir()
    torch.manual_seed(0)
    result = run(recipe, tmp_path / "parts", resume=True)
    assert result.step == 12
    whole, parts = (
        checkpoint.load(tmp_path / name / "checkpoints" / "step-12") for name in ("whole", "parts")
    )
    for group in ("weights", "ema", "optimiser"):
        assert same_tensors(whole.tensors[group], parts.tensors[group])
    expected = metrics(tmp_path / "whole")
    assert [line["step"] for line in expected] == [2, 4, 6, 8, 10, 12]
    # A stop in the middle of a window leaves a line of its own.
    assert [line for line in metrics(tmp_path / "parts") if line["step"] % 2 == 0] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_layout_and_type_is_resumed(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels last, as on a GPU, and an unfinished line of metrics."""

    def fit(stop_at: int, **more) -> bfn.train.Fit:
        torch.manual_seed(0)
        net = bfn.nn.UNet(outputs=2, width=16, multipliers=(1, 2), blocks=1, groups=8, image_size=8)
        net.to(dtype, memory_format=torch.channels_last)  # pyright: ignore
        model = bfn.discretised(net, K=17, sigma_1=0.05)
        x, _ = bfn.data.load("digits").batch("train", torch.arange(64))
        return bfn.train.fit(
            model,
            x.to(dtype),
            steps=9,
            batch=8,
            log_every=3,
            display=False,
            stop=after(stop_at),
            **more,
        )

    laid: list[bool] = []

    def side_by_side(self: Saving, *given) -> None:
        load(self, *given)
        for parameter, state in self.trainer.optimiser.state.items():
            laid.extend(state[k].stride() == parameter.stride() for k in ("exp_avg", "exp_avg_sq"))

    load = Saving._load
    monkeypatch.setattr(Saving, "_load", side_by_side)
    whole = fit(100)
    fit(4, out=tmp_path / "run")
    resumed = fit(100, out=tmp_path / "run", resume=True)
    assert laid
    assert all(laid)  # a GPU takes no others
    assert same_tensors(whole.model.state_dict(), resumed.model.state_dict())
    lines = {line["step"]: line for line in resumed.history}
    for line in whole.history:
        for key in ("loss", "gradient_norm", "loss_by_time"):
            assert lines[line["step"]][key] == line[key], key


def test_learned_times_are_resumed(tmp_path: Path) -> None:
    """What importance sampling learned goes with the checkpoint, bit for bit."""
    recipe = tiny_runs.read(tmp_path)
    recipe = dataclasses.replace(
        recipe, train=dataclasses.replace(recipe.train, times="importance")
    )
    run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "parts", stop=after(7))
    run(recipe, tmp_path / "parts", resume=True)
    whole, parts = (
        checkpoint.load(tmp_path / name / "checkpoints" / "step-12") for name in ("whole", "parts")
    )
    for group in ("weights", "times"):
        assert same_tensors(whole.tensors[group], parts.tensors[group])
    counts = whole.tensors["times"]["counts"]
    assert float(counts.sum()) == pytest.approx(8 * sum(0.99**i for i in range(12)), rel=1e-4)


def test_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    """Two runs that wrote into one folder: one sentence, and nothing is lost."""
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "run", stop=after(4))
    other = tiny_runs.read(tmp_path, "text")
    run(other, tmp_path / "other", stop=after(8))
    shutil.copytree(
        tmp_path / "other" / "checkpoints" / "step-8", tmp_path / "run" / "checkpoints" / "step-8"
    )
    with pytest.raises(BFNError, match=r"started with the net Transformer.* --out"):
        run(recipe, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "checkpoints" / "step-4").is_dir()


def test_metrics_beyond_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    """As after a kill: lines up to step 10 are there, the newest checkpoint is of step 8."""
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "whole")
    folder = tmp_path / "killed"
    run(recipe, folder, stop=after(8))
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 10, "loss": 99, "examples_per_second": 1}\n\0\xff\n{"step": 11, "lo')
    run(recipe, folder, resume=True)
    assert metrics(folder) == metrics(tmp_path / "whole")


def test_damaged_checkpoint_falls_back_to_the_same_end(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "parts", stop=after(9))
    newest = tmp_path / "parts" / "checkpoints" / "step-9" / "weights.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    run(recipe, tmp_path / "parts", resume=True)
    whole, parts = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")
    )
    assert whole == parts


def test_run_folder(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, train__sample_every=6)
    result = run(recipe, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.recipe() == recipe
    assert {path.name for path in folder.path.iterdir()} == {
        "recipe.toml",
        "config.json",
        "model.safetensors",
        "metrics.jsonl",
        "checkpoints",
        "samples",
        "status.json",
        ".lock",
    }
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step-8", "step-12"}
    assert {path.name for path in folder.samples.iterdir()} == {"step-6.png", "step-12.png"}
    loaded = folder.load_model()
    ema = checkpoint.load(folder.checkpoints / "step-12").tensors["ema"]
    assert same_tensors(dict(loaded.net.state_dict()), ema)
    assert same_tensors(dict(result.model.net.state_dict()), ema)
    assert not result.model.training
    assert folder.format() == build.data(recipe).format
    for path in folder.path.rglob("[!.]*"):
        assert path.is_dir() or path.suffix in {".toml", ".json", ".jsonl", ".safetensors", ".png"}


def test_samples_do_not_disturb_the_training(tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path), tmp_path / "plain")
    run(tiny_runs.read(tmp_path, train__sample_every=3), tmp_path / "sampled")
    assert metrics(tmp_path / "plain") == metrics(tmp_path / "sampled")


def test_missing_extra_leaves_the_samples_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    result = run(tiny_runs.read(tmp_path, train__sample_every=3), tmp_path / "run")
    assert result.step == 12
    assert not (tmp_path / "run" / "samples").exists()


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [("sample__solver", "bogus", "solver 'bogus'"), ("sample__label", "3", "without labels")],
)
def test_samples_that_cannot_be_drawn_say_so_first(
    key: str, value: str, sentence: str, tmp_path: Path
) -> None:
    recipe = tiny_runs.read(tmp_path, train__sample_every=3, **{key: value})
    with pytest.raises(BFNError, match=sentence):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_samples_that_cannot_be_written_do_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pictures, "write_sheet", full)
    heard = tiny_runs.Heard()
    recipe = tiny_runs.read(tmp_path, train__sample_every=5)
    assert bfn.train.run(recipe, tmp_path / "run", display=heard).step == 12
    assert [said for said in heard.said if "step-5.png' could not be written (No space" in said]
    assert not list((tmp_path / "run" / "samples").iterdir())  # neither whole nor half


def test_metrics_that_cannot_be_written_when_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "run", stop=after(5))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_recipe", lambda *_: None)
        patch.setattr(os, "replace", full)
        with pytest.raises(Unwritten, match=r"metrics.jsonl' could not be written .No space"):
            run(recipe, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert not list((tmp_path / "run").glob("*.part"))
    assert run(recipe, tmp_path / "run", resume=True).step == 12


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path), tmp_path / "a")
    run(tiny_runs.read(tmp_path, train__seed=1), tmp_path / "b")
    assert metrics(tmp_path / "a") != metrics(tmp_path / "b")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_stop(number: signal.Signals, tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "whole")
    before = signal.getsignal(number)
    calls = []

    def interrupt() -> bool:
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), number)
        return False

    with pytest.raises(Interrupted, match=r"interrupted at step 5 of 12; its state is saved"):
        run(recipe, tmp_path / "parts", stop=interrupt)
    assert signal.getsignal(number) is before
    assert (tmp_path / "parts" / "checkpoints" / "step-5").is_dir()
    run(recipe, tmp_path / "parts", resume=True)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    # In the last step there is nothing left to interrupt.
    calls.clear()
    last = tiny_runs.read(tmp_path, train__steps=5)
    assert run(last, tmp_path / "last", stop=interrupt).step == 5
    assert told(tmp_path / "last")["status"] == "finished"


def test_a_signal_ends_a_sheet_of_samples(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, train__sample_every=3, sample__steps=50)
    run(tiny_runs.read(tmp_path), tmp_path / "whole")
    original = sheets.draw

    def draw(*arguments, progress=None, **keywords):
        def look(done: int, count: int) -> None:
            if done == 10 * recipe.sample.n:
                os.kill(os.getpid(), signal.SIGTERM)
            assert progress is not None
            progress(done, count)
            assert done < 11 * recipe.sample.n

        return original(*arguments, progress=look if progress else None, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sheets, "draw", draw)
        with pytest.raises(Interrupted, match="interrupted at step 4 of 12; its state is saved"):
            run(recipe, tmp_path / "run")
    assert not list((tmp_path / "run").glob("samples/*"))
    run(recipe, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_status_tells_of_the_model_that_is_there(tmp_path: Path) -> None:
    """Whenever a process is killed: it is written with every checkpoint."""
    seen = []

    def look() -> bool:
        exported = told(tmp_path / "run")["exported_step"]
        checkpoints = (tmp_path / "run" / "checkpoints").glob("step-*")
        newest = max((int(path.name[5:]) for path in checkpoints), default=None)
        seen.append((exported, newest))
        return False

    run(tiny_runs.read(tmp_path), tmp_path / "run", stop=look)
    assert [pair for pair in seen if pair[0] != pair[1]] == []
    assert seen[-1] == (8, 8)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
)
def test_too_little_memory(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "whole")
    advance = Trainer.advance

    def short(trainer: Trainer) -> None:
        if trainer.step == 6 and len(trainer.rows[0]) > 4:
            raise error
        advance(trainer)

    monkeypatch.setattr(Trainer, "advance", short)
    sentence = r"step 7 could not be made with 8 examples at once; .* train.accumulate = 2 or "
    with pytest.raises(BFNError, match=rf"memory ran out: {sentence}"):
        run(recipe, tmp_path / "run")
    assert told(tmp_path / "run")["status"] == "failed"
    assert "memory ran out" in told(tmp_path / "run")["message"]
    again = tiny_runs.read(tmp_path, train__accumulate=2)
    assert run(again, tmp_path / "run", resume=True).step == 12


@pytest.mark.parametrize(
    ("batch", "accumulate", "advice"),
    [
        (6, 2, "with 3 examples at once; .* = 3 or more"),
        (5, 1, "with 5 examples at once; .* = 5 or more"),
        (4, 4, "a single example is too large in step 1"),
    ],
)
def test_advice_that_can_be_followed(
    batch: int, accumulate: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(trainer: Trainer) -> None:
        raise MemoryError

    monkeypatch.setattr(Trainer, "advance", short)
    recipe = tiny_runs.read(tmp_path, train__batch=batch, train__accumulate=accumulate)
    with pytest.raises(BFNError, match=advice):
        run(recipe, tmp_path / "run")


def test_a_compiler_that_fails_for_the_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Trainer) -> None:
        raise InternalTorchDynamoError("no g++")

    monkeypatch.setattr(Trainer, "advance", fail)
    with pytest.raises(BFNError, match=r"could not be compiled \(no g\+\+\)"):
        run(tiny_runs.read(tmp_path), tmp_path / "run")


def test_other_errors_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trainer: Trainer) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Trainer, "advance", fail)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        run(tiny_runs.read(tmp_path), tmp_path / "run")


def test_finished_run(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    time.sleep(1.0)  # whoever wrote the time again would now write another
    result = run(recipe, tmp_path / "run", resume=True)
    assert result.step == 12
    assert [line["step"] for line in result.history] == [2, 4, 6, 8, 10, 12]
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_run_that_was_killed_when_it_had_finished(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "run")
    body = told(tmp_path / "run")
    (tmp_path / "run" / "status.json").write_text(json.dumps({**body, "status": "running"}))
    run(recipe, tmp_path / "run", resume=True)
    assert told(tmp_path / "run")["status"] == "finished"


def test_fewer_steps_than_were_made(tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path), tmp_path / "run")
    with pytest.raises(BFNError, match=r"at step 12 already, beyond train.steps = 10; give at"):
        run(tiny_runs.read(tmp_path, train__steps=10), tmp_path / "run", resume=True)
    assert RunFolder(tmp_path / "run").recipe().train.steps == 12


def test_lines_of_metrics_that_are_none(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "run", stop=after(5))
    path = tmp_path / "run" / "metrics.jsonl"
    before = path.read_text()
    path.write_text('{"step": 1}\n' + before + "[]\n")
    assert run(recipe, tmp_path / "run", resume=True).step == 12
    assert path.read_text().startswith(before)


def test_more_steps_later(tmp_path: Path) -> None:
    """With a constant learning rate, stopping at 8 and going on to 12 is training for 12."""
    run(tiny_runs.read(tmp_path), tmp_path / "whole")
    run(tiny_runs.read(tmp_path, train__steps=8), tmp_path / "parts")
    run(tiny_runs.read(tmp_path), tmp_path / "parts", resume=True)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert RunFolder(tmp_path / "parts").recipe().train.steps == 12


def test_another_recipe_is_not_resumed(tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path), tmp_path / "run")
    other = tiny_runs.read(tmp_path, train__batch=4)
    with pytest.raises(BFNError, match=r"started with train.batch = 8, not 4"):
        run(other, tmp_path / "run", resume=True)


def test_existing_folders(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, train__steps=2)
    run(recipe, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(BFNError, match="holds a run already"):
        run(recipe, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    (tmp_path / "run" / "notes.md").write_text("mine")
    longer = tiny_runs.read(tmp_path, train__steps=4)
    run(longer, tmp_path / "run", force=True)
    assert [line["step"] for line in metrics(tmp_path / "run")] == [2, 4]
    assert (tmp_path / "run" / "notes.md").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("mine")
    for force in (False, True):
        with pytest.raises(BFNError, match="holds other files"):
            run(recipe, tmp_path / "other", force=force)
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["config.json"]
    assert (tmp_path / "other" / "config.json").read_text() == "mine"


def test_a_model_that_lost_its_checkpoints_is_not_replaced(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        shutil.rmtree(path)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(BFNError, match="holds a model without checkpoints"):
        run(recipe, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_a_start_that_was_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the recipe is written, in a new folder and in one that is replaced."""
    recipe = tiny_runs.read(tmp_path, train__steps=2)
    run(recipe, tmp_path / "old")
    for name, how in (("new", {"resume": True}), ("old", {"force": True})):
        with monkeypatch.context() as patch:

            def kill(self: RunFolder, recipe: object) -> None:
                (self.path / "recipe.toml.part").write_text("name =")
                raise KeyboardInterrupt

            patch.setattr(RunFolder, "write_recipe", kill)
            with pytest.raises(KeyboardInterrupt):
                run(recipe, tmp_path / name, **how)
        run(recipe, tmp_path / name, resume=True)
        assert [line["step"] for line in metrics(tmp_path / name)] == [2]


class Bomb(torch.nn.Module):
    """A network whose output is not a number from a given call in training on."""

    def __init__(self, fuse: int) -> None:
        super().__init__()
        self.arguments = {"fuse": fuse}
        self.fuse = fuse
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.fuse -= self.training
        output = features[..., None] * self.weight
        return output * float("nan") if self.fuse < 0 else output


@pytest.mark.parametrize(
    ("fuse", "sentence"),
    [
        (
            6,
            r"loss became nan at step 7; the last good checkpoint is .*step-4: .*learning_rate.*"
            r"\(init= \S+/run starts from the run's model\)",
        ),
        (
            2,
            r"loss became nan at step 3; there is no good checkpoint before it: train again .*"
            r"\(force=True replaces this run\)",
        ),
    ],
)
def test_divergence(fuse: int, sentence: str, tmp_path: Path) -> None:
    model = bfn.discretised(Bomb(fuse), K=17, sigma_1=0.1)
    data = bfn.data.load("digits")
    with pytest.raises(Diverged, match=sentence):
        bfn.train.fit(
            model, data, out=tmp_path / "run", display=False, steps=20, batch=4, log_every=8,
            checkpoint_every=4,
        )  # fmt: skip
    kept = list((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert [path.name for path in kept] == (["step-4"] if fuse == 6 else [])


def test_weights_that_broke_at_once_are_not_called_good(tmp_path: Path) -> None:
    """The checkpoint of the step before has the weights that the loss was computed with."""
    for fuse, good in ((4, "there is no good checkpoint"), (8, r"good checkpoint is \S*step-4: ")):
        model = bfn.discretised(Bomb(fuse), K=17, sigma_1=0.1)
        with pytest.raises(Diverged, match=f"nan at step {fuse + 1}; .*{good}") as caught:
            bfn.train.fit(
                model, bfn.data.load("digits"), out=tmp_path / str(fuse), display=False, steps=20,
                batch=4, checkpoint_every=4, log_every=1,
            )  # fmt: skip
        assert "init=" not in str(caught.value)


@pytest.mark.parametrize("folder", [True, False])
def test_weights_that_overflow_in_the_last_step(folder: bool, tmp_path: Path) -> None:
    """Its loss was computed before."""
    model = bfn.discretised(Bomb(100), K=17, sigma_1=0.1)
    out = tmp_path / "run" if folder else None
    sentence = "weights overflowed at step 1; there is no good checkpoint"
    with pytest.raises(Diverged, match=sentence) as caught:
        bfn.train.fit(
            model, bfn.data.load("digits"), out=out, display=False, steps=1, batch=4,
            learning_rate=1e38, warmup=0,
        )  # fmt: skip
    assert ("force=True" in str(caught.value)) == folder
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_an_exploding_loss_stops_before_it_is_saved(tmp_path: Path) -> None:
    """Finite, but a hundred times what an untrained network has."""

    class Bang(Bomb):
        def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            self.fuse -= self.training
            return features * (self.weight[0] + (1.0 if self.fuse >= 0 else 1e4))

    model = bfn.continuous(Bang(6), sigma_1=0.1, x_min=-1e9, x_max=1e9)
    with pytest.raises(Diverged, match=r"loss exploded at step 7; the last good .*step-4: "):
        bfn.train.fit(
            model, bfn.data.load("digits", form="continuous"), out=tmp_path / "run",
            display=False, steps=20, batch=4, log_every=2, checkpoint_every=4,
        )  # fmt: skip
    kept = list((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert [path.name for path in kept] == ["step-4"]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], status["exported_step"]) == ("diverged", 4)
    assert "exploded" in status["message"]


@pytest.mark.parametrize(("batch", "validate_every"), [(16, 0), (4, 0), (16, 2)])
def test_a_loss_that_explodes_at_once(batch: int, validate_every: int, tmp_path: Path) -> None:
    """Before there is a line of metrics: finite, and far above what the first examples had."""

    class Late(torch.nn.Module):
        """Explodes when 16 examples were seen."""

        def __init__(self) -> None:
            super().__init__()
            self.arguments: dict[str, object] = {}
            self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), 0

        def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            factor = 100.0 if self.seen >= 16 else 1.0
            self.seen += len(t) * self.training
            return factor * features + 0 * self.weight

    model = bfn.continuous(Late(), sigma_1=0.1, x_min=-1e9, x_max=1e9)
    with pytest.raises(Diverged, match=rf"loss exploded at step {16 // batch + 1}; there is no"):
        bfn.train.fit(
            model, bfn.data.load("digits", form="continuous"), out=tmp_path / "run",
            display=False, steps=60, batch=batch, log_every=30, validate_every=validate_every,
        )  # fmt: skip
    assert told(tmp_path / "run")["best"] is None
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_what_the_untrained_network_had_is_remembered(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "run", stop=after(6))
    state = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-6").state
    assert len(state["first"]) == 2  # of 8 examples each
    dimensions = bfn.data.load("digits").format.dimensions
    mean = sum(state["first"]) / 2
    assert mean == pytest.approx(metrics(tmp_path / "run")[0]["nats"] / dimensions, rel=1e-6)
    result = run(recipe, tmp_path / "run", resume=True)
    assert result.step == 12
    last = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-12").state
    assert last["first"] == state["first"]


def test_a_trained_network_may_scatter() -> None:
    """A beginning that is all but perfect does not make an ordinary loss an explosion."""

    class Forgetful(torch.nn.Module):
        """Right about every variable for two steps, then wrong."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.calls = torch.nn.Parameter(torch.zeros(3)), 0

        def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            self.calls += self.training
            sure = torch.tensor([9.0, -9.0, -9.0] if self.calls <= 2 else [-9.0, 9.0, -9.0])
            return sure.expand(features.shape) + self.weight

    model = bfn.discrete(Forgetful(), K=3, beta_1=3.0)
    fit = bfn.train.fit(
        model, torch.zeros(32, 4, dtype=torch.int64), steps=6, batch=16, log_every=1, display=False
    )
    assert fit.history[-1]["loss"] > 1e4 * fit.history[0]["loss"]


def test_infinite_gradient_stops_too(tmp_path: Path) -> None:
    class Steep(Bomb):
        def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            # sqrt has an infinite slope at 0, and a finite value.
            return features[..., None] * self.weight.abs().sqrt()

    model = bfn.discretised(Steep(0), K=17, sigma_1=0.1)
    with pytest.raises(Diverged, match=r"gradient's norm became (nan|inf) at step 1"):
        bfn.train.fit(model, bfn.data.load("digits"), display=False, steps=2, batch=4)


def test_learning_rate() -> None:
    settings = Train(steps=100, learning_rate=2.0, warmup=10, decay=0.5)
    rates = [learning_rate(settings, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9:51] == [2.0] * 42
    assert rates[75] == pytest.approx(1.0)
    assert rates[99] == pytest.approx(2.0 / 50)
    constant = Train(steps=3, learning_rate=2.0)
    assert [learning_rate(constant, step) for step in range(3)] == [2.0] * 3


def test_the_step_is_adamw_on_the_clipped_gradient(tmp_path: Path) -> None:
    """One step, retyped: batch, seeds, loss per variable, clipping, decay of matrices alone."""
    recipe = tiny_runs.read(tmp_path, net__dropout=0.0, train__clip=0.01, train__weight_decay=0.3)
    data, trained, plain = build.data(recipe), build.model(recipe), build.model(recipe)
    trainer = Trainer(trained, data, recipe.train)
    trainer.advance()
    x, _ = data.batch("train", data.indices(0, 0, 8))
    generator = torch.Generator().manual_seed(bfn.noise.seed(0, 0, 0))
    (bfn.loss.continuous_time(plain, x, generator=generator).mean() / 64).backward()
    norm = sum(p.grad.square().sum() for p in plain.parameters()).sqrt()  # pyright: ignore
    lr, (b1, b2) = recipe.train.learning_rate, recipe.train.betas
    for (name, p), q in zip(plain.named_parameters(), trained.parameters(), strict=True):
        assert p.grad is not None
        gradient = p.grad * min(1.0, 0.01 / (float(norm) + 1e-6))
        m, v = (1 - b1) * gradient / (1 - b1), (1 - b2) * gradient.square() / (1 - b2)
        shrunk = p.detach() * (1 - lr * 0.3 if p.dim() > 1 else 1.0)
        expected = shrunk - lr * m / (v.sqrt() + 1e-8)
        torch.testing.assert_close(q.detach(), expected, rtol=2e-3, atol=2e-6, msg=name)
    assert float(norm) > 0.01


def test_loss_steps_trains_on_the_discrete_time_loss(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, train__loss_steps=5, net__dropout=0.0)
    data, model = build.data(recipe), build.model(recipe)
    trainer = Trainer(model, data, recipe.train)
    trainer.advance()
    x, _ = data.batch("train", data.indices(0, 0, 8))
    generator = torch.Generator().manual_seed(bfn.noise.seed(0, 0, 0))
    fresh = build.model(recipe)
    expected = bfn.loss.discrete_time(fresh, x, 5, generator=generator).mean() / 64
    assert torch.equal(trainer.window.losses[0], expected.detach())
    other = Trainer(build.model(recipe), data, dataclasses.replace(recipe.train, loss_steps="inf"))
    other.advance()
    assert not torch.equal(other.window.losses[0], expected.detach())


def test_what_does_not_fit_says_so_first(tmp_path: Path) -> None:
    for overrides, sentence in (
        ({"net__outputs": 1}, r"the network returned shape"),
        ({"flow__K": 16}, r"not the centre of one of K = 16 bins"),
        ({"data__form": "binary"}, r"x has type torch.int64"),
        ({"net__image_size": 16}, r"images are 8 x 8"),
        (
            {"net__class": "torch.nn:Linear", "net__in_features": 3, "net__out_features": 4},
            r"the network Linear failed on an example of the data \(TypeError in .*: .*forward",
        ),
    ):
        with pytest.raises(BFNError, match=sentence):
            run(tiny_runs.read(tmp_path, **overrides), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_lost_export_is_made_again(tmp_path: Path) -> None:
    """As after a kill between a checkpoint and its export."""
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "run")
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "model.safetensors").unlink()
    run(recipe, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


def test_a_rate_counts_the_steps_of_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run's first line holds losses of steps that were taken long ago."""
    seconds = 0.0
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: seconds))

    def stop() -> bool:  # asked once a step, of which each takes a second
        nonlocal seconds
        seconds += 1.0
        return seconds == 7

    recipe = tiny_runs.read(tmp_path, train__log_every=4)
    run(recipe, tmp_path / "run", stop=stop)
    lines = run(recipe, tmp_path / "run", resume=True, stop=stop).history
    assert [line["step"] for line in lines] == [4, 7, 8, 12]
    assert [line["examples_per_second"] for line in lines] == [8.0] * 4


def test_unknown_device(tmp_path: Path) -> None:
    with pytest.raises(BFNError, match=r"train.device = 'warp'"):
        run(tiny_runs.read(tmp_path, train__device="warp"), tmp_path / "run")


def test_a_device_that_computes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BFNError, match=r"train.device = 'meta' computes nothing"):
        run(tiny_runs.read(tmp_path, train__device="meta"), tmp_path / "run")


def test_a_second_gpu_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is launched without torch, and what is recorded, would else go to the first."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    there = lambda size, device: SimpleNamespace(device=torch.device(device))  # noqa: E731
    monkeypatch.setattr(torch, "empty", there)
    assert find_device("cuda:1") == torch.device("cuda:1")
    assert find_device("cpu") == torch.device("cpu")
    assert chosen == [torch.device("cuda:1")]
