"""bfn compress, decompress and inspect, as one types them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import bfn
from bfn.codec import pack
from bfn.codec.archive import Entry
from bfn.codec.chain import Chain
from bfn.codec.coder import Codec
from bfn.codec.stack import damaged
from support import archives, tiny_runs

Run, Command = Callable[[str], Path], Callable[..., str]


@pytest.fixture
def pictures(tmp_path: Path, levels: np.ndarray) -> Path:
    """Ten digits as PNG files, in a folder with a folder in it."""
    for i in range(10):
        place = tmp_path / "pictures" / ("odd" if i % 2 else ".") / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.round(levels[i, 0] * (255 / 16)).astype(np.uint8)).save(place)
    return tmp_path / "pictures"


def pixels(folder: Path) -> dict[str, np.ndarray]:
    found = {}
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as picture:
            found[path.relative_to(folder).as_posix()] = np.asarray(picture)
    return found


SMALL = ("--steps", 2, "--block", 3)


@pytest.fixture
def run(tiny_run: Run) -> Path:
    return tiny_run("discretised")


@pytest.fixture
def packed(run: Path, pictures: Path, command: Command) -> Path:
    """The run that a.bfn, the archive of the pictures, was made with."""
    command("compress", run, pictures, "-o", "a.bfn", *SMALL)
    return run


def test_pictures_in_folders(run: Path, pictures: Path, command: Command) -> None:
    printed = command("compress", run, pictures, "-o", "a.bfn", *SMALL)
    assert "a.bfn: 10 files" in printed
    assert f"bytes become {Path('a.bfn').stat().st_size}," in printed
    assert command("decompress", "a.bfn", "--run", run, "-o", "out") == "out: 10 files\n"
    before, after = pixels(pictures), pixels(Path("out/pictures"))
    assert list(before) == list(after)
    assert "odd/3.png" in after
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert sorted(os.listdir(".")) == ["a.bfn", "out", "pictures"]


@pytest.mark.parametrize("kind", ["discretised", "binary", "continuous", "text"])
def test_files_of_every_kind(
    tiny_run: Run, levels: np.ndarray, command: Command, comes_back: Command, kind: str
) -> None:
    values = levels[:8] if kind != "binary" else (levels[:8] > 8).astype(np.uint8) * 16
    Path("in").mkdir()
    if kind == "text":
        for length in (0, 1, 5, 8, 11, 40, 103):
            text = "".join("the cat sat on a mat "[i * i % 21] for i in range(length))
            Path(f"in/{length}.txt").write_text(text)
    else:
        np.save("in/a.npy", values)
        np.savez("in/b.npz", images=values[:2].astype(">i4"), more=values[2:5, 0])
    unit, short = ("character", "char") if kind == "text" else ("dimension", "dim")
    assert f"bits per {unit} in" in comes_back(tiny_run(kind), "in", options=SMALL)
    assert f"bits/{short}" in command("inspect", "x.bfn")


def test_one_of_many(
    packed: Path, pictures: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file, several, or a folder; only the blocks they lie in are decoded."""
    decoded: list[int] = []
    decode = Codec.decode

    def counting(self: Codec, *arguments: Any) -> Any:
        decoded.extend(arguments[3])
        return decode(self, *arguments)

    monkeypatch.setattr(Codec, "decode", counting)
    two = ["pictures/0.png", "pictures/odd/9.png"]
    for only, names, blocks in (
        (["pictures/odd/"], [f"pictures/odd/{i}.png" for i in (1, 3, 5, 7, 9)], [1, 2, 3]),
        (two, two, [0, 3]),
    ):
        decoded.clear()
        shutil.rmtree("out", ignore_errors=True)
        chosen = [word for name in only for word in ("--only", name)]
        command("decompress", "a.bfn", "--run", packed, "-o", "out", *chosen)
        after = pixels(Path("out"))
        assert sorted(after) == names
        before = pixels(pictures.parent)
        assert all(np.array_equal(after[name], before[name]) for name in names)
        assert decoded == blocks
    for name in ("4.png", "pictures/od"):
        sentence = command(
            "decompress", "a.bfn", "--run", packed, "-o", "new", "--only", name, code=2
        )
        assert f"holds no file {name!r}; it holds 'pictures/0.png'" in sentence
        assert "and 5 more" in sentence


