"""The recipes of the paper's experiments, and those for data of one's own."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bfn
from bfn import recipe as config
from bfn.cli import main
from bfn.cli import recipes as listing
from bfn.errors import BFNError
from bfn.output import BinnedHead, Bins, PointHead
from bfn.recipe import build, fitted
from bfn.recipe import shipped as recipes
from bfn.runs.folder import RunFolder
from bfn.schedule import Exponential, Quadratic
from support.checkpoints import FAMILY, SHAPES

OPEN = ("images", "text")
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
TABLES = """
10 25 50 100 784 1000 inf
mnist_discrete 95.21 84.40 81.06 79.46 78.02 78.07 77.87 0.46
10 25 50 100 250 500 1000 inf
cifar10_continuous_256bins 6.18 3.65 3.10 2.86 2.73 2.69 2.67 2.66 .001
cifar10_discretized_256bins 3.91 3.16 2.93 2.81 2.73 2.71 2.70 2.68 .003
cifar10_continuous_16bins 1.42 1.11 1.03 .99 .97 .96 .96 .96 .073
cifar10_discretized_16bins 1.16 1.02 .98 .96 .94 .94 .94 .94 .070
10 25 50 100 256 1000 inf
text8_discrete 1.70 1.52 1.47 1.43 1.42 1.41 1.41 .006
"""


def test_every_published_configuration_has_its_recipe() -> None:
    assert set(PAPER) == set(FAMILY)
    assert set(PAPER) | set(OPEN) <= set(recipes.names())


@pytest.mark.parametrize("name", [name for name in recipes.names() if name not in OPEN])
def test_parameters_are_those_of_the_network(name: str) -> None:
    recipe = config.read(name)
    with torch.device("meta"):
        net = build.network(recipe)
    assert recipe.parameters == sum(p.numel() for p in net.parameters())
    if name in PAPER:
        assert recipe.parameters == SHAPES[FAMILY[name]]["parameters"]


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


def test_published_tables() -> None:
    steps: list[str] = []
    seen = []
    for line in TABLES.strip().splitlines():
        first, *rest = line.split()
        if first == "10":
            steps = [first, *rest]
            continue
        recipe = config.read(first)
        published = recipe.published
        assert [str(n) for n in published.steps] == steps
        assert recipe.eval.steps == published.steps
        assert list(published.total) == [float(value) for value in rest[:-1]]
        assert published.reconstruction == float(rest[-1])
        assert published.updates == recipe.train.steps
        assert published.result(math.inf) == published.total[-1]
        assert published.result(10) == published.total[0]
        assert published.result(11) is None
        unit = {"m": "nats per image", "t": "bits per character", "c": "bits per dimension"}
        assert published.unit == unit[first[0]]
        seen.append(first)
    assert set(seen) == set(PAPER)


def test_what_was_published_is_dropped_with_other_data_or_networks() -> None:
    recipe = config.read("mnist_discrete", {"data.dir": "/here", "train.steps": 7})
    assert recipe.parameters == 24_808_961
    assert recipe.published.steps
    again = config.resolve(recipe.document(), {}, name="again")
    assert again.published == recipe.published
    smaller = config.read("mnist_discrete", {"net.width": 64})
    assert smaller.parameters == 0
    assert smaller.published.steps
    assert "parameters" not in smaller.document()
    other = config.read("cifar10_discretized_256bins", {"data.bins": 16})
    assert other.published == config.Published()
    assert "published" not in other.document()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"published": {"steps": [1, 2], "total": [3.0]}}, "1 results for 2 numbers"),
        ({"published": {"unti": "nats"}}, r"unknown key published\.unti.*did you mean.*unit"),
        ({"parameters": "many"}, "parameters = 'many' is not right"),
    ],
)
def test_damaged_published_results(document: dict[str, Any], words: str) -> None:
    with pytest.raises(BFNError, match=words):
        config.resolve(document, {}, name="x")


def test_the_list_needs_no_torch() -> None:
    code = "import sys; from bfn.cli import main; main(['recipes']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *table, last = done.stdout.strip().splitlines()
    assert last == "False"
    for name, parts in {
        "mnist_discrete": "mnist|binary|UNet|24,808,961|beta_1 = 9|512|150,000|77.87",
        "cifar10_discretized_16bins": "discretised, 16 bins|VDMUNet|30,722,584|0.03162|0.94 bits",
    }.items():
        (line,) = [line for line in table if name in line]
        assert [part for part in parts.split("|") if part not in line] == []
    assert all(name in " ".join(table[:3]) for name in listing.COLUMNS)


# Data of one's own.


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "pictures"
    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(40):
        image.fromarray(random.integers(0, 256, (20, 24, 3), np.uint8)).save(folder / f"{i}.png")
    return folder


SMALL_IMAGES = ("--net.width", "8", "--net.groups", "4", "--net.heads", "2", "--net.blocks", "1")


def test_one_line_trains_on_a_folder_of_pictures(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    line = ["train", "images", "--data.path", str(pictures), "--out", str(run)]
    quick = ["--train.steps", "2", "--train.batch", "4", "--data.size", "8", *SMALL_IMAGES]
    assert main([*line, *quick, "--data.colour", "grey", "--data.bins", "16"]) == 0
    recipe = RunFolder(run).recipe()
    assert recipe.net["channels"] == 1
    assert recipe.flow["K"] == 16
    assert recipe.flow["sigma_1"] == bfn.suggest_sigma_1(16)
    model = RunFolder(run).load_model()
    assert model.head == BinnedHead(16)
    capsys.readouterr()
    assert main(["train", "images", "--out", str(run), "--resume", "auto"]) == 0
    said = capsys.readouterr().err
    assert "is finished: step 2" in said
    assert "net.channels" not in said  # filled in from the data is not a difference


def test_one_line_trains_on_a_text(tmp_path: Path) -> None:
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 100)
    small = ["--net.width", "16", "--net.layers", "1", "--net.heads", "2", "--data.length", "16"]
    line = ["train", "text", "--data.path", str(text), "--out", str(run)]
    assert main([*line, *small, "--train.steps", "2", "--train.batch", "4"]) == 0
    recipe = RunFolder(run).recipe()
    assert recipe.flow == {"kind": "discrete", "K": 28, "beta_1": bfn.suggest_beta_1(28)}
    assert (recipe.net["length"], recipe.net["inputs"], recipe.net["outputs"]) == (16, 28, 28)
    assert RunFolder(run).recipe() == fitted.fitted(recipe, build.data(recipe))
    assert main(["eval", str(run), "--steps", "2", "--repeats", "1"]) == 0
    out = tmp_path / "sample.txt"
    assert main(["sample", str(run), "--n", "2", "--steps", "2", "--out", str(out)]) == 0
    assert len(out.read_text().replace("\n", "")) >= 2 * 16 - 2


def test_mistakes_with_data_of_ones_own(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--data.path", str(pictures), "--data.size", "8"]
    for arguments, sentence in (
        ([], "give --data.path"),
        ([*given, "--data.form", "continuous"], "needs data in bins or classes"),
        ([*given, "--flow.K", "suggested"], "flow.K = 'suggested' cannot be suggested"),
    ):
        assert main(["train", "images", "--out", str(tmp_path / "run"), *arguments]) == 2
        assert sentence in capsys.readouterr().err
        assert not (tmp_path / "run").exists()
