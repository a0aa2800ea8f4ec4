"""BFN as a module: its contract with the network, its modes, its checks, and the way to disk."""

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
from bfn.flow import BinaryFlow, CategoricalFlow, GaussianFlow
from bfn.output import (
    BernoulliHead,
    BinnedHead,
    CategoricalHead,
    FreeBinnedHead,
    PointHead,
)
from support.toys import KINDS, PARAMETERS, K, Toy, data, generator, model

every_kind = pytest.mark.parametrize("kind", KINDS)


def test_factories() -> None:
    net = nn.Identity()
    continuous = bfn.continuous(net, 0.02, x_min=-2.0, reconstruction=bfn.Bins(16, 0.1))
    assert continuous.flow == GaussianFlow(bfn.Exponential(0.02))
    assert continuous.head == PointHead(1e-6, -2.0, 1.0, bfn.Bins(16, 0.1))
    discretised = bfn.discretised(net, K=8, sigma_1=0.1, t_min=1e-3)
    assert discretised.flow == GaussianFlow(bfn.Exponential(0.1))
    assert discretised.head == BinnedHead(8, t_min=1e-3)
    discrete = bfn.discrete(net, K=27, beta_1=0.5625)
    assert discrete.flow == CategoricalFlow(27, bfn.Quadratic(0.5625))
    assert discrete.head == CategoricalHead(27)
    binary = bfn.discrete(net, K=2, beta_1=9.0)
    assert binary.flow == BinaryFlow(bfn.Quadratic(9.0))
    assert binary.head == BernoulliHead()


def test_the_papers_values_are_the_defaults() -> None:
    point, binned = PointHead(), BinnedHead(16)
    assert (point.t_min, point.x_min, point.x_max) == (1e-6, -1.0, 1.0)
    assert point.reconstruction is None
    assert binned.t_min == 1e-6


@pytest.mark.parametrize(
    ("build", "value", "expectation"),
    [
        (lambda: bfn.discrete(nn.Identity(), 1, 4.0), "K = 1", "at least 2"),
        (lambda: bfn.discrete(nn.Identity(), -3, 4.0), "K = -3", "at least 2"),
        (lambda: bfn.discretised(nn.Identity(), 1, 0.1), "K = 1", "at least 2"),
        (lambda: FreeBinnedHead(0), "K = 0", "at least 2"),
        (lambda: CategoricalFlow(2, bfn.Quadratic(1.0)), "K = 2", "BinaryFlow"),
        (lambda: CategoricalHead(2), "K = 2", "at least 3"),
        (lambda: bfn.Bins(1, 0.1), "K = 1", "at least 2"),
        (lambda: bfn.Bins(8, 0.0), "sigma = 0.0", "positive"),
        (lambda: bfn.Bins(8, math.nan), "sigma = nan", "positive"),
        (lambda: bfn.MeasurementNoise(-1.0), "sigma = -1.0", "positive"),
        (lambda: PointHead(x_min=1.0, x_max=-1.0), "x_min = 1.0", "smaller than"),
        (lambda: bfn.continuous(nn.Identity(), 0.0), "sigma_1 = 0.0", "between 0 and 1"),
        (lambda: bfn.continuous(nn.Identity(), 1.0), "sigma_1 = 1.0", "between 0 and 1"),
        (lambda: bfn.continuous(nn.Identity(), -0.1), "sigma_1 = -0.1", "between 0 and 1"),
        (lambda: bfn.continuous(nn.Identity(), math.nan), "sigma_1 = nan", "between 0 and 1"),
        (lambda: bfn.discretised(nn.Identity(), 8, 2.0), "sigma_1 = 2.0", "between 0 and 1"),
        (lambda: bfn.discrete(nn.Identity(), 5, 0.0), "beta_1 = 0.0", "positive"),
        (lambda: bfn.discrete(nn.Identity(), 5, math.inf), "beta_1 = inf", "positive"),
    ],
)
def test_bad_models_get_a_sentence(build: Any, value: str, expectation: str) -> None:
    with pytest.raises(bfn.BFNError) as caught:
        build()
    assert value in str(caught.value)
    assert expectation in str(caught.value)


