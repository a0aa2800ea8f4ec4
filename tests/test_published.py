"""Published checkpoints: the published numbers come out of the whole model, and mistakes are named.

The networks are compared in tests/nn; here it is the model around them that is.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import bfn
from bfn import published
from bfn.cli import main
from bfn.data.known import known_format
from bfn.errors import BFNError
from bfn.flow import Theta
from bfn.model import BFN
from bfn.output.binned import BinnedOutput
from bfn.output.categorical import BernoulliOutput, CategoricalOutput
from bfn.output.point import PointOutput
from bfn.runs.folder import RunFolder

FIXTURES = Path(__file__).parent / "nn" / "fixtures"
SHAPES = json.loads(gzip.decompress((FIXTURES / "shapes.json.gz").read_bytes()))
FAMILY = {
    "mnist_discrete": "mnist",
    "cifar10_continuous_256bins": "cifar10_continuous",
    "cifar10_continuous_16bins": "cifar10_continuous",
    "cifar10_discretized_256bins": "cifar10_discretised",
    "cifar10_discretized_16bins": "cifar10_discretised",
    "text8_discrete": "text8",
}
OUR_SIZES: dict[str, dict[str, Any]] = {
    "mnist": {"width": 32, "multipliers": (1, 2), "blocks": 1, "image_size": 8},
    "cifar10_continuous": {"width": 32, "blocks": 2, "image_size": 8},
    "cifar10_discretised": {"width": 32, "blocks": 2, "image_size": 8},
    "text8": {"width": 48, "layers": 2, "heads": 4, "length": 32},
}


def example(family: str) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """The published sizes, the checkpoint, and input, t, output."""
    with safe_open(FIXTURES / f"{family}.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        sizes = json.loads(file.metadata()["meta"])["hyperparameters"]
    weights = {k.removeprefix("weights."): v for k, v in tensors.items() if k.startswith("weights")}
    return sizes, weights, {k: tensors[k] for k in ("input", "t", "output")}


def images(tensor: Tensor) -> Tensor:
    """(B, pixels, channels, P) or (B, H, W, channels) -> (B, channels, H, W[, P])."""
    if tensor.shape[1] == 64:
        tensor = tensor.unflatten(1, (8, 8))
        return tensor.permute(0, 3, 1, 2, 4)
    return tensor.permute(0, 3, 1, 2)


def output_of(model: BFN, V: Tensor, t: Tensor) -> Any:
    beta = model.flow.schedule.beta(t).reshape(-1, *[1] * (V.dim() - 1))
    with torch.no_grad():
        return model(Theta(V, beta), t)


@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_binary_images(by: str) -> None:
    """Fed with the probability of class 0 there; of class 1 here. The logit is class 1's."""
    sizes, weights, tensors = example("mnist")
    given = sizes if by == "theirs" else OUR_SIZES["mnist"]
    model = published.load(weights, "mnist_discrete", **given)
    assert not model.training
    assert model.flow == bfn.flow.BinaryFlow(bfn.Quadratic(9.0))
    theta_0 = (images(tensors["input"]) + 1) / 2
    output = output_of(model, torch.log((1 - theta_0) / theta_0), tensors["t"])
    assert isinstance(output, BernoulliOutput)
    expected = images(tensors["output"])[..., 0]
    torch.testing.assert_close(output.logit, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_text(by: str) -> None:
    sizes, weights, tensors = example("text8")
    model = published.load(
        weights, "text8_discrete", **(sizes if by == "theirs" else OUR_SIZES["text8"])
    )
    assert model.flow == bfn.flow.CategoricalFlow(27, bfn.Quadratic(0.5625))
    output = output_of(model, tensors["input"].log(), tensors["t"])
    assert isinstance(output, CategoricalOutput)
    torch.testing.assert_close(output.logits, tensors["output"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in FAMILY if name.startswith("cifar10")])
def test_colour_images(name: str) -> None:
    """mu_x and sigma_x, retyped in float64 from what the published network returns."""
    sizes, weights, tensors = example(FAMILY[name])
    model = published.load(weights, name, **sizes)
    sigma_1 = 1e-3 if "256" in name else math.sqrt(1e-3)
    t = tensors["t"]
    gamma = (1 - sigma_1 ** (2 * t.double())).reshape(-1, 1, 1, 1)
    mu = images(tensors["input"])
    beta = gamma / (1 - gamma)
    output = output_of(model, (mu * (1 + beta)).float(), t)
    returned = images(tensors["output"]).double()
    mu_x = mu / gamma - torch.sqrt((1 - gamma) / gamma) * returned[..., 0]
    if "continuous" in name:
        assert isinstance(output, PointOutput)
        torch.testing.assert_close(
            output.x_hat.double(), mu_x.clamp(-1, 1), rtol=0, atol=2e-4 * float(gamma.min()) ** -0.5
        )
        return
    assert isinstance(output, BinnedOutput)
    torch.testing.assert_close(output.mu, mu_x, rtol=1e-4, atol=1e-3)
    sigma_x = torch.sqrt((1 - gamma) / gamma) * returned[..., 1].clamp(-10, 10).exp()
    expected = sigma_x.clamp(1e-3, 10)
    torch.testing.assert_close(output.sigma.double(), expected, rtol=2e-4, atol=0)
    if "256" in name:
        assert bool((expected != sigma_x).any())  # the bounds do bind


@pytest.mark.parametrize("name", FAMILY)
def test_full_size_by_names_and_shapes(name: str) -> None:
    assert name in published.names()
    with torch.device("meta"):
        tensors = {k: torch.empty(shape) for k, shape in SHAPES[FAMILY[name]]["shapes"].items()}
        model = published.load(tensors, name)
    assert sum(p.numel() for p in model.net.parameters()) == SHAPES[FAMILY[name]]["parameters"]


def test_the_right_recipe_is_named() -> None:
    with torch.device("meta"):
        shapes = SHAPES["cifar10_continuous"]["shapes"].items()
        tensors = {key: torch.empty(shape) for key, shape in shapes}
        with pytest.raises(BFNError) as error:
            published.load(tensors, "cifar10_discretized_256bins")
    sentence = str(error.value)
    assert "output_projection.weight (3, 131) instead of (6, 131" in sentence
    assert "cifar10_continuous_16bins or cifar10_continuous_256bins" in sentence


def test_missing_extra_and_misshapen_tensors_are_named() -> None:
    _, weights, _ = example("text8")
    sizes = OUR_SIZES["text8"]
    broken = dict(weights, **{"net.lm_head.bias": torch.zeros(3), "net.more": torch.zeros(1)})
    del broken["net.transformer.ln_f.weight"]
    with pytest.raises(BFNError) as error:
        published.load(broken, "text8_discrete", **sizes)
    sentence = str(error.value)
    assert "1 missing (transformer.ln_f.weight)" in sentence
    assert "1 extra (more)" in sentence
    assert "1 misshapen (lm_head.bias (3) instead of (27))" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"widht": 3}, "unknown hyperparameter 'widht'.*did you mean 'width'"),
        ({"n_head": "many"}, "net.heads = 'many'"),
        ({"skip": False}, "skip = False is not supported"),
    ],
)
def test_wrong_hyperparameters(given: dict[str, Any], words: str) -> None:
    _, weights, _ = example("text8")
    with pytest.raises(BFNError, match=words):
        published.load(weights, "text8_discrete", **given)


