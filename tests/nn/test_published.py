"""The published networks: same parameter counts, same tensors, same function."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from bfn.errors import BFNError
from bfn.nn import Transformer, UNet, VDMUNet
from bfn.published.names import load_published, published_names

FIXTURES = Path(__file__).parent / "fixtures"

FULL_SIZE: dict[str, tuple[type[nn.Module], dict[str, Any], int]] = {
    "mnist": (UNet, {"image_size": 28, "attention": (8, 16)}, 24_808_961),
    "cifar10_continuous": (VDMUNet, {"image_size": 32}, 30_722_188),
    "cifar10_discretised": (VDMUNet, {"image_size": 32, "outputs": 2}, 30_722_584),
    "text8": (Transformer, {}, 170_175_003),
}


def example(name: str) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """The sizes, the weights under published names, and input, t, output."""
    with safe_open(FIXTURES / f"{name}.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        sizes = json.loads(file.metadata()["meta"])
    weights = {
        key.removeprefix("weights."): tensors.pop(key)
        for key in list(tensors)
        if key.startswith("weights.")
    }
    return sizes, weights, tensors


def small(name: str) -> nn.Module:
    """Our network of the sizes that an example's metadata states."""
    sizes, _, _ = example(name)
    theirs = sizes["hyperparameters"]
    if name == "mnist":
        return UNet(
            width=theirs["model_channels"],
            multipliers=theirs["channel_mult"],
            blocks=theirs["num_res_blocks"],
            attention=theirs["attention_resolutions"],
            heads=theirs["num_heads"],
            dropout=theirs["dropout"],
            image_size=theirs["image_size"],
        )
    if name == "text8":
        return Transformer(
            length=sizes["input_adapter"]["seq_len"],
            inputs=theirs["vocab_size"],
            outputs=theirs["vocab_size"],
            width=theirs["n_embd"],
            layers=theirs["n_layer"],
            heads=theirs["n_head"],
            dropout=theirs["dropout"],
        )
    return VDMUNet(
        channels=theirs["input_channels"],
        outputs=sizes["output_adapter"]["output_height"],
        width=theirs["embedding_dim"],
        blocks=theirs["n_blocks"],
        heads=theirs["n_attention_heads"],
        groups=theirs["norm_groups"],
        dropout=theirs["dropout_prob"],
        image_size=theirs["image_size"],
    )


def features(name: str, given: Tensor) -> Tensor:
    """Our features for what the published network is fed."""
    if name == "text8":
        return 2 * given - 1
    images = given.permute(0, 3, 1, 2)
    return -images if name == "mnist" else images  # class 1 instead of class 0


def expected(name: str, output: Tensor) -> Tensor:
    """The published output in our shape."""
    if name == "text8":
        return output
    batch, pixels, channels, parameters = output.shape
    side = round(pixels**0.5)
    images = output.reshape(batch, side, side, channels, parameters).permute(0, 3, 1, 2, 4)
    return images if parameters > 1 else images[..., 0]


@pytest.mark.parametrize("name", FULL_SIZE)
def test_small_instances_compute_the_published_function(name: str) -> None:
    _, weights, tensors = example(name)
    net = small(name)
    load_published(net, weights)
    with torch.no_grad():
        output = net.eval()(features(name, tensors["input"]), tensors["t"])
    torch.testing.assert_close(output, expected(name, tensors["output"]), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_networks_have_the_published_tensors(name: str) -> None:
    kind, arguments, parameters = FULL_SIZE[name]
    published = json.loads(gzip.decompress((FIXTURES / "shapes.json.gz").read_bytes()))[name]
    with torch.device("meta"):
        net = kind(**arguments)
        tensors = {key: torch.empty(shape) for key, shape in published["shapes"].items()}
    assert sum(parameter.numel() for parameter in net.parameters()) == parameters
    assert parameters == published["parameters"]
    load_published(net, tensors)
    names = published_names(net)
    assert set(names.values()) == set(net.state_dict())
    assert len(set(names.values())) == len(names)


def test_negating_the_features_is_bit_for_bit() -> None:
    _, weights, tensors = example("mnist")
    ours, as_it_was = small("mnist").eval(), small("mnist").eval()
    load_published(ours, weights)
    load_published(as_it_was, weights, negate_features=False)
    x = tensors["input"].permute(0, 3, 1, 2)
    with torch.no_grad():
        assert torch.equal(ours(-x, tensors["t"]), as_it_was(x, tensors["t"]))
    with pytest.raises(BFNError, match="only a UNet"):
        load_published(small("text8"), example("text8")[1], negate_features=True)


@pytest.mark.parametrize("name", FULL_SIZE)
def test_loading_names_what_does_not_fit_and_changes_nothing(name: str) -> None:
    _, weights, _ = example(name)
    net = small(name)
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    names = [key for key in weights if "pos_" not in key]
    missing, misshapen = names[3], names[-1]
    broken = dict(weights, **{misshapen: torch.zeros(5), "net.stranger": torch.zeros(2)})
    del broken[missing]
    with pytest.raises(BFNError) as error:
        load_published(net, broken)
    sentence = str(error.value)
    assert f"1 missing ({missing.removeprefix('net.')})" in sentence
    assert "1 extra (stranger)" in sentence
    assert f"1 misshapen ({misshapen.removeprefix('net.')} (5) instead of" in sentence
    for key, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[key])


def test_another_size_is_answered_with_both_shapes() -> None:
    _, weights, _ = example("text8")
    with pytest.raises(BFNError, match=r"inp_embedding\.weight \(48, 27\) instead of \(32, 27\)"):
        load_published(Transformer(length=32, width=32, layers=2, heads=4), weights)
    with pytest.raises(BFNError, match="length=32"):
        load_published(Transformer(length=16, width=48, layers=2, heads=4), weights)


def test_learned_positions_are_refused() -> None:
    _, weights, _ = example("text8")
    weights["net.input_adapter.pos_embedding"] = torch.zeros(32, 48)
    with pytest.raises(BFNError, match="learned positions"):
        load_published(small("text8"), weights)


def test_a_labelled_network_lacks_its_labels() -> None:
    _, weights, _ = example("text8")
    net = Transformer(length=32, width=48, layers=2, heads=4, labels=3)
    with pytest.raises(BFNError, match=r"labels\.table\.weight"):
        load_published(net, weights)


def test_other_networks_are_refused() -> None:
    with pytest.raises(BFNError, match="Linear"):
        load_published(nn.Linear(2, 2), {})


def test_attention_at_a_resolution_shifts_the_names_as_published() -> None:
    names = published_names(UNet(width=32, multipliers=(1, 2), blocks=1, attention=(2,)))
    assert names["input_blocks.3.1.qkv.weight"] == "down.1.attentions.0.attention.qkv.weight"
    assert names["output_blocks.1.1.norm.bias"] == "up.0.attentions.1.norm.bias"
    assert names["output_blocks.1.2.conv.weight"] == "up.0.grow.weight"
    assert "input_blocks.1.1.norm.weight" not in names