@every_kind
@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 5), (3, 1, 4, 4)])
def test_the_network_sees_what_the_contract_says(kind: str, shape: tuple[int, ...]) -> None:
    seen = {}

    class Spy(nn.Module):
        def forward(self, features: Tensor, t: Tensor, **cond: Any) -> Tensor:
            seen.update(features=features, t=t, cond=cond)
            P = PARAMETERS[kind]
            return features.new_zeros(shape if P == 1 else (*shape, P))

    bfn_model = model(kind)
    bfn_model.net = Spy()
    x, t = data(kind, shape), torch.tensor([0.1, 0.5, 0.9])
    theta = bfn_model.flow.sample(x, t, generator(1))
    label = torch.tensor([1, -1, 2])
    bfn_model(theta, t, label=label)
    features = seen["features"]
    assert features.shape == ((*shape, K[kind]) if kind == "discrete" else shape)
    assert torch.equal(seen["t"], t)
    assert list(seen["cond"]) == ["label"]
    assert torch.equal(seen["cond"]["label"], label)
    if kind == "discrete":
        torch.testing.assert_close(features, 2 * torch.softmax(theta.V, -1) - 1)
    elif kind == "binary":
        torch.testing.assert_close(features, 2 * torch.sigmoid(theta.V) - 1)
    else:
        torch.testing.assert_close(features, theta.V / (1 + theta.beta))


@every_kind
def test_wrong_network_shapes_get_a_sentence(kind: str) -> None:
    P, x = PARAMETERS[kind], data(kind, (3, 4))
    right = (3, 4) if P == 1 else (3, 4, P)
    wrong = [(3, 4, 1), (3, 4, 7), (3, 5), (4,), (), (P, 3, 4) if P > 1 else (1, 3, 4)]
    for shape in wrong:
        bfn_model = model(kind)
        bfn_model.net = nn.Module()
        bfn_model.net.forward = lambda features, t, shape=shape: torch.zeros(shape)
        with pytest.raises(bfn.BFNError) as caught:
            bfn.loss.continuous_time(bfn_model, x)
        assert str(shape) in str(caught.value)
        assert str(right) in str(caught.value)
        with pytest.raises(bfn.BFNError):
            bfn.generate(bfn_model, (3, 4), 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_kind
def test_low_precision_outputs_are_promoted(kind: str, dtype: torch.dtype) -> None:
    """Losses and exponentials happen in float32, whatever the network computed in."""
    bfn_model, x = model(kind), data(kind, (3, 4))
    full = bfn_model.net

    class Low(nn.Module):
        def forward(self, features: Tensor, t: Tensor) -> Tensor:
            return full(features, t).to(dtype)

    class Rounded(nn.Module):
        def forward(self, features: Tensor, t: Tensor) -> Tensor:
            return full(features, t).to(dtype).float()

    results = []
    for net in (Low(), Rounded()):
        bfn_model.net = net
        results.append(bfn.loss.continuous_time(bfn_model, x, generator=generator(1)))
    assert results[0].dtype == torch.float32
    assert torch.equal(*results)


CASES: list[tuple[str, Any, str, str]] = [
    ("continuous", [0.0, 1.5], "1.5", "[-1.0, 1.0]"),
    ("continuous", [-1.0001, 0.0], "-1.0001", "[-1.0, 1.0]"),
    ("continuous", [0.0, math.nan], "nan", "finite"),
    ("continuous", [0.0, math.inf], "inf", "finite"),
    ("discretised", [0.0, 1.2], "1.2", "[-1, 1]"),
    ("discretised", [0.0, math.nan], "nan", "finite"),
    ("discretised", [0.0, 0.1], "0.1", "K = 5"),
    ("discretised", [0.0, -1.0], "-1.0", "K = 5"),
    ("discrete", [0, 4], "4", "0 to 3"),
    ("discrete", [-1, 3], "-1", "0 to 3"),
    ("binary", [0, 2], "2", "0 to 1"),
    ("binary", [-1, 0], "-1", "0 to 1"),
]


@pytest.mark.parametrize(("kind", "values", "value", "expectation"), CASES)
def test_bad_data_get_a_sentence(kind: str, values: Any, value: str, expectation: str) -> None:
    bfn_model, x = model(kind), torch.tensor([values])
    for use in (
        bfn_model.check,
        lambda x: bfn.loss.continuous_time(bfn_model, x),
        lambda x: bfn.loss.discrete_time(bfn_model, x, 3),
        lambda x: bfn.loss.reconstruction(bfn_model, x),
    ):
        with pytest.raises(bfn.BFNError) as caught:
            use(x)
        assert value in str(caught.value)
        assert expectation in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((k, d) for k in ("continuous", "discretised") for d in ("int64", "bool", "uint8")),
        *((k, d) for k in ("continuous", "discretised") for d in ("float16", "bfloat16")),
        *((k, d) for k in ("discrete", "binary") for d in ("float32", "int32", "uint8", "bool")),
    ],
)
def test_data_of_the_wrong_type_get_a_sentence(kind: str, dtype: str) -> None:
    x = torch.zeros(2, 3).to(getattr(torch, dtype))
    with pytest.raises(bfn.BFNError) as caught:
        bfn.loss.continuous_time(model(kind), x)
    assert f"torch.{dtype}" in str(caught.value)
    assert ("int64" if kind in ("discrete", "binary") else "float32") in str(caught.value)


