"""A model on disk: what comes back, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn import serialise
from bfn.flow import GaussianFlow
from bfn.output import BinnedHead, FreeBinnedHead
from support.mistakes import assert_refused
from support.toy_schedule import Linear
from support.toys import KINDS, Toy, data, generator, model


def outputs(bfn_model: bfn.BFN, x: Tensor) -> list[Tensor]:
    return [
        bfn.loss.continuous_time(bfn_model, x, generator=generator(1)),
        bfn.loss.discrete_time(bfn_model, x, 3, generator=generator(2)),
        bfn.loss.reconstruction(bfn_model, x, generator=generator(3)),
        bfn.generate(bfn_model, x.shape, 3, generator=generator(4)),
    ]


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in KINDS),
    ("continuous", {"reconstruction": bfn.MeasurementNoise(0.1), "t_min": 0.01, "x_max": 2.0}),
    ("continuous", {"x_min": -math.inf, "x_max": math.inf}),
    ("discretised", {"sigma_x": (1e-3, 10.0), "ln_sigma_epsilon": (-10.0, 10.0), "t_min": 1e-3}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_round_trip(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    saved = model(kind, seed=5, dropout=0.2, **options)
    for parameter in saved.parameters():  # not the values a new network would start with
        parameter.data.mul_(1.1)
    saved.save_pretrained(tmp_path / "run")
    loaded = bfn.BFN.from_pretrained(tmp_path / "run")
    assert loaded.flow == saved.flow
    assert loaded.head == saved.head
    assert not any(module.training for module in loaded.modules())
    x = data(kind, (3, 4))
    for a, b in zip(outputs(saved.eval(), x), outputs(loaded, x), strict=True):
        assert torch.equal(a, b)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "model.safetensors"} <= names
    assert not {name for name in names if name.endswith(".part")}


def test_free_bins_and_float64_come_back(tmp_path: Path) -> None:
    saved = bfn.BFN(
        Toy(6).double(), GaussianFlow(bfn.Exponential(0.1)), FreeBinnedHead(6, t_min=0.01)
    )
    saved.save_pretrained(str(tmp_path))  # a folder may be a string, and may exist
    saved.save_pretrained(tmp_path)
    loaded = bfn.BFN.from_pretrained(str(tmp_path))
    assert loaded.head == saved.head
    x = bfn.bin_centre(torch.tensor([[0, 5, 3]]), 6, torch.float64)
    for a, b in zip(outputs(saved.eval(), x), outputs(loaded, x), strict=True):
        assert a.dtype == torch.float64
        assert torch.equal(a, b)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {}
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return self.b(self.a(features))


def test_tied_weights_come_back_tied(tmp_path: Path) -> None:
    saved = bfn.continuous(Tied(), 0.1)
    saved.save_pretrained(tmp_path)
    loaded = bfn.BFN.from_pretrained(tmp_path)
    assert isinstance(loaded.net, Tied)
    assert loaded.net.a.weight is loaded.net.b.weight
    assert torch.equal(loaded.net.a.weight, saved.net.a.weight)


def test_a_network_that_forgets_its_arguments_cannot_be_saved(tmp_path: Path) -> None:
    forgetful = bfn.continuous(nn.Identity(), 0.1)
    save = forgetful.save_pretrained
    assert_refused(lambda: save(tmp_path), "Identity cannot be saved", "self.arguments")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    model("discretised").save_pretrained(tmp_path)
    return tmp_path


def refused(run: Path, change: Any, *words: str) -> None:
    """A model whose config.json was changed is not loaded."""
    path = run / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    assert_refused(lambda: bfn.BFN.from_pretrained(run), *words)


FOREIGN = ["os:system", "os:path", "subprocess:Popen", "no_such_package:Net", "support.toys"]
FOREIGN += ["", ":", ".x:Y", "torch.nn:Linear2", "dataclasses:Field"]


@pytest.mark.parametrize("part", ["net", "flow", "head"])
@pytest.mark.parametrize("name", [*FOREIGN, 7, None])
def test_foreign_classes_are_refused(run: Path, part: str, name: Any) -> None:
    refused(run, lambda config: config[part].update({"class": name}), repr(name))


def test_a_class_of_another_kind_is_refused(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    for part, other in (("net", "flow"), ("flow", "head"), ("head", "flow"), ("flow", "net")):
        with pytest.raises(bfn.BFNError, match=r"is not a "):
            bfn.BFN.from_config(config | {part: config[other]})


@dataclass
class Innocent:
    """A dataclass, and importable, but no part of a flow."""


@pytest.mark.parametrize("name", ["os:system", f"{__name__}:Innocent", "fractions:Fraction"])
def test_foreign_parts_of_a_flow_are_refused(run: Path, name: str) -> None:
    """The schedule inside the flow is as guarded as the flow itself."""
    schedule = {"class": name, "arguments": {}}
    refused(run, lambda config: config["flow"]["arguments"].update(schedule=schedule), name)


def test_a_users_own_schedule_is_taken(run: Path) -> None:
    flow = GaussianFlow(Linear(3.0))
    description = json.loads(json.dumps(serialise.describe(flow)))
    assert description["arguments"]["schedule"]["class"] == "support.toy_schedule:Linear"
    assert serialise.build(description, GaussianFlow) == flow


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["flow"].pop("class"),
        lambda config: config["flow"].pop("arguments"),
        lambda config: config["head"].update(arguments=[1, 2]),
        lambda config: config["head"]["arguments"].update(nonsense=1),
        lambda config: config["head"]["arguments"].update(K=0),
        lambda config: config["flow"]["arguments"].pop("schedule"),
        lambda config: config["flow"]["arguments"]["schedule"]["arguments"].update(sigma_1="a"),
        lambda config: config["flow"]["arguments"]["schedule"]["arguments"].update(sigma_1=-1),
        lambda config: config["net"]["arguments"].update(nonsense=1),
        lambda config: config.update(net="a string"),
        lambda config: config.update(flow=3),
        lambda config: config.update(head=None),
        lambda config: config.pop("head"),
        lambda config: config.pop("format_version"),
        lambda config: config["net"]["arguments"].update(P=5),  # the weights do not fit
    ],
)
def test_damaged_configurations_are_refused(run: Path, change: Any) -> None:
    refused(run, change)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', "\x00\xff"])
def test_a_config_that_is_not_a_json_object_is_refused(run: Path, text: str) -> None:
    (run / "config.json").write_text(text)
    assert_refused(lambda: bfn.BFN.from_pretrained(run), "config.json", "is damaged")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_other_format_versions_are_refused(run: Path, version: Any) -> None:
    sentence = f"format version {version}"
    refused(run, lambda config: config.update(format_version=version), sentence)


def test_truncated_and_missing_files_are_refused(run: Path) -> None:
    weights, config = run / "model.safetensors", run / "config.json"
    whole = weights.read_bytes()
    for size in (0, 4, 8, 60, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:size])
        assert_refused(lambda: bfn.BFN.from_pretrained(run), "damaged or truncated")
    for folder in (run / "nowhere", config):
        assert_refused(lambda f=folder: bfn.BFN.from_pretrained(f), "no run folder", folder.name)
    for path in (weights, config):
        path.unlink()
        assert_refused(lambda: bfn.BFN.from_pretrained(run), f"holds no {path.name}")


def test_class_names_are_public_places() -> None:
    assert serialise.class_name(GaussianFlow) == "bfn.flow:GaussianFlow"
    assert serialise.class_name(BinnedHead) == "bfn.output:BinnedHead"
    assert serialise.class_name(bfn.Exponential) == "bfn.schedule:Exponential"
    assert serialise.class_name(Toy) == "support.toys:Toy"
    for cls in (GaussianFlow, BinnedHead, bfn.Exponential, bfn.Bins, Toy):
        assert serialise.find_class(serialise.class_name(cls)) is cls
