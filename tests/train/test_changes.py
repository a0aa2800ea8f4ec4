"""What a run may go on with and what it may not; and starts that fail lose nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn import serialise
from bfn.errors import BFNError, Diverged, Unwritten
from bfn.recipe import Recipe
from bfn.runs import folder
from bfn.runs.folder import RunFolder, checkpoint_steps
from bfn.train import checkpoint
from bfn.train.ema import EMA
from support import tiny_runs


def letters(folder: Path, alphabet: str, count: int = 4000) -> Path:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(alphabet), (count,), generator=generator).tolist()
    path = folder / "letters.txt"
    path.write_text(alphabet + "".join(alphabet[i] for i in drawn))
    return path


def text_recipe(folder: Path, path: Path, **more: object) -> Recipe:
    given = {"data__source": "text", "data__path": str(path), "data__length": 8, "flow__K": 8}
    return tiny_runs.read(folder, "text", **given, net__inputs=8, net__outputs=8, **more)


def run(recipe: Recipe, folder: Path, **keywords):
    return bfn.train.run(recipe, folder, display=False, **keywords)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize("change", ["other letters", "fewer of them"])
def test_other_data_are_refused(change: str, tmp_path: Path) -> None:
    """As many classes, but they mean other characters; or another split of the same text."""
    path = letters(tmp_path, "bcdefgh ")
    recipe = text_recipe(tmp_path, path)
    run(recipe, tmp_path / "run", stop=lambda: True)
    before = contents(tmp_path / "run")
    longer = text_recipe(tmp_path, path, train__steps=20)
    if change == "other letters":
        path.write_text(path.read_text().replace("h", "a"))
    else:
        letters(tmp_path, "bcdefgh ", 3000)
    with pytest.raises(BFNError, match=r"data are not those .*/run' was started with; .* --init"):
        run(longer, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def test_data_that_have_moved(tmp_path: Path) -> None:
    path = letters(tmp_path, "bcdefgh ")
    run(text_recipe(tmp_path, path), tmp_path / "whole")
    run(text_recipe(tmp_path, path), tmp_path / "run", stop=lambda: True)
    moved = path.rename(tmp_path / "elsewhere.txt")
    run(text_recipe(tmp_path, moved), tmp_path / "run", resume=True)
    one, two = (
        checkpoint.load(tmp_path / name / "checkpoints" / "step-12").tensors["weights"]
        for name in ("whole", "run")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert RunFolder(tmp_path / "run").recipe().data["path"] == str(moved)


class Slope(torch.nn.Module):
    """A network whose weights follow from more than its arguments."""

    width = 3

    def __init__(self) -> None:
        super().__init__()
        # JSON turns these keys into texts, which sort otherwise.
        self.arguments: dict[str, object] = {"table": {8: True, 16: False}}
        self.weight = torch.nn.Parameter(torch.zeros(self.width))

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return features * self.weight.sum()


def test_fit_goes_on_with_the_same_model_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))

    def fit(x: Tensor, steps: int, sigma_1: float = 0.03, **more) -> bfn.train.Fit:
        model = bfn.continuous(Slope(), sigma_1=sigma_1)
        return bfn.train.fit(
            model, x, steps=steps, batch=4, out=tmp_path / "run", display=False, **more
        )

    fit(x, 5, log_every=1, checkpoint_every=5)
    line = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:  # as if killed at step 6
        file.write(line.replace('"step": 5', '"step": 6') + "\n")
    before = contents(tmp_path / "run")
    with pytest.raises(BFNError, match=r"with the flow Gauss.*sigma_1=0\.03.*, not .*=0\.3\)"):
        fit(x, 10, sigma_1=0.3, resume=True)
    with pytest.raises(BFNError, match="data are not those"):
        fit(x * 0.5, 10, resume=True)
    with pytest.raises(BFNError, match="data are not those"):
        fit(x.flip(0), 10, resume=True)
    with monkeypatch.context() as patch:
        patch.setattr(Slope, "width", 2)
        with pytest.raises(BFNError, match=r"step-5' is of another network .*size mismatch"):
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


def test_a_folder_to_go_on_in_is_needed() -> None:
    model = bfn.continuous(Slope(), sigma_1=0.03)
    with pytest.raises(BFNError, match=r"resume=True .* out="):
        bfn.train.fit(model, torch.rand(20, 4), steps=2, resume=True, display=False)


def test_a_run_that_cannot_go_on_stays_as_it_was(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path)
    run(recipe, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*/state.json"):
        path.write_text("{}")
    before = contents(tmp_path / "run")
    with pytest.raises(BFNError, match=r"no checkpoint .* is whole"):
        run(tiny_runs.read(tmp_path, train__steps=20), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def no_room(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_run_that_comes_to_nothing_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its first checkpoint takes the older one's place, whenever it is stopped before."""
    old, broken = Slope(), Slope()
    data = torch.rand(20, 4)
    given: dict[str, Any] = {"out": tmp_path / "run", "batch": 4, "display": False}
    bfn.train.fit(bfn.continuous(old, sigma_1=0.03), data, steps=2, sample_every=1, **given)
    before = contents(tmp_path / "run")
    for killed in (False, True):
        if killed:  # as it would be found after a kill before the first checkpoint
            begun = RunFolder(tmp_path / "run")
            begun.start(tiny_runs.read(tmp_path), force=True)
            begun.open_metrics(0)
            begun.close()
            assert "checkpoints" not in os.listdir(tmp_path / "run")
        broken.register_forward_hook(lambda net, given, out: out * float("nan"))
        with pytest.raises(Diverged, match="nan at step 1"):
            bfn.train.fit(bfn.continuous(broken, sigma_1=0.03), data, force=True, **given)
        assert contents(tmp_path / "run") == before
    # One with a checkpoint stays, though it could not export its model.
    with monkeypatch.context() as patch:
        patch.setattr(serialise, "save", no_room)
        with pytest.raises(Unwritten):
            bfn.train.fit(bfn.continuous(old, sigma_1=0.03), data, steps=1, force=True, **given)
    assert max(checkpoint_steps(tmp_path / "run" / "checkpoints")) == 1
    bfn.train.fit(bfn.continuous(old, sigma_1=0.03), data, steps=3, force=True, **given)
    assert ".replaced" not in os.listdir(tmp_path / "run")
    assert max(checkpoint_steps(tmp_path / "run" / "checkpoints")) == 3


