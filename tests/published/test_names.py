"""The published networks: small ones compute the same function; names of their tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bfn.errors import BFNError
from bfn.nn import Transformer, UNet, VDMUNet
from bfn.published.names import load_published, published_names
from published.checkpoints import SIZES, example

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
    """Our features for what the published network is given."""
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
    names = [key for key in weights if "pos_" not in key]
    missing, misshapen = names[3], names[-1]
    broken = dict(weights, **{misshapen: torch.zeros(5), "net.stranger": torch.zeros(2)})
    del broken[missing]
    with pytest.raises(BFNError) as error:
        load_published(net, broken)
    sentence = str(error.value)
    assert f"1 missing ({missing.removeprefix('net.')})" in sentence
    assert "1 unexpected (stranger)" in sentence
    assert f"1 misshapen ({misshapen.removeprefix('net.')} (5,) instead of" in sentence
    for key, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[key])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"width": 32}, r"inp_embedding\.weight \(48, 27\) instead of \(32, 27\)"),
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
