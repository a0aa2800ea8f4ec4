"""The recipes of the paper's experiments, and those for the user's own data."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bfn
from bfn import recipe as config
from bfn.cli.app import main
from bfn.output import BinnedHead, Bins, PointHead
from bfn.recipe import build
from bfn.runs.folder import RunFolder
from bfn.schedule import Exponential, Quadratic
from published.checkpoints import FAMILY, SHAPES
from support.commands import Command

OPEN = ("array", "images", "table", "text")
PAPER = {
    # name: (data type, sigma_1 or beta_1, batch, learning rate, betas, updates, passes or crops,
    #        sampling steps)
    "mnist_discrete": ("discrete", 9.0, 512, 1e-4, (0.9, 0.98), 150_000, 2000, 100),
    "cifar10_continuous_256bins": (
        "continuous", 1e-3, 128, 2e-4, (0.9, 0.99), 5_000_000, 100, 4000,
    ),
    "cifar10_discretized_256bins": (
        "discretised", 1e-3, 128, 2e-4, (0.9, 0.99), 5_000_000, 100, 4000,
    ),
    "cifar10_continuous_16bins": (
        "continuous", math.sqrt(1e-3), 128, 2e-4, (0.9, 0.99), 250_000, 100, 4000,
    ),
    "cifar10_discretized_16bins": (
        "discretised", math.sqrt(1e-3), 128, 2e-4, (0.9, 0.99), 1_000_000, 100, 4000,
    ),
    "text8_discrete": ("discrete", 0.5625, 3328, 1e-4, (0.9, 0.98), 1_200_000, 1_000_000, 1000),
}  # fmt: skip
EVALUATED = {
    "mnist": (10, 25, 50, 100, 784, 1000, "inf"),
    "cifar10": (10, 25, 50, 100, 250, 500, 1000, "inf"),
    "text8": (10, 25, 50, 100, 256, 1000, "inf"),
}


@pytest.mark.parametrize("name", PAPER)
def test_parameters_are_the_published_ones(name: str) -> None:
    with torch.device("meta"):
        net = build.network(config.read(name))
    assert sum(p.numel() for p in net.parameters()) == SHAPES[FAMILY[name]]["parameters"]


@pytest.mark.parametrize("name", PAPER)
def test_values(name: str) -> None:
    kind, end, batch, rate, betas, updates, passes, steps = PAPER[name]
    recipe = config.read(name)
    assert recipe.flow["kind"] == kind
    train, sample = recipe.train, recipe.sample
    assert (train.batch, train.learning_rate, train.betas) == (batch, rate, betas)
    assert (train.steps, train.weight_decay, train.clip) == (updates, 0.01, 5.0)
    assert (train.ema_decay, train.warmup, train.decay) == (0.9999, 0, 0.0)
    assert train.loss_steps == "inf"
    assert recipe.eval.steps == EVALUATED[name.partition("_")[0]]
    assert (recipe.eval.crops or recipe.eval.repeats) == passes
    assert sample.steps == steps
    with torch.device("meta"):
        schedule = build.model(recipe).flow.schedule
    if kind == "discrete":
        assert schedule == Quadratic(end)
    else:
        assert isinstance(schedule, Exponential)
        assert schedule.sigma_1 == pytest.approx(end, rel=1e-12)


@pytest.mark.parametrize("K", [16, 256])
def test_cifar_heads(K: int) -> None:
    """The published bounds, and the deviation that continuous networks are measured with."""
    with torch.device("meta"):
        binned = build.model(config.read(f"cifar10_discretized_{K}bins")).head
        point = build.model(config.read(f"cifar10_continuous_{K}bins")).head
    assert binned == BinnedHead(K, 1e-6, (-10.0, 10.0), (1e-3, 10.0))
    sigma = 1e-3 if K == 256 else 0.7 * math.sqrt(1e-3)
    assert isinstance(point, PointHead)
    assert isinstance(point.reconstruction, Bins)
    assert (point.t_min, point.x_min, point.x_max) == (1e-6, -1.0, 1.0)
    assert point.reconstruction.K == K
    assert point.reconstruction.sigma == pytest.approx(sigma, rel=1e-12)
    for loss in ("continuous", "discretized"):
        recipe = config.read(f"cifar10_{loss}_{K}bins")
        assert recipe.data == {"source": "cifar10", "form": "discretised", "bins": K}


def test_pictures_and_texts_fill_in_the_recipe(command: Command) -> None:
    random = np.random.default_rng(0)
    Path("pictures").mkdir()
    for i in range(40):
        values = random.integers(0, 256, (20, 24, 3), np.uint8)
        Image.fromarray(values).save(f"pictures/{i}.png")
    given = ["train", "images", "--out", "a", "--data.path", "pictures", "--data.size", "8"]
    for arguments, sentence in (
        (given[:4], "give --data.path"),
        ([*given, "--data.form", "continuous"], "needs data in bins or classes"),
        ([*given, "--flow.K", "suggested"], "flow.K = 'suggested' is not possible here"),
    ):
        assert sentence in command(*arguments, code=2)
        assert not Path("a").exists()
    small = ["--net.width", "8", "--net.heads", "2", "--train.steps", "2", "--train.batch", "4"]
    image = ["--net.groups", "4", "--net.blocks", "1", "--data.colour", "grey", "--data.bins", "16"]
    assert main([*given, *small, *image]) == 0
    recipe = RunFolder("a").recipe()
    assert (recipe.net["channels"], recipe.flow["K"]) == (1, 16)
    assert recipe.flow["sigma_1"] == bfn.suggest_sigma_1(16)
    assert RunFolder("a").load_model().head == BinnedHead(16)
    command("train", "images", "--out", "a", "--resume")
    assert "is finished: step 2" in command.err
    assert "net.channels" not in command.err  # filled in from the data is not a difference
    Path("20,24").write_text("the quick brown fox jumps over the lazy dog\n" * 100)
    text = ["train", "text", "--out", "b", "--data.path", "20,24", "--data.length", "16"]
    alphabet = "\n ,abcdefghijklmnopqrstuvwxyz"  # neither this nor the name is a list
    text += ["--data.alphabet", alphabet, "--net.layers", "1"]
    for again in ([], ["--resume"]):
        assert main([*text, *small, *again]) == 0
    recipe = RunFolder("b").recipe()
    assert (recipe.data["path"], recipe.data["alphabet"]) == (
        str(Path("20,24").resolve()),
        alphabet,
    )
    posterior = {"head": "posterior", "inputs": "posterior"}
    flow = {"kind": "discrete", "K": 29, "beta_1": bfn.suggest_beta_1(29), **posterior}
    assert recipe.flow == flow
    assert (recipe.net["length"], recipe.net["inputs"], recipe.net["outputs"]) == (16, 58, 29)
    assert recipe == build.fitted(recipe, build.data(recipe))
    assert main(["train", "text", "--out", "c", *text[4:], *small, "--flow.inputs", "theta"]) == 0
    assert RunFolder("c").recipe().net["inputs"] == 29


def array(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = np.random.default_rng(0).random((40, *shape))
    if dtype == "bool":
        return values < 0.5
    return (values * (1 if dtype[0] == "f" else 6)).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "network", "kind", "medium"),
    [
        ((), "f8", "MLP", "continuous", "array"),
        ((5,), "f4", "MLP", "continuous", "array"),
        ((5,), "bool", "MLP", "discrete", "array"),
        ((5,), "i8", "Transformer", "discrete", "array"),
        ((6, 2), "f2", "Transformer", "continuous", "array"),
        ((6, 1), "i4", "Transformer", "discrete", "array"),
        ((7, 9), "u1", "UNet", "discretised", "image"),
        ((8, 8, 3), "u1", "UNet", "discretised", "image"),
        ((3, 12, 8), ">f4", "UNet", "continuous", "image"),
        ((5, 8, 8), "f8", "UNet", "continuous", "array"),
        ((5, 8, 8), "u2", "UNet", "discrete", "array"),
    ],
)
def test_an_array_s_shape_and_type_choose_network_and_flow(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, network: str, kind: str, medium: str
) -> None:
    np.save(tmp_path / "x.npy", array(shape, dtype))
    small = {"net.width": 32} | ({} if network == "UNet" else {"net.layers": 1})
    recipe = config.read("array", {"data.path": str(tmp_path / "x.npy"), **small})
    data = build.data(recipe)
    complete = build.fitted(recipe, data)
    assert (complete.net["class"], complete.flow["kind"]) == (f"bfn.nn:{network}", kind)
    assert (complete.net["width"], data.medium) == (32, medium)
    model, again = build.model(complete), build.data(complete)
    assert again.digest() == data.digest()
    x, _ = data.batch("train", data.indices(0, 0, 4))
    nats = bfn.loss.continuous_time(model, x) + bfn.loss.reconstruction(model, x)
    assert bool((nats > 0).all() & torch.isfinite(nats).all())
    # The recipe of a run chooses nothing again, whatever the greatest value.
    values = array(shape, dtype)
    np.save(tmp_path / "x.npy", np.minimum(values, np.sort(values.flatten())[values.size // 2]))
    assert build.data(complete).format == data.format


def test_a_suggested_network_fits_the_numbers_that_it_sees(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array((5,), "i8"))
    given = {"data.path": str(tmp_path / "x.npy"), "flow.inputs": "posterior", "net.layers": 1}
    recipe = config.read("array", given)
    data = build.data(recipe)
    complete = build.fitted(recipe, data)
    assert complete.net["inputs"] == 2 * data.K
    x, _ = data.batch("train", data.indices(0, 0, 4))
    assert bool((bfn.loss.continuous_time(build.model(complete), x) > 0).all())


def test_a_table_from_file_to_samples(command: Command) -> None:
    random = np.random.default_rng(0)
    table = random.normal(size=(60, 3)) * [1, 1000, 0] + [0, 1e6, 7]
    np.save("table.npy", table)
    tiny = ["--net.width", "8", "--net.layers", "1", "--train.steps", "2", "--train.batch", "4"]
    tiny += ["--flow.sigma_1", "0.02"]
    assert main(["train", "array", "--data.path", "table.npy", "--out", "a", *tiny]) == 0
    recipe = RunFolder("a").recipe()
    train = build.data(recipe).split("train").numpy()
    assert recipe.flow["reconstruction"] == {"class": "bfn:Bins", "K": 256, "sigma": 0.02}
    assert recipe.data["low"] == train.min(0).tolist()
    assert recipe.data["high"] == train.max(0).tolist()
    command("train", "array", "--out", "a", "--resume")
    assert not [word for word in ("data.", "net.", "flow.") if word in command.err]
    # Other data are read with the run's range, and what lies beyond it is moved to its end.
    np.save("more.npy", np.concatenate([table, table[:2] * [10, 1, 1]]))
    assert main(["eval", "a", "--data.path", "more.npy", "--steps", "2", "--split", "train"]) == 0
    assert main(["sample", "a", "--n", "9", "--steps", "2", "--out", "samples.npy"]) == 0
    samples = np.load("samples.npy")
    slack = 1e-6 * abs(train).max(0)
    assert ((samples >= train.min(0) - slack) & (samples <= train.max(0) + slack)).all()
    assert (samples[:, 2] == 7).all()
    np.save("known.npy", np.array([np.nan, 1e6, 7]))
    np.save("mask.npy", np.array([True, False, False]))
    given = ["known.npy", "--mask", "mask.npy", "--n", "4", "--steps", "2", "--out", "filled.npy"]
    assert main(["infill", "a", *given]) == 0
    assert np.allclose(np.load("filled.npy")[:, 1:], [1e6, 7], rtol=1e-6)
