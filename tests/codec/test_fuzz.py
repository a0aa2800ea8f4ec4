"""Archives that were spoilt or forged at random, and real processes that are stopped midway."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bfn.codec.archive import Archive, Contents
from bfn.codec.pack import codec_for, pack, unpack
from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.runs.folder import RunFolder
from support import archives, processes

pytestmark = pytest.mark.slow

Run = Callable[[str], Path]
EDIT = st.tuples(
    st.integers(0, 10_000),
    st.sampled_from(["flip", "cut", "add", "put"]),
    st.binary(min_size=1, max_size=9),
)
RUNS = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module")
def text(tiny_run: Run) -> tuple[BFN, Format]:
    folder = RunFolder(tiny_run("text"))
    return folder.load_model(), folder.format()


@pytest.fixture(scope="module")
def real(text: tuple[BFN, Format], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small archive of a model: two texts, with a short rest and a long one."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "in").mkdir()
    (folder / "in" / "a.txt").write_text("the cat sat on the mat all day long and")
    (folder / "in" / "b.txt").write_text("so did the dog after it")
    pack(*text, [folder / "in"], folder / "a.bfn", steps=2, block=3)
    return folder / "a.bfn"


def restore(archive: Archive, out: Path, text: tuple[BFN, Format]) -> dict[str, bytes]:
    shutil.rmtree(out, ignore_errors=True)
    unpack(Archive.from_bytes(archive.to_bytes(), "a.bfn"), *text, out)
    return {p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()}


def expected(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (path.parent / "in").iterdir()}


def test_flipped_bits_with_mended_checksums(
    real: Path, text: tuple[BFN, Format], tmp_path: Path
) -> None:
    """A payload that was tampered with, checksum and all: what it decodes to has its own."""
    true = Archive.read(real)
    assert restore(true, tmp_path / "out", text) == expected(real)
    for number, payload in enumerate(true.blocks):
        for bit in range(8 * len(payload)):
            changed = bytearray(payload)
            changed[bit // 8] ^= 1 << bit % 8
            blocks = [*true.blocks[:number], bytes(changed), *true.blocks[number + 1 :]]
            with pytest.raises(BFNError):
                restore(replace(true, blocks=blocks), tmp_path / "out", text)
            assert not (tmp_path / "out").exists()


def test_forged_settings(real: Path, text: tuple[BFN, Format], tmp_path: Path) -> None:
    """Settings that would take memory or time, or break the codec, are refused at once."""
    true, many = Archive.read(real), 10**12
    contents, (first, *others) = true.contents, true.contents.entries
    for change in (
        *({"steps": value} for value in (0, 2049, 10**9)),
        {"fingerprint": 1},
        {"probe": 1},
        *(
            {"entries": [replace(first, **wrong), *others]}
            for wrong in (
                *({"kind": kind} for kind in ("rows", "picture", "arrays", "plain", "other")),
                *({"about": value} for value in (None, "x", 2, {"a": 1})),
                {"check": 1},
                {"name": "a.npy"},
            )
        ),
        {
            "block": many,
            "probe": codec_for(*text, contents.steps, many, many).probe,
            "entries": [replace(first, examples=many)],
            "lengths": contents.lengths[:1],
        },
    ):
        began = time.monotonic()
        with pytest.raises(BFNError):
            restore(replace(true, contents=replace(contents, **change)), tmp_path / "out", text)
        assert not (tmp_path / "out").exists()
        assert time.monotonic() - began < 20


@settings(max_examples=3000, **RUNS)
@given(edits=st.lists(EDIT, min_size=1, max_size=4))
def test_mutated_contents(real: Path, edits: list[tuple[int, str, bytes]]) -> None:
    """True contents, changed here and there and sealed again: consistent, or refused."""
    true = Archive.read(real)
    raw, rest = bytearray(true.contents.pack()), b"".join(true.blocks) + true.packed
    for place, what, data in edits:
        at = place % (len(raw) + 1)
        if what == "flip" and at < len(raw):
            raw[at] ^= data[0] or 1
        elif what == "cut":
            del raw[at : at + len(data)]
        elif what == "add":
            raw[at:at] = data
        else:
            raw[at : at + len(data)] = data
    try:
        found = Archive.from_bytes(archives.seal(bytes(raw), rest), "mutated.bfn")
        contents = found.contents
        assert b"".join(found.blocks) + found.packed == rest
        assert -(-contents.examples // contents.block) == len(found.blocks)
        for entry in contents.entries:
            assert (Path("/safe") / entry.name).resolve().is_relative_to("/safe")
        assert Contents.unpack(contents.pack()) == contents
        assert len(found.plain) == contents.plain
    except BFNError:
        pass


# Processes.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_leaves_what_was_there(
    tiny_run: Run, tmp_path: Path, levels: np.ndarray, number: signal.Signals
) -> None:
    out, many = tmp_path / "a.bfn", tmp_path / "many.npy"
    out.write_bytes(b"older")
    np.save(many, np.concatenate([levels] * 10))
    process = processes.start(
        *("compress", tiny_run("discretised"), many, "-o", out, "--force"),
        *("--steps", 20, "--block", 4),
    )
    # Until the coder is loaded, and then some blocks are coded.
    libraries = Path(f"/proc/{process.pid}/maps")
    assert processes.wait(process, lambda: "constriction" in libraries.read_text())
    time.sleep(3)
    process.send_signal(number)
    code, _, err = processes.finish(process)
    assert code == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in err
    assert out.read_bytes() == b"older"
    assert sorted(os.listdir(tmp_path)) == ["a.bfn", "many.npy"]
    if number == signal.SIGINT:
        assert err.splitlines()[-1] == "bfn: interrupted."