def test_files_that_do_not_fit(run: Path, pictures: Path, command: Command) -> None:
    """They are refused by name and nothing is written, or stored without the model."""
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(pictures / "large.png")
    (pictures / "notes.txt").write_text("about these pictures")
    sentence = command("compress", run, pictures, "-o", "a.bfn", *SMALL, code=2)
    assert "large.png' has 9 x 9 pixels" in sentence
    assert "and 1 other file does not fit" in sentence
    assert os.listdir(".") == ["pictures"]
    command("compress", run, pictures, "-o", "a.bfn", *SMALL, "--allow-fallback")
    command("decompress", "a.bfn", "--run", run, "-o", "out")
    assert len(pixels(Path("out"))) == 11
    for name in ("large.png", "notes.txt"):
        assert (Path("out/pictures") / name).read_bytes() == (pictures / name).read_bytes()
    command("decompress", "a.bfn", "--run", run, "-o", "one", "--only", "pictures/notes.txt")
    assert tiny_runs.contents(Path("one")) == {"pictures/notes.txt": b"about these pictures"}


def test_inspecting(run: Path, pictures: Path, command: Command) -> None:
    (pictures / "odd/note").write_text("about these pictures")
    command(
        "compress", run, pictures, "-o", "a.bfn", "--steps", 2, "--block", 5, "--allow-fallback"
    )
    account = json.loads(command("inspect", "a.bfn", "--json"))
    assert sum(account["parts"].values()) == account["bytes"] == Path("a.bfn").stat().st_size
    assert account["parts"]["with the model"] > 100
    assert 20 < account["parts"]["without the model"] < 40
    assert (account["examples"], account["dimensions"], account["blocks"]) == (10, 64, 2)
    assert (account["run"], account["steps"]) == ("discretised", 2)
    names = [item["name"] for item in account["files"]]
    assert names[:2] == ["pictures/0.png", "pictures/2.png"]
    assert account["files"][-1] == {"name": "pictures/odd/note", "examples": 0, "plain_bytes": 20}
    printed = command("inspect", "a.bfn")
    assert account["fingerprint"] in printed
    assert f"{account['parts']['with the model']:,}" in printed
    assert "pictures/odd/9.png" in printed


def test_names_cannot_control_the_terminal(packed: Path, command: Command) -> None:
    """Control characters in the name of an archive or of a file are escaped."""
    shutil.copy("a.bfn", "\x1b[2J[b].bfn")
    for sentence in (
        command("inspect", "\x1b[2J[b].bfn"),
        command("inspect", "\x1b]0;x\x07\x9b", code=2),
        command("decompress", "a.bfn", "--run", packed, "-o", "out", "--only", "\x1b[2J", code=2),
    ):
        assert "\x1b" not in sentence
        assert "\x9b" not in sentence
        assert r"\x1b" in sentence


def test_long_lists_are_cut(command: Command) -> None:
    """A table of all the files would take minutes."""
    entries = [Entry(f"{i}.txt", "plain", 0, 0, None, 0) for i in range(1234)]
    archives.write(Path("a.bfn"), entries=[*archives.ENTRIES, *entries])
    printed = command("inspect", "a.bfn")
    assert "995.txt" in printed
    assert "996.txt" not in printed
    assert "and 238 more files; --json lists them all" in printed
    assert len(json.loads(command("inspect", "a.bfn", "--json"))["files"]) == 1238


