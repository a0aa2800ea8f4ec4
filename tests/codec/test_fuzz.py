"""Archives that were spoilt or forged at random, and real processes that are stopped midway."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bfn.codec import container
from bfn.codec.archive import pack
from bfn.codec.container import Archive
from bfn.codec.fragments import Translation
from bfn.codec.index import Index
from bfn.codec.unpack import open_codec, unpack
from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.runs.folder import RunFolder
from support import archives

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
        codec = open_codec(archive, *text)
        unpack(archive, codec, Translation.of(*text), out)
    return {p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()}


def expected(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (path.parent / "in").iterdir()}


def test_every_flipped_byte_of_a_real_archive(
    real: Path, text: tuple[BFN, Format], tmp_path: Path
) -> None:
    """All 255 ways to spoil each byte: an error, never another text."""
    assert restore(real, tmp_path / "out", text) == expected(real)
    data = real.read_bytes()
    spoilt = tmp_path / "b.bfn"
    for at in range(len(data)):
        for mask in range(1, 256) if at % 16 == 0 else (1 << at % 8, 0xFF):
            spoilt.write_bytes(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            with pytest.raises(BFNError):
                restore(spoilt, tmp_path / "out", text)
            assert not (tmp_path / "out").exists()
    for length in range(len(data)):
        spoilt.write_bytes(data[:length])
        with pytest.raises(BFNError):
            restore(spoilt, tmp_path / "out", text)
        assert not (tmp_path / "out").exists()


def test_flipped_bits_with_mended_checksums(
    real: Path, text: tuple[BFN, Format], tmp_path: Path
) -> None:
    """A payload that was tampered with, CRC and all: the codec's own checks and the digest hold."""
    index, payloads = opened(real)
    model = [i for i, block in enumerate(index.blocks) if block.model]
    for number in model:
        for bit in range(8 * len(payloads[number])):
            changed = bytearray(payloads[number])
            changed[bit // 8] ^= 1 << bit % 8
            others = [*payloads[:number], bytes(changed), *payloads[number + 1 :]]
            forge(tmp_path / "b.bfn", index, others)
            with pytest.raises(BFNError):
                restore(tmp_path / "b.bfn", tmp_path / "out", text)
            assert not (tmp_path / "out").exists()


def opened(path: Path) -> tuple[Index, list[bytes]]:
    with Archive(path) as archive:
        return archive.index, [archive.payload(i) for i in range(len(archive.index.blocks))]


def forge(path: Path, index: Index, payloads: list[bytes]) -> None:
    blocks = [
        dataclasses.replace(block, crc=zlib.crc32(payload), length=len(payload))
        for block, payload in zip(index.blocks, payloads, strict=True)
    ]
    raw = dataclasses.replace(index, blocks=blocks).pack()
    path.write_bytes(archives.seal(b"".join(payloads), raw))


def test_forged_settings(real: Path, text: tuple[BFN, Format], tmp_path: Path) -> None:
    """Settings that would take memory or time, or break the codec, are refused at once."""
    index, payloads = opened(real)
    for key, value in [
        *(("lanes", value) for value in (0, -1, 10**9, 65, 1.5, "1", None, True)),
        *(("steps", value) for value in (0, 10**9, 2.0, None)),
        *(("spacing", value) for value in (0.0, -1.0, 1e-300, 1, "x", None)),
        *(("threads", value) for value in (0, 10**6, None)),
        ("shape", [1 << 40]),
        ("device", "meta"),
        ("device", None),
        ("values", [0.0]),
    ]:
        header = {**index.header, "codec": {**index.header["codec"], key: value}}
        forge(tmp_path / "b.bfn", dataclasses.replace(index, header=header), payloads)
        began = time.monotonic()
        with pytest.raises(BFNError):
            restore(tmp_path / "b.bfn", tmp_path / "out", text)
        assert time.monotonic() - began < 20


@settings(max_examples=2000, **RUNS)
@given(data=st.binary(max_size=300))
@example(data=b"")
def test_any_bytes_as_a_file(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.bfn"
    for content in (data, container._PROLOGUE + data, container._PROLOGUE + data + b"BFN\n"):
        path.write_bytes(content)
        with pytest.raises(BFNError):
            Archive(path)


@settings(max_examples=3000, **RUNS)
@given(raw=st.binary(max_size=200), front=st.booleans())
def test_any_bytes_as_an_index(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, front: bool
) -> None:
    """With all checksums right: an index, or an error of ours."""
    path = tmp_path_factory.getbasetemp() / "any.bfn"
    path.write_bytes(archives.seal(b"", (bytes(archives.front().data) if front else b"") + raw))
    try:
        with Archive(path) as archive:
            archive.check()
            assert Index.unpack(archive.index.pack()) == archive.index
    except BFNError:
        pass


@settings(max_examples=3000, **RUNS)
@given(edits=st.lists(EDIT, min_size=1, max_size=4))
def test_mutated_indices(
    tmp_path_factory: pytest.TempPathFactory, real: Path, edits: list[tuple[int, str, bytes]]
) -> None:
    """A true index, changed here and there and sealed again: consistent, or refused."""
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
            found.check()
            index = found.index
            assert sum(b.length for b in index.blocks) == len(blocks)
            assert sum(item.examples for item in index.items) == index.examples
            for item in index.items:
                place_of = (Path("/safe") / item.name).resolve()
                assert place_of.is_relative_to("/safe")
    except BFNError:
        pass


# Processes.


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bfn", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture
def many(tmp_path: Path, levels: np.ndarray) -> Path:
    np.save(tmp_path / "many.npy", np.concatenate([levels] * 10))
    return tmp_path / "many.npy"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("older", [False, True])
def test_a_stopped_run_leaves_nothing_under_that_name(
    tiny_run: Run, tmp_path: Path, many: Path, number: signal.Signals, older: bool
) -> None:
    out = tmp_path / "a.bfn"
    if older:
        out.write_bytes(b"older")
    process = start(
        *("compress", tiny_run("discretised"), many, "-o", out, "--force"),
        *("--steps", 20, "--block", 4),
    )
    until = time.monotonic() + 120

    def asides() -> list[Path]:
        return list(tmp_path.glob(".a.bfn.*.part"))

    # Until it is in the midst of writing blocks.
    while not asides() or asides()[0].stat().st_size < 10:
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in err
    assert out.read_bytes() == b"older" if older else not out.exists()
    if number == signal.SIGINT:
        assert not asides()
        assert err.splitlines()[-1] == "bfn: interrupted."


def test_a_stopped_restoration_leaves_no_half_folder(
    tiny_run: Run, tmp_path: Path, many: Path
) -> None:
    archive, run = tmp_path / "a.bfn", tiny_run("discretised")
    process = start("compress", run, many, "-o", archive, "--steps", 2, "--block", 50)
    process.communicate(timeout=600)
    assert process.returncode == 0
    for number in (signal.SIGINT, signal.SIGKILL):
        process = start("decompress", archive, "--run", run, "-o", tmp_path / "out")
        until = time.monotonic() + 120
        while not list(tmp_path.glob(".out.*.part")):
            assert time.monotonic() < until
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == (130 if number == signal.SIGINT else -number)
        assert not (tmp_path / "out").exists()


def test_memory_is_that_of_a_batch(tiny_run: Run, tmp_path: Path, levels: np.ndarray) -> None:
    """Ten times the data in the same memory, both ways."""
    run, peaks = tiny_run("discretised"), []
    for times in (4, 40):
        np.save(tmp_path / "a.npy", np.concatenate([levels[:250]] * times))
        code = (
            "import resource, sys; from bfn.cli import main\n"
            f"a, b = {str(tmp_path / 'a.bfn')!r}, {str(tmp_path / 'out')!r}\n"
            f"x, run = {str(tmp_path / 'a.npy')!r}, {str(run)!r}\n"
            "o = ['--steps', '1', '--block', '8', '--force']\n"
            "assert main(['compress', run, x, '-o', a, *o]) == 0\n"
            "assert main(['decompress', a, '--run', run, '-o', b, '--force']) == 0\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert (tmp_path / "out" / "a.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()
        peaks.append(int(done.stdout.splitlines()[-1]))
    assert peaks[1] < peaks[0] * 1.05 + 20_000  # kilobytes
