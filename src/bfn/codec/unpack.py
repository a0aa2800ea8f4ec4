"""An archive's files again, or some of them; never wrong ones.

Before anything is decoded, the model must be the one the archive was made with, and this machine
must compute the same digits: versions are compared, and a probe of the network. What is decoded
must have the checksum that was stored. Files are restored into a folder of another name, which
takes its own when all of them are there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch import Tensor

from bfn.codec import files
from bfn.codec.archive import Archive, Entry
from bfn.codec.coder import Codec
from bfn.codec.pack import MAX_STEPS, MAX_VARIABLES, Report, environment, fingerprint, make_codec
from bfn.codec.translation import Translation
from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.model import BFN

MAX_LANES = 64
_PROGRAMS = ("torch", "numpy", "constriction")
_PROCESSOR = ("machine", "instructions")
_ANYWAY = (
    ", or try with --anyway: what is restored is checked, so the worst that can happen is an error"
)


def open_codec(
    archive: Archive, model: BFN, format: Format, *, run: str = "", anyway: bool = False
) -> Codec:
    """The codec that decodes an archive, or the reason why this model or machine cannot.

    Args:
        run: what error messages call the model.
        anyway: try even if versions or processors differ; what is decoded is still checked.
    """
    contents, name = archive.contents, str(archive.path)
    if fingerprint(model) != contents.fingerprint:
        raise BFNError(
            f"{name!r} was made with another model ({contents.run or 'unnamed'!r}, fingerprint "
            f"{contents.fingerprint:016x}) than {run!r} (fingerprint {fingerprint(model):016x}); "
            "give the run it was made with"
        )
    for key, most in (("steps", MAX_STEPS), ("lanes", MAX_LANES)):
        if not 1 <= getattr(contents, key) <= most:
            raise archive.damaged(f"{key} = {getattr(contents, key)}")
    if contents.lanes * max(1, contents.block) * format.dimensions > MAX_VARIABLES:
        raise archive.damaged(f"{contents.block} examples in a block are too many")
    try:
        files.check_parts(contents.entries, format)
    except BFNError as error:
        raise archive.damaged(str(error)) from None
    codec = make_codec(model, format, contents.steps, contents.lanes)
    made_with, probe = environment(codec)
    _compare(name, contents.made_with, made_with, anyway)
    if probe != contents.probe and not anyway:
        raise BFNError(
            f"{name!r} was made where the network's last digits come out differently, though "
            f"versions are the same: decode it on the kind of processor it was made on{_ANYWAY}"
        )
    return codec


def _compare(name: str, there: dict[str, str], here: dict[str, str], anyway: bool) -> None:
    """Versions and processors must agree, but for bfn's own: the archive's format is its own."""
    if there["device"] != here["device"]:
        raise BFNError(
            f"{name!r} was made on the device {there['device']!r}, not {here['device']!r}, which "
            f"computes other last digits; decode it on {there['device']!r}"
        )
    different = [key for key in (*_PROGRAMS, *_PROCESSOR) if there[key] != here[key]]
    if different and not anyway:
        remedy = (
            "install the versions it was made with"
            if different[0] in _PROGRAMS
            else "decode it on such a processor"
        )
        theirs, ours = (", ".join(f"{k} {made[k]}" for k in different) for made in (there, here))
        raise BFNError(f"{name!r} was made with {theirs}, but this is {ours}; {remedy}{_ANYWAY}")


def choose(entries: Sequence[Entry], only: Sequence[str] | None) -> list[bool]:
    """Which entries are asked for: by name, or by the folder they lie in."""
    if not only:
        return [True] * len(entries)
    chosen = [False] * len(entries)
    for name in only:
        wanted = name.rstrip("/")
        found = [
            i
            for i, entry in enumerate(entries)
            if entry.name == wanted or entry.name.startswith(wanted + "/")
        ]
        if not found:
            shown = ", ".join(repr(entry.name) for entry in entries[:5]) or "no files"
            more = f" and {len(entries) - 5} more" if len(entries) > 5 else ""
            raise BFNError(f"the archive holds no file {name!r}; it holds {shown}{more}")
        for i in found:
            chosen[i] = True
    return chosen


def unpack(
    archive: Archive,
    codec: Codec,
    translation: Translation,
    out: Path,
    *,
    only: Sequence[str] | None = None,
    report: Report = lambda done, total: None,
) -> list[Entry]:
    """Restore an archive's files below a folder; returns which.

    Files of the same names in that folder are replaced.
    """
    entries = archive.contents.entries
    chosen = choose(entries, only)
    wanted = [entry for entry, asked in zip(entries, chosen, strict=True) if asked]
    examples = _Examples(archive, codec, translation, chosen, report)
    plain = _Plain(archive)
    content = 0

    def digest(data: bytes) -> None:
        nonlocal content
        content = zlib.crc32(data, content)

    # In the folder, if there is one: its parent may be another disk, or not writable.
    token = secrets.token_hex(4)
    aside = out / f".{token}.part" if out.is_dir() else out.with_name(f".{out.name}.{token}.part")
    try:
        aside.mkdir()
        at = kept = 0
        for entry, asked in zip(entries, chosen, strict=True):
            if asked:
                take, keep = _from(examples.pieces, at), _from(plain.pieces, kept)
                files.restore(entry, aside / entry.name, translation, take, keep, digest)
            at, kept = at + entry.examples, kept + entry.plain
        if all(chosen) and content != archive.contents.content:
            raise archive.damaged("what was restored is not what was stored")
        _move(aside, out, wanted)
    except OSError as error:
        raise BFNError(
            f"the files cannot be restored to {str(out)!r} ({error.strerror or error}); give "
            "another folder"
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return wanted


def _from(pieces: Callable[[int, int], Iterator[Any]], start: int) -> Callable[[int], Iterator]:
    """A function that takes the next ones, of a given number, beginning at `start`."""
    at = start

    def take(count: int) -> Iterator[Any]:
        nonlocal at
        at += count
        return pieces(at - count, at)

    return take


def _move(aside: Path, out: Path, entries: Sequence[Entry]) -> None:
    """Give the restored files their place: the whole folder at once if there is none yet."""
    if not out.exists():
        os.replace(aside, out)
        return
    for entry in entries:
        target = out / entry.name
        for folder in (target, *target.parents):
            if folder == out:
                break
            # A link in the way could lead out of the folder.
            if folder.is_symlink() or (folder.is_dir() if folder == target else folder.is_file()):
                raise BFNError(f"{str(folder)!r} is in the way; remove it or give another folder")
    for entry in entries:
        (out / entry.name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(aside / entry.name, out / entry.name)


class _Examples:
    """All examples in a row; blocks are decoded a batch at a time, only those that are needed."""

    def __init__(
        self,
        archive: Archive,
        codec: Codec,
        translation: Translation,
        chosen: Sequence[bool],
        report: Report,
    ) -> None:
        contents = archive.contents
        self.archive, self.codec, self.translation = archive, codec, translation
        self.report, self.size = report, contents.block
        self.places = [i for i, block in enumerate(contents.blocks) if block.model]
        needed, start = set[int](), 0
        for entry, asked in zip(contents.entries, chosen, strict=True):
            stop = start + entry.examples
            if asked:
                needed.update(range(start // max(1, self.size), -(-stop // max(1, self.size))))
            start = stop
        self.needed = sorted(needed)
        self.total = sum(contents.blocks[self.places[b]].count for b in self.needed)
        self._done, self._decoded = 0, dict[int, Tensor]()

    def pieces(self, start: int, stop: int) -> Iterator[Tensor]:
        while start < stop:
            block, first = divmod(start, self.size)
            last = min(self.size, first + stop - start)
            yield self._block(block)[first:last]
            start += last - first

    def _block(self, number: int) -> Tensor:
        if number not in self._decoded:
            first = self.needed.index(number)
            batch = self.needed[first : first + self.codec.lanes]
            self._decoded = {}
            self._decoded = dict(zip(batch, self._decode(batch), strict=True))
        return self._decoded[number]

    def _decode(self, batch: Sequence[int]) -> list[Tensor]:
        payloads = [self.archive.payload(self.places[b]) for b in batch]
        blocks = [self.archive.contents.blocks[self.places[b]] for b in batch]
        elsewhere = BFNError(
            f"{str(self.archive.path)!r} does not decode to what was stored: this machine computes "
            "other digits than the one it was made on, or the archive is forged; decode it where "
            "it was made"
        )
        try:
            counts = [block.count for block in blocks]
            decoded = self.codec.decode(payloads, counts, self._advance, batch)
        except BaseException as error:
            # constriction panics at input that it cannot process, with an error of its own.
            panic = type(error).__name__ == "PanicException"
            if panic or isinstance(error, ValueError | ArithmeticError | IndexError):
                raise elsewhere from error
            raise
        for block, x in zip(blocks, decoded, strict=True):
            if self.translation.check_value(x) != block.check:
                raise elsewhere
        return decoded

    def _advance(self, examples: int) -> None:
        self._done += examples
        self.report(self._done, self.total)


class _Plain:
    """All bytes that were stored without the model, in a row."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.places = [i for i, block in enumerate(archive.contents.blocks) if not block.model]
        counts = [archive.contents.blocks[i].count for i in self.places]
        self.starts = list(accumulate(counts, initial=0))
        self._last: tuple[int, bytes] | None = None

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        while start < stop:
            number = bisect_right(self.starts, start) - 1
            if self._last is None or self._last[0] != number:
                self._last = (number, self.archive.plain_block(self.places[number]))
            data = self._last[1][start - self.starts[number] : stop - self.starts[number]]
            yield data
            start += len(data)
