"""Training that starts with another model's weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import bfn
from bfn.cli import main
from bfn.errors import BFNError
from bfn.recipe import build
from bfn.runs.folder import RunFolder
from bfn.train import Trainer, checkpoint
from support import tiny_runs


def run(recipe, folder: Path, **keywords):
    return bfn.train.run(recipe, folder, display=False, **keywords)


def test_weights_of_another_run_and_a_fresh_optimiser(tmp_path: Path) -> None:
    """One step from the exported weights, made by hand, is the first step of the new run."""
    run(tiny_runs.read(tmp_path), tmp_path / "first")
    source = str(tmp_path / "first")
    recipe = tiny_runs.read(tmp_path, train__init=source, train__steps=1, train__seed=5)
    run(recipe, tmp_path / "second")
    found = checkpoint.load(tmp_path / "second" / "checkpoints" / "step-1").tensors
    trainer = Trainer(bfn.BFN.from_pretrained(source), build.data(recipe), recipe.train)
    trainer.model.train()
    trainer.advance()
    for name, value in trainer.model.net.state_dict().items():
        assert torch.equal(found["weights"][name], value)
    assert float(found["optimiser"]["0.step"]) == 1.0
    # It is part of the recipe, so the run can be repeated and resumed.
    assert RunFolder(tmp_path / "second").recipe().train.init == source


def test_resuming_does_not_start_again(tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path), tmp_path / "first")
    recipe = tiny_runs.read(tmp_path, train__init=str(tmp_path / "first"))
    run(recipe, tmp_path / "whole")
    seen: list[int] = []
    run(recipe, tmp_path / "parts", stop=lambda: seen.append(1) or len(seen) == 5)
    (tmp_path / "first" / "model.safetensors").unlink()
    run(recipe, tmp_path / "parts", resume=True)
    whole, parts = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("whole", "parts"))
    assert whole == parts


def test_a_kill_before_the_first_checkpoint_keeps_the_start(tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path), tmp_path / "first")
    recipe = tiny_runs.read(tmp_path, train__init=str(tmp_path / "first"))
    run(recipe, tmp_path / "whole")
    folder = RunFolder(tmp_path / "killed")
    folder.start(recipe)
    folder.close()
    run(recipe, tmp_path / "killed", resume=True)
    one, two = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("whole", "killed"))
    assert one == two


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            {"net__width": 16},
            r"'.*first' do not fit this network: \S+ is \(.*\), expected \(.*\); ",
        ),
        ({"net__blocks": 2}, r"do not fit this network: they lack \S+; give it the same \[net\]"),
        ({"net__multipliers": [1]}, r"do not fit this network: (they have \S+|\S+ is)"),
        ({"train__init": "nowhere"}, r"there is no run folder 'nowhere'"),
    ],
)
def test_mismatches(overrides: dict, sentence: str, tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path, train__steps=1), tmp_path / "first")
    recipe = tiny_runs.read(tmp_path, **{"train__init": str(tmp_path / "first"), **overrides})
    with pytest.raises(BFNError, match=sentence):
        run(recipe, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_another_flow_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(tiny_runs.write(tmp_path))
    common = ["train", recipe, "--train.steps", "2"]
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert main([*common, "--out", first]) == 0
    capsys.readouterr()
    assert main([*common, "--out", second, "--init", first, "--flow.sigma_1", "0.1"]) == 0
    err = " ".join(capsys.readouterr().err.split())
    assert "had another flow: GaussianFlow(schedule=Exponential(sigma_1=0.05" in err
    assert main([*common, "--out", second, "--init", first, "--train.init", "x"]) == 2
    assert "--init and --train.init are the same" in capsys.readouterr().err
    assert json.loads((tmp_path / "second" / "status.json").read_text())["status"] == "finished"
