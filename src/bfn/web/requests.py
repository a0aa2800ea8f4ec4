"""The requests that a page may send, and the command lines that reproduce their samples.

Anything else that a page sends is answered with an error message.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bfn.data.formats import TextFormat
from bfn.errors import BFNError, join_names, plural
from bfn.guidance import has_learned
from bfn.plots import sheets, style
from bfn.sampling import solvers
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
FILES = ("sample", "film", "state", "known")
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
    what = "generate"

    def describe(self) -> dict[str, Any]:
        pins = {"i": list(self.pins), "v": list(self.pins.values())}
        return {"do": self.what, **vars(self), "pins": pins}


@dataclass(frozen=True)
class Examine:
    """An example of the user's own, in the data's own units."""

    model: str
    steps: int
    seed: int
    values: tuple[float, ...]
    label: int | None = None
    what = "examine"

    def describe(self) -> dict[str, Any]:
        return {"do": self.what, **vars(self), "values": list(self.values)}


@dataclass(frozen=True)
class Stop:
    what = "stop"


@dataclass(frozen=True)
class Download:
    """A file made from another request."""

    file: str
    request: Generate | Examine
    step: int
    what = "download"


Request = Generate | Examine | Stop | Download


class Reader:
    """One JSON object, key by key."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        self.message = message

    def integer(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self.message.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float, default: float) -> float:
        value = self.message.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not least <= value <= most:
            raise self._wrong(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def text(self, name: str, known: Any, default: str | None = None) -> str:
        value = self.message.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in known:
            raise self._wrong(name, f"one of {join_names(known, 20)}")
        return value

    def table(self, name: str) -> Mapping[str, Any]:
        value = self.message.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(name, "a table")
        return value

    def numbers(self, name: str, most: int) -> list[float]:
        value = self.message.get(name)
        if not isinstance(value, list) or len(value) > most:
            raise self._wrong(name, f"a list of at most {most} numbers")
        if any(type(v) not in (int, float) or not abs(v) < 1e300 for v in value):
            raise self._wrong(name, "a list of finite numbers")
        return value

    def _wrong(self, name: str, expected: str) -> BFNError:
        value = self.message.get(name)
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
        return BFNError(f"{name} = {shown}; expected {expected}")


def parse(message: str) -> dict[str, Any]:
    """A page's message as a table; refuses what is not JSON."""
    try:
        content = json.loads(message)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise BFNError("the message is not a JSON object; reload the page")
    return content


def read(message: Mapping[str, Any], subjects: Mapping[str, Subject]) -> Request:
    """The request that a message makes."""
    reader = Reader(message)
    what = reader.text("do", ("generate", "examine", "stop", "download"))
    if what == "stop":
        return Stop()
    if what == "download":
        inner = read(reader.table("request"), subjects)
        if not isinstance(inner, Generate | Examine):
            raise BFNError("a download needs the request of a generation or of an example")
        file = reader.text("what", FILES)
        return Download(file, inner, reader.integer("step", 0, inner.steps, inner.steps))
    subject = subjects[reader.text("model", subjects)]
    label = None
    if reader.message.get("label") is not None:
        if subject.labels is None:
            raise BFNError(f"the model {subject.id!r} has no labels; leave the label out")
        label = reader.integer("label", 0, len(subject.labels) - 1)
    seed = reader.integer("seed", 0, LIMITS["seed"], subject.settings.seed)
    steps = reader.integer("steps", 1, LIMITS["steps"], subject.settings.steps)
    if what == "examine":
        return Examine(subject.id, steps, seed, _values(reader, subject), label)
    lengths = subject.model.lengths
    length = None
    if lengths is not None and reader.message.get("length") is not None:
        length = reader.integer("length", 1, lengths.longest)
    pins, particles = _pins(reader, subject), reader.integer("particles", 1, LIMITS["particles"], 1)
    since = reader.number("since", 0.0, 1.0, 0.0)
    if particles > 1 and not pins:
        raise BFNError("particles compete for what is pinned; pin something first")
    if particles > 1 and since > 0.0:
        raise BFNError("particles cannot continue from the middle; choose one of the two")
    if len(pins) == subject.D:
        raise BFNError("everything is pinned, so there is nothing to generate; unpin something")
    solver = reader.text("solver", solvers.SOLVERS, subject.settings.solver)
    guidance = reader.number("guidance", 0.0, LIMITS["guidance"], 1.0)
    return Generate(
        model=subject.id,
        solver="ancestral" if particles > 1 else solver,
        steps=steps,
        seed=seed,
        label=label,
        guidance=1.0 if label is None else guidance,
        length=length,
        pins=pins,
        particles=particles,
        since=min(since, 1.0 - 1e-6) if pins else 0.0,
    )


def _pins(reader: Reader, subject: Subject) -> dict[int, float]:
    pins_reader = Reader(reader.table("pins"))
    if not pins_reader.message:
        return {}
    i, v = pins_reader.numbers("i", subject.D), pins_reader.numbers("v", subject.D)
    if len(i) != len(v) or any(type(n) is not int or not 0 <= n < subject.D for n in i):
        raise BFNError(f"pins need a value for each variable, numbered 0 to {subject.D - 1}")
    pins = dict(sorted(zip(map(int, i), v, strict=True)))
    subject.example(list(pins), list(pins.values()))  # refuses impossible values
    return pins


def _values(reader: Reader, subject: Subject) -> tuple[float, ...]:
    message = reader.message
    if message.get("picture") is not None:
        return _picture(Reader(reader.table("picture")), subject)
    if message.get("text") is not None:
        return _text(message["text"], subject)
    values = reader.numbers("values", subject.D)
    if len(values) != subject.D:
        raise BFNError(f"the example has {len(values)} values; expected {subject.D}")
    subject.example(range(subject.D), values)
    return tuple(values)


def _picture(picture: Reader, subject: Subject) -> tuple[float, ...]:
    if subject.format.medium != "image":
        raise BFNError(f"the data of {subject.id!r} are not pictures; give {_wanted(subject)}")
    width, height = (picture.integer(side, 1, 4096) for side in ("width", "height"))
    channels, *size = subject.format.shape
    if [height, width] != size:
        raise BFNError(
            f"the picture has {width} x {height} pixels, but those of {subject.id!r} have "
            f"{size[1]} x {size[0]}; crop and resize it, or drop another"
        )
    try:
        rgb = base64.b64decode(picture.message.get("rgb"), validate=True)  # pyright: ignore
    except (binascii.Error, ValueError, TypeError):
        rgb = b""
    if len(rgb) != 3 * width * height:
        raise BFNError("the picture's pixels are damaged; drop it again")
    top = (subject.groups[0].K or 2) - 1
    if channels == 3:
        return tuple(round(byte / 255 * top) for c in range(3) for byte in rgb[c::3])
    # The luma of ITU-R 601, as pillow makes pictures grey.
    grey = (
        0.299 * r + 0.587 * g + 0.114 * b
        for r, g, b in zip(rgb[::3], rgb[1::3], rgb[2::3], strict=True)
    )
    return tuple(round(shade / 255 * top) for shade in grey)


def _text(text: Any, subject: Subject) -> tuple[float, ...]:
    format = subject.format
    if isinstance(format, TableFormat) and isinstance(text, str):
        return _row(text, format)
    if not isinstance(format, TextFormat) or not isinstance(text, str):
        raise BFNError(f"the data of {subject.id!r} are not texts; give {_wanted(subject)}")
    count = len(format.alphabet.classes(text, advice="replace what is not in it"))
    least = 1 if format.lines else format.length
    if not least <= count <= format.length:
        expected = f"{least} to {format.length}" if format.lines else format.length
        raise BFNError(
            f"the text has {plural(count, 'character')}; this model's texts have {expected}"
        )
    return tuple(format.encode([text])[0].tolist())


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


def _wanted(subject: Subject) -> str:
    return {"image": "a picture", "text": "a text"}.get(subject.format.medium, "numbers")


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
        words = [text, *([] if blank == "_" else ["--blank", blank])]
        return words, None if _reads(subject, pins, text, None, blank) else UNWRITTEN
    files = known_files(subject, request)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in files]
        for path, content in zip(paths, files.values(), strict=True):
            path.write_bytes(content)
        same = _reads(subject, pins, str(paths[0]), paths[1], None)
    example, mask = files
    why = COLOURS if format.medium == "image" else UNWRITTEN
    return [example, "--mask", mask], None if same else why


def _reads(
    subject: Subject, pins: Mapping[int, float], what: str, mask: Path | None, blank: str | None
) -> bool:
    """Whether `bfn infill` reads the pinned values from there."""
    x, known = subject.example(list(pins), list(pins.values()))
    try:
        read, seen = subject.format.read_example(what, mask, blank=blank)
    except BFNError:
        return False
    return bool((known == seen).all()) and torch.allclose(
        read[0][known].double(), x[0][known].double(), atol=1e-5
    )


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
    x, mask = subject.example(list(pins), list(pins.values()))
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
