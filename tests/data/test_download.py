"""Downloads of missing files, from a server on this machine."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bfn import data
from bfn.data import known
from support.mistakes import assert_refused


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
