"""A model on disk: what comes back, and what is refused."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import bfn
from bfn.data.formats import MixedFormat
from bfn.errors import BFNError
from bfn.flow import GaussianFlow
from bfn.output import FreeBinnedHead
from bfn.recipe import Sample
from bfn.runs.folder import RunFolder
from bfn.sampling.batches import sample_as
from support.mistakes import assert_refused
from support.toys import KINDS, Linear, Toy, data, generator, model


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
    ("discretised", {"sigma_1": None, "schedule": "quadratic"}),
    ("discrete", {"beta_1": 0.5, "schedule": "logarithmic"}),
    ("binary", {"beta_1": None, "schedule": bfn.Windowed(bfn.Logarithmic(2, 4.0), 0.2, 1.0)}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_round_trip(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    saved = model(kind, seed=5, dropout=0.2, **options)
    for parameter in saved.parameters():  # not the values a new network would start with
        parameter.data.mul_(1.1)
    saved.save_pretrained(tmp_path / "run")
    loaded = bfn.BFN.from_pretrained(tmp_path / "run", trust=True)
    assert loaded.flow == saved.flow
    assert loaded.head == saved.head
    assert not any(module.training for module in loaded.modules())
    x = data(kind, (3, 4))
    for a, b in zip(outputs(saved.eval(), x), outputs(loaded, x), strict=True):
        assert torch.equal(a, b)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "model.safetensors"} <= names
    assert not {name for name in names if name.endswith(".part")}


def test_a_users_own_parts_come_back(tmp_path: Path) -> None:
    """In float64, with a head and a schedule that no factory makes."""
    flow = GaussianFlow(Linear(3.0))
    saved = bfn.BFN(Toy(6).double(), flow, FreeBinnedHead(6, t_min=0.01))
    saved.save_pretrained(str(tmp_path))  # a folder may be a string, and may exist
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["flow"]["class"] == "bfn.flow:GaussianFlow"  # where users import it from
    schedule = config["flow"]["arguments"]["schedule"]
    assert schedule["class"] == "support.toys:Linear"
    loaded = bfn.BFN.from_pretrained(str(tmp_path), trust=True)
    assert (loaded.flow, loaded.head, loaded.dtype) == (flow, saved.head, torch.float64)
    forgetful = bfn.continuous(nn.Identity(), 0.1)
    save = forgetful.save_pretrained
    assert_refused(lambda: save(tmp_path), "Identity cannot be saved", "self.arguments")
    for store in (torch.int8, "float16"):
        given = functools.partial(saved.save_pretrained, tmp_path, store=store)  # pyright: ignore
        assert_refused(given, f"store = {store!r}; expected torch.float16, ")


def test_only_a_saved_model_is_replaced(tmp_path: Path) -> None:
    """Neither the model of a run, whose record stays behind, nor files of anything else."""
    saved, run, other = model("continuous"), tmp_path / "run", tmp_path / "other"
    bfn.train.fit(saved, data("continuous", (8, 4)), steps=1, batch=4, out=run, display=False)
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "bert"}')
    before = (run / "config.json").read_bytes()
    assert_refused(lambda: saved.save_pretrained(run), "holds a training run", "another folder")
    assert_refused(lambda: saved.save_pretrained(other), "holds other files", "another folder")
    assert_refused(lambda: saved.save_pretrained(tmp_path), "holds other files", "another folder")
    assert (run / "config.json").read_bytes() == before
    assert [path.name for path in other.iterdir()] == ["config.json"]
    (tmp_path / "new" / ".git").mkdir(parents=True)
    (tmp_path / "new" / "README.md").write_text("as a new repository has it")
    for _ in range(2):
        saved.save_pretrained(tmp_path / "new")
        (tmp_path / "new" / "notes.txt").write_text("mine")


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
    loaded = bfn.BFN.from_pretrained(tmp_path, trust=True)
    assert isinstance(loaded.net, Tied)
    assert loaded.net.a.weight is loaded.net.b.weight
    assert torch.equal(loaded.net.a.weight, saved.net.a.weight)


def script_network(scale: float) -> Tied:
    """A network whose class was defined in the running script."""

    class Own(Tied):
        pass

    Own.__module__, Own.__qualname__ = "__main__", "Own"
    net = Own()
    net.a.weight.data.mul_(scale)
    return net


def test_a_network_of_a_script_is_loaded_with_net(tmp_path: Path) -> None:
    trained = script_network(2.0)
    saved = bfn.continuous(trained, 0.1)
    with pytest.warns(UserWarning, match=r"load this model with .* net=Own\(...\)"):
        saved.save_pretrained(tmp_path)
    net = script_network(1.0)
    loaded = bfn.BFN.from_pretrained(tmp_path, net=net)
    assert loaded.net is net
    assert not net.training
    assert torch.equal(net.a.weight, trained.a.weight)
    assert loaded.flow == saved.flow

    def load(net: Any = None) -> None:
        bfn.BFN.from_pretrained(tmp_path, net=net)

    assert_refused(load, "'Own' was defined in a script", "net=Own(...)")
    assert_refused(lambda: load(Tied), "expected a network, as in net=MyNet")
    small, more = script_network(1.0), script_network(1.0)
    small.a = nn.Linear(2, 3)
    more.c = nn.Linear(3, 3)
    shape = "a.weight has shape (3, 3), in the network (3, 2)"
    assert_refused(lambda: load(small), "do not fit the network Own", shape)
    assert_refused(lambda: load(more), "do not fit the network Own: they lack c.weight")
    assert_refused(lambda: load(nn.Linear(3, 3)), "they lack weight")
    assert_refused(lambda: load(nn.Identity()), "the network has no a.bias")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    model("discretised").save_pretrained(tmp_path)
    return tmp_path


def refused(run: Path, change: Any, *words: str) -> None:
    """A model whose config.json was changed is not loaded, however much it is trusted."""
    path = run / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    assert_refused(lambda: bfn.BFN.from_pretrained(run, trust=True), *words)


FOREIGN = ["os:system", "subprocess:Popen", "no_such_package:Net", "support.toys", "", ".x:Y", 7]
OTHERS = {"net": "bfn.flow:GaussianFlow", "flow": "bfn.output:BinnedHead", "head": "bfn.nn:UNet"}


@pytest.mark.parametrize("part", OTHERS)
def test_foreign_classes_are_refused(run: Path, part: str) -> None:
    for name in (*FOREIGN, OTHERS[part]):
        refused(run, lambda config, name=name: config[part].update({"class": name}), repr(name))


@dataclass
class Innocent:
    """A dataclass, and importable, but not part of a flow."""


@pytest.mark.parametrize("name", ["os:system", f"{__name__}:Innocent", "fractions:Fraction"])
def test_foreign_parts_of_a_flow_are_refused(run: Path, name: str) -> None:
    """The schedule inside the flow is as guarded as the flow itself."""
    schedule = {"class": name, "arguments": {}}
    refused(run, lambda config: config["flow"]["arguments"].update(schedule=schedule), name)


def sigma_1(value: Any) -> Any:
    return lambda c: c["flow"]["arguments"]["schedule"]["arguments"].update(sigma_1=value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["flow"].pop("class"), "does not describe a part of a model"),
        (lambda c: c["flow"].pop("arguments"), "does not describe a part of a model"),
        (lambda c: c.update(net="a string"), "'a string' does not describe a part of a model"),
        (lambda c: c["head"]["arguments"].update(nonsense=1), "BinnedHead does not take these"),
        (lambda c: c["head"]["arguments"].update(K=0), "K = 0 bins; discretised data have"),
        (lambda c: c["flow"]["arguments"].pop("schedule"), "missing 1 required positional"),
        (sigma_1("a"), "sigma_1 = 'a' is not valid; expected a number"),
        (sigma_1(-1), "sigma_1 = -1.0 is not strictly between 0 and 1"),
        (lambda c: c["net"]["arguments"].update(nonsense=1), "Toy does not take these arguments"),
        (lambda c: c["net"]["arguments"].update(P=5), "do not fit the network Toy: last has shape"),
        (lambda c: c.pop("head"), "config.json' is damaged ('head')"),
        (lambda c: c.pop("format_version"), "config.json' is damaged ('format_version')"),
        (lambda c: c.update(format_version=[1]), "has format [1], this version of bfn reads 1"),
    ],
)
def test_damaged_configurations_are_refused(run: Path, change: Any, words: str) -> None:
    refused(run, change, words)


def test_another_format_is_refused(run: Path) -> None:
    words = "config.json' has format 2, this version of bfn reads 1; read it with the bfn that"
    refused(run, lambda config: config.update(format_version=2), words)


def test_other_weights_are_refused(run: Path) -> None:
    """A checksum guards the file; folders that were saved without one still load."""
    path, config = run / "model.safetensors", run / "config.json"
    tensors = load_file(path)
    name = next(iter(tensors))
    load = functools.partial(bfn.BFN.from_pretrained, run, trust=True)
    tensors[name].view(torch.uint8).view(-1)[0] ^= 1
    save_file(tensors, path)
    assert_refused(load, "its SHA-256 is not the one in config.json")
    old = json.loads(config.read_text())
    del old["sha256"]
    config.write_text(json.dumps(old))
    assert torch.equal(load().net.state_dict()[name], tensors[name])
    for other, words in (
        (torch.int32, f"{name} has type torch.int32, in the network torch.float32; restore"),
        (torch.bool, f"{name} has type torch.bool"),
        (torch.float8_e4m3fn, "of type torch.float8_e4m3fn; expected float16"),
    ):
        save_file({**tensors, name: tensors[name].to(other)}, path)
        assert_refused(load, words)
    save_file(tensors, path)
    for dtype in ("int64", "nn", 7, [], {}):
        refused(run, lambda config, dtype=dtype: config.update(dtype=dtype), "dtype = ")


def test_truncated_and_missing_files_are_refused(run: Path) -> None:
    weights, config = run / "model.safetensors", run / "config.json"
    whole = weights.read_bytes()
    for size in (0, 4, 8, 60, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:size])
        assert_refused(lambda: bfn.BFN.from_pretrained(run, trust=True), "damaged or truncated")
    for folder in (run / "nowhere", config):
        assert_refused(lambda f=folder: bfn.BFN.from_pretrained(f), "no run folder", folder.name)
    weights.unlink()
    assert_refused(lambda: bfn.BFN.from_pretrained(run, trust=True), "holds no model.safetensors")
    for text in ("", "{", "[]", "null", "\x00\xff"):
        config.write_text(text)
        assert_refused(
            lambda: bfn.BFN.from_pretrained(run, trust=True), "config.json", "is damaged"
        )
    config.unlink()
    assert_refused(lambda: bfn.BFN.from_pretrained(run, trust=True), "holds no config.json")


VALUES = [None, "bfn.card:Card", -1, 1e308, 10**9, 10**30, 10**400, {}]


def mutations(config: Any) -> Iterator[Any]:
    """The config with one value replaced, left out or added, anywhere in it."""
    items = list(config.items() if isinstance(config, dict) else enumerate(config))
    for key, value in items:
        others = [*VALUES, *(mutations(value) if isinstance(value, dict | list) else ())]
        for other in others:
            yield copy(config, {key: other})
        yield copy(config, {}, without=key)
    if isinstance(config, dict):
        yield {**config, "extra": 1}


def copy(config: Any, change: dict[Any, Any], without: Any = None) -> Any:
    if isinstance(config, dict):
        return {key: v for key, v in {**config, **change}.items() if key != without}
    return [change.get(key, v) for key, v in enumerate(config) if key != without]


def digits() -> bfn.BFN:
    net = bfn.nn.UNet(outputs=2, width=4, multipliers=(1,), blocks=1, groups=2, heads=1)
    model = bfn.discretised(net, 17, 0.05)
    model.data_format = bfn.data.load("digits").format.describe()
    return model


def manual() -> bfn.BFN:
    model = bfn.discrete(bfn.nn.Transformer(64, width=4, layers=1, heads=1), 27, 0.75)
    model.data_format = bfn.data.load("manual").format.describe()
    return model


def mixed() -> bfn.BFN:
    variables = {
        "colour": bfn.Variable("discrete", (2,), K=3, head="posterior"),
        "size": bfn.Variable("continuous", (1, 2), reconstruction=bfn.Bins(8, 0.1)),
    }
    model = bfn.mixed(bfn.nn.MixedMLP.of(variables, width=4, layers=1), variables)
    model.data_format = MixedFormat(model.flow.variables).describe()
    return model


@pytest.mark.parametrize("build", [digits, manual, mixed])
def test_every_value_of_a_configuration_may_be_wrong(
    build: Callable[[], bfn.BFN], tmp_path: Path
) -> None:
    """The model still loads and generates, or one sentence says that it does not."""
    build().save_pretrained(tmp_path)
    folder, path = RunFolder(tmp_path), tmp_path / "config.json"
    refused = 0
    for config in mutations(json.loads(path.read_text())):
        path.write_text(json.dumps(config))
        try:
            model, format = folder.load_model(), folder.format()
            format.render(sample_as(model, format.shape, Sample(n=1, steps=1)))
        except BFNError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{config} gives {type(error).__name__}") from error
    assert refused > 200
