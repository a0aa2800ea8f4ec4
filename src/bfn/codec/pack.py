"""Files to an archive and back, in batches of blocks, with everything checked.

Packing reads every input twice: once to check that the model can represent it exactly, and once to
store it. Each batch of blocks is decoded again before it is written; the archive is written under a
temporary name, read back, and only then renamed.

Before anything is unpacked, the model must be the one the archive was made with, and this machine
must compute the same digits: versions and a probe of the network are compared. Decoded data must
have the stored checksum. Files are restored into a temporary folder, which is renamed when all of
them are complete.

Memory holds one batch, whatever the length of the archive.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import tempfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.codec.archive import (
    MADE_WITH,
    PIECE,
    Archive,
    Array,
    Bits,
    Contents,
    Entry,
    Rows,
    Writer,
    check_size,
)
from bfn.codec.chain import Chain
from bfn.codec.coder import LANES, Codec
from bfn.codec.files import Source, scan
from bfn.codec.stack import Exact
from bfn.codec.translation import (
    DoesNotFit,
    Fragment,
    Translation,
    bin_values,
    check_parts,
    npy_header,
    restore,
)
from bfn.data.formats import Format
from bfn.data.tensors import format_of, packed
from bfn.errors import BFNError, join_names, printable
from bfn.files import replacing
from bfn.model import BFN

BLOCK = 34
"""Default length of a block, in multiples of its start-up cost."""
MAX_STEPS = 2048
"""Far beyond where L^n has converged."""
WIDTH, WIDE = 256, 1 << 16
"""Maximum number of examples of a block coded at a time, and of variables of all blocks."""
MAX_VARIABLES = 1 << 25
"""Maximum number of variables coded at once: bounds the memory of both sides."""
NAME = "data.npy"
"""The only entry of an archive of arrays: concatenated arrays, each with numpy's header."""

_OTHERS = ("reconstruction", "startup", "overhead", "startup_examples")
"""What is counted for a block besides the bits of its steps."""

Report = Callable[[int, int, str], None]
"""Called with the number of finished files or examples, their total, and a title."""


def _silent(*_: object) -> None: ...


# What both sides must agree on.


