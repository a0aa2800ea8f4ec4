"""The same bytes whatever the threads, the process, and what else the process has been doing."""

from __future__ import annotations

import hashlib
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
import sys
import torch
import bfn
from bfn.codec import Codec

folder = sys.argv[1]
model = bfn.BFN.from_pretrained("digits")
saved = torch.load(folder + "/coded.pt", weights_only=True)
payloads = [bytes(p.tolist()) for p in saved["payloads"]]
torch.set_num_threads(3)
torch.set_default_dtype(torch.float64)
torch.set_float32_matmul_precision("medium")
torch.backends.fp32_precision = "tf32"
torch.backends.mkldnn.matmul.fp32_precision = torch.backends.mkldnn.conv.fp32_precision = "bf16"
torch.manual_seed(3)
torch.randn(1000) @ torch.randn(1000)
codec = Codec(model, (1, 8, 8), 3, lanes=8)
decoded = codec.decode(payloads, [len(x) for x in saved["blocks"]])
assert all(torch.equal(x, y) for x, y in zip(saved["blocks"], decoded))
assert [c.payload for c in codec.encode(saved["blocks"])] == payloads
assert torch.get_num_threads() == 3  # as the user had it
assert torch.backends.fp32_precision == torch.backends.cudnn.fp32_precision == "tf32"
assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
print(codec.probe)
"""


@pytest.fixture(scope="module")
def model() -> bfn.BFN:
    return bfn.BFN.from_pretrained("digits")


@pytest.fixture(scope="module")
def blocks() -> list[torch.Tensor]:
    digits = bfn.data.load("digits")
    x, _ = digits.batch("test", digits.examples("test"))
    return list(x[:18].split([6, 7, 5]))


def test_another_process_with_any_number_of_threads(
    model: bfn.BFN, blocks: list[torch.Tensor], tmp_path: Path
) -> None:
    codec = Codec(model, (1, 8, 8), STEPS, lanes=LANES)
    payloads = [torch.tensor(list(coded.payload)) for coded in codec.encode(blocks)]
    torch.save({"payloads": payloads, "blocks": blocks}, tmp_path / "coded.pt")
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == codec.probe


def test_a_lane_does_not_depend_on_the_others(model: bfn.BFN, blocks: list[torch.Tensor]) -> None:
    """Its bytes are the same with the other lanes busy, idle, or coding other data."""
    codec = Codec(model, (1, 8, 8), STEPS, lanes=LANES)
    together = codec.encode(blocks)[0].payload
    assert codec.encode(blocks[:1])[0].payload == together
    assert codec.encode([blocks[0], blocks[2], blocks[1], blocks[1]])[0].payload == together


def test_the_probe_sees_the_last_digit(model: bfn.BFN) -> None:
    probe = Codec(model, (1, 8, 8), STEPS, lanes=2).probe
    assert Codec(model, (1, 8, 8), STEPS, lanes=2).probe == probe
    assert Codec(model, (1, 8, 8), STEPS + 1, lanes=2).probe != probe
    other = bfn.BFN.from_pretrained("digits")
    with torch.no_grad():
        bias = next(p for name, p in other.named_parameters() if name.endswith("bias"))
        bias[0] = torch.nextafter(bias[0] + 1e-6, torch.tensor(torch.inf))
    assert Codec(other, (1, 8, 8), STEPS, lanes=2).probe != probe


def test_bytes_stay_the_same() -> None:
    """A digest of coded bytes that depends on no network's arithmetic: only the code itself."""

    class Fixed(torch.nn.Module):
        def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(features)

    x = torch.arange(600).reshape(100, 6) * 7919 % 101 % 2
    model = bfn.discrete(Fixed(), 2, 4.0, head="plain")
    coded = Codec(model, (6,), 4, lanes=2).encode([x, x[:3]])
    assert coded[0].startup_examples < 50
    digest = hashlib.blake2b(b"/".join(c.payload for c in coded), digest_size=8).hexdigest()
    assert digest == "dc012a2c854ea3b4", "the bytes have changed: do old ones decode?"
