"""Published checkpoints: their networks, the models around them, and mistakes."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import bfn
from bfn import published
from bfn.data.known import known_format
from bfn.errors import BFNError
from bfn.flow import Theta
from bfn.model import BFN
from bfn.nn import Transformer, UNet, VDMUNet
from bfn.output import BernoulliOutput
from bfn.published import load_published, published_names
from bfn.runs.folder import RunFolder
from published.checkpoints import FAMILY, SHAPES, SIZES, example, full_size
from support.commands import Command

NETWORKS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "mnist": (UNet, {"attention": (8, 16)}),
    "cifar10_continuous": (VDMUNet, {}),
    "cifar10_discretised": (VDMUNet, {"outputs": 2}),
    "text8": (Transformer, {}),
}


def small(name: str) -> nn.Module:
    kind, arguments = NETWORKS[name]
    return kind(**arguments, **SIZES[name])


def features(name: str, given: Tensor) -> Tensor:
    """Our features for the input of the published network."""
    if name == "text8":
        return 2 * given - 1
    return -given if name == "mnist" else given  # class 1 instead of class 0


@pytest.mark.parametrize("name", NETWORKS)
def test_small_networks_compute_the_published_function(name: str) -> None:
    weights, values = example(name)
    net = small(name)
    load_published(net, weights, negate_features=name == "mnist")
    with torch.no_grad():
        output = net.eval()(features(name, values["input"]), values["t"])
    expected = values["output"]
    if expected.ndim == 5 and expected.shape[-1] == 1:
        expected = expected[..., 0]
    torch.testing.assert_close(output, expected, rtol=0, atol=2e-5)


def test_loading_names_what_does_not_fit_and_changes_nothing() -> None:
    weights, _ = example("mnist")
    net = small("mnist")
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    last = [key for key in weights if "pos_" not in key][-1]
    for changed, sentence in (
        ({last: None}, f"{last.removeprefix('net.')} is missing; build the UNet with"),
        ({last: torch.zeros(5)}, f"{last.removeprefix('net.')} has shape (5,) instead of"),
        ({"net.stranger": torch.zeros(2)}, "stranger has no place in the network"),
    ):
        broken = {key: tensor for key, tensor in (weights | changed).items() if tensor is not None}
        with pytest.raises(BFNError) as error:
            load_published(net, broken)
        assert sentence in str(error.value)
        for key, tensor in net.state_dict().items():
            assert torch.equal(tensor, before[key])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"width": 32}, r"inp_embedding\.weight has shape \(48, 27\) instead of \(32, 27\)"),
        ({"length": 16}, "length=32"),
        ({"labels": 3}, r"labels\.table\.weight"),
    ],
)
def test_other_sizes_are_refused(changed: dict[str, int], sentence: str) -> None:
    net = Transformer(**{**SIZES["text8"], **changed})
    with pytest.raises(BFNError, match=sentence):
        load_published(net, example("text8")[0])


def test_learned_positions_and_other_networks_are_refused() -> None:
    weights, _ = example("text8")
    weights["net.input_adapter.pos_embedding"] = torch.zeros(32, 48)
    with pytest.raises(BFNError, match="learned positions"):
        load_published(small("text8"), weights)
    with pytest.raises(BFNError, match="Linear"):
        load_published(nn.Linear(2, 2), {})


def test_attention_at_a_resolution_shifts_the_names_as_published() -> None:
    names = published_names(UNet(width=32, multipliers=(1, 2), blocks=1, attention=(2,)))
    assert names["input_blocks.3.1.qkv.weight"] == "down.1.attentions.0.attention.qkv.weight"
    assert names["output_blocks.1.1.norm.bias"] == "up.0.attentions.1.norm.bias"
    assert names["output_blocks.1.2.conv.weight"] == "up.0.grow.weight"
    assert "input_blocks.1.1.norm.weight" not in names


# The model around a network.


def output_of(model: BFN, V: Tensor, t: Tensor) -> Any:
    beta = model.flow.schedule.beta(t).reshape(-1, *[1] * (V.dim() - 1))
    with torch.no_grad():
        return model(Theta(V, beta), t)


def test_binary_images() -> None:
    """The input is the probability of class 0 there, of class 1 here; the logit is class 1's."""
    weights, values = example("mnist")
    model = published.load(weights, "mnist_discrete", **SIZES["mnist"])
    assert not model.training
    assert model.flow == bfn.flow.BinaryFlow(bfn.Quadratic(9.0))
    theta_0 = (values["input"] + 1) / 2
    output = output_of(model, torch.log((1 - theta_0) / theta_0), values["t"])
    assert isinstance(output, BernoulliOutput)
    torch.testing.assert_close(output.logit, values["output"][..., 0], rtol=0, atol=1e-4)
    other = published.load(weights, "mnist_discrete", beta_1=4.0, **SIZES["mnist"])
    assert other.flow == bfn.flow.BinaryFlow(bfn.Quadratic(4.0))


@pytest.mark.parametrize("name", FAMILY)
def test_full_size_by_names_and_shapes(name: str) -> None:
    with torch.device("meta"):
        model = published.load(full_size(FAMILY[name]), name)
    assert sum(p.numel() for p in model.net.parameters()) == SHAPES[FAMILY[name]]["parameters"]
    ours = list(published_names(model.net).values())
    assert set(ours) == set(model.net.state_dict())
    assert len(set(ours)) == len(ours)


