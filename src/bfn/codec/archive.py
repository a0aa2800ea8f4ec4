"""Files to an archive, in batches of blocks, with everything checked.

Packing reads every input twice: once to see that the model can represent it exactly, and once to
store it. Each batch of blocks is decoded again before it is written; the archive is written aside,
read back, and only then takes its name. Memory holds one batch, whatever the length of the archive.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.codec import container, files
from bfn.codec.coder import LANES, Codec, Coded
from bfn.codec.container import Archive, Writer
from bfn.codec.fragments import Translation
from bfn.codec.index import GROUPS, MAX_STEPS, Index
from bfn.codec.records import Bits
from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.model import BFN

LEAST, MOST = 16, 32
"""How many times longer than what it takes to begin with a block is, if nobody says how long."""
MAX_LANES = 64
MAX_VARIABLES = 1 << 25
"""The most variables that are at work at once: bounds the memory of both sides."""

Report = Callable[[int, int, str], None]
"""Called with how much is done, of how much, and the rate so far."""


def _silent(done: int, total: int, note: str) -> None: ...


def fingerprint(model: BFN) -> bytes:
    """16 bytes of a model's configuration and weights."""
    found = hashlib.blake2b(digest_size=16)
    found.update(json.dumps(model.config(), sort_keys=True).encode())
    for name, tensor in sorted(model.net.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.digest()


def values_of(model: BFN, format: Format) -> list[float] | None:
    """The levels of continuous data, which are not the centres of the model's bins."""
    levels = getattr(format.form, "levels", None)
    if format.K is not None or levels is None:
        return None
    return format.form.encode(torch.arange(levels)).tolist()


def shared(settings: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """A codec's settings as an archive keeps them, and the probe among them."""
    kept = dict(settings)
    probe = bytes.fromhex(kept.pop("probe"))[:8]
    if kept["values"] is not None:
        kept["values"] = container.digest(json.dumps(kept["values"]).encode()).hex()
    return kept, probe


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
) -> Index:
    """Store files in an archive; returns its index.

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
        reading, report: hear of the files that were read, then of the examples that were coded.
    """
    most = max(1, MAX_VARIABLES // format.dimensions)
    if block is not None and not 1 <= block <= most:
        raise BFNError(f"block = {block} examples; give 1 to {most}")
    if not 1 <= steps <= MAX_STEPS:
        raise BFNError(f"steps = {steps}; give 1 to {MAX_STEPS}")
    translation = Translation.of(model, format)
    values = values_of(model, format)
    # A model that cannot code says so here, before files are read.
    single = Codec(model, format.shape, steps, lanes=1, values=values)
    sources = files.scan(
        files.find(inputs),
        translation,
        allow_fallback=allow_fallback,
        report=lambda done, total: reading(done, total, ""),
    )
    examples = sum(source.item.examples for source in sources)
    if block is None:
        block = min(most, _fair_block(single, examples))
    blocks = -(-examples // block)
    lanes = max(1, min(LANES, blocks, MAX_VARIABLES // (block * format.dimensions)))
    codec = Codec(model, format.shape, steps, lanes=lanes, values=values)
    settings, probe = shared(codec.settings)
    with Writer(out) as writer:
        packing = _Packing(codec, translation, writer, block, examples, report)
        for source in sources:
            for fragment in source.fragments():
                packing.add(fragment.data, fragment.raw)
        packing.end()
        index = Index(
            header={"codec": settings, "data": _described(format), "run": run},
            fingerprint=fingerprint(model),
            probe=probe,
            content=packing.content.digest(),
            block=block,
            input_bytes=sum(source.size for source in sources),
            bits=packing.account(),
            items=[source.item for source in sources],
            blocks=writer.blocks,
        )
        writer.close(index)
        with Archive(writer.aside) as written:
            written.check()
            if written.index != index:
                raise BFNError(f"{str(out)!r} could not be read back as written; try another disk")
        writer.finish()
    return index


def _fair_block(codec: Codec, examples: int) -> int:
    """Blocks of one length: as many as there are lanes, unless they were too short or too long."""
    one = math.prod(codec.shape) * math.log2(codec.chain.alphabet.K)
    start = max(1.0, codec.chain.startup_bits() / one)
    wanted = min(max(examples / LANES, LEAST * start), MOST * start)
    return max(1, math.ceil(examples / max(1, round(examples / wanted))))


def _described(format: Format) -> dict[str, Any]:
    return {
        "medium": format.medium,
        "shape": list(format.shape),
        "K": format.K,
        "unit": format.unit,
    }


class _Packing:
    """Gathers examples into batches of blocks, codes them, and writes them once they decode."""

    def __init__(
        self,
        codec: Codec,
        translation: Translation,
        writer: Writer,
        block: int,
        examples: int,
        report: Report,
    ) -> None:
        self.codec, self.translation, self.writer = codec, translation, writer
        self.block, self.total, self.report = block, examples, report
        self.content = hashlib.blake2b(digest_size=8)
        self.steps = np.zeros(codec.steps)
        self.others = dict.fromkeys(("reconstruction", "startup"), 0.0)
        self.startup_examples = 0
        self._waiting: list[Tensor] = []
        self._count = self._done = self._coded = self._payload = 0

    def add(self, data: Tensor | bytes, raw: bytes) -> None:
        self.content.update(raw)
        if isinstance(data, bytes):
            self.writer.keep(data)
            return
        self._waiting.append(data)
        self._count += len(data)
        batch = self.codec.lanes * self.block
        if self._count >= batch:
            x = torch.cat(self._waiting)
            while len(x) >= batch:
                self._store(x[:batch])
                x = x[batch:]
            self._waiting, self._count = [x.clone()], len(x)

    def end(self) -> None:
        if self._count:
            self._store(torch.cat(self._waiting))
            self._waiting, self._count = [], 0
        self.writer.flush()

    def _store(self, x: Tensor) -> None:
        blocks = list(x.split(self.block))
        coded = self.codec.encode(blocks, self._encoded)
        payloads = [each.payload for each in coded]
        self._coded += len(x)
        self._payload += sum(map(len, payloads))
        decoded = self.codec.decode(payloads, [len(b) for b in blocks], self._advance)
        for before, after, each in zip(blocks, decoded, coded, strict=True):
            if not np.array_equal(self.translation.values(before), self.translation.values(after)):
                raise BFNError(
                    "what was coded did not decode to the same; nothing was written: this machine "
                    "does not compute the same digits twice"
                )
            self._add(each, before)

    def _add(self, coded: Coded, x: Tensor) -> None:
        self.writer.add(coded.payload, len(x), contents(self.translation, x))
        self.steps += np.array(coded.bits["steps"])
        for name in self.others:
            self.others[name] += coded.bits[name]
        self.startup_examples += coded.startup_examples

    def _encoded(self, examples: int) -> None:
        self._advance(examples, *self.codec.so_far)

    def _advance(self, examples: int, coded: int = 0, bits: float = 0.0) -> None:
        """So many more are done; the batch at work has `coded` examples in so many bits yet."""
        self._done += examples
        variables = (self._coded + coded) * self.translation.format.dimensions
        bits += 8 * self._payload
        note = f"{bits / variables:.3f} bits per dimension" if variables else ""
        self.report(self._done, 2 * self.total, note)

    def account(self) -> Bits:
        """Whole bits that add up to what was written."""
        group = -(-len(self.steps) // GROUPS)
        grouped = np.add.reduceat(self.steps, np.arange(0, len(self.steps), group))
        steps = tuple(round(float(bits)) for bits in grouped) if self._payload else ()
        reconstruction, startup = (round(bits) for bits in self.others.values())
        return Bits(
            steps,
            group,
            reconstruction,
            startup,
            overhead=8 * self._payload - sum(steps) - reconstruction - startup,
            plain=8 * sum(b.length for b in self.writer.blocks if not b.model),
            startup_examples=self.startup_examples,
        )


def contents(translation: Translation, x: Tensor) -> bytes:
    """The digest of what examples stand for."""
    values = translation.values(x)
    return container.digest(values.astype(values.dtype.newbyteorder("<")).tobytes())
