"""Files to an archive, in batches of blocks, with everything checked.

Packing reads every input twice: once to see that the model can represent it exactly, and once to
store it. Each batch of blocks is decoded again before it is written; the archive is written under
another name, read back, and only then takes its own. Memory holds one batch, whatever the length of
the archive.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bfn.codec import files
from bfn.codec.archive import MADE_WITH, Archive, Bits, Contents, Writer
from bfn.codec.coder import LANES, Codec
from bfn.codec.files import Source
from bfn.codec.translation import Translation, bin_values
from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.files import replacing
from bfn.model import BFN

BLOCK = 42
"""Length of a block by default, in what it takes to begin one."""
MAX_STEPS = 1 << 12
MAX_VARIABLES = 1 << 25
"""The most variables that are coded at once: bounds the memory of both sides."""

Report = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


def _silent(done: int, total: int) -> None: ...


def fingerprint(model: BFN) -> int:
    """64 bits of a model's configuration and weights."""
    found = hashlib.blake2b(digest_size=8)
    found.update(json.dumps(model.config(), sort_keys=True).encode())
    for name, tensor in sorted(model.net.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return int.from_bytes(found.digest(), "big")


def environment(codec: Codec) -> tuple[dict[str, str], int]:
    """What an archive was made with, and the probe."""
    settings = codec.settings
    return {key: str(settings[key]) for key in MADE_WITH}, int(settings["probe"][:8], 16)


def make_codec(model: BFN, format: Format, steps: int, lanes: int) -> Codec:
    return Codec(model, format.shape, steps, lanes=lanes, values=bin_values(format))


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
    reading: Report = _silent,
    report: Report = _silent,
) -> Contents:
    """Store files in an archive; returns its table of contents.

    Args:
        model, format: what codes them, and what one example of its data is.
        inputs: files and folders.
        out: the archive; an existing file is replaced when all is done.
        steps: n of the messages: more are slower and need fewer bits.
        block: examples that share a stack. Fewer give quicker access to one of them and keep more
            lanes busy; every block codes some of its examples at a higher rate, to begin with.
            By default it is made long enough for these to be few.
        run: what error messages call the model.
        allow_fallback: store files that the model cannot represent without it.
        reading, report: called with the files that were read, then with the examples that were
            encoded and decoded again.
    """
    most = max(1, MAX_VARIABLES // format.dimensions)
    if block is not None and not 1 <= block <= most:
        raise BFNError(f"block = {block} examples; give 1 to {most}")
    if not 1 <= steps <= MAX_STEPS:
        raise BFNError(f"steps = {steps}; give 1 to {MAX_STEPS}")
    translation = Translation.of(model, format)
    # A model that cannot code says so here, before files are read.
    single = make_codec(model, format, steps, lanes=1)
    found = files.find(inputs)
    sources = files.scan(found, translation, allow_fallback=allow_fallback, report=reading)
    examples = sum(source.entry.examples for source in sources)
    if block is None:
        block = min(most, _fair_block(single, examples))
    lanes = min(LANES, -(-examples // block), MAX_VARIABLES // (block * format.dimensions))
    codec = make_codec(model, format, steps, max(1, lanes))
    try:
        with replacing(out) as aside:
            with Writer(aside) as writer:
                packing = _Packing(codec, translation, writer, block, 2 * examples, report)
                packing.store(sources)
                made_with, probe = environment(codec)
                contents = Contents(
                    made_with,
                    run,
                    format.medium,
                    tuple(format.shape),
                    format.K,
                    fingerprint(model),
                    probe,
                    steps,
                    codec.lanes,
                    block,
                    input_bytes=sum(source.size for source in sources),
                    content=packing.content,
                    bits=packing.account(),
                    entries=[source.entry for source in sources],
                    blocks=writer.blocks,
                )
                writer.close(contents)
            with Archive(aside) as written:
                if written.contents != contents:
                    raise BFNError(f"{str(out)!r} was not written correctly; try another disk")
    except OSError as error:
        raise BFNError(
            f"{str(out)!r} cannot be written ({error.strerror}); give another name"
        ) from None
    return contents


def _fair_block(codec: Codec, examples: int) -> int:
    """Blocks of one length, so long that what they begin with is little."""
    one = math.prod(codec.shape) * math.log2(codec.chain.receiver.symbols.K)
    wanted = BLOCK * max(1.0, codec.chain.startup_bits() / one)
    return max(1, math.ceil(examples / max(1, round(examples / wanted))))


class _Packing:
    """Gathers examples into batches of blocks, codes them, and writes them once they decode."""

    def __init__(
        self,
        codec: Codec,
        translation: Translation,
        writer: Writer,
        block: int,
        total: int,
        report: Report,
    ) -> None:
        self.codec, self.translation, self.writer, self.block = codec, translation, writer, block
        self.content = 0
        self._steps = np.zeros(codec.steps)
        self._others = dict.fromkeys(("reconstruction", "startup", "overhead"), 0.0)
        self._startup_examples = self._done = 0
        self._report = lambda: report(self._done, total)

    def store(self, sources: Sequence[Source]) -> None:
        waiting, batch = torch.zeros(0), self.codec.lanes * self.block
        for source in sources:
            for fragment in source.fragments():
                self.content = zlib.crc32(fragment.raw, self.content)
                if isinstance(fragment.data, bytes):
                    self.writer.keep(fragment.data)
                    continue
                waiting = torch.cat([waiting, fragment.data]) if len(waiting) else fragment.data
                while len(waiting) >= batch:
                    self._store(waiting[:batch])
                    waiting = waiting[batch:].clone()
        if len(waiting):
            self._store(waiting)
        self.writer.keep(b"", end=True)

    def _store(self, x: Tensor) -> None:
        blocks = list(x.split(self.block))
        coded = self.codec.encode(blocks, self._advance)
        counts = [len(each) for each in blocks]
        decoded = self.codec.decode([each.payload for each in coded], counts, self._advance)
        for before, after, each in zip(blocks, decoded, coded, strict=True):
            if not np.array_equal(self.translation.values(before), self.translation.values(after)):
                raise BFNError(
                    "the coded data did not decode to the same; nothing was written: this machine "
                    "does not compute the same digits twice"
                )
            self.writer.add(each.payload, len(before), self.translation.check_value(before))
            self._steps += np.array(each.bits["steps"])
            for name in self._others:
                self._others[name] += each.bits[name]
            self._startup_examples += each.startup_examples

    def _advance(self, examples: int) -> None:
        self._done += examples
        self._report()

    def account(self) -> Bits:
        others = {name: round(bits) for name, bits in self._others.items()}
        steps = self._steps.tolist() if any(block.model for block in self.writer.blocks) else []
        return Bits.round(steps, **others, startup_examples=self._startup_examples)
