"""A run that is stopped, killed or starved and then resumed is the run that never stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.errors import BFNError
from bfn.recipe import Recipe
from bfn.runs.folder import RunFolder, checkpoint_steps
from bfn.train import checkpoint
from bfn.train.checkpoint import Damaged
from bfn.train.optim import EMA
from bfn.train.step import Trainer
from support import tiny_runs
from support.tiny_runs import after, assert_same, contents, run, status, tensors
from support.training import faults

EVERYTHING = {
    "train__times": "importance", "train__accumulate": 2, "train__validate_every": 3,
    "train__validate_examples": 20, "train__data_memory": "host", "train__known": 0.5,
    "train__log_every": 5,  # not a divisor of the steps between checkpoints
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """A recipe with all that a step can have, and its uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    recipe = tiny_runs.read(folder, "text", **EVERYTHING)
    run(recipe, folder / "run")
    return recipe, folder / "run"


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_a_fault_loses_nothing(fault: str, whole: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, expected = whole
    message = faults.train(recipe, tmp_path / "run", fault)
    if "kill" in fault:
        assert message == "killed"
    elif "SIG" in fault:
        assert message.startswith(
            "Interrupted: training was interrupted at step 9 of 12; its state"
        )
        assert RunFolder(tmp_path / "run").steps()[-1] == 9
        assert status(tmp_path / "run")["status"] == "interrupted"
    elif fault == "no memory":
        assert "step 9 does not fit with 4 examples at once" in message
    else:
        assert message.startswith("WriteFailed: ")
        assert "could not be written" in message or "No space" in message
        assert "make room and resume the run" in message
        assert status(tmp_path / "run")["status"] == "failed"
    run(recipe, tmp_path / "run", resume=True)
    assert_same(expected, tmp_path / "run")
    hidden = {path.name for path in (tmp_path / "run").rglob(".*")}
    assert hidden == {".lock"}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _append(path: Path, text: bytes) -> None:
    path.write_bytes(path.read_bytes() + text)


LEFT_OVERS: dict[str, Callable[[Path], object]] = {
    "a damaged newest checkpoint": lambda run: _cut(
        run / "checkpoints" / "step-9" / "weights.safetensors"
    ),
    "a lost status": lambda run: (run / "status.json").unlink(),
    "lines beyond the checkpoint": lambda run: _append(
        run / "metrics.jsonl",
        b'{"step": 10, "loss": 99, "nats": 1}\n\0\xff\n[]\n{"step": 1}\n{"step": 11, "lo',
    ),
    "half of a file": lambda run: (run / ".recipe.toml.ab12.part").write_text("name ="),
}


@pytest.mark.parametrize("left_over", LEFT_OVERS)
def test_what_a_crash_leaves_is_cleaned_up(
    left_over: str, whole: tuple[Recipe, Path], tmp_path: Path
) -> None:
    """Whatever the state of the process that continues, and wherever its data are."""
    recipe, expected = whole
    # A stop at step 9, where there is a line of metrics anyway.
    run(recipe, tmp_path / "run", stop=after(9))
    LEFT_OVERS[left_over](tmp_path / "run")
    torch.manual_seed(1)
    moved = replace(recipe, train=replace(recipe.train, data_memory="device"))
    run(moved, tmp_path / "run", resume=True)
    assert_same(expected, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").rglob(".*")} == {".lock"}


def test_any_layout_and_type_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels last, as on a GPU, and a line of metrics that ends where the run was stopped."""

    def fit(stop_at: int, **more: Any) -> bfn.train.Fit:
        torch.manual_seed(0)
        net = bfn.nn.UNet(outputs=2, width=16, multipliers=(1, 2), blocks=1, groups=8, image_size=8)
        net.to(torch.float64, memory_format=torch.channels_last)  # pyright: ignore
        model = bfn.discretised(net, K=17, sigma_1=0.05)
        x, _ = bfn.data.load("digits").batch("train", torch.arange(64))
        return bfn.train.fit(
            model, x.double(), steps=6, batch=8, log_every=3, display=False, stop=after(stop_at),
            **more,
        )  # fmt: skip

    laid: set[bool] = set()

    def watched(trainer: Trainer) -> None:
        for parameter, moments in trainer.state.optimiser.state.items():
            laid.update(
                moments[k].stride() == parameter.stride() for k in ("exp_avg", "exp_avg_sq")
            )
        advance(trainer)

    advance = Trainer.advance
    monkeypatch.setattr(Trainer, "advance", watched)
    uninterrupted = fit(100)
    fit(4, out=tmp_path / "run")
    resumed = fit(100, out=tmp_path / "run", resume=True)
    assert laid == {True}  # a GPU takes no others
    for a, b in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    first, second = uninterrupted.history
    same, stopped, rest = resumed.history
    assert [line["step"] for line in (same, stopped, rest)] == [3, 4, 6]
    for key in ("loss", "gradient_norm", "loss_by_time"):
        assert same[key] == first[key], key
    assert (stopped["loss"] + 2 * rest["loss"]) / 3 == pytest.approx(second["loss"], rel=1e-12)


def test_more_steps_later(tmp_path: Path) -> None:
    """With a constant learning rate, stopping at 8 and going on to 12 is training for 12."""
    run(tiny_runs.read(tmp_path, "text"), tmp_path / "whole")
    run(tiny_runs.read(tmp_path, "text", train__steps=8), tmp_path / "parts")
    with pytest.raises(BFNError, match=r"already at step 8, beyond train.steps = 6; give at"):
        run(tiny_runs.read(tmp_path, "text", train__steps=6), tmp_path / "parts", resume=True)
    assert RunFolder(tmp_path / "parts").recipe().train.steps == 8
    run(tiny_runs.read(tmp_path, "text"), tmp_path / "parts", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert RunFolder(tmp_path / "parts").recipe().train.steps == 12
    # A finished run is resumed without a step; a model that a kill left out is exported.
    (tmp_path / "parts" / "model.safetensors").unlink()
    display = tiny_runs.Recorder()
    result = run(tiny_runs.read(tmp_path, "text"), tmp_path / "parts", resume=True, display=display)
    assert (result.step, len(result.history), display.messages) == (
        12, 6, ["the run is finished: step 12"],
    )  # fmt: skip
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert status(tmp_path / "parts")["status"] == "finished"


def test_status_names_the_model_that_is_there(tmp_path: Path) -> None:
    """Whenever a process is killed: status.json is written with every checkpoint."""
    seen = []

    def look() -> bool:
        steps = RunFolder(tmp_path / "run").steps()
        seen.append((status(tmp_path / "run")["exported_step"], steps[-1] if steps else None))
        return False

    run(tiny_runs.read(tmp_path, "text"), tmp_path / "run", stop=look)
    assert [pair for pair in seen if pair[0] != pair[1]] == []
    assert seen[-1] == (8, 8)


# What a run may be resumed with, and what it may not.


def letters(folder: Path, alphabet: str = "bcdefgh ", count: int = 4000) -> Path:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(alphabet), (count,), generator=generator).tolist()
    path = folder / "letters.txt"
    path.write_text(alphabet + "".join(alphabet[i] for i in drawn))
    return path


def text_recipe(folder: Path, path: Path, **more: object) -> Recipe:
    source = {"data__source": "text", "data__path": str(path), "data__length": 8, "flow__K": 8}
    return tiny_runs.read(folder, "text", **source, net__inputs=8, net__outputs=8, **more)


def test_data_may_move_but_not_change(tmp_path: Path) -> None:
    path = letters(tmp_path)
    run(text_recipe(tmp_path, path), tmp_path / "whole")
    run(text_recipe(tmp_path, path), tmp_path / "run", stop=lambda: True)
    before = contents(tmp_path / "run")
    longer = text_recipe(tmp_path, path, train__steps=20)
    text = path.read_text()
    # As many classes, but they mean other characters; or another split of the same text.
    for other, sentence in (
        (text.replace("h", "a"), r"was started with data.alphabet"),
        (text[:3000], r"data are not those .*/run' was started .* train.init"),
    ):
        path.write_text(other)
        with pytest.raises(BFNError, match=sentence):
            run(longer, tmp_path / "run", resume=True)
        assert contents(tmp_path / "run") == before
    moved = tmp_path / "elsewhere.txt"
    moved.write_text(text)
    run(text_recipe(tmp_path, moved), tmp_path / "run", resume=True)
    one, two = (tensors(tmp_path / name, 12) for name in ("whole", "run"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert RunFolder(tmp_path / "run").recipe().data["path"] == str(moved)


class Slope(torch.nn.Module):
    """A network whose weights follow from more than its arguments."""

    width = 3

    def __init__(self) -> None:
        super().__init__()
        # JSON turns these keys into texts, which sort in another order.
        self.arguments: dict[str, object] = {"table": {8: True, 16: False}}
        self.weight = torch.nn.Parameter(torch.zeros(self.width))

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return features * self.weight.sum()


class Steep(Slope):
    """The same under another name."""


def test_fit_goes_on_with_the_same_model_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))

    def fit(
        x: Tensor, steps: int, sigma_1: float = 0.03, net: type[Slope] = Slope, **more: Any
    ) -> bfn.train.Fit:
        model = bfn.continuous(net(), sigma_1=sigma_1)
        return bfn.train.fit(
            model, x, steps=steps, batch=4, out=tmp_path / "run", display=False, **more
        )

    fit(x, 5, log_every=1, checkpoint_every=5)
    before = contents(tmp_path / "run")
    with pytest.raises(BFNError, match=r"with the flow Gauss.*sigma_1=0\.03.*, not .*=0\.3\)"):
        fit(x, 10, sigma_1=0.3, resume=True)
    with pytest.raises(BFNError, match=r"started with the net Slope\(.*\), not Steep\("):
        fit(x, 10, net=Steep, resume=True)
    for other in (x * 0.5, x.flip(0)):
        with pytest.raises(BFNError, match="data are not those"):
            fit(other, 10, resume=True)
    with pytest.raises(BFNError, match=r"started with train.learning_rate = 0.001, not 0.1"):
        fit(x, 10, learning_rate=0.1, resume=True)
    with monkeypatch.context() as patch:
        patch.setattr(Slope, "width", 2)
        with pytest.raises(
            BFNError, match=r"step-5' does not fit the run's network .*size mismatch"
        ):
            fit(x, 10, resume=True)
    with monkeypatch.context() as patch:

        def short(*_: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        patch.setattr(EMA, "restore", short)
        with pytest.raises(BFNError, match="memory ran out: the model and its checkpoint"):
            fit(x, 10, resume=True)
    assert contents(tmp_path / "run") == before
    monkeypatch.setattr(Slope, "__module__", "moved")  # as from a script into a module
    assert fit(x, 10, resume=True).step == 10


def test_a_run_of_an_earlier_version_names_one_that_reads_it(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text", train__steps=1)
    run(recipe, tmp_path / "run")
    written = tmp_path / "run" / "recipe.toml"
    written.write_text(written.read_text().replace('objective = "auto"\n', ""))
    before = contents(tmp_path / "run")
    with pytest.raises(BFNError, match=r"has format 1.* read it with bfn of 2026-11-18 \(commit"):
        run(recipe, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


# Checkpoints are complete or not used.


TENSORS = {
    "weights": {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(3)},
    "ema": {"a": torch.ones(2, dtype=torch.float64)},
}


def save(folder: Path, step: int, keep: int = 2) -> Path:
    checkpoint.write(folder, step, TENSORS, {"pending": [(0.1, 1 / 3)]}, keep)
    return folder / f"step-{step}"


def newest(folder: Path) -> tuple[int, list[str]]:
    """The step of the newest complete checkpoint, and the messages about others."""
    messages: list[str] = []
    found = checkpoint.newest(folder, messages.append)
    assert found is not None
    return found.step, messages


def test_round_trip(tmp_path: Path) -> None:
    found = checkpoint.load(save(tmp_path, 7))
    assert found.step == 7
    modes = {path.stat().st_mode for path in found.path.iterdir()}
    assert len(modes) == 1  # who may read one file of it may read all
    assert found.state["pending"] == [[0.1, 1 / 3]]
    for group, expected in TENSORS.items():
        for name, value in expected.items():
            assert torch.equal(found.tensors[group][name], value)
            assert found.tensors[group][name].dtype == value.dtype


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "none", pytest.fail) is None
    for step in (2, 9, 10, 100):
        save(tmp_path, step)
    assert {path.name for path in tmp_path.iterdir()} == {"step-10", "step-100"}
    assert newest(tmp_path) == (100, [])
    for name in ("step-²", "step-07", "step-", "step-9.old"):
        (tmp_path / name).mkdir()
    assert checkpoint_steps(tmp_path) == [10, 100]


def _flip(path: Path) -> None:
    data = bytearray((path / "ema.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "ema.safetensors").write_bytes(bytes(data))


def _edit(path: Path) -> None:
    state = json.loads((path / "state.json").read_text())
    state["pending"] = []
    (path / "state.json").write_text(json.dumps(state))


def _cut_state(path: Path) -> None:
    (path / "state.json").write_text((path / "state.json").read_text()[:40])


def _empty(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


@pytest.mark.parametrize("damage", [_flip, _edit, _cut_state, _empty])
def test_damage_falls_back_and_says_so(damage, tmp_path: Path) -> None:
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    step, (message,) = newest(tmp_path)
    assert step == 1
    assert "step-2" in message
    assert "trying the one before" in message
    damage(tmp_path / "step-1")
    with pytest.raises(BFNError, match=r"no checkpoint in .* is intact"):
        newest(tmp_path)


def test_a_damaged_one_does_not_count_among_those_kept(tmp_path: Path) -> None:
    """Training resumed before it, so a checkpoint saved before that step is the newest."""
    save(tmp_path, 4, keep=1)
    save(tmp_path, 8, keep=2)
    _flip(tmp_path / "step-8")
    for step in (6, 7):
        save(tmp_path, step, keep=1)
        found, messages = newest(tmp_path)
        assert (found, len(messages)) == (step, 1)
    save(tmp_path, 8, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-8"]
    assert newest(tmp_path) == (8, [])


def test_a_checkpoint_that_cannot_be_removed_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system, where another process reads the old checkpoint."""
    save(tmp_path, 1, keep=1)

    def busy(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(16, "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", busy)
        save(tmp_path, 2, keep=1)
    assert newest(tmp_path) == (2, [])
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def test_a_renamed_one_and_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.replace(save(tmp_path, 3), tmp_path / "step-4")
    with pytest.raises(Damaged):
        checkpoint.load(tmp_path / "step-4")
    for version, reader in (
        (1, r"read it with bfn of 2026-11-15 \(commit 821fb6e\)$"),
        (99, "read it with the bfn that wrote it"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "FORMAT_VERSION", version)
            path = save(tmp_path, 5)
        with pytest.raises(BFNError, match=f"format {version}, .* reads 2; {reader}"):
            checkpoint.load(path)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"w": 8}, {"v": None, "w": 8}, "Net(w=8)"),  # an earlier version may not have had v
        # Counted in the data, however few the classes are.
        (
            {"shape": [2], "log_p": [-0.9, -0.5]},
            {"shape": [2], "log_p": [-1.1, -0.5]},
            "Net(shape=[2], log_p=2 numbers)",
        ),
    ],
)
def test_what_is_not_compared(one: dict, other: dict, words: str) -> None:
    for arguments in (one, other):
        assert checkpoint.in_words({"class": "a.b:Net", "arguments": arguments}) == words