@every_kind
def test_empty_data_get_a_sentence(kind: str) -> None:
    with pytest.raises(bfn.BFNError, match=r"\(0, 3\) are empty"):
        model(kind).check(data(kind, (0, 3)))


@every_kind
def test_good_data_pass(kind: str) -> None:
    for dtype in (torch.float32, torch.float64):
        model(kind).check(data(kind, (50, 3), dtype=dtype))
    if kind == "continuous":
        model(kind).check(torch.tensor([[-1.0, 1.0]]))
        model(kind, x_max=math.inf).check(torch.tensor([[-1.0, 1e9]]))


@pytest.mark.parametrize("bins", [2, 17, 256, 65536])
def test_centres_in_both_precisions_pass_and_halfway_values_do_not(bins: int) -> None:
    bfn_model = bfn.discretised(nn.Identity(), bins, 0.1)
    for dtype in (torch.float32, torch.float64):
        centres = bfn.bin_centre(torch.arange(bins), bins, dtype)
        bfn_model.check(centres[None])
        with pytest.raises(bfn.BFNError, match=r"bfn\.discretise"):
            bfn_model.check(centres[None] + 0.1 / bins)


class Mixed(nn.Module):
    """Submodules in modes of their own: a frozen batch norm, a training dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.toy = Toy(1, dropout=0.5)
        self.frozen = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.3))
        self.frozen.eval()

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return self.toy(features, t)


def modes(bfn_model: bfn.BFN) -> list[bool]:
    return [module.training for module in bfn_model.modules()]


def test_evaluating_restores_every_mode() -> None:
    bfn_model = bfn.continuous(Mixed(), 0.1)
    before = modes(bfn_model)
    assert True in before
    assert False in before
    with bfn_model.evaluating():
        assert not any(modes(bfn_model))
        assert not torch.is_grad_enabled()
        with bfn_model.evaluating():  # nested, as an evaluation that draws samples would
            pass
        assert not any(modes(bfn_model))
    assert modes(bfn_model) == before
    assert torch.is_grad_enabled()
    with pytest.raises(RuntimeError, match="on purpose"), bfn_model.evaluating():
        raise RuntimeError("on purpose")
    assert modes(bfn_model) == before
    assert torch.is_grad_enabled()


def test_dtype_and_device() -> None:
    assert model("binary").dtype == torch.float32
    assert model("binary").double().dtype == torch.float64
    assert model("binary").bfloat16().dtype == torch.float32
    assert bfn.continuous(nn.Identity(), 0.1).device == torch.device("cpu")
    assert model("binary").to("meta").device == torch.device("meta")


# The way to disk


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
    assert not any(modes(loaded))
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


def test_a_network_without_memory_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(bfn.BFNError, match=r"Identity cannot be saved.*self\.arguments"):
        bfn.continuous(nn.Identity(), 0.1).save_pretrained(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    model("discretised").save_pretrained(tmp_path)
    return tmp_path


def damaged(run: Path, change: Any) -> pytest.ExceptionInfo[bfn.BFNError]:
    path = run / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    with pytest.raises(bfn.BFNError) as caught:
        bfn.BFN.from_pretrained(run)
    return caught


FOREIGN = [
    "os:system",
    "os:path",
    "subprocess:Popen",
    "no_such_package:Net",
    "support.toys",
    "",
    ":",
    ".x:Y",
]


@pytest.mark.parametrize("part", ["net", "flow", "head"])
@pytest.mark.parametrize("name", [*FOREIGN, 7, None, "torch.nn:Linear2", "dataclasses:Field"])
def test_foreign_classes_are_refused(run: Path, part: str, name: Any) -> None:
    caught = damaged(run, lambda config: config[part].update({"class": name}))
    assert repr(name) in str(caught.value)


def test_a_class_of_another_kind_is_refused(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    for part, other in (("net", "flow"), ("flow", "head"), ("head", "flow"), ("flow", "net")):
        with pytest.raises(bfn.BFNError, match=r"is not a "):
            bfn.BFN.from_config(config | {part: config[other]})


@dataclass
class Innocent:
    """A dataclass, and importable, but no part of a flow."""


@pytest.mark.parametrize("name", ["os:system", "test_model:Innocent", "fractions:Fraction"])
def test_foreign_parts_of_a_flow_are_refused(run: Path, name: str) -> None:
    """The schedule inside the flow is as guarded as the flow itself."""
    schedule = {"class": name, "arguments": {}}
    caught = damaged(run, lambda config: config["flow"]["arguments"].update(schedule=schedule))
    assert name in str(caught.value)


def test_a_users_own_schedule_is_taken(run: Path) -> None:
    from support.toy_schedule import Linear

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
    damaged(run, change)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', "\x00\xff"])
def test_a_config_that_is_no_json_object_is_refused(run: Path, text: str) -> None:
    (run / "config.json").write_text(text)
    with pytest.raises(bfn.BFNError, match=r"config\.json.* is damaged"):
        bfn.BFN.from_pretrained(run)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_other_format_versions_are_refused(run: Path, version: Any) -> None:
    caught = damaged(run, lambda config: config.update(format_version=version))
    assert f"format version {version}" in str(caught.value)


def test_truncated_weights_are_refused(run: Path) -> None:
    path = run / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 4, 8, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(bfn.BFNError, match="damaged or truncated"):
            bfn.BFN.from_pretrained(run)


def test_missing_files_and_folders(run: Path, tmp_path: Path) -> None:
    with pytest.raises(bfn.BFNError, match=r"no run folder .*nowhere"):
        bfn.BFN.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(bfn.BFNError, match="no run folder"):
        bfn.BFN.from_pretrained(run / "config.json")
    (run / "model.safetensors").unlink()
    with pytest.raises(bfn.BFNError, match=r"holds no model\.safetensors"):
        bfn.BFN.from_pretrained(run)
    (run / "config.json").unlink()
    with pytest.raises(bfn.BFNError, match=r"holds no config\.json"):
        bfn.BFN.from_pretrained(run)


def test_class_names_are_public_places() -> None:
    assert serialise.class_name(GaussianFlow) == "bfn.flow:GaussianFlow"
    assert serialise.class_name(BinnedHead) == "bfn.output:BinnedHead"
    assert serialise.class_name(bfn.Exponential) == "bfn.schedule:Exponential"
    assert serialise.class_name(Toy) == "support.toys:Toy"
    for cls in (GaussianFlow, BinnedHead, bfn.Exponential, bfn.Bins, Toy):
        assert serialise.find_class(serialise.class_name(cls)) is cls