def fingerprint(model: BFN) -> int:
    """64 bits of a model's configuration and weights."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(json.dumps(_without_defaults(model.config()), sort_keys=True).encode())
    for name, tensor in sorted(model.net.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return int.from_bytes(digest.digest(), "big")


def _without_defaults(config: Any) -> Any:
    """A configuration without options that are off, which later versions may add."""
    if not isinstance(config, dict):
        return config
    return {
        key: _without_defaults(value) for key, value in config.items() if value not in (None, False)
    }


def _environment(codec: Codec) -> tuple[dict[str, str], int]:
    """What an archive was made with, and the probe."""
    settings = codec.settings
    return {key: str(settings[key]) for key in MADE_WITH}, int(settings["probe"][:8], 16)


def _codec(
    model: BFN, format: Format, steps: int, block: int = 1, examples: int = 1, width: int = 1
) -> Codec:
    lanes = min(LANES, -(-examples // block), MAX_VARIABLES // (block * format.dimensions))
    exact = Exact(format.laws) if format.laws else None
    values, lanes = bin_values(format), max(1, lanes)
    return Codec(model, format.shape, steps, lanes=lanes, values=values, width=width, exact=exact)


def codec_for(model: BFN, format: Format, steps: int, block: int, examples: int) -> Codec:
    """The codec for a number of examples in blocks, which determine its lanes and width."""
    codec = _codec(model, format, steps, block, examples)
    most = min(WIDTH, WIDE // (codec.lanes * codec.chain.variables))
    width = max(1, min(most, int(block / _fair_length(codec.chain))))
    return _codec(model, format, steps, block, examples, width) if width > 1 else codec


def _fair_length(chain: Chain) -> float:
    """Smallest block length at which start-up costs little."""
    return BLOCK * max(1.0, chain.startup_bits() / chain.even_bits)


# Packing.


def pack(
    model: BFN,
    format: Format,
    inputs: Sequence[Path],
    out: Path,
    *,
    steps: int,
    block: int | None = None,
    run: str = "",
    allow_fallback: bool = False,
    resize: bool = False,
    report: Report = _silent,
) -> Contents:
    """Store files in an archive; returns its table of contents.

    Args:
        model, format: the model that codes them, and the format of its examples.
        inputs: files and folders.
        out: the archive; an existing file is replaced at the end.
        steps: number of messages n; larger is slower and saves bits.
        block: examples coded together; fewer give faster access to one of them, but each block
            costs some start-up bits; by default long enough to keep this cost small.
        run: the model's name in error messages.
        allow_fallback: store files that the model cannot represent without the model.
        resize: crop and resize pictures to the model's size; they are restored at that size.
        report: called with the number of files read, then of examples encoded and decoded again.
    """

    def read(translation: Translation) -> list[Source]:
        return scan(inputs, translation, allow_fallback=allow_fallback, report=report)

    return _store(
        model, Translation.of(model, format, resize), read, out, steps, block, run, report
    )


def _store(
    model: BFN,
    translation: Translation,
    read: Callable[[Translation], list[Source]],
    out: Path,
    steps: int,
    block: int | None,
    run: str = "",
    report: Report = _silent,
) -> Contents:
    """`pack`, of the sources that `read` returns."""
    format = translation.format
    most = max(1, MAX_VARIABLES // format.dimensions)
    if block is not None and not 1 <= block <= most:
        raise BFNError(f"block = {block} examples; give 1 to {most}")
    if not 1 <= steps <= MAX_STEPS:
        raise BFNError(f"steps = {steps}; give 1 to {MAX_STEPS}")
    # Refuses a model that cannot code, before files are read.
    chain = _codec(model, format, steps).chain
    sources = read(translation)
    entries = [source.entry for source in sources]
    examples = sum(entry.examples for entry in entries)
    if block is None:  # blocks of equal length
        wanted = format.block or _fair_length(chain)
        length = math.ceil(examples / max(1, round(examples / wanted)))
        block = min(most, max(1, length))
    check_size(entries, -(-examples // block))
    codec = codec_for(model, format, steps, block, examples)
    try:
        with replacing(out) as temporary:
            with Writer(temporary) as writer:
                digest, spent = _Digest(), np.zeros(steps + 4)
                advance = _counter(report, 2 * examples, "compressing and checking")
                for x in _batches(sources, codec.lanes * block, writer, digest):
                    for bits in _write(x.split(block), codec, translation, writer, advance):
                        spent += bits
                writer.keep(b"", end=True)
                made_with, probe = _environment(codec)
                others = dict(zip(_OTHERS, map(round, spent[steps:]), strict=True))
                contents = Contents(
                    made_with,
                    printable(run)[:255],
                    format.medium,
                    tuple(format.shape),
                    format.K,
                    fingerprint(model),
                    probe,
                    steps,
                    codec.lanes,
                    block,
                    input_bytes=sum(source.size for source in sources),
                    content=digest.value,
                    bits=Bits.round(spent[:steps].tolist() if examples else [], **others),
                    entries=entries,
                    blocks=writer.blocks,
                )
                writer.close(contents)
            with Archive(temporary) as written:
                if written.contents != contents:
                    raise BFNError(f"{str(out)!r} was not written correctly; try another disk")
    except OSError as error:
        raise BFNError(
            f"{str(out)!r} cannot be written ({error.strerror}); give another name"
        ) from None
    return contents


class _Digest:
    """Running CRC-32 of everything it is called with."""

    value = 0

    def __call__(self, data: bytes) -> None:
        self.value = zlib.crc32(data, self.value)


def _batches(
    sources: Sequence[Source], size: int, writer: Writer, digest: _Digest
) -> Iterator[Tensor]:
    """The examples of all files, `size` at a time; the writer keeps the plain bytes."""
    waiting = torch.zeros(0)
    for source in sources:
        for fragment in source.fragments():
            digest(fragment.content)
            writer.keep(fragment.plain)
            if fragment.x is None:
                continue
            waiting = torch.cat([waiting, fragment.x]) if len(waiting) else fragment.x
            while len(waiting) >= size:
                yield waiting[:size]
                waiting = waiting[size:].clone()
    if len(waiting):
        yield waiting


def _write(
    blocks: Sequence[Tensor],
    codec: Codec,
    translation: Translation,
    writer: Writer,
    advance: Callable[[int], None],
) -> Iterator[list[float]]:
    """Code blocks, and write them once they decode; yields where the bits of each went."""
    coded = codec.encode(blocks, advance)
    payloads, counts = [each.payload for each in coded], [len(x) for x in blocks]
    decoded = map(codec.model.pack, codec.decode(payloads, counts, advance))
    for before, after, each in zip(blocks, decoded, coded, strict=True):
        if not all(map(np.array_equal, *map(translation.values, (before, after)))):
            raise BFNError(
                "the coded data did not decode to the original, because this machine does not "
                "compute the same digits twice; nothing was written"
            )
        writer.add(each.payload, len(before), translation.checksum(before))
        others = (each.bits[name] for name in _OTHERS[:3])
        yield [*each.bits["steps"], *others, each.startup_examples]


def _counter(report: Report, total: int, title: str) -> Callable[[int], None]:
    """A function that adds up finished work, and reports it."""
    done = 0

    def advance(number: int) -> None:
        nonlocal done
        done += number
        report(done, total, title)

    return advance


# Unpacking.

_PROGRAMS = ("torch", "numpy", "constriction")
_PROCESSOR = ("machine", "instructions")
_ANYWAY = ", or try --anyway: restored files are checked, so the worst that can happen is an error"


def unpack(
    archive: Archive,
    model: BFN,
    format: Format,
    out: Path,
    *,
    run: str = "",
    anyway: bool = False,
    only: Sequence[str] | None = None,
    report: Report = _silent,
) -> list[Entry]:
    """Restore an archive's files below a folder, replacing those of the same names; returns them.

    Args:
        model, format: those that the archive was made with.
        run: the model's name in error messages.
        anyway: try even if versions or processors differ; decoded data are still checked.
        only: the names of files or folders; by default all are restored.
        report: called with the examples that were decoded.
    """
    entries, blocks = archive.contents.entries, archive.contents.blocks
    chosen = _choose(entries, only)
    wanted = [entry for entry, asked in zip(entries, chosen, strict=True) if asked]
    codec = _open_codec(archive, model, format, run, anyway)
    translation = Translation.of(model, format)
    examples = _BlockReader(
        max(1, archive.contents.block), _decoder(archive, codec, translation, chosen, report)
    )
    places = [i for i, block in enumerate(blocks) if not block.model]
    plain = _BlockReader(PIECE, lambda number: archive.plain_block(places[number]))
    digest = _Digest()
    # In the folder, if there is one: its parent may be another disk, or not writable.
    token = secrets.token_hex(4)
    temporary = (
        out / f".{token}.part" if out.is_dir() else out.with_name(f".{out.name}.{token}.part")
    )
    try:
        temporary.mkdir()
        for entry, asked in zip(entries, chosen, strict=True):
            if asked:
                restore(
                    entry, temporary / entry.name, translation, examples.take, plain.take, digest
                )
            else:
                examples.at, plain.at = examples.at + entry.examples, plain.at + entry.plain
        if all(chosen) and digest.value != archive.contents.content:
            raise archive.damaged("the restored files do not match their checksum")
        _move(temporary, out, wanted)
    except OSError as error:
        raise BFNError(
            f"the files cannot be restored to {str(out)!r} ({error.strerror or error}); give "
            "another folder"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return wanted


def _choose(entries: Sequence[Entry], only: Sequence[str] | None) -> list[bool]:
    """Which entries are selected, by name or by folder."""
    chosen = np.full(len(entries), not only)
    for name in only or ():
        place = name.rstrip("/")
        found = [f"{entry.name}/".startswith(f"{place}/") for entry in entries]
        if not any(found):
            held = join_names(repr(entry.name) for entry in entries) or "no files"
            raise BFNError(f"the archive holds no file {name!r}; it holds {held}")
        chosen |= found
    return chosen.tolist()


def _open_codec(archive: Archive, model: BFN, format: Format, run: str, anyway: bool) -> Codec:
    """The codec that decodes an archive, or the reason why this model or machine cannot."""
    contents, name, own = archive.contents, archive.name, fingerprint(model)
    if own != contents.fingerprint:
        raise BFNError(
            f"{name!r} was made with another model ({contents.run or 'unnamed'!r}, fingerprint "
            f"{contents.fingerprint:016x}) than {run!r} (fingerprint {own:016x}); give the run it "
            "was made with"
        )
    if not 1 <= contents.steps <= MAX_STEPS:
        raise archive.damaged(f"steps = {contents.steps}")
    block = max(1, contents.block)
    if block * format.dimensions > MAX_VARIABLES:
        raise archive.damaged(f"{block} examples in a block are too many")
    try:
        check_parts(contents.entries, format)
    except BFNError as error:
        raise archive.damaged(str(error)) from None
    codec = codec_for(model, format, contents.steps, block, contents.examples)
    if contents.lanes != codec.lanes:
        raise archive.damaged(f"lanes = {contents.lanes}")
    here, probe = _environment(codec)
    there = contents.made_with
    if there["device"] != here["device"]:
        raise BFNError(
            f"{name!r} was made on the device {there['device']!r}, not {here['device']!r}, which "
            f"rounds differently; decode it on {there['device']!r}"
        )
    # Not bfn's own version: the archive's format says whether its code has changed.
    different = [key for key in (*_PROGRAMS, *_PROCESSOR) if there[key] != here[key]]
    if different and not anyway:
        remedy = (
            "install the versions it was made with"
            if different[0] in _PROGRAMS
            else "decode it on such a processor"
        )
        theirs, ours = (", ".join(f"{k} {made[k]}" for k in different) for made in (there, here))
        raise BFNError(f"{name!r} was made with {theirs}, but this is {ours}; {remedy}{_ANYWAY}")
    if probe != contents.probe and not anyway:
        raise BFNError(
            f"{name!r} was made on a machine that rounds differently, although versions are the "
            f"same; decode it on the kind of processor it was made on{_ANYWAY}"
        )
    return codec


class _BlockReader:
    """Reads consecutive examples or plain bytes from blocks that are loaded on demand."""

    def __init__(self, size: int, load: Callable[[int], Any]) -> None:
        self.size, self.load, self.at = size, load, 0
        self._last: tuple[int, Any] | None = None

    def take(self, count: int) -> Iterator[Any]:
        """The next `count` of them, in pieces."""
        stop = self.at + count
        while self.at < stop:
            number, first = divmod(self.at, self.size)
            if self._last is None or self._last[0] != number:
                self._last = (number, self.load(number))
            piece = self._last[1][first : first + stop - self.at]
            self.at += len(piece)
            yield piece


def _decoder(
    archive: Archive,
    codec: Codec,
    translation: Translation,
    chosen: Sequence[bool],
    report: Report,
) -> Callable[[int], Tensor]:
    """A function that returns the examples of a block, decoding chosen entries in batches."""
    contents, model = archive.contents, codec.model
    places = [i for i, block in enumerate(contents.blocks) if block.model]
    needed, start, size = set[int](), 0, max(1, contents.block)
    for entry, asked in zip(contents.entries, chosen, strict=True):
        stop = start + entry.examples
        if asked and stop > start:
            needed.update(range(start // size, -(-stop // size)))
        start = stop
    order, decoded = sorted(needed), dict[int, Tensor]()
    total = sum(contents.blocks[places[b]].count for b in order)
    advance = _counter(report, total, "decompressing")

    def confirm(number: int, x: Any) -> None:
        if translation.checksum(model.pack(x)) != contents.blocks[places[number]].check:
            raise BFNError(f"block {number} holds the wrong data")

    def load(number: int) -> Tensor:
        if number in decoded:
            return decoded[number]
        decoded.clear()
        first = bisect_left(order, number)
        batch = order[first : first + codec.lanes]
        payloads = [archive.payload(places[b]) for b in batch]
        counts = [contents.blocks[places[b]].count for b in batch]
        try:
            found = codec.decode(payloads, counts, advance, batch, confirm)
        except BaseException as error:
            # constriction panics on invalid input, with its own exception type.
            panic = type(error).__name__ == "PanicException"
            if panic or isinstance(error, ValueError | ArithmeticError | IndexError):
                raise BFNError(
                    f"{archive.name!r} does not decode to the original: this machine computes "
                    "different digits from the one it was made on, or the archive is forged; "
                    "decode it where it was made"
                ) from error
            raise
        decoded.update(zip(batch, map(model.pack, found), strict=True))
        return decoded[number]

    return load


def _move(temporary: Path, out: Path, entries: Sequence[Entry]) -> None:
    """Move the restored files into place: the folder itself if it does not exist yet."""
    if not out.exists():
        os.replace(temporary, out)
        return
    for entry in entries:
        target = out / entry.name
        for folder in (target, *target.parents):
            if folder == out:
                break
            # A symlink could lead out of the folder.
            if folder.is_symlink() or (folder.is_dir() if folder == target else folder.is_file()):
                raise BFNError(
                    f"{str(folder)!r} is in the way of a restored file; remove it, or give another "
                    "folder"
                )
    for entry in entries:
        (out / entry.name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary / entry.name, out / entry.name)


# Arrays in Python.


def compress(model: BFN, x: Any, *, steps: int = 25, block: int | None = None) -> bytes:
    """Compress data losslessly with a model; `decompress` restores them.

    Args:
        model: of data that can be coded: discrete, discretised, continuous with
            reconstruction=bfn.Bins(K, sigma), or mixed of such variables.
        x: (N, *shape) in the model's convention, an array or a tensor of any type of numbers; for
            mixed data a dict of these, with equally many examples of each variable.
        steps: number of messages n; larger is slower and saves bits, down to L^n + L^r.
        block: examples coded together; by default enough to keep the start-up cost small.
    """
    rows = packed(model, x)
    model.check(rows)
    format, parts = format_of(model, rows.shape[1:]), x if model.flow.variables else {"": x}
    columns = [_array(parts[name]) for name in format.parts]

    def read(translation: Translation) -> list[Source]:
        arrays, size = [], 0
        for column in columns:
            arrays.append(Array(size, column.dtype.str, False, column.shape))
            size += len(npy_header(column.shape, column.dtype.str)) + column.nbytes
        part, raw = Rows(len(columns[0]), tuple(arrays)), [column.tobytes() for column in columns]
        try:
            fragment = Fragment(part, raw, translation.examples(*columns))
            translation.check(fragment)
        except DoesNotFit as reason:
            raise BFNError(f"x {reason}") from None
        return [Source(Path(NAME), Entry(NAME, (part,)), size, lambda: iter([fragment]))]

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "data.bfn"
        _store(model, Translation.of(model, format), read, out, steps, block)
        return out.read_bytes()


def _array(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def decompress(model: BFN, data: bytes) -> Any:
    """The data given to `compress`, as numpy arrays of the same types."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "data.bfn", Path(folder) / "data"
        path.write_bytes(data)
        with Archive(path, name="the data") as archive:
            if [entry.name for entry in archive.contents.entries] != [NAME]:
                raise BFNError("the data are an archive of files; restore them with bfn decompress")
            format = format_of(model, archive.contents.shape)
            unpack(archive, model, format, out, run="the model")
            try:
                with (out / NAME).open("rb") as file:
                    found = {name: np.load(file, allow_pickle=False) for name in format.parts}
            except (ValueError, EOFError):
                raise archive.damaged("it does not hold one array for each variable") from None
    return found if model.flow.variables else found[""]
