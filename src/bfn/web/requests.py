"""The requests that a page sends, and the command lines that reproduce their samples."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from bfn.data.formats import Format, TextFormat
from bfn.errors import BFNError, check_integer, join_names, plural
from bfn.guidance import has_learned
from bfn.plots import sheets, style
from bfn.tables import frame as tables
from bfn.tables.format import TableFormat
from bfn.web.subject import Subject

LIMITS = {
    "steps": 1000,
    "guidance": 20,
    "seed": 2**53,
    "particles": 64,
    "message": 1 << 18,
    "panes": 2,
}
KNOWN = {
    "image": ["known.png", "mask.png"],
    "array": ["known.npy", "mask.npy"],
    "mixed": ["known.npz", "mask.npz"],
}
"""The files from which `bfn infill` reads known values; texts and rows are in the command."""
NONE = "No command line reproduces this: "
COLOURS = "bfn infill needs all colours of a pixel, but some pixels have only one pinned."
UNWRITTEN = "the pinned values cannot be written in one."
ROWS = "bfn sample --given supports neither particles nor a time from which values are known."
MEMORY = "the model is only in memory; save it to a folder first."
BLANKS = "_~#*^|=+@$%&"


@dataclass(frozen=True)
class Generate:
    """A generation, all defaults filled in.

    Args:
        pins: values in the data's own units, by the number of the variable.
        since: the time from which the pins hold.
    """

    model: str
    solver: str
    steps: int
    seed: int
    label: int | None = None
    guidance: float = 1.0
    length: int | None = None
    pins: Mapping[int, float] = field(default_factory=dict)
    particles: int = 1
    since: float = 0.0

    def describe(self) -> dict[str, Any]:
        pins = {"i": list(self.pins), "v": list(self.pins.values())}
        return {"do": "generate", **vars(self), "pins": pins}


@dataclass(frozen=True)
class Examine:
    """An example of the user's own, in the data's own units."""

    model: str
    steps: int
    seed: int
    values: tuple[float, ...]
    label: int | None = None

    def describe(self) -> dict[str, Any]:
        return {"do": "examine", **vars(self), "values": list(self.values)}


@dataclass(frozen=True)
class Stop:
    """The pane is no longer shown."""


@dataclass(frozen=True)
class Download:
    """A file made from another request."""

    file: Literal["sample", "film", "known"]
    request: Generate | Examine


Request = Generate | Examine | Stop | Download


def read(message: Mapping[str, Any], subjects: Mapping[str, Subject]) -> Request:
    """The request that a message makes, with a sentence for what a user may have got wrong."""
    what = message["do"]
    if what == "stop":
        return Stop()
    if what == "download":
        inner = read(message["request"], subjects)
        assert isinstance(inner, Generate | Examine)
        return Download(message["what"], inner)
    subject = subjects[message["model"]]
    seed = _within("seed", message.get("seed", subject.settings.seed), 0)
    steps = _within("steps", message.get("steps", subject.settings.steps), 1)
    label = message.get("label")
    if what == "examine":
        return Examine(subject.id, steps, seed, _values(message, subject), label)
    particles = _within("particles", message.get("particles", 1), 1)
    pins = {"i": [], "v": [], **message.get("pins", {})}
    pins = dict(sorted(zip(pins["i"], pins["v"], strict=True)))
    if len(pins) == subject.D:
        raise BFNError("everything is pinned, so there is nothing to generate; unpin something")
    subject.example(pins)  # refuses impossible values
    solver = message.get("solver", subject.settings.solver)
    return Generate(
        model=subject.id,
        solver="ancestral" if particles > 1 else solver,
        steps=steps,
        seed=seed,
        label=label,
        guidance=1.0 if label is None else message.get("guidance", 1.0),
        length=message.get("length"),
        pins=pins,
        particles=particles,
        since=min(message.get("since", 0.0), 1.0 - 1e-6) if pins else 0.0,
    )


def _within(name: str, value: Any, least: int) -> int:
    if check_integer(name, value, least) > LIMITS[name]:
        raise BFNError(f"{name} = {value}; expected a whole number from {least} to {LIMITS[name]}")
    return int(value)


def _values(message: Mapping[str, Any], subject: Subject) -> tuple[float, ...]:
    """An example's values; of one that is shorter than others, only those that exist."""
    values = message.get("values")
    if values is None:
        return _text(message["text"], subject.format)
    if None in values and len(subject.groups) > 1:
        raise BFNError("mixed data shorter than the longest cannot be examined; give all values")
    values = tuple(value for value in values if value is not None)
    if len(values) != subject.D and subject.model.lengths is None:
        raise BFNError(f"the example has {len(values)} values; expected {subject.D}")
    subject.example(dict(enumerate(values)))  # refuses impossible values
    return values