def test_wrong_arguments() -> None:
    with pytest.raises(BFNError, match="unknown recipe 'text9'"):
        published.load({"a": torch.zeros(1)}, "text9")
    with pytest.raises(BFNError, match="holds nothing"):
        published.load({}, "text8_discrete")
    with pytest.raises(BFNError, match=r"not finite in net\.a"):
        published.load({"net.a": torch.tensor(math.nan)}, "text8_discrete")


# Files.


class Code:
    """Runs a command when it is unpickled in the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    good = tmp_path / "good.pt"
    torch.save({"a": torch.zeros(1000)}, good)
    raw = good.read_bytes()
    trap = tmp_path / "trap"
    (tmp_path / "half.pt").write_bytes(raw[: len(raw) // 2])
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "letter.pt").write_text("dear reader\n" * 100)
    (tmp_path / "noise.pt").write_bytes(np.random.default_rng(0).bytes(4000))
    (tmp_path / "half.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    torch.save({"a": Code(trap)}, tmp_path / "code.pt")
    (tmp_path / "code.pkl").write_bytes(pickle.dumps({"a": Code(trap)}))
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    torch.save(torch.zeros(2), tmp_path / "tensor.pt")
    torch.save({"step": 7}, tmp_path / "numbers.pt")
    torch.save({"model": {"a": torch.zeros(2)}, "ema": {}}, tmp_path / "tables.pt")
    expected = {
        "half.pt": "damaged or truncated",
        "empty.pt": "damaged or truncated",
        "half.safetensors": "damaged or truncated",
        "letter.pt": "not a whole checkpoint",
        "noise.pt": "not a whole checkpoint",
        "code.pt": "could run any code and are never read",
        "code.pkl": "not a whole checkpoint|could run any code",
        "module.pt": "could run any code",
        "tensor.pt": "holds a Tensor; expected a state dict",
        "numbers.pt": "holds step, no tensors",
        "tables.pt": r"holds tables \(model, ema\)",
        "missing.pt": "does not exist",
        ".": "is a folder",
    }
    for name, words in expected.items():
        with pytest.raises(BFNError, match=words) as error:
            published.read(tmp_path / name)
        assert "\n" not in str(error.value)
    assert not trap.exists()
    assert torch.equal(published.read(good)["a"], torch.zeros(1000))


def test_safetensors_and_the_old_format_are_read(tmp_path: Path) -> None:
    _, weights, _ = example("text8")
    save_file(weights, tmp_path / "a.safetensors")
    torch.save(weights, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    for name in ("a.safetensors", "a.pt"):
        tensors = published.read(tmp_path / name)
        assert tensors.keys() == weights.keys()
        assert all(torch.equal(tensors[key], weights[key]) for key in weights)


# Runs.

RECIPES = {
    "mnist": """
