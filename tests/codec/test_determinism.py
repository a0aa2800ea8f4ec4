"""The same bytes whatever the threads, the process, and what else the process has been doing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bfn
from bfn.codec import Codec

STEPS, LANES = 3, 8
"""With a batch of 8 this network's last digits depend on the number of threads."""

ELSEWHERE = """
import json, sys
import torch
import bfn
from bfn.codec import Codec

threads, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(threads)
torch.set_default_dtype(torch.float64 if threads == 3 else torch.float32)
torch.manual_seed(threads)
torch.randn(1000) @ torch.randn(1000)
model = bfn.BFN.from_pretrained("digits")
codec = Codec(model, (1, 8, 8), 3, lanes=8)
saved = torch.load(folder + "/coded.pt", weights_only=True)
payloads = [bytes(p.tolist()) for p in saved["payloads"]]
decoded = codec.decode(payloads, [len(x) for x in saved["blocks"]])
same = all(torch.equal(x, y) for x, y in zip(saved["blocks"], decoded))
again = [c.payload for c in codec.encode(saved["blocks"])]
alone = codec.decode(payloads[1:2], [len(saved["blocks"][1])], places=[1])[0]
print(json.dumps({
    "lossless": same,
    "alone": torch.equal(alone, saved["blocks"][1]),
    "same bytes": again == payloads,
    "settings": codec.settings,
    "threads": torch.get_num_threads(),
}))
"""


@pytest.fixture(scope="module")
def model() -> bfn.BFN:
    return bfn.BFN.from_pretrained("digits")


@pytest.fixture(scope="module")
def blocks() -> list[torch.Tensor]:
    digits = bfn.data.load("digits")
    x, _ = digits.batch("test", digits.examples("test"))
    return list(x[:27].split([9, 11, 7]))


def test_fresh_interpreters_with_any_number_of_threads(
    model: bfn.BFN, blocks: list[torch.Tensor], tmp_path: Path
) -> None:
    codec = Codec(model, (1, 8, 8), STEPS, lanes=LANES)
    payloads = [torch.tensor(list(coded.payload)) for coded in codec.encode(blocks)]
    torch.save({"payloads": payloads, "blocks": blocks}, tmp_path / "coded.pt")
    for openmp, threads in (("1", 1), ("4", 4), ("2", 3)):
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, str(threads), str(tmp_path)],
            env={**os.environ, "OMP_NUM_THREADS": openmp, "MKL_NUM_THREADS": openmp},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["lossless"]
        assert result["alone"]
        assert result["same bytes"]
        assert result["settings"] == json.loads(json.dumps(codec.settings))
        assert result["threads"] == threads  # as the user had it


def test_the_neighbours_in_a_batch_do_not_matter(
    model: bfn.BFN, blocks: list[torch.Tensor]
) -> None:
    """A lane's bytes are the same with other lanes at work, at rest, or on other data."""
    codec = Codec(model, (1, 8, 8), STEPS, lanes=LANES)
    together = [coded.payload for coded in codec.encode(blocks)]
    assert codec.encode(blocks[:1])[0].payload == together[0]
    mixed = codec.encode([blocks[0], blocks[2], blocks[1], blocks[1]])
    assert mixed[0].payload == together[0]


def test_settings_tell_what_must_agree(model: bfn.BFN) -> None:
    settings = Codec(model, (1, 8, 8), STEPS, lanes=LANES).settings
    assert json.loads(json.dumps(settings)) == settings
    assert settings["steps"] == STEPS
    assert settings["lanes"] == LANES
    assert settings["spacing"] == 0.5
    assert settings["threads"] == 1
    assert (settings["dtype"], settings["device"]) == ("float32", "cpu")
    assert settings["torch"] == torch.__version__
    assert {"numpy", "constriction", "machine", "instructions", "shape"} <= settings.keys()


def test_the_probe_sees_the_last_digit(model: bfn.BFN) -> None:
    probe = Codec(model, (1, 8, 8), STEPS, lanes=2).settings["probe"]
    assert Codec(model, (1, 8, 8), STEPS, lanes=2).settings["probe"] == probe
    assert Codec(model, (1, 8, 8), STEPS, lanes=2, spacing=0.25).settings["probe"] != probe
    other = bfn.BFN.from_pretrained("digits")
    with torch.no_grad():
        bias = next(p for name, p in other.named_parameters() if name.endswith("bias"))
        bias[0] = torch.nextafter(bias[0] + 1e-6, torch.tensor(torch.inf))
    assert Codec(other, (1, 8, 8), STEPS, lanes=2).settings["probe"] != probe


def test_bytes_are_as_they_were() -> None:
    """A digest of coded bytes that depends on no network's arithmetic: only the code itself."""

    class Fixed(torch.nn.Module):
        def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(features)

    x = torch.arange(600).reshape(100, 6) * 7919 % 101 % 2
    coded = Codec(bfn.discrete(Fixed(), 2, 4.0), (6,), 4, lanes=2).encode([x, x[:3]])
    assert coded[0].startup_examples < 50
    digest = hashlib.blake2b(b"/".join(c.payload for c in coded), digest_size=8).hexdigest()
    assert digest == "be8ededcfa587008", "the format has changed: raise FORMAT"
