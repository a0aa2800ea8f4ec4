"""Files to an archive and back, with everything checked.

All inputs are read into memory, coded, and decoded again before the archive is written, under a
temporary name that is then replaced.

Before anything is unpacked, the model must be the one the archive was made with, and this machine
must compute the same numbers: a probe of the network and the coder is compared. No file is written
before all of them are decoded and have their stored checksums.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bfn
from bfn.codec.archive import Archive, Contents, Entry
from bfn.codec.chain import Chain
from bfn.codec.coder import LANES, Codec
from bfn.codec.files import KINDS, Arrays, Report, Source, checksum, ending, scan, silent
from bfn.codec.stack import Exact
from bfn.codec.translation import DoesNotFit, Translation, bin_values
from bfn.data.formats import Format
from bfn.data.tensors import format_of, packed
from bfn.errors import BFNError, join_names, printable
from bfn.files import write
from bfn.model import BFN

BLOCK = 34
"""Default length of a block, in multiples of its start-up cost."""
MAX_STEPS = 2048
"""Far beyond where L^n has converged."""
WIDTH, WIDE = 256, 1 << 16
"""Maximum number of examples of a block coded at a time, and of variables of all blocks."""
MAX_VARIABLES = 1 << 25
"""Maximum number of variables coded at once: bounds the memory of both sides."""
NAMES = ("data.npy", "data.npz")
"""The only entry of an archive of arrays, of one kind or of mixed data."""


# What both sides must agree on.


def fingerprint(model: BFN, format: Format) -> int:
    """64 bits of a model's configuration, the format of its examples and its weights."""
    # What a saved model knows of its data may have more than the format.
    config = model.config() | {"data": format.describe()}
    digest = hashlib.blake2b(digest_size=8)
    digest.update(json.dumps(_without_defaults(config), sort_keys=True).encode())
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


def made_with(model: BFN) -> dict[str, str]:
    """The versions, the processor and the device that an archive of the model is made with."""
    return {
        "bfn": bfn.__version__,
        **{name: version(name) for name in ("torch", "numpy", "constriction")},
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": model.device.type,
    }