def test_mistakes(run: Path, pictures: Path, command: Command) -> None:
    for sentence, arguments in {
        "has the wrong ending; expected .bfn": ("compress", run, pictures, "-o", "a.zip"),
        "there is no file 'none'": ("compress", run, "none", "-o", "a.bfn"),
        "no run folder": ("compress", "nowhere", pictures, "-o", "a.bfn"),
        "there is no folder": ("compress", run, pictures, "-o", "no/where/a.bfn"),
        "steps = 0": ("compress", run, pictures, "-o", "a.bfn", "--steps", 0),
        "block = 0": ("compress", run, pictures, "-o", "a.bfn", "--block", 0),
        "block = 100000000": ("compress", run, pictures, "-o", "a.bfn", "--block", 10**8),
        "is not available": ("compress", run, pictures, "-o", "a.bfn", "--device", "warp"),
        "'a.bfn' cannot be read": ("decompress", "a.bfn", "--run", run, "-o", "out"),
        "is not a bfn archive": ("inspect", "pictures/0.png"),
    }.items():
        assert sentence in command(*arguments, code=2)
    assert os.listdir(".") == ["pictures"]
    command("compress", run, pictures, "-o", "a.bfn", *SMALL)
    kept = Path("a.bfn").read_bytes()
    assert "--force" in command("compress", run, pictures, "-o", "a.bfn", *SMALL, code=2)
    command("compress", run, pictures, "-o", "a.bfn", *SMALL, "--force")
    assert Path("a.bfn").read_bytes() == kept
    assert "--force" in command("decompress", "a.bfn", "--run", run, "-o", "pictures", code=2)
    assert "is a file" in command("decompress", "a.bfn", "--run", run, "-o", "a.bfn", code=2)


def test_another_model_is_refused(packed: Path, tiny_run: Run, command: Command) -> None:
    sentence = command("decompress", "a.bfn", "--run", tiny_run("binary"), "-o", "out", code=2)
    assert "was made with another model ('discretised'" in sentence
    # One bit of one weight is enough.
    shutil.copytree(packed, "copy", ignore=shutil.ignore_patterns("checkpoints"))
    command("decompress", "a.bfn", "--run", "copy", "-o", "good")
    model = bfn.BFN.from_pretrained("copy")
    weight = next(model.parameters()).data.view(-1)
    weight[0] = torch.nextafter(weight[0], torch.tensor(1.0))
    model.save_pretrained("changed")
    sentence = command("decompress", "a.bfn", "--run", "changed", "-o", "out", code=2)
    assert "was made with another model" in sentence
    assert not Path("out").exists()


