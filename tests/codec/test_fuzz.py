"""Archives that were spoilt or forged at random, and real processes that are stopped midway."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bfn.codec.archive import Archive, Contents, Entry, Windows
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


def restore(path: Path, out: Path, text: tuple[BFN, Format]) -> dict[str, bytes]:
    shutil.rmtree(out, ignore_errors=True)
    with Archive(path) as archive:
        unpack(archive, *text, out)
    return {p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()}


def expected(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (path.parent / "in").iterdir()}


def test_flipped_bits_with_mended_checksums(
    real: Path, text: tuple[BFN, Format], tmp_path: Path
) -> None:
    """A payload that was tampered with, checksum and all: what it decodes to has its own."""
    assert restore(real, tmp_path / "out", text) == expected(real)
    contents, payloads = opened(real)
    for number in (i for i, block in enumerate(contents.blocks) if block.model):
        for bit in range(8 * len(payloads[number])):
            changed = bytearray(payloads[number])
            changed[bit // 8] ^= 1 << bit % 8
            others = [*payloads[:number], bytes(changed), *payloads[number + 1 :]]
            forge(tmp_path / "b.bfn", contents, others)
            with pytest.raises(BFNError):
                restore(tmp_path / "b.bfn", tmp_path / "out", text)
            assert not (tmp_path / "out").exists()


def opened(path: Path) -> tuple[Contents, list[bytes]]:
    with Archive(path) as archive:
        blocks = archive.contents.blocks
        return archive.contents, [archive.payload(i) for i in range(len(blocks))]


def forge(path: Path, contents: Contents, payloads: list[bytes]) -> None:
    blocks = [
        dataclasses.replace(block, length=len(payload))
        for block, payload in zip(contents.blocks, payloads, strict=True)
    ]
    raw = dataclasses.replace(contents, blocks=blocks).pack()
    path.write_bytes(archives.seal(b"".join(payloads), raw))


def test_forged_settings(real: Path, text: tuple[BFN, Format], tmp_path: Path) -> None:
    """Settings that would take memory or time, or break the codec, are refused at once."""
    contents, payloads = opened(real)
    many = 10**12
    for change in (
        *({"lanes": value} for value in (0, contents.lanes - 1, contents.lanes + 1, 10**9)),
        *({"steps": value} for value in (0, 2049, 10**9)),
        *({"made_with": contents.made_with | {"device": value}} for value in ("meta", "warp")),
        {"fingerprint": 1},
        {"probe": 1},
        {"content": 1},
        {
            "lanes": 1,
            "block": many,
            "probe": int(codec_for(*text, contents.steps, many, many).settings["probe"][:8], 16),
            "entries": [Entry("a.txt", (Windows(many, 0),))],
            "blocks": [block for block in contents.blocks if block.model][:1],
        },
    ):
        forged = dataclasses.replace(contents, **change)
        forge(tmp_path / "b.bfn", forged, payloads[: len(forged.blocks)])
        began = time.monotonic()
        with pytest.raises(BFNError):
            restore(tmp_path / "b.bfn", tmp_path / "out", text)
        assert time.monotonic() - began < 20


@settings(max_examples=2000, **RUNS)
@given(raw=st.binary(max_size=200), first=st.integers(0, 15))
def test_any_bytes_as_contents(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, first: int
) -> None:
    """With a right checksum, after some true fields: contents, or an error of ours."""
    path = tmp_path_factory.getbasetemp() / "any.bfn"
    fields = msgpack.unpackb(archives.fields())[:first]
    true = b"\xdc\x00\x10" + b"".join(bytes(msgpack.packb(field)) for field in fields)
    path.write_bytes(archives.seal(b"", true + raw))
    try:
        with Archive(path) as archive:
            assert Contents.unpack(archive.contents.pack()) == archive.contents
    except BFNError:
        pass


@settings(max_examples=3000, **RUNS)
@given(edits=st.lists(EDIT, min_size=1, max_size=4))
def test_mutated_contents(
    tmp_path_factory: pytest.TempPathFactory, real: Path, edits: list[tuple[int, str, bytes]]
) -> None:
    """True contents, changed here and there and sealed again: consistent, or refused."""
    true, payloads = opened(real)
    raw, blocks = bytearray(true.pack()), b"".join(payloads)
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
    path = tmp_path_factory.getbasetemp() / "mutated.bfn"
    path.write_bytes(archives.seal(blocks, bytes(raw)))
    try:
        with Archive(path) as found:
            contents = found.contents
            assert sum(b.length for b in contents.blocks) == len(blocks)
            counts = [block.count for block in contents.blocks if block.model]
            assert sum(counts) == contents.examples
            for entry in contents.entries:
                place_of = (Path("/safe") / entry.name).resolve()
                assert place_of.is_relative_to("/safe")
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

    def asides() -> list[Path]:
        return list(tmp_path.glob(".a.bfn.*.part"))

    # Until it is in the midst of writing blocks.
    assert processes.wait(process, lambda: any(p.stat().st_size >= 10 for p in asides()))
    time.sleep(0.5)
    process.send_signal(number)
    code, _, err = processes.finish(process)
    assert code == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in err
    assert out.read_bytes() == b"older"
    if number == signal.SIGINT:
        assert not asides()
        assert err.splitlines()[-1] == "bfn: interrupted."
