"""Saving, naming, uploading and fetching models; a folder stands in for the hub."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import bfn
from bfn import evaluate, saving
from bfn.cli.app import main
from bfn.errors import BFNError
from bfn.recipe import build, read
from bfn.runs.folder import RunFolder
from bfn.saving import Card
from saving.fake_hub import FakeHub
from support import tiny_runs
from support.commands import Command
from support.scripts import load


@pytest.fixture
def model() -> bfn.BFN:
    torch.manual_seed(0)
    net = bfn.nn.UNet(outputs=2, width=8, multipliers=(1, 2), blocks=1, groups=4, heads=2)
    model = bfn.discretised(net, K=17, sigma_1=0.05)
    for parameter in model.parameters():
        parameter.data.add_(0.01 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharing")
    recipe = tiny_runs.read(folder, "discretised", train__steps=2)
    bfn.train.run(recipe, folder / "run", display=False)
    return folder / "run"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake.module())
    monkeypatch.chdir(tmp_path)
    return fake


def same(a: bfn.BFN, b: bfn.BFN) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


# Folders.


def test_the_description_of_the_data_is_kept(run: Path, tmp_path: Path) -> None:
    """A model that was loaded and saved again can still be sampled by the command line."""
    loaded = bfn.BFN.from_pretrained(run)
    assert loaded.data_format == bfn.data.load("digits").format.describe()
    loaded.save_pretrained(tmp_path / "copy")
    assert same(loaded, bfn.BFN.from_pretrained(tmp_path / "copy"))
    assert RunFolder(tmp_path / "copy").format() == bfn.data.load("digits").format
    out = tmp_path / "samples.npy"
    line = ["sample", str(tmp_path / "copy"), "--n", "2", "--steps", "2", "--out", str(out)]
    assert main(line) == 0
    assert np.load(out).shape == (2, 1, 8, 8)


def test_fitted_models_know_their_data(model: bfn.BFN) -> None:
    digits = bfn.data.load("digits")
    fitted = bfn.train.fit(model, digits, steps=1, batch=2, display=False, device="cpu").model
    assert fitted.config()["data"] == digits.format.describe()


def test_smaller_files_come_back_in_the_models_type(model: bfn.BFN, tmp_path: Path) -> None:
    model.double().save_pretrained(tmp_path, store=torch.bfloat16)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    modes = {(tmp_path / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1  # for the same readers
    loaded = bfn.BFN.from_pretrained(tmp_path).state_dict()
    for key, tensor in model.state_dict().items():
        assert loaded[key].dtype == torch.float64
        assert torch.equal(loaded[key], tensor.to(torch.bfloat16).double())
    next(model.parameters()).data.fill_(1e6)
    with pytest.raises(BFNError, match=r"holds numbers beyond torch.float16"):
        model.save_pretrained(tmp_path / "new", store=torch.float16)
    assert not (tmp_path / "new" / "model.safetensors").exists()


# Cards.


def test_the_card_says_what_is_known(model: bfn.BFN, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    parameters = sum(p.numel() for p in model.parameters())
    assert f"of discretised data: a `UNet` of {parameters:,} parameters" in card
    assert "Not stated." in card
    assert "## Losses" not in card
    (tmp_path / "sheet.png").write_bytes(b"picture")
    (tmp_path / "README.md").write_text("my own")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my own"
    given = Card("Title", "Digits.", "[net]\nwidth = 8\n", "| n |", tmp_path / "sheet.png", "a/b")
    model.data_format = bfn.data.load("digits").format.describe()
    model.save_pretrained(tmp_path, card=given)
    card = (tmp_path / "README.md").read_text()
    for part in (
        "# Title", "Digits. An example has the shape (1, 8, 8) and is discretised, K = 17.",
        "```toml\n[net]\nwidth = 8\n```", "| n |", "![drawn by the model](sample.png)",
        'from_pretrained("a/b")', "shape=(16, 1, 8, 8)",
    ):  # fmt: skip
        assert part in card
    assert (tmp_path / "sample.png").read_bytes() == b"picture"


@pytest.mark.parametrize("kind", ["discretised", "text"])
def test_cards_of_runs(kind: str, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    recipe = tiny_runs.read(tmp_path, kind, train__steps=1)
    bfn.train.run(recipe, run, display=False)
    crops = ["--crops", "9"] if kind == "text" else []
    assert "2 samples drawn" in command("card", run, "--n", 2, "--sample-steps", 2, *crops)
    card = (run / "README.md").read_text()
    unit = "bits per character" if kind == "text" else "bits per dimension"
    for part in (
        f"In {unit}", "examples of the validation split, one pass", "| n | L^n | L^r |", "| inf |",
        "The data source is `", "[train]", "steps = 1", f'from_pretrained("{run.name}")',
    ):  # fmt: skip
        assert part in card
    row = json.loads(command("eval", run, "--json", "-", *crops))["rows"][-1]
    bits = [row[name]["bits"] for name in ("loss", "reconstruction", "total")]
    assert f"| inf | {' | '.join(f'{value:.4f}' for value in bits)} | " in card
    shown = (run / "sample.txt").read_text().rstrip() if kind == "text" else "(sample.png)"
    assert shown in card
    assert ("![" in card) == (kind != "text")
    # The code in it is right about the shape.
    start = card.index("shape=(") + len("shape=(")
    shape = eval(f"({card[start : card.index(')', start)]},)")
    assert shape == (16, *build.data(recipe).shape)
    assert "README.md' exists; give --force" in command("card", run, code=2)


def test_cards_do_not_say_where_the_data_are(tmp_path: Path, fake: FakeHub) -> None:
    text, run = tmp_path / "private" / "diary.txt", tmp_path / "run"
    text.parent.mkdir()
    text.write_text("dear diary, nothing happened today. " * 60)
    net = ["--net.width", "8", "--net.layers", "1", "--net.heads", "2", "--data.length", "8"]
    line = ["train", "text", "--data.path", str(text), "--out", str(run), *net]
    assert main([*line, "--train.steps", "1", "--train.batch", "2"]) == 0
    card = ["card", str(run), "--steps", "2", "--repeats", "1", "--n", "1", "--sample-steps", "2"]
    assert main(card) == 0
    assert main(["push", str(run), "me/diary"]) == 0
    shared = fake.root / "me" / "diary"
    for file in shared.iterdir():
        if file.suffix != ".safetensors":
            assert "private" not in file.read_text(), file.name
    # Evaluated elsewhere, the data must be given, and are read from their place there.
    line = ["eval", "me/diary", "--steps", "2", "--repeats", "1"]
    assert main(line) == 2
    assert main([*line, "--data.path", str(text)]) == 0


# Names.


def test_models_are_looked_up_in_order(model: bfn.BFN, tmp_path: Path, empty_folder: None) -> None:
    shipped = Path(bfn.__file__).parent / "pretrained" / "digits"
    assert saving.locate("digits") == shipped
    Path("digits").mkdir()  # a folder without a model does not hide the shipped one
    assert saving.locate("digits") == shipped
    model.save_pretrained("digits")
    assert saving.locate("digits") == Path("digits")
    assert saving.locate(tmp_path / "nowhere" / "else") == tmp_path / "nowhere" / "else"
    with pytest.raises(BFNError, match="no run folder 'digit'; did you mean 'digits'"):
        saving.locate("digit")
    Path("runs").mkdir()
    assert saving.locate("runs/digits") == Path("runs/digits")  # a missing run is not a repository


# The hub.


def test_up_and_down(fake: FakeHub, model: bfn.BFN) -> None:
    model.data_format = bfn.data.load("digits").format.describe()
    address = model.push_to_hub("me/digits", private=True, card=Card("Mine"))
    assert address == "https://hub.example/me/digits"
    there = fake.root / "me" / "digits"
    card = (there / "README.md").read_text()
    assert "# Mine" in card
    assert 'from_pretrained("me/digits")' in card
    loaded = bfn.BFN.from_pretrained("me/digits", revision="v1", token="t")
    assert same(loaded, model)
    assert loaded.data_format == model.data_format
    assert [name for name, _ in fake.calls] == ["create", "upload", "download"]
    assert fake.calls[0][1]["private"] is True
    assert fake.calls[-1][1] == {"repo_id": "me/digits", "revision": "v1", "token": "t"}
    (there / "config.json").write_text("{")
    with pytest.raises(BFNError, match=r"config.json' is damaged"):
        bfn.BFN.from_pretrained("me/digits")


def test_runs_up_and_down(fake: FakeHub, run: Path, command: Command) -> None:
    assert "is at https://hub.example/me/digits" in command("push", run, "me/digits")
    names = sorted(file.name for file in (fake.root / "me" / "digits").iterdir())
    assert names == ["README.md", "config.json", "model.safetensors", "recipe.toml"]
    assert not (run / "README.md").exists()  # the run itself stays as it was
    assert same(bfn.BFN.from_pretrained("me/digits"), bfn.BFN.from_pretrained(run))
    there, here = (
        json.loads(command("eval", place, "--steps", 2, "--json", "-"))
        for place in ("me/digits", run)
    )
    assert there["rows"] == here["rows"]
    command("sample", "me/digits", "--n", 1, "--steps", 2)
    assert Path("digits.png").is_file()


def test_failures_of_the_hub(
    fake: FakeHub, model: bfn.BFN, run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BFNError) as error:
        bfn.BFN.from_pretrained("me/nothing")
    assert "(FileNotFoundError: 404 Client Error.)" in str(error.value)
    assert "\n" not in str(error.value)
    fake.failure = ConnectionError("no route to host")
    with pytest.raises(BFNError, match=r"could not be fetched.*no route to host"):
        bfn.BFN.from_pretrained("me/digits")
    with pytest.raises(BFNError, match=r"could not be uploaded.*no route.*hf auth login"):
        model.push_to_hub("me/digits")
    assert "no route to host" in command("push", run, "me/digits", code=2)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    output = command("sample", "me/digits", code=2)
    assert "no run folder 'me/digits' here" in output
    assert "pip install 'bfn[hub]'" in output
    with pytest.raises(BFNError, match=r"uploading a model needs .*pip install 'bfn\[hub\]'"):
        model.push_to_hub("me/digits")


# The models that are shipped.


FOLDER = Path(bfn.__file__).parent / "pretrained"
NAMES = ["digits", "digits-labelled"]
each = pytest.mark.parametrize("name", NAMES)


@each
def test_it_is_found_by_name(name: str) -> None:
    assert saving.shipped() == NAMES
    assert saving.locate(name) == FOLDER / name
    model = bfn.BFN.from_pretrained(name)
    assert model.dtype == torch.float32
    assert sum(file.stat().st_size for file in FOLDER.rglob("*")) < 5_000_000


@each
def test_it_is_the_recipe_of_that_name(name: str) -> None:
    made = (FOLDER / name / "made.txt").read_text()
    given = {key: float(value) for key, value in re.findall(r"--(net\.\w+) (\S+)", made)}
    shipped, now = RunFolder(FOLDER / name).recipe(), read(name, given)
    assert shipped.data == now.data
    assert shipped.net == now.net
    assert shipped.flow == now.flow
    assert shipped.sample == now.sample
    assert RunFolder(FOLDER / name).format() == bfn.data.load("digits").format
    assert f"bfn train {name}" in made
    assert "bfn card" in made


@each
def test_it_is_as_good_as_its_card_says(name: str) -> None:
    card = (FOLDER / name / "README.md").read_text()
    rows = {row[0]: row for row in re.findall(r"^\| (\w+) \| (.*) \|$", card, re.M)}
    printed = [float(value) for value in rows["inf"][1].split(" | ")]
    digits = build.data(read(name))
    result = evaluate.evaluate(bfn.BFN.from_pretrained(name), digits, steps=["inf"])
    (row,) = result.rows
    total, error = result.bits(row.total.nats), result.bits(row.total.standard_error)
    assert abs(total - printed[2]) < 4 * error
    independent = result.bits(evaluate.independent_entropy(digits))
    assert printed[2] < independent - 0.6  # a model of independent pixels is far worse


def test_labelled_samples_show_the_digit_asked_for() -> None:
    """By a classifier trained on real digits: at least 19 of 20, with and without guidance."""
    example = load("examples/labelled_digits")
    model = bfn.BFN.from_pretrained("digits-labelled")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shares = example.judge(model, guidance=(1.0, 2.0), count=80, calls=8, training=150)
    assert set(shares) == {1.0, 2.0}
    assert min(shares.values()) >= 0.95
