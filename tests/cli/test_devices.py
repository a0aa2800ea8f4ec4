"""Which device a command uses, and how the network runs there."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bfn
from bfn import device
from bfn.cli.app import main
from bfn.nn.accelerate import Accelerated
from support import toys
from support.commands import Command

EVALUATE = "--steps 2 --repeats 1 --split validation"
FAST = {
    "sample": "sample RUN --n 2 --steps 2",
    "infill": "infill RUN eight.png --mask mask.png --n 2 --steps 2",
    "solvers": "solvers RUN --calls 3 --solver sde2 --n 4",
    "rows": "sample TABLE --n 2 --steps 2",
    "holes": "infill TABLE holes.csv --steps 2",
}
PLAIN = {
    "eval": f"eval RUN {EVALUATE}",
    "card": f"card RUN {EVALUATE} --n 1 --sample-steps 2",
    "figures": "figures RUN --only samples",
    "view": "view RUN --steps 2",
    "compress": "compress RUN eight.png -o eight.bfn --steps 2",
    "decompress": "decompress digits.bfn --run RUN -o restored",
    "eval of a table": "eval TABLE",
}

KEYS = {
    **dict.fromkeys([*FAST, "view"], "sample.device"),
    **dict.fromkeys(["eval", "card", "eval of a table"], "eval.device"),
}


@pytest.fixture
def workshop(runs: Path, output: Command) -> Callable[[str], list[str]]:
    """The words of a command in a folder with what it needs."""
    for name, shade in (("eight", np.eye(8)), ("mask", np.tri(8))):
        Image.fromarray((255 * shade).astype(np.uint8)).save(f"{name}.png")

    def words(line: str) -> list[str]:
        if "RUN" in line:
            shutil.copytree(runs / "digits", "run")
        if "TABLE" in line:
            Path("a.csv").write_text("a,b\n" + "".join(f"{i % 7},{i % 3}\n" for i in range(60)))
            Path("holes.csv").write_text("a,b\n1,\n")
            output("train", "a.csv", "--train.steps", 1, "--net.width", 8, "--out", "table")
        if "digits.bfn" in line:
            output("compress", "run", "eight.png", "-o", "digits.bfn", "--steps", 2)
        return shlex.split(line.replace("RUN", "run").replace("TABLE", "table"))

    return words


@pytest.mark.parametrize("name", [*FAST, *PLAIN])
def test_only_samples_are_drawn_by_the_accelerated_network(
    name: str,
    workshop: Callable[[str], list[str]],
    output: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU, that is; here the CPU pretends to be one."""
    words, fast, plain = workshop({**FAST, **PLAIN}[name]), [], []
    calls = {Accelerated: fast, bfn.nn.UNet: plain, bfn.nn.MixedMLP: plain}
    keys: list[str] = []

    def pretend(name: str, key: str) -> torch.device:
        keys.append(key)
        return torch.device("cuda")

    monkeypatch.setattr(device, "find_device", pretend)
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *_: module)
    for kind, counted in calls.items():
        forward = kind.forward

        def watched(net, *given, forward=forward, counted=counted, **cond):
            counted.append(net)
            return forward(net, *given, **cond)

        monkeypatch.setattr(kind, "forward", watched)
    output(*words)
    assert plain
    assert bool(fast) == (name in FAST)
    assert keys == [KEYS.get(name, "--device")]


@pytest.mark.parametrize("name", ["sample", "view"])
def test_the_option_is_named_if_there_is_no_such_device(
    name: str, workshop: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(workshop(f"{({**FAST, **PLAIN})[name]} --device warp")) == 2
    assert "--device = 'warp' is not available on this machine" in capsys.readouterr().err


def test_the_model_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_device", lambda *_: torch.device("meta"))
    model = toys.model("continuous")
    assert device.on_device(model, "") is model
    assert model.device == torch.device("meta")


def test_compiling_is_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    for there in ("cpu", "cuda"):
        monkeypatch.setattr(device, "find_device", lambda *_, there=there: torch.device(there))
        monkeypatch.setattr(torch.nn.Module, "to", lambda module, *_: module)
        fast = lambda net, compile: given.append(compile) or net  # noqa: E731
        for compile in (False, True):
            with contextlib.suppress(bfn.BFNError):
                device.on_device(toys.model("continuous"), "", fast=fast, compile=compile)
    assert given == [False, True]