def test_another_machine_is_refused(
    run: Path, pictures: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digits of the network decide; where they differ, the error says what else does."""
    command("compress", run, pictures / "0.png", "-o", "a.bfn", *SMALL)
    versions = {"torch": "1.0", "machine": "abacus", "device": "cuda"}
    made_with = pack.made_with
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(pack, "made_with", lambda model: made_with(model) | versions)
        command("decompress", "a.bfn", "--run", run, "-o", "out")
        assert np.array_equal(pixels(Path("out"))["0.png"], pixels(pictures)["0.png"])
        elsewhere.setattr(Codec, "probe", 0)
        sentence = command("decompress", "a.bfn", "--run", run, "-o", "other", code=2)
    assert "on a machine that rounds differently, with torch 2" in sentence
    assert "; this is torch 1.0, machine abacus, device cuda; decode it where" in sentence
    assert "numpy" not in sentence
    monkeypatch.setattr(Codec, "probe", 0)
    sentence = command("decompress", "a.bfn", "--run", run, "-o", "other", code=2)
    assert "rounds differently, although versions agree" in sentence
    assert not Path("other").exists()


def test_other_digits_are_never_written(
    packed: Path, pictures: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the codec makes of the bytes, only what was stored comes out."""
    data = Chain.data

    def one_level_off(self: Chain, k: np.ndarray) -> Any:
        x = data(self, k)
        x[-1, 0, 3, 3] = 1.0 / 17 if x[-1, 0, 3, 3] > 0.5 else 16.0 / 17
        return x

    def no_use(self: Chain, k: np.ndarray) -> Any:
        raise damaged("bits left over")

    for broken in (one_level_off, no_use):
        monkeypatch.setattr(Chain, "data", broken)
        sentence = command("decompress", "a.bfn", "--run", packed, "-o", "out", code=2)
        assert "does not decode to the original" in sentence
        command("compress", packed, pictures, "-o", "b.bfn", *SMALL, code=2)
        assert sorted(os.listdir(".")) == ["a.bfn", "pictures"]


def test_interruption_leaves_nothing(
    packed: Path, pictures: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Codec, *arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Codec, "decode", interrupted)
    command("compress", packed, pictures, "-o", "b.bfn", *SMALL, code=130)
    command("decompress", "a.bfn", "--run", packed, "-o", "out", code=130)
    assert sorted(os.listdir(".")) == ["a.bfn", "pictures"]


def test_restoring_over_files(packed: Path, command: Command) -> None:
    Path("out/pictures").mkdir(parents=True)
    Path("out/pictures/0.png").write_bytes(b"older")
    Path("out/other").write_bytes(b"mine")
    command("decompress", "a.bfn", "--run", packed, "-o", "out", "--force")
    assert Path("out/other").read_bytes() == b"mine"
    assert len(pixels(Path("out"))) == 10
    # A link could lead out of the folder, and a folder is not replaced by a file.
    shutil.rmtree("out/pictures/odd")
    Path("elsewhere").mkdir()
    Path("out/pictures/odd").symlink_to(Path("elsewhere").resolve())
    sentence = command("decompress", "a.bfn", "--run", packed, "-o", "out", "--force", code=2)
    assert "odd' is in the way of a restored file" in sentence
    assert os.listdir("elsewhere") == []
    Path("out/pictures/odd").unlink()
    Path("out/pictures/0.png").unlink()
    Path("out/pictures/0.png").mkdir()
    sentence = command("decompress", "a.bfn", "--run", packed, "-o", "out", "--force", code=2)
    assert "0.png' is in the way of a restored file" in sentence


def test_restoring_into_the_working_directory(
    packed: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By any of its names."""
    archive, here = Path("a.bfn").resolve(), Path("here").resolve()
    for name, place in ((".", here), ("..", here / "deep"), ("here", here.parent)):
        (here / "deep").mkdir(parents=True)
        monkeypatch.chdir(place)
        command("decompress", archive, "--run", packed, "-o", name, "--force")
        assert sorted(os.listdir(here)) == ["deep", "pictures"]
        assert len(pixels(here)) == 10
        monkeypatch.chdir(here.parent)
        shutil.rmtree(here)


def test_pictures_are_resized_on_request(
    run: Path, command: Command, pictures: Path, tmp_path: Path
) -> None:
    """A photograph comes back as the model sees it: its middle, small, grey, in 17 shades."""
    with Image.open(pictures / "0.png") as digit:
        large = digit.resize((80, 80), Image.Resampling.NEAREST).convert("RGB")
        wide = Image.new("RGB", (120, 80), (255, 0, 0))
        wide.paste(large, (20, 0))
    (tmp_path / "large").mkdir()
    wide.save(tmp_path / "large" / "0.png")
    refused = command("compress", run, "large", "--out", "a.bfn", code=2)
    assert "120 x 80 pixels" in refused
    assert "--resize" in refused
    command("compress", run, "large", "--out", "a.bfn", "--resize", "--steps", 3)
    command("decompress", "a.bfn", "--run", run, "--out", "back")
    seen = ImageOps.fit(wide.convert("L"), (8, 8), Image.Resampling.LANCZOS)
    shades = np.round(np.round(np.asarray(seen) * (16 / 255)) * (255 / 16))
    assert (pixels(Path("back"))["large/0.png"] == shades).all()
