"""Files name code; it runs only if the user says so, wherever the files came from.

helper.py in the current folder is a trap: importing it leaves a file.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bfn
from bfn.cli.app import main
from bfn.saving import CONFIG, WEIGHTS
from saving.fake_hub import FakeHub
from support import processes, tiny_runs

HELPER = """
import pathlib, torch, bfn
pathlib.Path("trap").touch()
Net, source, kind = bfn.nn.UNet, bfn.data.known.digits, bfn.discretised
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trust")
    tiny_runs.run(tiny_runs.read(folder, train__steps=1), folder / "run")
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, as a colleague might send it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    Path("helper.py").write_text(HELPER)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("picture.png")
    return Path(shutil.copytree(trained, "sent"))


def edit(path: Path, *pairs: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


NAMES: dict[str, tuple[str, str, str]] = {
    "network": ("config.json", '"bfn.nn:UNet"', '"helper:Net"'),
    "flow": ("config.json", '"bfn.flow:GaussianFlow"', '"helper:Net"'),
    "head": ("config.json", '"bfn.output:BinnedHead"', '"helper:Net"'),
    "schedule": ("config.json", '"bfn.schedule:Exponential"', '"helper:Net"'),
    "form": ("config.json", '"name": "discretised"', '"name": "helper:Net"'),
    "source": ("recipe.toml", 'source = "digits"', 'source = "helper:source"'),
    "command": (
        "recipe.toml",
        'source = "digits"',
        'source = "subprocess:check_output"\nargs = ["touch", "trap"]',
    ),
    "our function": (
        "recipe.toml",
        'source = "digits"',
        'source = "bfn.files:replacing"\npath = "trap"',
    ),
    "kind": ("recipe.toml", 'kind = "discretised"', 'kind = "helper:kind"'),
    "part": ("recipe.toml", "sigma_1 = 0.05", 'part = { class = "helper:Net" }\nsigma_1 = 0.05'),
    "recipe's network": ("recipe.toml", '"bfn.nn:UNet"', '"helper:Net"'),
}
READ_MODEL = ("eval", "sample", "infill", "compress", "figures", "solvers", "card", "push")
READ_FORMAT = ("sample", "infill", "compress", "card")
READ_RECIPE = ("eval", "figures", "solvers", "card", "train", "resume")


def command(name: str, run: Path) -> list[str]:
    rest = {
        "eval": ["--steps", "2"],
        "sample": ["--n", "1", "--steps", "2", "--out", "x.npy"],
        "infill": ["picture.png", "--mask", "picture.png"],
        "compress": ["picture.png", "-o", "x.bfn"],
        "push": ["me/it"],
    }
    if name == "train":
        return ["train", str(run / "recipe.toml")]
    if name == "resume":
        return ["train", "tiny-discretised.toml", "--resume", "--out", str(run)]
    return [name, str(run), *rest.get(name, [])]


@pytest.mark.parametrize("what", NAMES)
@pytest.mark.parametrize("where", ["here", "on the hub"])
def test_named_code_does_not_run(
    what: str,
    where: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is written, either; and what is not weights, text or a picture is not fetched."""
    file, old, new = NAMES[what]
    edit(run / file, (old, new))
    tiny_runs.write(Path())
    name = next(part for part in new.split('"') if ":" in part and " " not in part)
    readers = READ_MODEL if file == "config.json" else READ_RECIPE
    readers = READ_FORMAT if what == "form" else readers
    if where == "on the hub":
        hub = FakeHub(Path("hub"))
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub.module())
        for other in ("helper.py", "bfn.py", "__init__.py", "model.pkl"):
            (run / other).write_text(HELPER)
        shutil.copytree(run, hub.root / "them" / "model")
        run, readers = Path("them/model"), readers[:2]
    before = set(Path().rglob("*"))
    for each in readers:
        assert main(command(each, run)) == 2, each
        error = capsys.readouterr().err
        reason = "not a data source or flow of bfn" if name.startswith("bfn") else "not part of bfn"
        sentence = f"{name!r} is {reason} and could run any code; if you trust its author"
        assert sentence in error, each
        assert "--trust" in error
    cache = Path("hub/cache")
    after = {path for path in Path().rglob("*") if cache not in (path, *path.parents)}
    assert after == before
    assert "helper" not in sys.modules
    assert str(Path.cwd()) not in sys.path
    fetched = {path.name for path in cache.rglob("*") if path.is_file()}
    assert fetched == (set() if where == "here" else {CONFIG, WEIGHTS, "recipe.toml"})


def test_trusted_code_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(run / "config.json", NAMES["network"][1:])
    edit(run / "recipe.toml", NAMES["source"][1:])
    assert main([*command("eval", run), "--trust"]) == 0
    assert Path("trap").exists()
    assert isinstance(bfn.BFN.from_pretrained(run, trust=True).net, bfn.nn.UNet)
    with pytest.raises(bfn.BFNError, match="'helper:Net' is not part of bfn"):
        bfn.BFN.from_pretrained(run)
    # The weights of a foreign model are numbers: starting from them runs nothing.
    recipe = tiny_runs.write(Path())
    assert main(["train", str(recipe), "--init", str(run), "--train.steps", "1"]) == 0


def test_what_needs_no_code_needs_no_trust(run: Path) -> None:
    """A run with foreign data but a shipped network can be sampled."""
    edit(run / "recipe.toml", NAMES["source"][1:])
    assert main(command("sample", run)) == 0
    assert not Path("trap").exists()


def test_a_recipe_in_the_current_folder_is_the_users_own(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tiny_runs.write(Path()).rename("own.toml")
    edit(own, NAMES["recipe's network"][1:])
    line = ["--out", "mine", "--train.steps"]
    assert main(["train", "own.toml", *line, "1"]) == 0
    assert Path("trap").exists()
    assert main(["train", "own.toml", *line, "2", "--resume"]) == 0
    # The same run with another name in it is no longer the user's own.
    edit(Path("mine/recipe.toml"), ('"helper:Net"', '"other:Net"'))
    assert main(["train", "own.toml", *line, "3", "--resume"]) == 2
    assert "'other:Net' is not part of bfn" in capsys.readouterr().err
    Path("sub").mkdir()
    shutil.copy("own.toml", "sub/own.toml")
    assert main(["train", "sub/own.toml", "--out", "b"]) == 2
    # What is typed is the user's own, too, whatever the recipe.
    typed = ["--net.class", "helper:Net", "--net.outputs", "2", "--net.width", "8"]
    typed += ["--net.groups", "4", "--net.heads", "2", "--train.steps", "1"]
    assert main(["train", "digits", *typed, "--out", "c"]) == 0


def test_forms_and_sources_in_python(run: Path) -> None:
    with pytest.raises(bfn.BFNError, match="'helper:Net' is not part of bfn"):
        bfn.data.read_format({"medium": "array", "shape": [1], "form": {"name": "helper:Net"}})
    assert not Path("trap").exists()
    assert bfn.data.load("helper:source").name == "digits"  # the user's own words


def test_the_current_folder_is_not_on_the_path(run: Path) -> None:
    """Not even for `python -m bfn`, which Python puts there."""
    Path("huggingface_hub.py").write_text("import pathlib; pathlib.Path('trap').touch()")
    process = processes.start("sample", "me/it")
    code, _, output = processes.finish(process)
    assert code == 2
    assert "me/it" in output
    assert not Path("trap").exists()
