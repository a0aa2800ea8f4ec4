"""An archive's files again, or some of them; never wrong ones.

Before anything is decoded, the model must be the one the archive was made with, and this machine
must compute the same digits: versions and settings are compared, and a probe of the network. What
is decoded must have the digest that was stored. Files are restored aside, in a folder that takes
its name when all of them are there.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch import Tensor

from bfn.codec import files
from bfn.codec.archive import (
    MAX_LANES,
    MAX_VARIABLES,
    Report,
    contents,
    fingerprint,
    shared,
    values_of,
)
from bfn.codec.coder import Codec
from bfn.codec.container import Archive
from bfn.codec.fragments import Translation
from bfn.codec.index import MAX_STEPS
from bfn.codec.records import Item, covered
from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.model import BFN

_PROGRAMS = ("torch", "numpy", "constriction")
_PROCESSOR = ("machine", "instructions")


def open_codec(
    archive: Archive, model: BFN, format: Format, *, run: str = "", anyway: bool = False
) -> Codec:
    """The codec that decodes an archive, or the reason why this model or machine cannot.

    Args:
        run: what error messages call the model.
        anyway: try even if versions or processors differ; what is decoded is checked all the same.
    """
    index, name = archive.index, str(archive.path)
    if fingerprint(model) != index.fingerprint:
        made = index.header.get("run") or "another model"
        raise BFNError(
            f"{name!r} was made with another model ({made!r}, fingerprint "
            f"{index.fingerprint.hex()[:12]}) than {run!r} (fingerprint "
            f"{fingerprint(model).hex()[:12]}); give the run it was made with"
        )
    stored = index.header["codec"]
    numbers = {key: _whole(archive, stored, key) for key in ("steps", "lanes", "threads")}
    spacing = stored.get("spacing")
    if not isinstance(spacing, float) or not 0.01 <= spacing <= 4.0:
        raise archive.damaged(f"spacing = {spacing!r}")
    if numbers["lanes"] * max(1, index.block) * format.dimensions > MAX_VARIABLES:
        raise archive.damaged(f"{index.block} examples in a block are too many")
    try:
        files.check_parts(index.items, format)
    except BFNError as error:
        raise archive.damaged(str(error)) from None
    codec = Codec(model, format.shape, **numbers, spacing=spacing, values=values_of(model, format))
    here, probe = shared(codec.settings)
    _compare(archive, stored, here, anyway)
    if probe != index.probe and not anyway:
        raise BFNError(
            f"{name!r} was made where the network's last digits come out differently, though "
            f"versions and settings are the same: decode it on the kind of processor it was made on"
            f"{_ANYWAY}"
        )
    return codec


_ANYWAY = (
    ", or try with --anyway: what is restored is checked, so the worst that can happen is an error"
)


def _whole(archive: Archive, stored: dict[str, Any], key: str) -> int:
    bound = {"steps": MAX_STEPS, "lanes": MAX_LANES, "threads": 1024}[key]
    value = stored.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= bound:
        raise archive.damaged(f"{key} = {value!r}")
    return value


def _compare(archive: Archive, stored: dict[str, Any], here: dict[str, Any], anyway: bool) -> None:
    """Settings must agree; whether the version of bfn itself matters, "format" says."""
    name = str(archive.path)
    if stored.get("device") != here["device"]:
        raise BFNError(
            f"{name!r} was made on the device {stored.get('device')!r}, not {here['device']!r}, "
            f"which computes other last digits; decode it on {stored.get('device')!r}"
        )
    if stored.get("format") != here["format"]:
        raise BFNError(
            f"{name!r} was coded by bfn {stored.get('bfn')!r} in another way than bfn "
            f"{here['bfn']} does it; install that version"
        )
    different = [key for key in here if key != "bfn" and stored.get(key) != here[key]]
    environment = [key for key in different if key in _PROGRAMS + _PROCESSOR]
    if set(different) - set(environment):
        key = sorted(set(different) - set(environment))[0]
        raise archive.damaged(f"{key} = {stored.get(key)!r} does not belong to this model")
    if environment and not anyway:
        there = ", ".join(f"{key} {stored.get(key)}" for key in environment)
        this = ", ".join(f"{key} {here[key]}" for key in environment)
        remedy = (
            "install the versions it was made with"
            if environment[0] in _PROGRAMS
            else "decode it on such a processor"
        )
        raise BFNError(f"{name!r} was made with {there}, but here is {this}; {remedy}{_ANYWAY}")


def choose(items: Sequence[Item], only: Sequence[str] | None) -> list[bool]:
    """Which items are asked for: by name, or by the folder they lie in."""
    if not only:
        return [True] * len(items)
    chosen = [False] * len(items)
    for name in only:
        wanted = name.rstrip("/")
        found = [
            i for i, item in enumerate(items) if item.name == wanted or _below(item.name, wanted)
        ]
        if not found:
            raise BFNError(f"the archive holds no file {name!r}; it holds {_listing(items)}")
        for i in found:
            chosen[i] = True
    return chosen


def _below(name: str, folder: str) -> bool:
    return name.startswith(folder + "/")


def _listing(items: Sequence[Item]) -> str:
    shown = ", ".join(repr(item.name) for item in items[:5])
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return (shown or "no files") + more


def unpack(
    archive: Archive,
    codec: Codec,
    translation: Translation,
    out: Path,
    *,
    only: Sequence[str] | None = None,
    report: Report = lambda done, total, note: None,
) -> list[Item]:
    """Restore an archive's files below a folder; returns which.

    Files of the same names in that folder are replaced.
    """
    items = archive.index.items
    chosen = choose(items, only)
    examples = _Examples(archive, codec, translation, covered(items, chosen), report)
    plain = _Plain(archive)
    restored = hashlib.blake2b(digest_size=8)
    # In the folder, if there is one: beside it may be another disk, or nothing that one may write.
    inside, token = out.is_dir(), secrets.token_hex(4)
    aside = out / f".{token}.part" if inside else out.with_name(f".{out.name}.{token}.part")
    try:
        aside.mkdir()
        at = kept = 0
        for item, wanted in zip(items, chosen, strict=True):
            if wanted:
                take, keep = _from(examples.pieces, at), _from(plain.pieces, kept)
                files.restore(item, aside / item.name, translation, take, keep, restored.update)
            at, kept = at + item.examples, kept + item.plain
        if all(chosen) and restored.digest() != archive.index.content:
            raise archive.damaged("what was restored is not what was stored")
        _move(aside, out, [item for item, wanted in zip(items, chosen, strict=True) if wanted])
    except OSError as error:
        raise BFNError(
            f"the files cannot be restored to {str(out)!r} ({error.strerror or error}); give "
            "another folder"
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return [item for item, wanted in zip(items, chosen, strict=True) if wanted]


def _from(pieces: Callable[[int, int], Iterator[Any]], start: int) -> Callable[[int], Iterator]:
    """A function for the next so many, beginning at `start`."""
    at = start

    def take(count: int) -> Iterator[Any]:
        nonlocal at
        at += count
        return pieces(at - count, at)

    return take


def _move(aside: Path, out: Path, items: Sequence[Item]) -> None:
    """Give the restored files their place: the whole folder at once if there is none yet."""
    if not out.exists():
        os.replace(aside, out)
        return
    for item in items:
        target = out / item.name
        for folder in (target, *target.parents):
            if folder == out:
                break
            # A link in the way could lead out of the folder.
            if folder.is_symlink() or (folder.is_dir() if folder == target else folder.is_file()):
                raise BFNError(f"{str(folder)!r} is in the way; remove it or give another folder")
    for item in items:
        (out / item.name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(aside / item.name, out / item.name)


class _Examples:
    """The row of all examples; blocks are decoded a batch at a time, only those that are needed."""

    def __init__(
        self,
        archive: Archive,
        codec: Codec,
        translation: Translation,
        stretches: Sequence[tuple[int, int]],
        report: Report,
    ) -> None:
        self.archive, self.codec, self.translation = archive, codec, translation
        self.report, self.size = report, archive.index.block
        self.places = [i for i, block in enumerate(archive.index.blocks) if block.model]
        self.needed = sorted(
            {
                block
                for start, stop in stretches
                for block in range(start // self.size, -(-stop // self.size))
            }
        )
        counts = [archive.index.blocks[self.places[b]].count for b in self.needed]
        self.total, self._done = sum(counts), 0
        self._decoded: dict[int, Tensor] = {}

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
        blocks = [self.archive.index.blocks[self.places[b]] for b in batch]
        elsewhere = BFNError(
            f"{str(self.archive.path)!r} does not decode to what was stored: this machine computes "
            "other digits than the one it was made on, or the archive is forged; decode it where "
            "it was made"
        )
        try:
            decoded = self.codec.decode(
                payloads, [block.count for block in blocks], self._advance, batch
            )
        except BaseException as error:
            # What the coder's own library cannot bear, it answers with an error beside all others.
            panic = type(error).__name__ == "PanicException"
            if panic or isinstance(error, ValueError | ArithmeticError | IndexError):
                raise elsewhere from error
            raise
        for block, x in zip(blocks, decoded, strict=True):
            if contents(self.translation, x) != block.digest:
                raise elsewhere
        return decoded

    def _advance(self, examples: int) -> None:
        self._done += examples
        self.report(self._done, self.total, "")


class _Plain:
    """The row of all bytes that were stored without the model."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.places = [i for i, block in enumerate(archive.index.blocks) if not block.model]
        counts = [archive.index.blocks[i].count for i in self.places]
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