def _text(text: str, format: Format) -> tuple[float, ...]:
    if isinstance(format, TableFormat):
        return _row(text, format)
    assert isinstance(format, TextFormat)
    classes = format.alphabet.classes(text, advice="replace what is not in it")
    count, least = len(classes), 1 if format.lines else format.length
    if not least <= count <= format.length:
        expected = f"{least} to {format.length}" if format.lines else format.length
        raise BFNError(
            f"the text has {plural(count, 'character')}; this model's texts have {expected}"
        )
    return tuple(classes.tolist())


def _row(text: str, format: TableFormat) -> tuple[float, ...]:
    """The bins and classes of a row of a CSV file, in which a value may be empty or "missing"."""
    columns = format.columns.variables
    try:
        (words,) = csv.reader(text.strip().splitlines(), skipinitialspace=True)
    except (csv.Error, ValueError):
        raise BFNError("the example is not one row; give its values on one line") from None
    words = [word.strip() for word in words]
    if len(words) != len(columns):
        raise BFNError(
            f"the row has {plural(len(words), 'value')}; expected {len(columns)}, separated by "
            f"commas: {join_names(column.name for column in columns)}"
        )
    values = {
        column.name: None if not word or (column.missing and word == "missing") else word
        for column, word in zip(columns, words, strict=True)
    }
    rows = format.columns.rows(values, 1)
    return tuple(format.codes(rows, holes=True, given=values)[0].tolist())


# Command lines.


def command(
    subject: Subject, request: Generate, n: int, length: int | None
) -> tuple[str | None, str | None]:
    """The command line that reproduces the sample, as the last of n; or why there is none."""
    format = subject.format
    if not subject.id:
        return None, NONE + MEMORY
    verb = "infill" if request.pins and not isinstance(format, TableFormat) else "sample"
    words = ["bfn", verb, subject.id]
    if request.pins:
        known, why = _known_words(subject, request, length)
        if why:
            return None, NONE + why
        words += known
    words += ["--n", str(n), "--seed", str(request.seed)]
    words += ["--steps", str(request.steps), "--solver", request.solver]
    if request.label is not None and subject.labels:
        words += ["--label", subject.labels[request.label], "--guidance", f"{request.guidance!r}"]
    elif subject.settings.label and verb == "sample":  # infilling ignores a recipe's label
        words += ["--label", "", "--guidance", "1"]
    if request.particles > 1:
        words += ["--particles", str(request.particles)]
    if request.since > 0:
        # Most networks have float32 times: the shortest decimal that rounds to the same one.
        rounded = np.float32(request.since)
        words += ["--since", str(rounded) if rounded == request.since else repr(request.since)]
    if length is not None and not (request.pins and format.medium == "text"):
        words += ["--length", str(length)]
    return shlex.join(words + ["--trust"] * subject.trust), None