def codec_for(model: BFN, format: Format, steps: int, block: int = 1, examples: int = 1) -> Codec:
    """The codec for a number of examples in blocks, which determine its lanes and width."""
    lanes = min(LANES, -(-examples // block), MAX_VARIABLES // (block * format.dimensions))
    exact = Exact(format.laws) if format.laws else None
    own = {"lanes": max(1, lanes), "values": bin_values(format), "exact": exact}
    narrow = Codec(model, format.shape, steps, **own)
    most = min(WIDTH, WIDE // (narrow.lanes * narrow.chain.variables))
    width = min(most, int(block / _fair_length(narrow.chain)))
    return Codec(model, format.shape, steps, width=width, **own) if width > 1 else narrow


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
    report: Report = silent,
) -> Archive:
    """Store files in an archive, and return it.

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

    archive = _store(model, Translation.of(model, format, resize), read, steps, block, run, report)
    write(out, archive.to_bytes())
    return archive


def _store(
    model: BFN,
    translation: Translation,
    read: Callable[[Translation], list[Source]],
    steps: int,
    block: int | None,
    run: str = "",
    report: Report = silent,
) -> Archive:
    """An archive of the sources that `read` returns."""
    format = translation.format
    most = max(1, MAX_VARIABLES // format.dimensions)
    if block is not None and not 1 <= block <= most:
        raise BFNError(f"block = {block} examples; give 1 to {most}")
    if not 1 <= steps <= MAX_STEPS:
        raise BFNError(f"steps = {steps}; give 1 to {MAX_STEPS}")
    # Refuses a model that cannot code, before files are read.
    chain = codec_for(model, format, steps).chain
    sources = read(translation)
    x = torch.cat([translation.nothing, *(source.x for source in sources)])
    if block is None:  # blocks of equal length
        wanted = format.block or _fair_length(chain)
        length = math.ceil(len(x) / max(1, round(len(x) / wanted)))
        block = min(most, max(1, length))
    codec = codec_for(model, format, steps, block, len(x))
    blocks = list(x.split(block)) if len(x) else []
    contents = Contents(
        made_with(model),
        printable(run)[:255],
        format.medium,
        tuple(format.shape),
        fingerprint(model, format),
        codec.probe,
        steps,
        block,
        input_bytes=sum(source.size for source in sources),
        lengths=[1 << 31] * len(blocks),
        entries=[source.entry for source in sources],
    )
    contents.pack()  # refuses too many files before they are coded
    advance = _counter(report, 2 * len(x), "compressing and checking")
    payloads = [coded.payload for coded in codec.encode(blocks, advance)]
    decoded = codec.decode(payloads, [len(each) for each in blocks], advance)
    for before, after in zip(blocks, map(model.pack, decoded), strict=True):
        if not all(map(np.array_equal, *map(translation.values, (before, after)))):
            raise BFNError(
                "the coded data did not decode to the original, because this machine does not "
                "compute the same numbers twice; nothing was written"
            )
    contents = replace(contents, lengths=[len(payload) for payload in payloads])
    return Archive.of(contents, payloads, b"".join(source.plain for source in sources))


def _counter(report: Report, total: int, title: str) -> Callable[[int], None]:
    """A function that adds up finished work, and reports it."""
    done = 0

    def advance(number: int) -> None:
        nonlocal done
        done += number
        report(done, total, title)

    return advance


# Unpacking.


def unpack(
    archive: Archive,
    model: BFN,
    format: Format,
    out: Path,
    *,
    run: str = "",
    only: Sequence[str] | None = None,
    report: Report = silent,
) -> list[Entry]:
    """Restore an archive's files below a folder, replacing those of the same names; returns them.

    Args:
        model, format: those that the archive was made with.
        run: the model's name in error messages.
        only: the names of files or folders; by default all are restored.
        report: called with the examples that were decoded.
    """
    chosen = _choose(archive.contents.entries, only)
    wanted = [archive.contents.entries[number] for number in chosen]
    _check_places(out, wanted)
    decoded = _values(archive, model, format, chosen, run, report)
    translation = Translation.of(model, format)
    files = [
        KINDS[entry.kind](translation).file(entry.name, values)
        for entry, values in zip(wanted, decoded, strict=True)
    ]
    out.mkdir(exist_ok=True)
    for entry, content in zip(wanted, files, strict=True):
        (out / entry.name).parent.mkdir(parents=True, exist_ok=True)
        write(out / entry.name, content)
    return wanted


def _choose(entries: Sequence[Entry], only: Sequence[str] | None) -> list[int]:
    """The numbers of the entries that are selected, by name or by folder."""
    chosen = set[int]() if only else set(range(len(entries)))
    for name in only or ():
        place = name.rstrip("/")
        named = {i for i, entry in enumerate(entries) if f"{entry.name}/".startswith(f"{place}/")}
        if not named:
            held = join_names(repr(entry.name) for entry in entries) or "no files"
            raise BFNError(f"the archive holds no file {name!r}; it holds {held}")
        chosen |= named
    return sorted(chosen)


def _check_places(out: Path, entries: Sequence[Entry]) -> None:
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


def _values(
    archive: Archive,
    model: BFN,
    format: Format,
    chosen: Sequence[int],
    run: str,
    report: Report = silent,
) -> list[dict[str, np.ndarray]]:
    """The values of the chosen entries, all of which have their stored checksums."""
    contents, entries = archive.contents, archive.contents.entries
    codec = _open_codec(archive, model, format, run)
    translation, size, plain = Translation.of(model, format), contents.block, archive.plain
    first = list(accumulate((entry.examples for entry in entries), initial=0))
    start = list(accumulate((entry.plain for entry in entries), initial=0))
    needed = set[int]()
    for i in chosen:
        if entries[i].examples:
            needed.update(range(first[i] // size, -(-first[i + 1] // size)))
    order, values = sorted(needed), []
    counts = [min(size, contents.examples - number * size) for number in order]
    advance = _counter(report, sum(counts), "decompressing")
    try:
        decoded = codec.decode([archive.blocks[b] for b in order], counts, advance, order)
        x = torch.cat([translation.nothing, *map(model.pack, decoded)])
        places = {number: place * size for place, number in enumerate(order)}
        for i in chosen:
            entry = entries[i]
            at = places.get(first[i] // size, 0) + first[i] % size
            values.append(
                KINDS[entry.kind](translation).restore(
                    x[at : at + entry.examples], plain[start[i] : start[i + 1]], entry.about
                )
            )
            if not entry.name.lower().endswith(".npz") and list(values[-1]) != [""]:
                raise ValueError(f"{entry.name!r} has several arrays")
            if checksum(values[-1]) != entry.check:
                raise ValueError(f"{entry.name!r} does not have its checksum")
    except BaseException as error:
        # constriction panics on invalid input, with its own exception type.
        panic = type(error).__name__ == "PanicException"
        if panic or isinstance(
            error,
            DoesNotFit | ValueError | TypeError | ArithmeticError | LookupError | AttributeError,
        ):
            raise BFNError(
                f"{archive.name!r} does not decode to the original: this machine computes "
                "different numbers than the one it was made on, or the archive is forged; decode "
                "it where it was made"
            ) from error
        raise
    return values


def _open_codec(archive: Archive, model: BFN, format: Format, run: str) -> Codec:
    """The codec that decodes an archive, or the reason why this model or machine cannot."""
    contents, name, own = archive.contents, archive.name, fingerprint(model, format)
    if own != contents.fingerprint:
        raise BFNError(
            f"{name!r} was made with another model ({contents.run or 'unnamed'!r}, fingerprint "
            f"{contents.fingerprint:016x}) than {run!r} (fingerprint {own:016x}); give the run it "
            "was made with"
        )
    if not 1 <= contents.steps <= MAX_STEPS:
        raise archive.damaged(f"steps = {contents.steps}")
    if contents.block * format.dimensions > MAX_VARIABLES:
        raise archive.damaged(f"{contents.block} examples in a block are too many")
    for entry in contents.entries:
        if entry.kind not in KINDS or not KINDS[entry.kind].suits(format, ending(entry.name)):
            raise archive.damaged(f"{entry.name!r} is not data of this model's kind")
    codec = codec_for(model, format, contents.steps, contents.block, contents.examples)
    if codec.probe != contents.probe:
        there, here = contents.made_with, made_with(model)
        different = [key for key in there if there[key] != here[key]]
        theirs, ours = (", ".join(f"{k} {made[k]}" for k in different) for made in (there, here))
        raise BFNError(
            f"{name!r} was made on a machine that rounds differently"
            f"{f', with {theirs}; this is {ours}' if different else ', although versions agree'}; "
            "decode it where it was made, or with the same versions on such a processor"
        )
    return codec


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
    format, mixed = format_of(model, rows.shape[1:]), bool(model.flow.variables)
    parts = x if mixed else {"": x}
    arrays = {name: _array(parts[name]) for name in format.parts}

    def read(translation: Translation) -> list[Source]:
        kind, size = Arrays(translation), sum(array.nbytes for array in arrays.values())
        try:
            return [Source.of(NAMES[mixed], kind, kind.content(arrays), size)]
        except DoesNotFit as reason:
            raise BFNError(f"x {reason}") from None

    return _store(model, Translation.of(model, format), read, steps, block).to_bytes()


def _array(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def decompress(model: BFN, data: bytes) -> Any:
    """The data given to `compress`, as numpy arrays of the same types."""
    archive, mixed = Archive.from_bytes(data, "the data"), bool(model.flow.variables)
    if [entry.name for entry in archive.contents.entries] not in ([name] for name in NAMES):
        raise BFNError("the data are an archive of files; restore them with bfn decompress")
    format = format_of(model, archive.contents.shape)
    (values,) = _values(archive, model, format, [0], "the model")
    return values if mixed else values[""]
