"""MNIST, CIFAR-10 and text8 from small files in their official formats, and downloads."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from bfn import data
from bfn.data import known
from bfn.data.base import SPLITS, hold_out
from support.mistakes import assert_refused


def noise(*shape: int, below: int = 256) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, below, shape).astype(np.uint8)


def idx(values: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def write_mnist(folder: Path, train: int = 200, test: int = 40) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        "train-images-idx3-ubyte": noise(train, 28, 28),
        "train-labels-idx1-ubyte": noise(train, below=10),
        "t10k-images-idx3-ubyte": noise(test, 28, 28),
        "t10k-labels-idx1-ubyte": noise(test, below=10),
    }
    for name, values in arrays.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(values)))
    return arrays


# MNIST.


@pytest.mark.parametrize("place", [".", "MNIST/raw"])
def test_mnist_splits_and_levels(tmp_path: Path, place: str) -> None:
    arrays = write_mnist(tmp_path / place)
    images = data.load("mnist", form="discretised", labels=True, dir=str(tmp_path))
    assert [len(images.split(split)) for split in SPLITS] == [198, 2, 40]
    rows = hold_out(np.arange(200), validation=0.01, split_by="number")
    for split, name, part in (
        ("train", "train", rows["train"]),
        ("validation", "train", rows["validation"]),
        ("test", "t10k", np.arange(40)),
    ):
        x, cond = images.batch(split, images.examples(split))
        original = arrays[f"{name}-images-idx3-ubyte"][part]
        assert np.array_equal(images.decode(x)[:, 0].numpy(), original)
        assert np.array_equal(cond["label"].numpy(), arrays[f"{name}-labels-idx1-ubyte"][part])
    assert images.shape == (1, 28, 28)


def test_mistakes_with_mnist(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    intact = path.read_bytes()
    for wrong, words in (
        (intact[:-2000], "cannot be read"),
        (b"hello", "cannot be read"),
        (gzip.compress(b"\0\0\x08\x01" + b"\0" * 80), "not an idx file"),
        (gzip.compress(gzip.decompress(intact)[:-1]), "size 31359"),
        (gzip.compress(idx(noise(40, 20, 20))), "(1, 20, 20)"),
    ):
        path.write_bytes(wrong)
        named = "mnist" if "20, 20" in words else str(path)
        assert_refused(lambda: data.load("mnist", dir=str(tmp_path)), named, words)


# CIFAR-10.


def cifar_batches(count: int = 20) -> dict[str, np.ndarray]:
    batches = {}
    for i, name in enumerate(known.CIFAR10_BATCHES):
        records = noise(count, 3073 + i)[:, :3073]
        records[:, 0] %= 10
        batches[name] = records
    return batches


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_cifar(folder: Path, form: str) -> dict[str, np.ndarray]:
    batches = cifar_batches()
    if form == "archive":
        members = {f"cifar-10-batches-bin/{n}": batches[n].tobytes() for n in reversed(batches)}
        write_tar(folder / "cifar-10-binary.tar.gz", members)
    else:
        inner = folder / "cifar-10-batches-bin" if form == "folder" else folder
        inner.mkdir(exist_ok=True)
        for name, records in batches.items():
            (inner / name).write_bytes(records.tobytes())
    return batches


@pytest.mark.parametrize(("form", "bins"), [("archive", 256), ("folder", 16), ("files", 256)])
def test_cifar10(tmp_path: Path, form: str, bins: int) -> None:
    batches = write_cifar(tmp_path, form)
    images = data.load("cifar10", bins=bins, labels=True, dir=str(tmp_path))
    assert [len(images.split(split)) for split in SPLITS] == [99, 1, 20]
    assert (images.K, images.shape, images.unit) == (bins, (3, 32, 32), "bits per dimension")
    train = np.concatenate([batches[f"data_batch_{i}.bin"] for i in range(1, 6)])
    rows = hold_out(np.arange(100), validation=0.01, split_by="number")
    for split, records in (
        ("train", train[rows["train"]]),
        ("validation", train[rows["validation"]]),
        ("test", batches["test_batch.bin"]),
    ):
        x, cond = images.batch(split, images.examples(split))
        pixels = records[:, 1:].reshape(-1, 3, 32, 32)
        back = images.decode(x).numpy()
        assert np.array_equal(back if bins == 256 else back // 16, pixels // (256 // bins))
        assert torch.equal(images.encode(images.decode(x)), x)
        assert np.array_equal(cond["label"].numpy(), records[:, 0])
    assert images.label_names[3] == "cat"


def test_mistakes_with_cifar10(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_cifar(tmp_path, "archive")
    intact = path.read_bytes()
    records = cifar_batches()
    short = {name: r.tobytes()[: -5 if "3" in name else None] for name, r in records.items()}

    def packed(members: dict[str, bytes]) -> bytes:
        write_tar(path, members)
        return path.read_bytes()

    for wrong, words in (
        (intact[: len(intact) // 2], ["cifar-10-binary.tar.gz", "cannot be read"]),
        (b"not an archive", ["cifar-10-binary.tar.gz", "cannot be read"]),
        (packed({"cifar-10-batches-py/data_batch_1": b"x"}), ["data_batch_1.bin"]),
        (packed(short), ["size 61455"]),
    ):
        path.write_bytes(wrong)
        assert_refused(lambda: data.load("cifar10", dir=str(tmp_path)), *words)


# text8.


def letters(count: int) -> bytes:
    table = np.frombuffer(b" abcdefghijklmnopqrstuvwxyz", np.uint8)
    return table[noise(count, below=27)].tobytes()


@pytest.mark.parametrize(("packed", "place"), [(True, "."), (False, "text8")])
def test_text8(tmp_path: Path, packed: bool, place: str) -> None:
    content = letters(10_000)
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    if packed:
        with zipfile.ZipFile(folder / "text8.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("text8", content)
    else:
        (folder / "text8").write_bytes(content)
    text = data.load("text8", length=32, dir=str(tmp_path))
    assert [len(text.split(split)) for split in SPLITS] == [9000, 500, 500]
    whole = torch.cat([text.split(split) for split in SPLITS])
    expected = [0 if c == 32 else c - 96 for c in content]
    assert whole.tolist() == expected
    x, _ = text.batch("test", text.examples("test"))
    assert "".join(text.decode(x)) == content[9500:9980].decode()
    assert (text.K, text.unit) == (27, "bits per character")


def test_mistakes_with_text8(tmp_path: Path) -> None:
    def refused(words: str) -> None:
        assert_refused(lambda: data.load("text8", dir=str(tmp_path)), words)

    (tmp_path / "text8").write_bytes(letters(3000) + b"Q" + letters(3000))
    refused("text8 holds 'Q' at position 3000")
    (tmp_path / "text8").write_bytes(letters(100))
    refused("fewer than one window of 256")
    (tmp_path / "text8").unlink()
    with zipfile.ZipFile(tmp_path / "text8.zip", "w") as archive:
        archive.writestr("other", letters(100))
    refused("text8.zip cannot be read")
    (tmp_path / "text8.zip").write_bytes(b"PK nothing")
    refused("text8.zip cannot be read")


# Downloads of missing files, from a server on this machine.


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> Iterator[Path]:
    """A folder on a server, with text8.zip of 10,000 characters."""
    folder = tmp_path_factory.mktemp("served")
    path = folder / "text8.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("text8", "a word " * 1500)
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    )
    serve = functools.partial(server.serve_forever, poll_interval=0.02)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    home = f"http://127.0.0.1:{server.server_port}/"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    remote = dataclasses.replace(known.TEXT8, sha256=digest, urls=(f"{home}text8.zip",))
    monkeypatch.setattr(known, "TEXT8", remote)
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


def load(dir: Path | None = None) -> int:
    return len(data.load("text8", length=16, dir=None if dir is None else str(dir)).split("train"))


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_download_once_then_found(tmp_path: Path, served: Path) -> None:
    assert load(tmp_path) == 9450
    (served / "text8.zip").unlink()
    assert load(tmp_path) == 9450
    assert files(tmp_path) == ["text8.zip"]
    assert (tmp_path / "text8.zip").stat().st_mode & 0o777 == 0o644


@pytest.mark.usefixtures("served")
def test_no_folder_is_made_because_somebody_names_it(tmp_path: Path) -> None:
    assert_refused(lambda: load(tmp_path / "new"), "there is no folder", "new", "--data.dir")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("served")
def test_download_into_the_cache_or_the_environments_folder(tmp_path: Path, monkeypatch) -> None:
    load()
    assert files(tmp_path) == ["cache/bfn/text8/text8.zip"]
    monkeypatch.setenv("BFN_DATA", str(tmp_path / "shared"))
    load()
    assert "shared/text8/text8.zip" in files(tmp_path)


@pytest.mark.parametrize(("content", "words"), [(None, "404"), (b"other", "SHA-256")])
def test_failed_downloads_leave_nothing(
    tmp_path: Path, served: Path, content: bytes | None, words: str
) -> None:
    path = served / "text8.zip"
    intact = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    by_hand = f"put text8.zip into {tmp_path} yourself"
    assert_refused(lambda: load(tmp_path), words, by_hand)
    assert files(tmp_path) == []
    path.write_bytes(intact)
    assert load(tmp_path) == 9450


@pytest.mark.usefixtures("served")
def test_the_second_address_is_tried(tmp_path: Path, monkeypatch) -> None:
    urls = ("http://127.0.0.1:9/text8.zip", *known.TEXT8.urls)
    monkeypatch.setattr(known, "TEXT8", dataclasses.replace(known.TEXT8, urls=urls))
    assert load(tmp_path) == 9450


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("mnist", "train-images-idx3-ubyte.gz"),
        ("cifar10", "cifar-10-binary.tar.gz"),
        ("text8", "text8.zip"),
    ],
)
def test_offline(tmp_path: Path, source: str, name: str) -> None:
    words = (f"could not download {name}", "ConnectionError")
    assert_refused(lambda: data.load(source, dir=str(tmp_path)), *words)
    assert files(tmp_path) == []
