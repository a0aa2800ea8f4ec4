"""Data sets: each split is one tensor, from which batches are cut by index.

For rows, an index is the number of the row; for a text, it is the position of a window's first
character: training takes windows anywhere (`indices`), evaluation takes windows that do not overlap
(`examples`).

The training order is a pure function of (seed, step), so a resumed run repeats the same batches and
each of several processes can work out its own part. For rows, step s of batch size B takes
positions s B, ..., s B + B - 1 of an endless sequence of shuffled epochs, where the permutation of
epoch e is seeded by (seed, e); for a text, it takes B positions drawn with a generator seeded by
(seed, s).

Examples are held out by content or by number. By content, an example keeps its split whatever else
is added or removed. By number, exactly the given fractions are held out, always the same rows: this
is for tables, for the well-known data sets, and for `split_by="number"`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor

from bfn import noise
from bfn.data.formats import Format, TextFormat
from bfn.errors import BFNError, plural

SPLITS = ("train", "validation", "test")
CHUNK = 2**24
"""Values of a memory-mapped file to read at a time."""
SPLIT_BY = ("content", "number")
Stored = tuple[Tensor, dict[str, Tensor]]
"""Stored values of a batch, (B, *shape), and its conditioning."""


class Mapped:
    """Rows of a memory-mapped array, with as much of a tensor's interface as batches need."""

    device = torch.device("cpu")

    def __init__(self, array: np.ndarray, rows: np.ndarray) -> None:
        self.values, self.rows = torch.from_numpy(array), torch.from_numpy(rows)
        self.dtype = self.values.dtype
        self.shape = torch.Size((len(rows), *self.values.shape[1:]))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.values.element_size()

    def index_select(self, _: int, indices: Tensor) -> Tensor:
        return self.values.index_select(0, self.rows[indices])

    def to(self, device: torch.device | str) -> Tensor | Mapped:
        """Itself on the CPU; elsewhere a copy of all rows."""
        if torch.device(device).type == "cpu":
            return self
        return self.index_select(0, torch.arange(len(self))).to(device)