@pytest.mark.parametrize("moved", range(6))
def test_a_kill_while_a_run_is_set_aside(moved: int, tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, train__steps=2)
    run(recipe, tmp_path / "run")
    before = contents(tmp_path / "run")
    aside = tmp_path / "run" / ".replaced.part"
    aside.mkdir()
    own = [name for name in folder._OWN if (tmp_path / "run" / name).exists()]
    assert len(own) == 5
    for name in own[:moved]:
        os.replace(tmp_path / "run" / name, aside / name)
    run(recipe, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def test_a_run_that_lost_its_recipe(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, train__steps=2)
    run(recipe, tmp_path / "run")
    (tmp_path / "run" / "recipe.toml").unlink()
    for how in ({}, {"resume": True}, {"force": True}):
        with pytest.raises(BFNError, match=r"has lost its recipe.toml; put that back, .* --init"):
            run(recipe, tmp_path / "run", **how)


def test_a_run_does_not_start_from_what_it_replaces(tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path, train__steps=2), tmp_path / "run")
    before = contents(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for name in ("run", "link"):
        again = tiny_runs.read(tmp_path, train__init=str(tmp_path / name))
        with pytest.raises(BFNError, match=r"--init and --out are the same folder"):
            run(again, tmp_path / "run", force=True)
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("stubborn", ["model.safetensors", "recipe.toml"])
def test_what_cannot_be_replaced_is_left_whole(
    stubborn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_runs.read(tmp_path, train__steps=2)
    run(recipe, tmp_path / "run")
    before = contents(tmp_path / "run")
    replace = os.replace

    def refusing(source: Path, target: Path) -> None:
        if stubborn in (Path(source).name, Path(target).name):
            raise PermissionError(1, "Operation not permitted")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refusing)
        with pytest.raises(BFNError, match=r"cannot be written .Operation not permitted"):
            run(recipe, tmp_path / "run", force=True)
    assert contents(tmp_path / "run") == before
    shutil.copytree(tmp_path / "run", tmp_path / "run" / ".replaced")  # a kill left it
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "nowhere")
    run(recipe, tmp_path / "run", force=True)
    assert not (tmp_path / "run" / ".replaced").exists()