def test_another_recipe_is_refused() -> None:
    with torch.device("meta"), pytest.raises(BFNError) as error:
        published.load(full_size("cifar10_continuous"), "cifar10_discretized_256bins")
    assert "output_projection.weight has shape (3, 131) instead of (6, 131" in str(error.value)


class Code:
    """Runs a command when it is unpickled in the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_files_that_are_not_checkpoints(tmp_path: Path) -> None:
    good, trap = tmp_path / "good.pt", tmp_path / "trap"
    torch.save({"a": torch.zeros(1000)}, good)
    contents: dict[str, Any] = {
        "half.pt": good.read_bytes()[:700],
        "noise.pt": np.random.default_rng(0).bytes(4000),
        "code.pkl": pickle.dumps({"a": Code(trap)}),
        "code.pt": {"a": Code(trap)},
        "tensor.pt": torch.zeros(2),
        "tables.pt": {"model": {"a": torch.zeros(2)}, "ema": {}},
    }
    for name, content in contents.items():
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        else:
            torch.save(content, tmp_path / name)
        with pytest.raises(BFNError, match="does not hold tensors by name and nothing else"):
            published.read(tmp_path / name)
    for name in ("missing.pt", "."):
        with pytest.raises(BFNError, match="is not a file"):
            published.read(tmp_path / name)
    assert not trap.exists()
    weights = {"a": torch.zeros(1000)}
    save_file(weights, tmp_path / "good.safetensors")
    torch.save(weights, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("good.pt", "good.safetensors", "old.pt"):
        assert torch.equal(published.read(tmp_path / name)["a"], weights["a"])


def as_options(sizes: dict[str, Any]) -> list[str]:
    options = []
    for key, value in sizes.items():
        listed = value if isinstance(value, tuple) else (value,)
        options += [f"--net.{key}", ",".join(str(each) for each in listed)]
    return options


def test_import_eval_sample(command: Command) -> None:
    weights, _ = example("mnist")
    torch.save(weights, "published.pt")
    # The published recipe with data at hand.
    text = bfn.recipe.find("mnist_discrete").read_text()
    digits = "[data]\nsource = 'digits'\nform = 'binary'\n[net]"
    Path("small.toml").write_text(re.sub(r"(?s)\[data\].*?\[net\]", digits, text))
    sizes = as_options(SIZES["mnist"])
    line = ["import", "published.pt", "small.toml", "--out", "run", *sizes]
    assert "next: bfn eval run" in command(*line)

    # What comes back from the folder is the published function, bit for bit as loaded.
    model = RunFolder("run").load_model()
    direct = published.load(weights, "mnist_discrete", **SIZES["mnist"])
    for key, tensor in direct.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor)
    assert model.flow == direct.flow
    assert model.head == direct.head

    quick = ["--steps", "3,inf", "--split", "validation", "--repeats", "1", "--crops", "0"]
    rows = json.loads(command("eval", "run", *quick, "--json", "-"))["rows"]
    assert all(math.isfinite(row["in_unit"]) and row["in_unit"] > 0 for row in rows)
    command("sample", "run", "--n", "2", "--steps", "3", "--out", "samples.npy")

    # A second import is refused, and so is training on top of it.
    assert "already holds a run" in command(*line, code=2)
    command(*line, "--force")
    refused = command("train", "small.toml", *sizes, "--out", "run", "--resume", code=2)
    assert "a model without checkpoints" in refused


def test_import_mistakes(command: Command) -> None:
    torch.save(example("text8")[0], "published.pt")
    small = ["--net.width", "48", "--net.layers", "2", "--net.heads", "4", "--net.length", "32"]
    other = ["--data.length", "32", *small[:-1], "31"]
    for arguments, sentence in (
        (["nowhere.pt", "text8_discrete"], "'nowhere.pt' is not a file"),
        (["published.pt", "text8"], "unknown recipe 'text8'; did you mean"),
        (["published.pt", "text8_discrete", "--net.widht", "3"], "did you mean 'width'"),
        (["published.pt", "manual-text", *other], "does not fit the recipe"),
    ):
        assert sentence in command("import", *arguments, "--out", "run", code=2)
        assert not Path("run").exists()
    line = ["import", "published.pt", "text8_discrete", *small, "--data.length", "32"]
    command(*line, "--out", "run")
    assert RunFolder("run").format() == known_format("text8", length=32)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("digits", {}),
        ("digits", {"form": "binary"}),
        ("manual", {"length": 48}),
        ("text8", {}),
        ("mnist", {"form": "discretised", "bins": 16}),
        ("cifar10", {"form": "discretised", "bins": 16}),
    ],
)
def test_formats_known_without_the_data(
    name: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """They are the formats of the data themselves, or of files of the same kind."""
    place = {} if name in ("digits", "manual") else {"dir": str(tmp_path)}
    (tmp_path / "text8").write_bytes(b"abc " * 3000)
    header = bytes([0, 0, 8, 3, 0, 0, 0, 200, 0, 0, 0, 28, 0, 0, 0, 28])
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(header + bytes(200 * 784))
    for part in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (tmp_path / f"{part}.bin").write_bytes(bytes(200 * 3073))
    found = bfn.data.load(name, **arguments, **place).format
    assert known_format(name, **arguments) == found