def chunks(values: Tensor | Mapped) -> Iterator[Tensor]:
    """The rows of a split in order; those of a mapped one a few at a time."""
    if isinstance(values, Tensor):
        yield values
        return
    rows = max(1, CHUNK // max(1, values.shape[1:].numel()))
    for indices in torch.arange(len(values)).split(rows):
        yield values.index_select(0, indices)


class DataSet(ABC):
    """Three splits of one kind of example.

    Args:
        name: its name in error messages and reports.
        format: the format of one example, which implements `encode`, `decode` and `render`.
        splits: stored values of "train", "validation" and "test"; checked here, once.
        labels: integers of each split, (N,), returned by `batch` as `cond["label"]`.
        lengths: how much of each example exists, along its first axis, if examples are padded to
            one shape: (N,) for each split, returned as `cond["length"]`.
        label_names: the names of labels 0, 1, ...
        chosen: arguments that the source chose itself; a run's recipe records them, so that the
            same recipe always gives the same data.
        names: the name of each example of a split; by default its index.
    """

    counted: ClassVar[str]
    """What the sizes of the splits count: "examples" or "characters"."""
    in_memory = True
    """Whether all stored values are in memory, so that any thread may cut batches."""
    least_validation: ClassVar[int] = 1
    """Fewer validation examples than this are evaluated several times, at different times and with
    different noise."""
    repeatable = True
    """Whether a resumed training gets the batches that an uninterrupted one would have got."""

    def __init__(
        self,
        name: str,
        format: Format,
        splits: Mapping[str, Tensor | Mapped | np.ndarray],
        *,
        labels: Mapping[str, Tensor | np.ndarray | Sequence[int]] | None = None,
        lengths: Mapping[str, Tensor] | None = None,
        label_names: tuple[str, ...] = (),
        chosen: Mapping[str, Any] | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.name = name
        self.names = names or {}
        self.chosen = dict(chosen or {})
        self.format = format
        self.label_names = label_names
        self._splits: dict[str, Any] = {split: as_tensor(splits[split]) for split in SPLITS}
        self.labels: dict[str, Tensor] = {
            split: as_labels(f"the {split} split of {name}", values, len(self._splits[split]))
            for split, values in (labels or {}).items()
        }
        self.lengths: dict[str, Tensor] = dict(lengths or {})
        self._device: torch.device | None = None  # of batches; None: where the splits are
        for split, values in self._splits.items():
            for chunk in chunks(values):
                format.form.check(chunk, f"the {split} split of {name}")

    # What one example is.

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example x, without the batch."""
        return self.format.shape

    @property
    def K(self) -> int | None:
        """Number of bins or classes of a variable; None for continuous data."""
        return self.format.K

    @property
    def unit(self) -> str:
        """The unit of likelihoods: "bits per dimension", "nats per image", ..."""
        return self.format.unit

    @property
    def medium(self) -> str:
        """The kind of data: "image", "text", "array", "mixed" or "table"."""
        return self.format.medium

    @property
    def label_count(self) -> int:
        """The number of labels, counted from 0 to the highest; 0 when there are none."""
        highest = (int(v.max()) + 1 for v in self.labels.values() if len(v))
        return max(len(self.label_names), *highest, 0) if self.labels else 0

    def describe(self) -> dict[str, Any]:
        """JSON values that describe one example, and the names of the labels."""
        named = {"labels": list(self.label_names)} if self.label_names else {}
        return {**self.format.describe(), **named}

    def summary(self) -> str:
        """The size of each split, and the labels."""
        train, validation, test = (len(self.split(split)) for split in SPLITS)
        text = f"{plural(train, self.counted)} to train on"
        text = f"{text}, {validation:,} for validation and {test:,} to test"
        if not self.labels:
            return text
        shown = ", ".join(self.label_names) if len(self.label_names) <= 12 else ""
        return f"{text}, with {plural(self.label_count, 'label')}{shown and f' ({shown})'}"

    def dimensions(self, split: str) -> float:
        """The mean number of variables of a split's examples that exist."""
        if split not in self.lengths:
            return self.format.dimensions
        return self.format.dimensions_of(float(self.lengths[split].double().mean()))

    def scale(self, split: str) -> float:
        """`unit` per nat of the mean example of a split: bits are those of all, over all D."""
        if split not in self.lengths or self.unit.startswith("nats"):
            return self.format.scale
        return self.format.scale * self.format.dimensions / self.dimensions(split)

    def encode(self, raw: Any, generator: noise.Source = None) -> Tensor:
        """A batch of levels or strings -> x in the model's convention."""
        return self.format.encode(raw, generator)

    def decode(self, x: Tensor) -> Any:
        """x -> levels, real numbers, strings, or a dict or table of them; inverts `encode`."""
        return self.format.decode(x)

    def render(self, x: Tensor) -> Any:
        """x for display: uint8 pictures (B, H, W, C), printable strings, or a numpy array."""
        return self.format.render(x)

    def model(self, recipe: Any) -> Any:
        """The model for the data, if the recipe leaves net and flow to them, or None."""
        return None

    def adjusted(self, train: Any) -> Any:
        """Training settings, adjusted to the size of the data."""
        return train

    # Batches.

    def split(self, name: str) -> Tensor:
        """The stored values of a split as one tensor, or `Mapped` where they stay in their file."""
        if name not in self._splits:
            raise BFNError(f"unknown split {name!r}; expected {', '.join(SPLITS)}")
        return self._splits[name]

    def batch(
        self, split: str, indices: Tensor, generator: noise.Source = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The examples of the given indices (B,): x of shape (B, *shape) and the conditioning.

        Dynamic binarisation draws from `generator`; give `noise.Keyed`, one seed per index, for
        examples that do not depend on their batch.
        """
        values, cond = self.stored(split, indices)
        x = self.format.form.encode(values.to(self._device), generator)
        return x, {name: value.to(self._device) for name, value in cond.items()}

    def stored(self, split: str, indices: Tensor) -> Stored:
        """The examples of the given indices as stored, on the device that holds the splits."""
        indices = torch.as_tensor(indices).to(self.split(split).device, non_blocking=True)
        groups = {"label": self.labels, "length": self.lengths}
        cond = {name: of[split][indices] for name, of in groups.items() if split in of}
        return self._cut(split, indices), cond

    def step(self, seed: int, step: int, batch: int, parts: Sequence[range]) -> Iterator[Stored]:
        """The examples of a training step as stored, split into the given parts of its batch."""
        indices = self.indices(seed, step, batch)
        for rows in parts:
            yield self.stored("train", indices[rows.start : rows.stop])

    @property
    def ended(self) -> bool:
        """Whether the data have run out of steps."""
        return False

    def to(self, device: torch.device | str, *, hold: bool = True) -> Self:
        """Return batches on that device from now on. Returns the data set itself.

        The splits are moved there too; with hold=False they stay in the host's memory, and `batch`
        copies its examples.
        """
        home = device if hold else "cpu"
        self._splits = {split: values.to(home) for split, values in self._splits.items()}
        self.labels = {split: values.to(home) for split, values in self.labels.items()}
        self.lengths = {split: values.to(home) for split, values in self.lengths.items()}
        self._device = torch.device(device)
        return self

    @property
    def nbytes(self) -> int:
        """Size of all splits, labels and lengths."""
        groups = (self._splits, self.labels, self.lengths)
        return sum(values.nbytes for group in groups for values in group.values())

    def digest(self) -> str:
        """SHA-256 of everything stored and of the format."""
        digest = hashlib.sha256(json.dumps(self.format.describe(), sort_keys=True).encode())
        for group in (self._splits, self.labels, self.lengths):
            for split, values in sorted(group.items()):
                digest.update(f"{split} {values.dtype} {tuple(values.shape)} ".encode())
                for chunk in chunks(values):
                    digest.update(chunk.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @abstractmethod
    def fingerprints(self) -> np.ndarray:
        """Sorted 64-bit hashes of the training split, for `seen`."""

    @abstractmethod
    def seen(self, split: str, fingerprints: np.ndarray) -> np.ndarray:
        """Whether each example of a split is in a training split of these fingerprints: (N,)."""

    @abstractmethod
    def examples(self, split: str) -> Tensor:
        """The indices to evaluate a split on, (N,): every example once, none overlapping."""

    @abstractmethod
    def indices(self, seed: int, step: int, batch: int, split: str = "train") -> Tensor:
        """The indices (batch,) of a training step: a pure function of its arguments."""

    @abstractmethod
    def _cut(self, split: str, indices: Tensor) -> Tensor:
        """Stored values (B, *shape) of the given indices."""


def as_tensor(values: Tensor | Mapped | np.ndarray) -> Tensor | Mapped:
    if isinstance(values, Tensor | Mapped):
        return values
    # Arrays over the bytes of a file are read-only, which tensors cannot be.
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def as_labels(what: str, values: Tensor | np.ndarray | Sequence[int], count: int) -> Tensor:
    """int64 labels (count,); refuses anything but one integer per example."""
    if isinstance(values, Tensor):
        dtype = values.dtype
        integral = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    else:
        values = np.asarray(values)
        integral = values.dtype.kind in "iu"
    if not integral or tuple(values.shape) != (count,):
        raise BFNError(
            f"the labels of {what} are {values.dtype} of shape {tuple(values.shape)}; expected "
            f"integers ({count},): give one whole number to each of {plural(count, 'example')}"
        )
    if len(values) and int(values.min()) < -1:
        raise BFNError(
            f"the labels of {what} begin at {int(values.min())}; number them 0, 1, 2, ..., with -1 "
            "for examples without a label"
        )
    return values.long() if isinstance(values, Tensor) else torch.from_numpy(values.astype("int64"))


def _taken(rows: Tensor | Mapped, indices: Tensor) -> Tensor:
    # On a CPU ten times as fast as indexing.
    if isinstance(rows, Tensor) and rows.is_cuda:
        return rows[indices]
    return rows.index_select(0, indices)


@functools.lru_cache(maxsize=4)
def _permutation(count: int, seed: int, epoch: int) -> Tensor:
    generator = noise.generator(seed, "epoch", epoch)
    return torch.randperm(count, generator=generator)


class Rows(DataSet):
    """One example per row: stored values of a split have shape (N, *shape)."""

    counted = "example"

    def __init__(self, name: str, format: Format, splits, **keywords) -> None:
        super().__init__(name, format, splits, **keywords)
        for split, values in self._splits.items():
            if tuple(values.shape[1:]) != format.shape:
                raise BFNError(
                    f"the {split} split of {name} has examples of shape "
                    f"{tuple(values.shape[1:])}; expected {format.shape}"
                )

    def examples(self, split: str) -> Tensor:
        return torch.arange(self._count(split))

    def indices(self, seed: int, step: int, batch: int, split: str = "train") -> Tensor:
        count = self._count(split)
        start, stop = step * batch, (step + 1) * batch
        parts = []
        for epoch in range(start // count, (stop - 1) // count + 1):
            first = epoch * count
            order = _permutation(count, seed, epoch)
            parts.append(order[max(start - first, 0) : stop - first])
        return torch.cat(parts)

    def fingerprints(self) -> np.ndarray:
        return np.unique(self._hashes("train"))

    def seen(self, split: str, fingerprints: np.ndarray) -> np.ndarray:
        return np.isin(self._hashes(split), fingerprints)

    def _hashes(self, split: str) -> np.ndarray:
        parts = chunks(self.split(split))
        digests = [hashes(p.cpu().flatten(1).view(torch.uint8).numpy()) for p in parts]
        content = np.concatenate(digests)
        if split not in self.lengths:
            return content
        return hashed(content, self.lengths[split].cpu().numpy())

    def _count(self, split: str) -> int:
        count = len(self.split(split))
        if count == 0:
            raise BFNError(f"the {split} split of {self.name} is empty; hold out more examples")
        return count

    def _cut(self, split: str, indices: Tensor) -> Tensor:
        return _taken(self.split(split), indices)


@final
class Stream(DataSet):
    """One long text per split, stored as classes (n,); an example is a window of it."""

    counted = "character"

    def __init__(self, name: str, format: TextFormat, splits, **keywords) -> None:
        super().__init__(name, format, splits, **keywords)
        for split, values in self._splits.items():
            if len(values) < format.length:
                raise BFNError(
                    f"the {split} split of {name} has {len(values)} characters, fewer than one "
                    f"window of {format.length}; give a longer text or a smaller length"
                )

    def examples(self, split: str) -> Tensor:
        length = self.shape[0]
        return torch.arange(0, len(self.split(split)) - length + 1, length)

    def indices(self, seed: int, step: int, batch: int, split: str = "train") -> Tensor:
        generator = noise.generator(seed, "crops", step)
        last = len(self.split(split)) - self.shape[0]
        return torch.randint(last + 1, (batch,), generator=generator)

    # A passage of the training text is recognised at any position: the fingerprints are those of
    # consecutive blocks, and any passage of two blocks contains one of them.

    @property
    def _block(self) -> int:
        return max(32, (self.shape[0] + 1) // 2)  # shorter ones would match common phrases

    def fingerprints(self) -> np.ndarray:
        text, block = self.split("train").cpu().numpy(), self._block
        return np.unique(hashes(text[: len(text) // block * block].reshape(-1, block)))

    def seen(self, split: str, fingerprints: np.ndarray) -> np.ndarray:
        """Windows with at least half of their characters in passages of the training text."""
        text, block, length = self.split(split).cpu().numpy(), self._block, self.shape[0]
        known = np.zeros(len(text) + 1, np.int64)
        if len(text) >= block:
            windows = np.lib.stride_tricks.sliding_window_view(text, block)
            at = np.flatnonzero(np.isin(hashes(windows), fingerprints))
            known[at] += 1
            known[at + block] -= 1
        total = np.concatenate([[0], np.cumsum(np.cumsum(known[:-1]) > 0)])
        starts = self.examples(split).numpy()
        return 2 * (total[starts + length] - total[starts]) >= length

    def _cut(self, split: str, indices: Tensor) -> Tensor:
        # Windows as overlapping rows of a view: the text is never copied.
        return _taken(self.split(split).unfold(0, self.shape[0], 1), indices)


def hold_out(
    content: np.ndarray, validation: float = 0.0, test: float = 0.0, split_by: str = "content"
) -> dict[str, np.ndarray]:
    """The rows of each split, holding out the given fractions; row order is kept.

    Args:
        content: a hash of each row; by number, only its length matters.
    """
    if split_by not in SPLIT_BY:
        raise BFNError(f"split_by = {split_by!r} is unknown; expected {' or '.join(SPLIT_BY)}")
    for name, fraction in (("validation", validation), ("test", test)):
        if not 0 <= fraction < 1:
            raise BFNError(f"{name} = {fraction} is not a fraction; give 0 or more and below 1")
    choose = _by_content if split_by == "content" else _by_number
    side = choose(content, validation, test)
    rows = {split: np.flatnonzero(side == split) for split in SPLITS}
    if len(rows["train"]) == 0:
        raise BFNError(
            f"of {plural(len(side), 'example')}, {len(rows['validation'])} are for validation and "
            f"{len(rows['test'])} for testing, which leaves none for training; give more data, "
            "or smaller --data.validation and --data.test, which may be 0"
        )
    return rows


def _by_content(content: np.ndarray, validation: float, test: float) -> np.ndarray:
    """The split of each row, by its hash as a fraction of 2^64.

    A row below `test` is in the test set, one of at least 1 - `validation` in the validation set. A
    set that would be empty gets the nearest row; even then, no new row can move a training row into
    the test set, since any nearer row is new.
    """
    u = content / 2.0**64
    side = np.full(len(u), "train", "<U10")
    for split, fraction, wanted in (
        ("test", test, u < test),
        ("validation", validation, u >= 1 - validation),
    ):
        free = side == "train"
        if fraction and free.any() and not (wanted & free).any():
            wanted = u == (u[free].min() if split == "test" else u[free].max())
        side[wanted & free] = split
    return side


def _by_number(content: np.ndarray, validation: float, test: float) -> np.ndarray:
    """The split of each row, by a 64-bit hash of its number, stable across library versions."""
    count = len(content)
    order = np.argsort(noise.splitmix64(np.arange(1, count + 1, dtype=np.uint64)), kind="stable")
    held = [max(1, round(count * f)) if f else 0 for f in (validation, test)]
    side = np.full(count, "train", "<U10")
    side[order[: held[0]]] = "validation"
    side[order[held[0] : sum(held)]] = "test"
    return side


def hashes(rows: np.ndarray) -> np.ndarray:
    """A 64-bit hash of the bytes of each row (N, ...), stable across library versions."""
    size = math.prod(rows.shape[1:]) * rows.itemsize
    words = -(-size // 8)
    places = noise.splitmix64(np.arange(1, words + 1, dtype=np.uint64))
    sums = np.empty(len(rows), np.uint64)
    some = max(1, 2**16 // max(1, words))  # rows at a time: what a processor's cache holds
    for start in range(0, len(rows), some):
        part = np.ascontiguousarray(rows[start : start + some])
        padded = np.zeros((len(part), 8 * words), np.uint8)
        padded[:, :size] = part.reshape(len(part), -1).view(np.uint8)
        sums[start : start + some] = noise.splitmix64(padded.view(np.uint64) ^ places).sum(1)
    return noise.splitmix64(sums ^ np.uint64(size))


def hashed(content: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Hashes of rows and of their lengths."""
    return noise.splitmix64(content ^ noise.splitmix64(lengths.astype(np.uint64)))


def numbered(content: np.ndarray) -> np.ndarray:
    """Hashes in which repeated ones differ by how many equal ones come before each."""
    order = np.argsort(content, kind="stable")
    ranked, place = content[order], np.arange(len(content))
    first = np.append(True, ranked[1:] != ranked[:-1])
    before = np.empty(len(content), np.uint64)
    before[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    return noise.splitmix64(content ^ noise.splitmix64(before))


def cut_text(text: np.ndarray) -> dict[str, np.ndarray]:
    """Contiguous splits of a text: training, validation, test.

    The last two have 5M characters each, or 5% each of a text below 50M characters.
    """
    count = len(text)
    held = 5_000_000 if count >= 50_000_000 else count * 5 // 100
    train = count - 2 * held
    parts = (slice(train), slice(train, train + held), slice(train + held, count))
    return {split: text[part] for split, part in zip(SPLITS, parts, strict=True)}
