"""Files of commands are written completely or not at all."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from bfn import files
from bfn.cli.app import main

EVALUATE = "--steps 2 --repeats 1"
COMMANDS = {
    "x.png": "sample run --n 2 --steps 2 --out x.png --force",
    "y.gif": "sample run --n 2 --steps 2 --out y.png --film --force",
    "many/0000.png": "sample run --n 1 --steps 2 --separate --out many --force",
    "x.html": "view run --steps 2 --out x.html --force",
    "x.json": f"eval run {EVALUATE} --json x.json --force",
    "x.csv": f"eval run {EVALUATE} --per-example x.csv --force",
    "run/README.md": f"card run {EVALUATE} --n 1 --sample-steps 2 --force",
    "figures/samples.png": "figures run --only samples --force",
    "report.html": "compare a.csv b.csv --out report.html --force",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_was_there_stays_if_the_new_file_cannot_be_finished(
    name: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs / "digits", "run")
    for table in ("a", "b"):
        rows = "".join(f"{i % 7},{i % 3}\n" for i in range(40))
        Path(f"{table}.csv").write_text(f"p,q\n{rows}")
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("mine")
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target) == Path(name):
            assert Path(source).stat().st_size > 4
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", full)
        assert main(COMMANDS[name].split()) == 1
    assert Path(name).read_text() == "mine"
    assert not list(Path(name).parent.glob(".*.part"))
    assert main(COMMANDS[name].split()) == 0
    assert Path(name).read_bytes() != b"mine"


def test_text_is_utf_8(tmp_path: Path) -> None:
    files.write(tmp_path / "x.html", "<p>é")
    assert (tmp_path / "x.html").read_bytes() == b"<p>\xc3\xa9"


def test_a_link_stays_a_link_and_a_file_private(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    files.write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    target.chmod(0o600)
    files.write(target, "newer")
    assert target.read_text() == "newer"
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    """As /dev/stdout, which must not be replaced by a file."""
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    files.write(pipe, "text")
    reader.join(10)
    assert read == [b"text"]
    assert pipe.is_fifo()
