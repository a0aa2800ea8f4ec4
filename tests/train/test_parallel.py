"""Two processes compute what one does: DDP and FSDP, with all that a step can have."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import bfn
from bfn import recipe as config
from bfn.cli.app import app, split
from bfn.errors import Diverged, ProcessLost
from bfn.train import checkpoint, step
from bfn.train.parallel import World
from support import processes, tiny_runs
from support.training import several_trainings

PLAIN = {"net.dropout": 0.0, "train.log_every": 1, "train.steps": 3, "train.clip": 0.1}
EVERYTHING = {
    "train.optimiser": "muon",
    "train.times": "importance",
    "train.accumulate": 2,
    "train.data_memory": "host",
    "train.validate_every": 2,
    "train.validate_examples": 7,
    "train.sample_every": 3,
    "train.known": 0.5,
}
JOBS = {"ddp": ("binary", EVERYTHING), "full": ("text", {**EVERYTHING, "train.sharding": "full"})}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def torchrun(*arguments: object) -> list[str]:
    return [*TORCHRUN, *map(str, arguments)]


def environment() -> dict[str, str]:
    places = (Path(__file__).parents[1], Path(bfn.__file__).parents[1])
    return {**processes.ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, places))}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every job in two processes, and in this one under one/; a run of one is resumed with two."""
    folder = tmp_path_factory.mktemp("trained")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        _train(folder)
    finally:
        torch.set_default_dtype(before)
    return folder


def _train(folder: Path) -> None:
    jobs = []
    for name, (kind, overrides) in JOBS.items():
        recipe, overrides = str(tiny_runs.write(folder, kind)), {**PLAIN, **overrides}
        jobs.append({"recipe": recipe, "overrides": overrides, "out": str(folder / name)})
        plain = {"train.sharding": "none", "train.accumulate": 1, "train.data_memory": "device"}
        alone = config.read(recipe, {**overrides, **plain})
        bfn.train.run(alone, folder / "one" / name, display=False)
    first, last = config.read(recipe, {**PLAIN, "train.steps": 2}), {**PLAIN, "train.steps": 5}
    bfn.train.run(first, folder / "one-then-two", display=False)
    bfn.train.run(config.read(recipe, last), folder / "one" / "one-then-two", display=False)
    sharded = {**last, "train.sharding": "full"}
    jobs.append({"recipe": recipe, "overrides": sharded, "out": str(folder / "one-then-two")})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).parents[1] / "support/training/two_processes.py"
    result = subprocess.run(
        torchrun(script, folder),
        capture_output=True, text=True, timeout=240, env=environment(),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


def same(one: Path, other: Path, step: int) -> None:
    """Tensors to nine digits, metrics to nine."""
    a, b = tiny_runs.tensors(one, step), tiny_runs.tensors(other, step)
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=1e-9, atol=1e-10, msg=name)
    for left, right in zip(tiny_runs.metrics(one), tiny_runs.metrics(other), strict=True):
        assert left.keys() == right.keys()
        for key, value in left.items():
            if key == "loss_by_time":
                assert [v is None for v in value] == [v is None for v in right[key]]
                value = [v for v in value if v is not None]
                right[key] = [v for v in right[key] if v is not None]
            tolerance = 1e-5 if key == "loss_by_time" else 1e-9  # binned in single precision
            same_text = isinstance(value, str) and value == right[key]
            assert same_text or right[key] == pytest.approx(value, rel=tolerance), key


@pytest.mark.parametrize("name", JOBS)
def test_two_processes_are_one(name: str, trained: Path) -> None:
    """Tensors, metrics, sheets, and the exported model, which is an ordinary one."""
    same(trained / "one" / name, trained / name, 3)
    model = bfn.BFN.from_pretrained(trained / name)
    alone = bfn.BFN.from_pretrained(trained / "one" / name)
    assert type(model.net) is type(alone.net)
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    files = {path.name for path in (trained / name).iterdir()}
    assert files == {path.name for path in (trained / "one" / name).iterdir()}
    lines = tiny_runs.metrics(trained / name)
    assert [line["step"] for line in lines if "validation" in line] == [2]
    (sheet,) = (trained / name / "samples").iterdir()
    (expected,) = (trained / "one" / name / "samples").iterdir()
    assert sheet.read_bytes() == expected.read_bytes()


def test_a_run_of_one_is_resumed_with_two(trained: Path) -> None:
    same(trained / "one" / "one-then-two", trained / "one-then-two", 5)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.usefixtures("double")
def test_a_run_of_two_is_resumed_with_one(name: str, trained: Path) -> None:
    kind, overrides = JOBS[name]
    given = {**PLAIN, **overrides, "train.sharding": "none", "train.accumulate": 1}
    given["train.steps"] = 6
    recipe = config.read(trained / f"tiny-{kind}.toml", given)
    for run in (trained / name, trained / "one" / name):
        bfn.train.run(recipe, run, resume=True, display=False)
    same(trained / "one" / name, trained / name, 6)


