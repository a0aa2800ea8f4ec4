"""A user's own pictures, texts and arrays."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bfn
from bfn import data
from bfn.data import base, reading
from bfn.data.base import SPLITS, hold_out
from support.mistakes import assert_refused


def pixels(seed: int, height: int = 6, width: int = 8, channels: int = 3) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, channels))
    return values.astype(np.uint8)


def packed(values: np.ndarray, kind: str = "png") -> bytes:
    file = io.BytesIO()
    Image.fromarray(values.squeeze()).save(file, kind, lossless=True)
    return file.getvalue()


def write(folder: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


# Pictures.


@pytest.mark.parametrize(("zipped", "colour"), [(True, "rgb"), (False, "grey")])
def test_pictures_come_back_pixel_by_pixel(tmp_path: Path, zipped: bool, colour: str) -> None:
    channels = 3 if colour == "rgb" else 1
    originals = [pixels(i, channels=channels) for i in range(20)]
    folder = tmp_path / "pictures"
    for i, values in enumerate(originals):
        kind = "PNG" if i % 2 else "webp"
        write(folder, f"p{i:02}.{kind}", packed(values, kind.lower()))
    write(folder, "notes.txt", b"not a picture")
    write(folder, "._p00.png", b"a Mac's shadow of a picture")
    path = folder
    if zipped:
        path = tmp_path / "pictures.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for p in folder.rglob("*"):
                archive.write(p, f"pictures/{p.name}")
            archive.writestr("__MACOSX/pictures/p00.png", b"junk")
    images = data.load("images", path=path, colour=colour, split_by="number")
    assert images.shape == (channels, 6, 8)
    assert [len(images.split(split)) for split in SPLITS] == [18, 1, 1]
    for split, rows in hold_out(np.arange(20), 0.05, 0.05, "number").items():
        x, cond = images.batch(split, images.examples(split))
        assert cond == {}
        expected = np.stack([originals[i].reshape(6, 8, channels) for i in rows])
        assert np.array_equal(images.decode(x).numpy(), expected.transpose(0, 3, 1, 2))
        assert np.array_equal(images.render(x), expected)


def test_pictures_are_resized_and_cropped_around_the_centre(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, :10], wide[:, 10:20], wide[:, 20:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    for i, values in enumerate((wide, wide.transpose(1, 0, 2), np.repeat(wide, 3, 0).repeat(3, 1))):
        write(tmp_path, f"{i}.png", packed(values))
    images = data.load("images", path=tmp_path, size=5, validation=0, test=0)
    assert images.shape == (3, 5, 5)
    # the middle third of each is green; the filter blends in a little of its neighbours
    green = torch.tensor([0, 255, 0])[:, None, None]
    assert (images.split("train") - green).abs().max() < 20
    assert (images.split("train")[..., 1:4, 1:4] - green).abs().max() < 4
    tall = data.load("images", path=tmp_path, size=[4, 2], validation=0, test=0)
    assert tall.shape == (3, 4, 2)


def test_jpeg_orientation_palette_and_deep_grey(tmp_path: Path) -> None:
    values = np.full((8, 16, 3), 200, np.uint8)
    values[:, :8] = 30
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter: shown upright it is 8 wide and 16 high
    Image.fromarray(values).save(tmp_path / "a.jpg", exif=exif, quality=100)
    turned = data.load("images", path=tmp_path, colour="grey", validation=0, test=0)
    assert turned.shape == (1, 16, 8)
    top, bottom = turned.split("train")[0, 0, :7].double(), turned.split("train")[0, 0, 9:].double()
    assert top.mean().item() == pytest.approx(30, abs=2)
    assert bottom.mean().item() == pytest.approx(200, abs=2)
    deep = tmp_path / "deep"
    deep.mkdir()
    shades = np.arange(256, dtype=np.uint16) * 257
    shades[0] = 256  # still black
    Image.fromarray(shades.reshape(16, 16)).save(deep / "d.png")
    levels = data.load("images", path=deep, colour="grey", validation=0, test=0).split("train")
    assert torch.equal(levels.flatten(), torch.arange(256, dtype=torch.uint8))


def test_transparent_pictures_lie_on_white(tmp_path: Path) -> None:
    clear = np.zeros((4, 4, 4), np.uint8)
    clear[0, :, 3] = (0, 51, 204, 255)  # black, more and more opaque
    Image.fromarray(clear).save(tmp_path / "a.png")
    Image.fromarray(clear[..., 2:], "LA").save(tmp_path / "b.png")
    palette = Image.fromarray(clear[..., 0], "P")
    palette.save(tmp_path / "c.png", transparency=0)
    images = data.load("images", path=tmp_path, validation=0, test=0)
    rows = images.split("train")[:, :, 0].tolist()
    assert rows == [[[255, 204, 51, 0]] * 3] * 2 + [[[255] * 4] * 3]


def test_corrupt_pictures_are_listed_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(12):
        content = packed(pixels(i))
        write(tmp_path, f"{'ab'[i % 2]}/{i:02}.png", content if i % 3 else content[:60])
    with pytest.raises(bfn.BFNError) as error:
        data.load("images", path=tmp_path)
    assert "4 of 12 pictures in" in str(error.value)
    assert "a/00.png, a/06.png, b/03.png, b/09.png; repair" in str(error.value)
    images = data.load("images", path=tmp_path, skip_corrupt=True, labels=True, test=0)
    assert "4 of 12 pictures" in capsys.readouterr().err
    for split in ("train", "validation"):
        for values, label, name in zip(
            images.split(split), images.labels[split], images.names[split], strict=True
        ):
            assert name[0] == "ab"[label]
            assert np.array_equal(values, pixels(int(name[2:4])).transpose(2, 0, 1))
    for i in range(12):
        write(tmp_path, f"{'ab'[i % 2]}/{i:02}.png", b"no picture")
    words = ("12 of 12 pictures", "and 7 more; repair or remove them")
    assert_refused(lambda: data.load("images", path=tmp_path, skip_corrupt=True), *words)


def test_labels_and_splits_from_folders(tmp_path: Path) -> None:
    for split, count in (("train", 12), ("test", 4)):
        for i in range(count):
            kind = ("cat", "ant", "dog")[i % 3]
            plain = packed(np.full((2, 2, 3), i * 10, np.uint8))
            write(tmp_path, f"top/{split}/{kind}/{i:02}.png", plain)
    write(tmp_path, "top/test/ant/00.png", b"left out")
    arguments = {"labels": True, "validation": 0.25, "split_by": "number", "skip_corrupt": True}
    images = data.load("images", path=tmp_path, **arguments)
    assert images.label_names == ("ant", "cat", "dog")
    assert [len(images.split(split)) for split in SPLITS] == [9, 3, 4]
    seen = []
    for split in SPLITS:
        x, cond = images.batch(split, images.examples(split))
        number = images.decode(x)[:, 0, 0, 0].long() // 10
        assert torch.equal(cond["label"], torch.tensor([1, 0, 2])[number % 3])
        seen += [(split == "test", n) for n in number.tolist()]
    assert sorted(seen) == [(False, n) for n in range(12)] + [(True, n) for n in range(4)]


@pytest.fixture
def pictures(tmp_path: Path, empty_folder: None) -> None:
    """Folders and archives of pictures, most of them wrong."""
    for i in range(3):
        write(tmp_path, f"mixed/{i}.png", packed(pixels(i, 6, 8 if i < 2 else 9)))
        write(tmp_path, f"broken/{i}.png", packed(pixels(i)) if i != 1 else b"no picture at all")
        write(tmp_path, f"cut/{i}.png", packed(pixels(i, 50, 50))[: None if i != 1 else 3000])
    write(tmp_path, "empty/readme.md", b"nothing here")
    write(tmp_path, "file.png", packed(pixels(0)))
    write(tmp_path, "bad.zip", b"PK\x03\x04 cut off")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "mixed"}, ["2.png", "9 x 6", "0.png", "8 x 6", "size"]),
        ({"path": "broken"}, ["1 of 3 pictures in broken", "1.png", "--data.skip_corrupt true"]),
        ({"path": "cut"}, ["1.png", "cut", "picture"]),
        ({"path": "empty"}, ["empty", "no pictures", ".jpeg"]),
        ({"path": "absent"}, ["absent", "does not exist"]),
        ({"path": "file.png"}, ["file.png", "neither a folder"]),
        ({"path": "bad.zip"}, ["bad.zip", "zip"]),
        ({"path": "mixed", "size": 0}, ["size = 0"]),
        ({"path": "mixed", "size": [1, 2, 3]}, ["[1, 2, 3]"]),
        ({"path": "mixed", "colour": "red"}, ["'red'", "grey"]),
        ({"path": "mixed", "size": 4, "labels": True}, ["0.png", "sub-folder"]),
        ({}, ["missing a required argument: 'path'"]),
    ],
)
@pytest.mark.usefixtures("pictures")
def test_mistakes_with_pictures(arguments: dict, words: list[str]) -> None:
    assert_refused(lambda: data.load("images", **arguments), *words)


# Texts.

POEM = "Ein Bär, 漢字 und 😀.\n" * 60


def joined(text) -> torch.Tensor:
    return torch.cat([text.split(split) for split in SPLITS])


def test_characters_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_bytes(("\ufeff" + POEM.replace("\n", "\r\n")).encode())
    text = data.load("text", path=tmp_path / "poem.txt", length=20)
    alphabet = "".join(sorted(set(POEM)))
    assert (text.K, text.unit, text.medium) == (len(alphabet), "bits per character", "text")
    assert "".join(alphabet[k] for k in joined(text).tolist()) == POEM
    n = len(POEM)
    assert [len(text.split(s)) for s in SPLITS] == [n - 2 * (n // 20), n // 20, n // 20]
    x, _ = text.batch("train", torch.tensor([0, 3]))
    assert text.decode(x) == [POEM[:20], POEM[3:23]] == text.render(x)
    assert torch.equal(text.encode(text.decode(x)), x)


def test_bytes_of_any_file(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4
    (tmp_path / "blob").write_bytes(content)
    text = data.load("text", path=tmp_path / "blob", tokens="bytes", length=32)
    assert (text.K, text.unit) == (256, "bits per byte")
    assert bytes(joined(text).tolist()) == content
    x, _ = text.batch("test", text.examples("test"))
    assert text.decode(x)[0] == content[-51:][:32]
    assert torch.equal(text.encode(text.decode(x)), x)
    assert all(isinstance(shown, str) for shown in text.render(x))


def test_a_folder_of_texts_in_order(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", b"second " * 40)
    write(tmp_path, "a/z.txt", b"first " * 40)
    write(tmp_path, "c.md", b"not read")
    whole = "first " * 40 + "\n" + "second " * 40
    text = data.load("text", path=tmp_path, length=16)
    alphabet = "".join(sorted(set(whole)))
    assert "".join(alphabet[k] for k in joined(text).tolist()) == whole
    given = data.load("text", path=tmp_path, alphabet=" cdefinorst", length=16)
    assert given.K == 11
    assert "".join(" cdefinorst"[k] for k in joined(given).tolist()) == whole.replace("\n", " ")


def test_a_character_for_all_that_are_not_in_the_alphabet(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text(POEM)
    text = data.load("text", path=tmp_path / "poem.txt", alphabet="inE.?", unknown="?", length=8)
    assert "".join("inE.?"[k] for k in joined(text).tolist()) == re.sub("[^inE.]", "?", POEM)


def test_letters_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("Hello, World! 42 " * 30)
    text = data.load("text", path=tmp_path / "poem.txt", tokens="letters", length=8)
    assert text.K == 27
    x, _ = text.batch("train", torch.tensor([0]))
    assert text.decode(x) == ["hello wo"]


@pytest.fixture
def texts(tmp_path: Path, empty_folder: None) -> None:
    write(tmp_path, "latin.txt", "Bär".encode("latin-1") * 99)
    write(tmp_path, "none/text.md", b"full")
    write(tmp_path, "poem.txt", b"abcx" * 999)
    write(tmp_path, "empty.txt", b"")
    write(tmp_path, "same.txt", b"aaaa" * 999)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "latin.txt"}, ["latin.txt", "not UTF-8", "byte 1", "bytes"]),
        ({"path": "none"}, ["none", "no .txt files"]),
        ({"path": "empty.txt"}, ["empty.txt", "holds no text"]),
        ({"path": "same.txt"}, ["alphabet", "'a'"]),
        (
            {"path": "poem.txt", "alphabet": "bc"},
            [
                "'a' at position 0 and 1,997 more",
                "'bc': 'a' (999), 'x' (999); add",
                "--data.unknown",
            ],
        ),
        ({"path": "poem.txt", "alphabet": "abc", "unknown": "?"}, ["unknown = '?'", "'abc'"]),
        ({"path": "poem.txt", "tokens": "words"}, ["'words'", "characters, letters, bytes"]),
        ({"path": "poem.txt", "tokens": "bytes", "alphabet": "ab"}, ["bytes", "alphabet"]),
        ({"path": "poem.txt", "length": -1}, ["length = -1"]),
    ],
)
@pytest.mark.usefixtures("texts")
def test_mistakes_with_texts(arguments: dict, words: list[str]) -> None:
    assert_refused(lambda: data.load("text", **arguments), *words)


# Arrays.


def test_real_numbers_come_back_bit_by_bit(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (40, 3, 2))
    np.save(tmp_path / "a.npy", values)
    numbers = data.load("array", path=tmp_path / "a.npy", low=-1, high=1, split_by="number")
    assert (numbers.K, numbers.shape, numbers.unit) == (None, (3, 2), "bits per dimension")
    for split, rows in hold_out(np.arange(40), 0.05, 0.05, "number").items():
        x, _ = numbers.batch(split, numbers.examples(split))
        assert numbers.split(split).dtype == torch.float32
        assert np.array_equal(x.numpy(), values[rows].astype(np.float32))
        assert torch.equal(numbers.encode(numbers.decode(x)), x)
    binned = data.load("array", path=tmp_path / "a.npy", bins=8, low=-1, high=1)
    x, _ = binned.batch("train", binned.examples("train"))
    assert binned.K == 8
    assert torch.equal(x * 8, (x * 8).round())
    assert (x - binned.split("train")).abs().max() <= 1 / 8


def test_given_splits_labels_and_range(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        s: rng.uniform(0, 10, (n, 5)).astype(np.float32) for s, n in (("train", 9), ("test", 4))
    }
    tags = {f"{split}_labels": np.arange(len(a)) % 3 for split, a in arrays.items()}
    np.savez(tmp_path / "a.npz", **arrays, **tags)
    path = str(tmp_path / "a.npz")
    numbers = data.load("array", path=path, low=0, high=10, labels=True, validation=0.3)
    assert [len(numbers.split(split)) for split in SPLITS] == [6, 3, 4]
    x, cond = numbers.batch("test", numbers.examples("test"))
    assert torch.allclose(x, torch.from_numpy(arrays["test"]) / 5 - 1, atol=1e-6)
    assert cond["label"].tolist() == [0, 1, 2, 0]
    assert data.load("array", path=path, low=0, high=10).labels == {}


@pytest.mark.parametrize(("shape", "dtype"), [((3, 2), "f8"), ((5, 6, 3), "u1")])
def test_a_large_file_stays_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str
) -> None:
    path = tmp_path / "a.npy"
    values = np.random.default_rng(0).uniform(0, 200, (400, *shape)).astype(dtype)
    np.save(path, values)
    loaded = data.load("array", path=path)
    monkeypatch.setattr(reading, "MAPPED_FROM", 0)
    monkeypatch.setattr(base, "CHUNK", 100)
    mapped = data.load("array", path=path).to("cpu")
    assert mapped.digest() == loaded.digest()
    assert np.array_equal(mapped.fingerprints(), loaded.fingerprints())
    assert mapped.nbytes == loaded.nbytes == values.nbytes
    for split in SPLITS:
        x, _ = loaded.batch(split, loaded.examples(split))
        assert torch.equal(mapped.batch(split, mapped.examples(split))[0], x)
    # Nothing was copied: what changes in the file changes in the data.
    with path.open("r+b") as file:
        file.seek(-values.nbytes, 2)
        file.write(values[::-1].tobytes())
    assert mapped.digest() != loaded.digest()


@pytest.mark.parametrize("shape", [(2,), (5, 2), (2, 5, 6)])
def test_every_column_or_channel_has_the_range_of_its_training_data(shape: tuple[int, ...]) -> None:
    scale = np.array([1.0, 1e5]) if len(shape) < 3 else np.array([1.0, 1e5])[:, None, None]
    numbers = data.from_arrays(np.random.default_rng(0).normal(size=(60, *shape)) * scale)
    x, _ = numbers.batch("train", numbers.examples("train"))
    over = tuple(i for i in range(x.dim()) if i != (1 if len(shape) == 3 else len(shape)))
    assert torch.equal(x.amin(over), -torch.ones(2))
    assert torch.equal(x.amax(over), torch.ones(2))
    tests, _ = numbers.batch("test", numbers.examples("test"))
    assert float(tests.abs().max()) <= 1


@pytest.mark.parametrize(
    ("values", "arguments", "K", "dtype"),
    [
        (np.arange(40).reshape(20, 2), {}, 40, torch.int64),
        (np.arange(400, dtype=np.uint16).reshape(20, 20), {}, 400, torch.int64),
        (np.arange(40, dtype=np.uint8).reshape(20, 2), {}, 256, torch.float32),
        (np.arange(40, dtype=np.uint8).reshape(20, 2), {"form": "discrete"}, 40, torch.int64),
        (np.arange(20) % 2 == 0, {}, 2, torch.int64),
        ((np.arange(40) % 2).reshape(20, 2), {}, 2, torch.int64),
    ],
)
def test_integers(values: np.ndarray, arguments: dict, K: int, dtype: torch.dtype) -> None:
    numbers = data.from_arrays(values, test=0, validation=0, **arguments)
    x, _ = numbers.batch("train", numbers.examples("train"))
    assert (numbers.K, x.dtype) == (K, dtype)
    assert numbers.split("train").dtype == (torch.uint8 if K <= 256 else torch.int64)
    assert np.array_equal(numbers.decode(x).numpy(), values.reshape(20, -1))
    assert torch.equal(numbers.encode(numbers.decode(x)), x)


def test_negative_integers_are_real_numbers_if_asked_for() -> None:
    values = np.arange(-20, 20).reshape(20, 2)
    numbers = data.from_arrays(values, form="continuous", test=0, validation=0)
    x, _ = numbers.batch("train", numbers.examples("train"))
    assert numbers.K is None
    assert torch.allclose(x, torch.linspace(-1, 1, 20)[:, None].expand(20, 2))


def test_arrays_of_pictures_from_memory() -> None:
    values = torch.randint(256, (30, 4, 4), dtype=torch.uint8)
    tags = torch.arange(30)
    images = data.from_arrays(values, image=True, labels=tags, test=0.2)
    assert (images.medium, images.shape) == ("image", (1, 4, 4))
    x, cond = images.batch("test", images.examples("test"))
    assert torch.equal(images.decode(x)[:, 0], values[cond["label"]])
    assert len(images.label_names) == 30


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    labels = np.zeros(3, int)
    np.save(folder / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    np.savez(folder / "two.npz", a=np.zeros(3), b=np.zeros(3))
    np.savez(folder / "labels.npz", train=np.zeros(30), train_labels=np.zeros(7, int))
    np.savez(folder / "half.npz", train=np.zeros(30), test=np.zeros(3), test_labels=labels)
    np.save(folder / "nan.npy", np.array([[0.5], [np.nan]] * 20))
    np.save(folder / "wide.npy", np.linspace(0, 255, 40))
    np.save(folder / "minus.npy", np.arange(-1, 39))
    np.save(folder / "many.npy", np.full((40, 2), 256))  # 0 in eight bits
    np.save(folder / "none.npy", np.zeros((0, 3)))
    np.save(folder / "words.npy", np.array(["a", "b"]))
    np.save(folder / "fine.npy", np.linspace(0, 1, 280).reshape(40, 7))
    np.save(folder / "same.npy", np.full((40, 7), 3.0))
    np.save(folder / "infinite.npy", np.array([[0.5], [np.inf]] * 20))
    np.save(folder / "complex.npy", np.ones((40, 2)) * 1j)
    np.save(folder / "rgba.npy", np.zeros((40, 8, 8, 4), np.uint8))
    (folder / "table.csv").write_text("a,b\n1,2\n")
    (folder / "text.npy").write_text("hello")
    (folder / "garbage.npz").write_bytes(b"garbage" * 50)
    (folder / "cut.npz").write_bytes((folder / "two.npz").read_bytes()[:200])
    return folder


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("objects.npy", {}, ["objects.npy", "Python objects"]),
        ("two.npz", {}, ["a, b", "train"]),
        ("labels.npz", {"labels": True}, ["(7,)", "30 examples"]),
        ("half.npz", {"labels": True}, ["labels for test", "train, test"]),
        ("fine.npy", {"labels": True}, ["no labels"]),
        ("nan.npy", {}, ["nan.npy", "NaN"]),
        ("wide.npy", {"low": 0, "high": 1}, ["97% of", "from low to high"]),
        ("minus.npy", {}, ["-1", "--data.form continuous"]),
        ("many.npy", {"levels": 17}, ["the value 256", "0 to 16"]),
        ("same.npy", {}, ["same.npy is the same"]),
        ("infinite.npy", {}, ["infinite.npy", "infinity"]),
        ("complex.npy", {}, ["complex128"]),
        ("rgba.npy", {}, ["(8, 8, 4)", "1 or 3 channels", "--data.image false"]),
        ("table.csv", {}, ["is a table", "bfn train /", "bfn.Table"]),
        ("none.npy", {}, ["(0, 3)"]),
        ("words.npy", {}, ["<U1"]),
        ("text.npy", {}, ["text.npy", "cannot be read as .npy or .npz: it is neither"]),
        ("garbage.npz", {}, ["cannot be read as .npy or .npz: it is neither"]),
        ("cut.npz", {}, ["cut.npz", "cannot be read"]),
        ("fine.npy", {"form": "discrete"}, ["real numbers", "'discrete'"]),
        ("fine.npy", {"form": "discretised"}, ["bins"]),
        ("fine.npy", {"low": 1}, ["low = 1.0"]),
        ("fine.npy", {"low": [0, 1], "high": [1, 1, 1]}, ["the same number of values"]),
        ("fine.npy", {"low": [0, 0], "high": [1, 1]}, ["2 values", "shape (7,)"]),
        ("fine.npy", {"image": True}, ["(7,)", "(H, W)"]),
    ],
)
def test_mistakes_with_arrays(arrays: Path, name: str, arguments: dict, words: list[str]) -> None:
    assert_refused(lambda: data.load("array", path=str(arrays / name), **arguments), *words)