[data]
source = "digits"
form = "binary"
[net]
class = "bfn.nn:UNet"
width = 32
multipliers = [1, 2]
blocks = 1
image_size = 8
[flow]
kind = "discrete"
K = 2
beta_1 = 9.0
""",
    "cifar10_discretised": """
[data]
source = "array"
path = "{folder}/x.npy"
bins = 256
[net]
class = "bfn.nn:VDMUNet"
outputs = 2
width = 32
blocks = 2
image_size = 8
[flow]
kind = "discretised"
K = 256
sigma_1 = 0.001
ln_sigma_epsilon = [-10.0, 10.0]
sigma_x = [1e-3, 10.0]
""",
    "text8": """
[data]
source = "manual"
length = 32
[net]
class = "bfn.nn:Transformer"
length = 32
width = 48
layers = 2
heads = 4
[flow]
kind = "discrete"
K = 27
beta_1 = 0.5625
""",
}


@pytest.mark.parametrize("family", RECIPES)
def test_import_eval_sample(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes, weights, _ = example(family)
    torch.save(weights, tmp_path / "published.pt")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).uniform(-1, 1, (60, 3, 8, 8)))
    recipe, run = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(RECIPES[family].format(folder=tmp_path))
    line = ["import", str(tmp_path / "published.pt"), str(recipe), "--out", str(run)]
    assert main(line) == 0
    assert "go on with bfn eval" in capsys.readouterr().out

    # What comes back from the folder is the published function, bit for bit as loaded.
    name = {v: k for k, v in FAMILY.items() if "16" not in k}[family]
    model = RunFolder(run).load_model()
    direct = published.load(weights, name, **sizes)
    for key, tensor in direct.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor)
    assert model.flow == direct.flow
    assert model.head == direct.head
    V = torch.randn(model.flow.state_shape((2, *RunFolder(run).format().shape)))
    t = torch.tensor([0.3, 0.9])
    ours, theirs = output_of(model, V, t), output_of(direct, V, t)
    assert torch.equal(ours.m, theirs.m)

    numbers = tmp_path / "result.json"
    quick = ["--steps", "3,inf", "--split", "validation", "--json", str(numbers)]
    assert main(["eval", str(run), *quick]) == 0
    rows = json.loads(numbers.read_text())["rows"]
    assert all(math.isfinite(row["in_unit"]) and row["in_unit"] > 0 for row in rows)
    out = tmp_path / "samples.npy"
    assert main(["sample", str(run), "--n", "2", "--steps", "3", "--out", str(out)]) == 0

    # A second import is refused, and so is training on top of it.
    capsys.readouterr()
    assert main(line) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main([*line, "--force"]) == 0
    assert main(["train", str(recipe), "--out", str(run), "--resume", "auto"]) == 2
    assert "a model without checkpoints" in capsys.readouterr().err


def test_import_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, weights, _ = example("text8")
    checkpoint, run = tmp_path / "published.pt", tmp_path / "run"
    torch.save(weights, checkpoint)
    small = ["--net.width", "48", "--net.layers", "2", "--net.heads", "4", "--net.length", "32"]

    def mistake(*arguments: str) -> str:
        assert main(["import", *arguments, "--out", str(run)]) == 2
        assert not run.exists()
        return capsys.readouterr().err

    assert "'nowhere.pt' does not exist" in mistake("nowhere.pt", "text8_discrete")
    assert "unknown recipe 'text8'; did you mean" in mistake(str(checkpoint), "text8")
    said = mistake(str(checkpoint), "text8_discrete", *small)  # windows of 256, positions for 32
    assert "does not fit the data" in said
    said = mistake(str(checkpoint), "manual-text", "--data.length", "32", *small[:-1], "31")
    assert "is not the checkpoint's" in said
    assert main(["import", str(checkpoint), "text8_discrete", *small, "--data.length", "32",
                 "--out", str(run)]) == 0  # fmt: skip
    assert RunFolder(run).format() == known_format("text8", length=32)


# Formats without data.


def test_known_formats_are_those_of_the_data() -> None:
    for name, arguments in (
        ("digits", {}),
        ("digits", {"form": "binary"}),
        ("digits", {"bins": 4}),
        ("manual", {"length": 48}),
        ("manual", {}),
    ):
        assert known_format(name, **arguments) == bfn.data.load(name, **arguments).format
    assert known_format("images", path="x") is None
    assert known_format("somewhere:else") is None


def test_known_formats_of_downloads(tmp_path: Path) -> None:
    """As the sources themselves say, of files of the same make."""
    (tmp_path / "text8").write_bytes(b"abc " * 3000)
    header = bytes([0, 0, 8, 3, 0, 0, 0, 200, 0, 0, 0, 28, 0, 0, 0, 28])
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(header + bytes(200 * 784))
    for part in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (tmp_path / f"{part}.bin").write_bytes(bytes(200 * 3073))
    for name, arguments in (
        ("text8", {}),
        ("mnist", {}),
        ("mnist", {"form": "discretised", "bins": 16}),
        ("cifar10", {"form": "discretised", "bins": 16}),
    ):
        found = bfn.data.load(name, **arguments, dir=str(tmp_path)).format
        assert known_format(name, **arguments) == found