class Normalised(torch.nn.Module):
    """In training it wants more than one example, and remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64))
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.layers(features).view_as(features)


def test_looking_for_unused_weights_leaves_the_network_as_it_was() -> None:
    model = bfn.continuous(Normalised(), sigma_1=0.1).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = bfn.data.load("digits", form="continuous")
    assert step.has_unused_weights(model, data)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert model.net.training
    assert all(p.grad is None for p in model.parameters())
    del model.net.unused
    assert not step.has_unused_weights(model, data)


def test_documented_commands_parse() -> None:
    """Every `torchrun ... -m bfn ...` of the documentation, continued lines joined."""
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text().replace("\\\n", " ")
    lines = [line for line in page.splitlines() if re.match(r"(srun )?torchrun ", line)]
    assert len(lines) == 3
    for line in lines:
        launcher, _, command = line.partition("-m bfn ")
        assert "--nproc_per_node=8" in launcher
        rest, overrides = split(shlex.split(command))
        _, bound, _ = app.parse_args(rest, print_error=False, exit_on_error=False)
        config.read(bound.args[0], overrides)


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        torchrun("-m", "bfn", "train", *arguments),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def children(process: subprocess.Popen[str]) -> list[int]:
    """The training processes of a launcher, in the order of their ranks."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found = {}
    for child in map(int, path.read_text().split()):
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        ranks = [v.removeprefix(b"RANK=") for v in variables if v.startswith(b"RANK=")]
        found.update({int(rank): child for rank in ranks})
    return [found[rank] for rank in sorted(found)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "[/build/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:35239. "
            "This is typically caused by a remote worker crashing.",
            r"\(Connection closed by peer \[127.0.0.1\]:35239\)",
        ),
        (
            "NCCL error in: here.cpp:7, remote process exited\nncclRemoteError: ...",
            "NCCL error in:",
        ),
    ],
)
def test_the_loss_of_a_process_is_reported(message: str, reason: str) -> None:
    world = World()
    with pytest.raises(RuntimeError, match=r"gloo|NCCL") as caught, world.guard():
        raise RuntimeError(message)  # alone, there is none to lose
    assert not isinstance(caught.value, ProcessLost)
    world.size = 2
    sentence = f"lost another process .*{reason}.* with --resume"
    with pytest.raises(ProcessLost, match=sentence), world.guard():
        raise RuntimeError(message)
    assert world.lost


def test_other_errors_are_not_the_loss_of_a_process() -> None:
    world = World()
    world.size = 2
    for error in (Diverged("the last good checkpoint is in /home/gloo"), RuntimeError("a shape")):
        with pytest.raises(RuntimeError) as caught, world.guard():
            raise error
        assert caught.value is error
    assert not world.lost


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "sharding"), [(0, "none"), (1, "full")])
def test_a_killed_process_ends_the_others(rank: int, sharding: str, tmp_path: Path) -> None:
    recipe, run = tiny_runs.write(tmp_path, "text"), tmp_path / "run"
    arguments = [recipe, "--out", run, "--train.log_every", 1, "--train.sharding", sharding]
    process = start(*arguments, "--train.steps", 100_000)
    try:
        assert processes.wait(process, lambda: processes.lines(run) > 10)
        os.kill(children(process)[rank], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    messages = [line for line in err.splitlines() if line.startswith("bfn: ")]
    assert len(messages) == 1, err
    assert f"process {1 - rank} lost another process of this training" in messages[0]
    assert "restart all processes with --resume" in messages[0]
    saved = checkpoint.newest(run / "checkpoints", pytest.fail)
    assert saved is not None
    again = ["train", *arguments, "--resume", "--train.steps", saved.step + 1]
    code, _, err = processes.finish(processes.start(*again))
    assert code == 0, err


SHEET = ("--train.sample_every", 3, "--sample.steps", 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), SHEET, (*SHEET, "--train.sharding", "full")])
def test_asked_to_stop(more: tuple[object, ...], tmp_path: Path) -> None:
    """SIGTERM to the launcher: all stop at one step, or give up a sheet that would take minutes."""
    recipe, run = tiny_runs.write(tmp_path, "text"), tmp_path / "run"
    arguments = ("--train.log_every", 1, "--train.checkpoint_every", 10_000, *more)
    process = start(recipe, "--out", run, "--train.steps", 100_000, *arguments)
    try:
        assert processes.wait(process, lambda: processes.lines(run) >= 3)
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    (sentence,) = [line for line in err.splitlines() if line.startswith("bfn: ")]
    saved = checkpoint.newest(run / "checkpoints", pytest.fail)
    assert saved is not None
    assert f"interrupted at step {saved.step} of 100000; its state is saved" in sentence
    assert [line["step"] for line in tiny_runs.metrics(run)] == [*range(1, saved.step + 1)]
    assert not list(run.glob("samples/*"))


def test_several_trainings_in_one_script(trained: Path) -> None:
    """Each joins the processes again; a sharded model is whole again afterwards.

    In the last one, a sheet of samples takes longer than a process waits for a message.
    """
    assert (trained / "several" / "slow" / "samples" / "step-2.npy").is_file()
    torch.set_num_threads(1)
    alone = {"": several_trainings.train("none"), "mixed-": several_trainings.train_mixed("none")}
    for rank in ("0", "1"):
        folder = trained / "several" / rank
        assert "cannot shard scale, a single number" in (folder / "refused.txt").read_text()
        assert (folder / "slow.txt").read_text() == "step 3"
        for prefix, expected in alone.items():
            for sharding in ("none", "full"):
                found = bfn.BFN.from_pretrained(folder / f"{prefix}{sharding}")
                assert found.lengths == expected.lengths
                weights = found.net.state_dict()
                for key, value in expected.net.state_dict().items():
                    torch.testing.assert_close(weights[key], value, rtol=1e-9, atol=1e-10, msg=key)


@pytest.mark.slow
def test_a_mistake_is_reported_once(tmp_path: Path) -> None:
    recipe = tiny_runs.write(tmp_path, "text")
    process = start(recipe, "--out", tmp_path / "run", "--train.batch", 7)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    (sentence,) = [line for line in err.splitlines() if line.startswith("bfn: ")]
    assert "train.batch = 7 cannot be divided evenly by 2 processes" in sentence
    assert not (tmp_path / "run").exists()