def _known_words(
    subject: Subject, request: Generate, length: int | None
) -> tuple[list[str], str | None]:
    """The pinned values as the command takes them, or why it cannot."""
    format, pins = subject.format, request.pins
    if isinstance(format, TableFormat):
        if request.particles > 1 or request.since > 0 or not has_learned(subject.model):
            return [], ROWS
        texts = pinned_texts(format, pins)
        words = [word for name, value in texts.items() for word in ("--given", f"{name}={value}")]
        return words, None if _reads_row(format, texts, pins) else UNWRITTEN
    if isinstance(format, TextFormat):
        text, blank = _with_blanks(format, pins, length or subject.D)
        try:
            format.read_example(text, blank=blank)
        except BFNError:  # parts of characters, or no blank left in a line of this length
            return [], UNWRITTEN
        return [text, *([] if blank == "_" else ["--blank", blank])], None
    if format.medium == "image" and (subject.groups[0].K or 0) > 256:  # a PNG has 8 bits
        return [], UNWRITTEN
    _, known = subject.example(pins)
    colours = format.medium == "image" and bool((known.any(0) != known.all(0)).any())
    example, mask = KNOWN[format.medium]
    return [example, "--mask", mask], COLOURS if colours else None


def _with_blanks(format: TextFormat, pins: Mapping[int, float], length: int) -> tuple[str, str]:
    """The pinned text, and its blank character."""
    signs = format.render(torch.arange(format.alphabet.K)[:, None])
    used = "".join(signs[int(k)] for k in pins.values())
    alphabet = used if format.alphabet.characters is None else "".join(signs)
    blank = next((sign for sign in BLANKS if sign not in alphabet), "\N{FULL BLOCK}")
    text = [blank] * length
    for i, k in pins.items():
        text[i] = signs[int(k)]
    return "".join(text), blank


def known_files(subject: Subject, request: Generate) -> dict[str, bytes]:
    """The files that hold the pinned values, by name."""
    format, flow, pins = subject.format, subject.model.flow, request.pins
    x, mask = subject.example(pins)
    contents = []
    if format.medium == "image":
        missing, picture = (~mask).any(0).to(torch.uint8).mul(255).numpy(), io.BytesIO()
        style.load("PIL.Image").fromarray(missing).save(picture, "PNG")
        contents = [sheets.sheet(format, x, ".png"), picture.getvalue()]
    elif format.medium in KNOWN:
        known, missing = flow.unpack_mask(mask[None]), flow.unpack_mask(~mask[None])
        contents = [_saved(format.decode(x), known), _saved(missing, known)]
    return dict(zip(KNOWN.get(format.medium, []), contents, strict=True))


def pinned_texts(format: TableFormat, pins: Mapping[int, float]) -> dict[str, str]:
    """The pinned values of a row as text, by column; empty for missing values."""
    columns = format.columns.variables
    texts = {i: columns[i].representatives().cast("string") for i in pins}
    return {columns[i].name: texts[i][int(k)].as_py() or "" for i, k in pins.items()}


def pinned_row(format: TableFormat, given: Mapping[str, str]) -> tables.Frame:
    return format.columns.rows({name: value or None for name, value in given.items()}, 1)


def _reads_row(format: TableFormat, given: Mapping[str, str], pins: Mapping[int, float]) -> bool:
    """Whether `bfn sample --given` reads the pinned values."""
    try:
        codes = format.codes(pinned_row(format, given), holes=True, given=given)[0].tolist()
    except BFNError:
        return False
    return all(codes[i] == k for i, k in pins.items()) and not any("=" in name for name in given)


def _saved(values: Any, known: Any) -> bytes:
    """The first example as a file; for mixed data, only (partly) known variables."""
    file = io.BytesIO()
    if isinstance(known, dict):
        names = [name for name, mask in known.items() if bool(mask.any())]
        np.savez(file, **{name: np.asarray(values[name])[0] for name in names})
    else:
        np.save(file, np.asarray(values)[0], allow_pickle=False)
    return file.getvalue()
