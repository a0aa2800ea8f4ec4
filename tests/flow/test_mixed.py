"""Mixed data from end to end: training, evaluation, sampling, infilling, files, mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.cli.app import main
from bfn.data.base import Rows
from bfn.data.formats import MixedFormat
from support.commands import Command
from support.mistakes import assert_refused
from support.toys import generator

VARIABLES = {
    "sex": bfn.Variable("discrete", K=2, head="posterior"),
    "types": bfn.Variable("discrete", (3,), K=4),
    "place": bfn.Variable("continuous", (2, 2), reconstruction=bfn.Bins(16, 0.05)),
    "age": bfn.Variable("discretised", K=8),
}


def data(N: int) -> dict[str, Tensor]:
    """Every variable depends on the first."""
    g = generator(3)
    sex = torch.randint(2, (N,), generator=g)
    types = (sex[:, None] + torch.randint(2, (N, 3), generator=g)) % 4
    place = (0.5 * (2 * sex - 1))[:, None, None] + 0.1 * torch.randn(N, 2, 2, generator=g).float()
    age = bfn.discretise(place[:, 0, 0].clamp(-1, 1), 8)
    return {"sex": sex, "types": types, "place": place.clamp(-1, 1).float(), "age": age.float()}


def untrained(**arguments: Any) -> bfn.BFN:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = bfn.nn.MixedMLP.of(VARIABLES, width=32, layers=1, **arguments).float()
    return bfn.mixed(net, VARIABLES)


SETTINGS: dict[str, Any] = {"steps": 150, "batch": 64, "learning_rate": 5e-3, "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mixed") / "run"
    bfn.train.fit(untrained(), data(512), out=out, display=False, **SETTINGS)
    return out


def test_training_learns_and_is_resumed_exactly(run: Path, tmp_path: Path) -> None:
    model, x = bfn.BFN.from_pretrained(run), data(512)
    assert model.flow == untrained().flow
    measured = [bfn.evaluate.evaluate(m, x, steps=["inf"]) for m in (untrained(), model)]
    assert measured[1].rows[0].total.nats < measured[0].rows[0].total.nats - 5
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls == 100

    half = tmp_path / "half"
    bfn.train.fit(untrained(), x, out=half, display=False, stop=stop, **SETTINGS)
    bfn.train.fit(untrained(), x, out=half, display=False, resume=True, **SETTINGS)
    again = bfn.BFN.from_pretrained(half)
    for name, weight in model.net.state_dict().items():
        assert torch.equal(weight, again.net.state_dict()[name]), name


def test_an_evaluation_has_a_breakdown_by_variable(run: Path) -> None:
    model, x = bfn.BFN.from_pretrained(run), data(100)
    found = bfn.evaluate.evaluate(model, x, steps=[3, "inf"], repeats=2)
    assert list(found.variables) == list(VARIABLES)
    for i, row in enumerate(found.rows):
        parts = [rows[i] for rows in found.variables.values()]
        assert sum(part.total.nats for part in parts) == pytest.approx(row.total.nats)
        assert sum(part.loss.nats for part in parts) == pytest.approx(row.loss.nats)
    assert "types" in repr(found)
    assert (
        found.to_json()["variables"]["age"]["inf"]["nats"] == found.variables["age"][1].total.nats
    )
    assert found.unit == "nats per example"


def test_classes_of_any_integer_type_are_trained_on() -> None:
    x = {name: value.numpy() for name, value in data(8).items()}
    small = {**x, "sex": x["sex"] > 0, "types": x["types"].astype(np.int8)}
    fits = [
        bfn.train.fit(untrained(), given, steps=1, batch=4, device="cpu", display=False)
        for given in (x, small)
    ]
    assert fits[0].history[-1]["loss"] == fits[1].history[-1]["loss"]


def test_the_card_names_the_variables(run: Path, tmp_path: Path) -> None:
    bfn.BFN.from_pretrained(run).save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved/README.md").read_text(encoding="utf-8")
    assert "types of shape (3) with 4 classes, place of shape (2, 2)" in card
    assert "bfn.generate(model, shape=16, steps=100)" in card


def test_conditionals_of_some_values_and_parts_of_others() -> None:
    model, x, sex = untrained(known=True), data(100), torch.arange(200) % 2
    assert torch.equal(bfn.generate(model, 200, 2, known={"sex": sex})["sex"], sex)
    one = bfn.generate(model, 200, 2, known={"place": torch.full((1, 2, 2), 0.5)})
    assert bool((one["place"] == 0.5).all())
    mask = {"sex": torch.tensor(True), "place": torch.tensor([[True, False], [True, False]])}
    plain, given = (
        bfn.evaluate.evaluate(model, x, steps=["inf"], known=known) for known in (None, mask)
    )
    assert given.dimensions == plain.dimensions - 3
    assert given.variables["sex"][0].total.nats == 0.0
    known = {"age": torch.ones(4) > 0}
    few = bfn.loss.n_step(model, data(4), "inf", known=known, by_variable=True)
    assert few[:, 3].abs().max() == 0.0
    refused = [
        (lambda: bfn.generate(model, 2, known={"height": sex}), "variable 'height'"),
        (lambda: bfn.generate(model, 2, known={"sex": sex}), "are 200 examples of"),
        (lambda: bfn.generate(model, 200, known={"sex": 2 + sex}), "contains 3"),
        (lambda: bfn.generate(untrained(), 200, known={"sex": sex}), "MLP, does not take known"),
    ]
    for call, words in refused:
        assert_refused(call, words)


def test_guides_see_a_dict_of_expected_data(run: Path) -> None:
    model = bfn.BFN.from_pretrained(run)

    def towards(x: dict[str, Tensor]) -> Tensor:
        return x["place"].sum((1, 2)) + x["sex"] + x["types"][..., 2].sum(1)

    for through in (True, False):
        guided = bfn.guidance.Guided(model, towards, 4.0, through=through)
        x = bfn.generate(guided, 100, 20, seed=0)
        assert x["sex"].float().mean() > 0.8
        assert x["place"].mean() > 0.3
    by_theta = bfn.guidance.Guided(
        model, lambda theta: theta["place"].V.sum((1, 2)), 0.1, of="theta"
    )
    found, plain = (
        bfn.generate(each, 100, 20, seed=0)["place"].mean() for each in (by_theta, model)
    )
    assert found > plain + 0.2  # four standard errors


def test_the_command_line(run: Path, empty_folder: None) -> None:
    assert main(["sample", str(run), "--n", "3", "--steps", "5", "--out", "x.npz"]) == 0
    x = np.load("x.npz")
    assert {name: x[name].shape for name in x} == {
        "sex": (3,), "types": (3, 3), "place": (3, 2, 2), "age": (3,)
    }  # fmt: skip
    assert x["types"].dtype == np.int64
    np.savez("known.npz", sex=np.array(1), types=np.array([0, 1, 2]))
    np.savez("mask.npz", types=np.array([False, True, False]))
    command = ["infill", str(run), "known.npz", "--mask", "mask.npz", "--n", "4", "--out", "y.npz"]
    assert main(command) == 0
    y = np.load("y.npz")
    assert y["sex"].tolist() == [1] * 4
    assert y["types"][:, [0, 2]].tolist() == [[0, 2]] * 4


def test_files_that_do_not_fit(run: Path, command: Command) -> None:
    np.savez("all.npz", **{name: value[0].numpy() for name, value in data(1).items()})
    np.savez("unknown.npz", height=np.zeros(2))
    np.savez("shape.npz", types=np.zeros(2))
    np.savez("range.npz", types=np.array([0, 9, 0]))
    np.savez("fraction.npz", types=np.array([0, 1.5, 0]))
    np.savez("words.npz", types=np.array(["a", "b", "c"]))
    for line, part in (
        (["sample", str(run), "--out", "x.npy"], "expected a name ending in .npz"),
        (["sample", str(run), "--prefix", "a"], "a model of mixed data"),
        (["infill", str(run), "all.npz"], "leaves nothing to fill in"),
        (["infill", str(run), "unknown.npz"], "the model's variables are sex, types, place, age"),
        (["infill", str(run), "shape.npz"], "has shape (2,); expected (3,)"),
        (["infill", str(run), "range.npz"], "'types': x contains 9"),
        (["infill", str(run), "fraction.npz"], "holds fractions; expected classes, 0 to 3"),
        (["infill", str(run), "words.npz"], "has type <U1; expected real numbers"),
        (["infill", str(run), "all.npz", "--resize"], "a model of mixed data"),
    ):
        assert part in command(*line, code=2)
    assert len(list(Path().iterdir())) == 6


class Wrong(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def forward(self, features: Any, t: Tensor) -> Any:
        return self.result


def cost(result: Any = None, **changes: Any) -> Callable[[], Tensor]:
    """The loss of data with some changes, or of a network that returns `result`."""
    x = {name: value for name, value in {**X, **changes}.items() if value is not None}
    model = untrained() if result is None else bfn.mixed(Wrong(result), VARIABLES)
    return lambda: bfn.loss.continuous_time(model, x)


def infill(**mask: Tensor) -> Callable[[], Any]:
    return lambda: bfn.infill(untrained(), X, mask)


X = data(4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (cost(types=None), "the variable 'types' of the data is missing"),
        (cost(height=X["age"]), "the variable 'height' of the data is unknown"),
        (cost(sex=X["age"]), "in the variable 'sex': x has type"),
        (cost(types=X["types"] + 4), "in the variable 'types': x contains"),
        (cost(place=X["place"][:, 0]), "'place': the shape is (4, 2); expected (B, 2"),
        (cost(age=X["age"] + 0.01), "'age': x contains"),
        (cost(age=X["age"][:2]), "different numbers of examples, [2, 4]"),
        (cost(age=[0.0] * 4), "'age': a list was given"),
        (lambda: bfn.loss.continuous_time(untrained(), X["age"]), "expected a dict of tensors"),
        (cost(torch.zeros(4)), "the network returned a Tensor; expected a dict"),
        (cost({"sex": torch.zeros(4)}), "returned nothing for the variable 'types'"),
        (cost(dict.fromkeys(VARIABLES, X["age"])), "'types': the network returned shape (4,)"),
        (lambda: bfn.infill(untrained(), {}), "no variable was given"),
        (infill(sex=torch.ones(4)), "in the variable 'sex': the mask is torch.float"),
        (infill(sex=torch.ones(3) > 0), "in the variable 'sex': the mask has shape (3,)"),
        (lambda: bfn.generate(untrained(), 0), "the number of examples must be"),
        (lambda: bfn.generate(untrained(), (4, 3)), "shape = (4, 3); the number of examples must"),
        (lambda: bfn.train.fit(untrained(), X["types"], steps=1), "expected a dict of tensors"),
    ],
)  # fmt: skip
def test_mistakes(make: Any, sentence: str) -> None:
    assert_refused(make, sentence)


RECIPE = """
[data]
source = "flow.test_mixed:source"
[flow]
kind = "mixed"
[flow.variables.types]
kind = "discrete"
shape = [3]
K = 4
[flow.variables.age]
kind = "discretised"
K = 8
sigma_1 = 0.05
[net]
class = "bfn.nn:MixedMLP"
inputs = {types = [3, 4], age = []}
outputs = {types = [3, 4], age = [2]}
width = 8
layers = 1
[train]
steps = 2
batch = 4
device = "cpu"
"""


def source() -> Rows:
    """A data set of two variables, as a recipe names it."""
    x = data(16)
    variables = {"types": {"shape": [3], "K": 4}, "age": {"shape": [], "K": None}}
    format = MixedFormat(variables)
    rows = format.encode({name: x[name] for name in variables})
    return Rows("toys", format, {"train": rows, "validation": rows[:4], "test": rows[4:8]})


def test_a_recipe_trains_and_evaluates_mixed_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toys.toml").write_text(RECIPE)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        recipe = bfn.recipe.read(tmp_path / "toys.toml", trust=True)
        fit = bfn.train.run(recipe, tmp_path / "run", display=False)
        assert main(["eval", str(tmp_path / "run"), "--steps", "3", "--trust"]) == 0
    finally:
        torch.set_default_dtype(before)
    parts = {
        "types": bfn.Variable("discrete", (3,), K=4),
        "age": bfn.Variable("discretised", K=8, sigma_1=0.05),
    }
    assert fit.model.flow == bfn.mixed(Wrong(1), parts).flow
    assert "by variable" in capsys.readouterr().out
