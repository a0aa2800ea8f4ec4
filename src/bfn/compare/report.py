"""The result of a comparison of tables: a table of numbers, or an HTML page with charts."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bfn.compare.scores import SIDES, Aligned, Trend, Values
from bfn.errors import BFNError, plural, suggestion
from bfn.files import write

MOST_COLUMNS = 60
"""If there are more columns, those with the lowest scores are shown."""
BARS, CLASSES, CELLS = 36, 10, 28
"""Maximum intervals of a number, values of a category, and intervals of a number in a pair."""
WIDTH, HEIGHT = 320, 150
MINUTE, HOUR, DAY = 60e6, 3600e6, 86_400e6
"""In microseconds."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1e23; --faint: #646b75; --line: #d9dce1; --page: #fff;
  --real: #b4b9c1; --new: #0072b2; --bad: #b3400a; --bad-page: #fff3ea; }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e7ea; --faint: #9aa1ab; --line: #363b43;
  --page: #15181c; --real: #59606b; --new: #56b4e9; --bad: #ffb07c; --bad-page: #33231a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 16px 64px; max-width: 1120px; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 1.2rem; margin: 40px 0 4px; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
p { margin: 0 0 12px; max-width: 75ch; } p, small { color: var(--faint); }
table { border-collapse: collapse; width: 100%; margin: 16px 0; }
th, td { padding: 10px 0 0 16px; border-top: 1px solid var(--line); text-align: right;
  vertical-align: top; white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child { padding-left: 0; text-align: left; white-space: normal; }
thead th { font-weight: 400; color: var(--faint); border: 0; padding-bottom: 4px;
  vertical-align: bottom; white-space: normal; }
th + th, th + td, td + td { width: 6rem; }
tbody th, td { font-weight: 600; } td + td { font-weight: 400; color: var(--faint); }
.meaning td { padding: 0 0 12px; border: 0; font-weight: 400; font-size: 0.875rem;
  color: var(--faint); text-align: left; white-space: normal; }
.warning { color: var(--bad); background: var(--bad-page); border-radius: 6px; padding: 10px 14px;
  max-width: none; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr));
  gap: 28px 32px; margin-top: 16px; }
.cards.pairs { grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%), 1fr)); }
.head { display: flex; justify-content: space-between; gap: 12px; align-items: baseline; }
.key::before { content: ""; display: inline-block; width: 0.8em; height: 0.8em;
  margin: 0 0.35em 0 0.7em; background: var(--real); }
.key.new::before { height: 0; border-top: 3px solid var(--new); vertical-align: middle; }
svg { display: block; width: 100%; height: auto; margin-top: 4px; overflow: visible; }
svg text { fill: var(--faint); font: 11px system-ui, sans-serif; }
svg .real { fill: var(--real); } svg .new { fill: none; stroke: var(--new); stroke-width: 1.6; }
svg .axis { stroke: var(--line); } svg .frame { fill: none; stroke: var(--line); }
svg image { image-rendering: pixelated; }
"""


@dataclass(frozen=True)
class Measure:
    """A number for the new rows, and the same number for held-out rows in their place."""

    name: str
    new: float
    real: float | None
    meaning: str
    is_share: bool = False

    def text(self, value: float | None) -> str:
        if value is None:
            return ""
        if self.is_share:
            return f"{value:.2%}"
        return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`. Print it, or write a page with charts: `report("report.html")`."""

    measures: tuple[Measure, ...]
    shapes: Mapping[str, float]
    """The score of every column; NaN where one of the tables has no values."""
    trends: Mapping[tuple[str, str], Trend]
    """The scores of the pairs of columns; NaN where a number is constant."""
    warnings: tuple[str, ...]
    classifier: str
    rows: Mapping[str, int]
    columns: tuple[Aligned, ...]

    def __getitem__(self, name: str) -> float:
        """The score of the new rows, by the name of the measure."""
        scores = {measure.name: measure.new for measure in self.measures}
        if name not in scores:
            raise BFNError(f"unknown measure {name!r}{suggestion(name, scores)}")
        return scores[name]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The headings and the lines of the table of measures, as text."""
        headings = ["measure", "new rows", "held-out rows"][: len(self.rows)]
        lines = [[m.name, m.text(m.new), m.text(m.real)][: len(headings)] for m in self.measures]
        return headings, lines

    def note(self) -> str:
        """What was compared, and with which classifier."""
        sizes = ", ".join(f"{n:,} {SIDES[side]} rows" for side, n in self.rows.items())
        return f"{sizes}; C2ST by {self.classifier}"

    def __repr__(self) -> str:
        headings, lines = self.table()
        widths = [max(map(len, cells)) for cells in zip(headings, *lines, strict=True)]
        text = []
        for name, *values in (headings, *lines):
            cells = [v.rjust(w) for v, w in zip(values, widths[1:], strict=True)]
            text.append("  ".join([name.ljust(widths[0]), *cells]).rstrip())
        return "\n".join([*text, self.note(), *self.warnings])

    def worst_pairs(self, most: int = 6) -> list[tuple[str, str]]:
        """The pairs of columns with the lowest scores, the lowest first."""
        known = {p: trend.score for p, trend in self.trends.items() if not math.isnan(trend.score)}
        return sorted(known, key=lambda pair: known[pair])[:most]

    def as_dict(self) -> dict[str, Any]:
        """All numbers, as JSON values."""
        return {
            "measures": {
                m.name: {"new": _finite(m.new), "real": _finite(m.real)} for m in self.measures
            },
            "columns": {name: _finite(score) for name, score in self.shapes.items()},
            "pairs": [[*pair, _finite(trend.score)] for pair, trend in self.trends.items()],
            "warnings": list(self.warnings),
            "classifier": self.classifier,
            "rows": dict(self.rows),
        }

    def report(self, path: str | Path) -> None:
        """Write a self-contained page with the numbers, explanations and charts."""
        write(Path(path), page(self))


def page(comparison: Comparison) -> str:
    """The page of a comparison."""
    body = [
        "<h1>New rows and real rows</h1>",
        f"<p>{escape(comparison.note())}</p>",
        *(f'<p class="warning">{escape(warning)}</p>' for warning in comparison.warnings),
        *_measures(comparison),
        *_columns(comparison),
        *_pairs(comparison),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>New rows and real rows</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _measures(comparison: Comparison) -> list[str]:
    held = "holdout" in comparison.rows
    about = (
        "The last column scores real rows that the model never saw in place of new ones: new rows "
        "can hardly do better."
        if held
        else "Without held-out rows there is no reference score for real rows, and no way to tell "
        "whether new rows copy training rows more often than by chance."
    )
    headings, lines = comparison.table()
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
    rows = []
    for measure, (name, *values) in zip(comparison.measures, lines, strict=True):
        cells = "".join(f"<td>{value}</td>" for value in values)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
        meaning = escape(measure.meaning)
        rows.append(f'<tr class="meaning"><td colspan="{len(headings)}">{meaning}</td></tr>')
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return ["<h2>Numbers</h2>", f"<p>{about}</p>", table]


def _columns(comparison: Comparison) -> list[str]:
    shapes = comparison.shapes
    drawn = comparison.columns
    which = ""
    if len(drawn) > MOST_COLUMNS:
        by_score = sorted(drawn, key=lambda c: (math.isnan(shapes[c.name]), shapes[c.name]))
        drawn = by_score[:MOST_COLUMNS]
        which = f" These are the {MOST_COLUMNS} lowest of {plural(len(shapes), 'column')}."
    cards = [
        f'<section><div class="head"><h3>{escape(column.name)}</h3>'
        f"<small>{_score(shapes[column.name])}</small></div>{picture(column)}</section>"
        for column in drawn
    ]
    return [
        "<h2>Columns</h2>",
        '<p>How often values occur in <span class="key">training rows</span> and in '
        '<span class="key new">new rows</span>, each with its Shape score. Lengths are square '
        f"roots of frequencies, which keeps rare values visible.{which}</p>",
        f'<div class="cards">{"".join(cards)}</div>',
    ]


def _pairs(comparison: Comparison) -> list[str]:
    columns = {column.name: column for column in comparison.columns}
    cards = [
        f'<section><div class="head"><h3>{escape(a)} and {escape(b)}</h3>'
        f"<small>{_score(comparison.trends[a, b].score)}</small></div>"
        f"{pair_picture(columns[a], columns[b])}</section>"
        for a, b in comparison.worst_pairs()
    ]
    if not cards:
        return []
    return [
        "<h2>The pairs of columns that differ most</h2>",
        "<p>The densities of training rows and of new rows for each pair, with its Trend score; "
        "and where there are too many new rows (blue) or too few (orange).</p>",
        f'<div class="cards pairs">{"".join(cards)}</div>',
    ]


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _score(score: float) -> str:
    return "no score" if math.isnan(score) else f"{score:.3f}"


# Columns


class Axis:
    """Values in intervals, or the most frequent ones of a category, with missing values last."""

    def __init__(self, column: Aligned, most: int) -> None:
        self.column = column
        self.edges: Values | None = None
        self.labels: list[str] = []
        shown = [column.values["train"], column.values["new"]]
        both = np.concatenate(shown)
        if column.is_number:
            known = both[~np.isnan(both)]
            self.missing = len(known) < len(both)
            self._cut(known, most)
        else:
            self.missing = bool((both < 0).any())
            self._rank(shown[0], both, most)
        if self.missing:
            self.labels.append("missing")

    def _cut(self, known: Values, most: int) -> None:
        distinct = np.unique(known)
        written = _writer(self.column.kind, distinct)
        if len(distinct) <= most:  # a bar for each value
            self.edges = np.concatenate([distinct[:1], (distinct[1:] + distinct[:-1]) / 2])
            self.labels = [written(value) for value in distinct]
            return
        low, high = np.quantile(known, [0.01, 0.99])
        if low == high:
            low, high = distinct[0], distinct[-1]
        step = (high - low) / (most - 2)
        if not np.any(known % 1):
            step = max(1.0, float(np.ceil(step)))  # equally many integers in every bar
            low = float(np.floor(low))
        below = distinct[0] < low
        edges = low + step * np.arange(-int(below), math.ceil((high - low) / step) + 1)
        self.edges = edges
        self.labels = [f"{written(a)} to {written(b)}" for a, b in pairwise(edges)]
        if below:
            self.labels[0] = f"below {written(low)}"
        self.labels.append(f"from {written(edges[-1])}")

    def _rank(self, train: Values, both: Values, most: int) -> None:
        names: Sequence[str] = self.column.labels or ()
        counts = np.bincount(train[train >= 0], minlength=len(names)) / max(1, len(train))
        counts = counts + np.bincount(both[both >= 0], minlength=len(names)) / (1e6 * len(both))
        order = np.argsort(-counts, kind="stable")
        kept = order if len(order) <= most else order[: most - 1]
        self.place = np.full(len(names), len(kept))
        self.place[kept] = np.arange(len(kept))
        self.labels = [str(names[k]) for k in kept]
        if len(kept) < len(names):
            self.labels.append(f"{len(names) - len(kept)} others")

    def of(self, side: str) -> Values:
        """The bar of every row of a table, from 0."""
        values = self.column.values[side]
        last = len(self.labels) - 1
        if self.edges is None:
            return np.where(values < 0, last, self.place[values])
        inside = np.searchsorted(self.edges, values, side="right") - 1
        highest = last - self.missing
        return np.where(np.isnan(values), last, np.clip(inside, 0, highest))

    def shares(self, side: str) -> Values:
        places = self.of(side)
        return np.bincount(places, minlength=len(self.labels)) / len(places)


def picture(column: Aligned) -> str:
    """Overlaid bars of the training rows and the new rows."""
    axis = Axis(column, BARS if column.is_number else CLASSES)
    real, new = axis.shares("train"), axis.shares("new")
    titles = [
        f"{label}: {SIDES['train']} {p:.2%}, {SIDES['new']} {q:.2%}"
        for label, p, q in zip(axis.labels, real, new, strict=True)
    ]
    scale = math.sqrt(max(real.max(), new.max()))
    draw = _upright if column.is_number else _flat
    return draw(axis, np.sqrt(real) / scale, np.sqrt(new) / scale, titles)


def _upright(axis: Axis, real: Values, new: Values, titles: Sequence[str]) -> str:
    bottom, step = HEIGHT - 18, WIDTH / len(real)
    wide = step * (0.7 if len(real) <= 12 else 0.9)
    parts = []
    top = bottom - 6
    for i, (p, q, title) in enumerate(zip(real, new, titles, strict=True)):
        x = i * step + (step - wide) / 2
        parts.append(
            f'<g><title>{escape(title)}</title><rect class="real" x="{x:.1f}" '
            f'y="{bottom - p * top:.1f}" width="{wide:.1f}" height="{p * top:.1f}"/>'
            f'<path class="new" d="M{x:.1f} {bottom - q * top:.1f}h{wide:.1f}"/></g>'
        )
    parts.append(f'<line class="axis" x1="0" x2="{WIDTH}" y1="{bottom}" y2="{bottom}"/>')
    if len(axis.labels) <= 6:
        for i, label in enumerate(axis.labels):
            parts.append(_text((i + 0.5) * step, HEIGHT - 4, label, "middle"))
    else:
        ends = axis.labels[: len(axis.labels) - axis.missing]
        middle = (len(ends) - 1) // 2
        first, label = (ends[i].partition(" to ")[0] for i in (0, middle))
        parts.append(_text(0, HEIGHT - 4, first))
        parts.append(_text((middle + 0.5) * step, HEIGHT - 4, label, "middle"))
        last = f"{ends[-1]}, missing" if axis.missing else ends[-1]
        parts.append(_text(WIDTH, HEIGHT - 4, last, "end", 24))
    return _svg(WIDTH, HEIGHT, parts)


def _flat(axis: Axis, real: Values, new: Values, titles: Sequence[str]) -> str:
    left, line = 110, 17
    wide = WIDTH - left
    parts = []
    for i, (p, q, title) in enumerate(zip(real, new, titles, strict=True)):
        y = i * line + 3
        parts.append(
            f"<g><title>{escape(title)}</title>{_text(left - 6, y + 9, axis.labels[i], 'end')}"
            f'<rect class="real" x="{left}" y="{y}" width="{p * wide:.1f}" height="11"/>'
            f'<path class="new" d="M{left + q * wide:.1f} {y - 1}v13"/></g>'
        )
    height = line * len(real)
    parts.append(f'<line class="axis" x1="{left}" x2="{left}" y1="0" y2="{height}"/>')
    return _svg(WIDTH, height, parts)


# Pairs


def pair_picture(a: Aligned, b: Aligned) -> str:
    """The joint distribution in the training rows and in the new rows, and the difference."""
    across, up = (Axis(column, CELLS if column.is_number else CLASSES) for column in (a, b))
    shape = len(up.labels), len(across.labels)
    real, new = (_joint(across, up, side, shape) for side in ("train", "new"))
    most = math.sqrt(max(real.max(), new.max()))
    change = new - real
    far = np.abs(change).max() or 1.0
    panels = [
        ("training rows", _tint(np.sqrt(real) / most, (120, 128, 140))),
        ("new rows", _tint(np.sqrt(new) / most, (0, 114, 178))),
        (
            "difference",
            np.where(
                (change > 0)[..., None],
                _tint(np.sqrt(np.abs(change) / far), (0, 114, 178)),
                _tint(np.sqrt(np.abs(change) / far), (213, 94, 0)),
            ),
        ),
    ]
    left, side, gap, top = 84, 130, 12, 16
    width, height = left + 3 * side + 2 * gap, top + side + 18
    parts = []
    for i, (title, pixels) in enumerate(panels):
        x = left + i * (side + gap)
        data = base64.b64encode(png(pixels[::-1])).decode()
        parts += [
            _text(x, top - 5, title),
            f'<image x="{x}" y="{top}" width="{side}" height="{side}" preserveAspectRatio="none" '
            f'href="data:image/png;base64,{data}"/>',
            f'<rect class="frame" x="{x}" y="{top}" width="{side}" height="{side}"/>',
        ]
    if up.edges is None or len(up.labels) <= CLASSES:
        step = side / shape[0]
        parts += [
            _text(left - 5, top + side - (i + 0.5) * step + 4, label, "end", 13)
            for i, label in enumerate(up.labels)
        ]
    else:
        parts.append(_text(left - 5, top + side, up.labels[0], "end", 13))
        parts.append(_text(left - 5, top + 9, up.labels[-1], "end", 13))
    ends = f"{across.labels[0]} … {across.labels[-1]}"
    parts.append(_text(left, height - 4, f"{a.name}: {ends}", "start", 70))
    return _svg(width, height, parts)


def _joint(across: Axis, up: Axis, side: str, shape: tuple[int, int]) -> Values:
    """The fractions of rows in the cells: (up, across)."""
    cells = up.of(side) * shape[1] + across.of(side)
    return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape) / len(cells)


def _tint(strength: Values, colour: tuple[int, int, int]) -> Values:
    """A colour whose opacity grows with its strength, for light and dark pages: RGBA."""
    pixels = np.empty((*strength.shape, 4), np.uint8)
    pixels[..., :3] = colour
    pixels[..., 3] = np.round(255 * np.clip(strength, 0.0, 1.0))
    return pixels


def png(pixels: Values) -> bytes:
    """A PNG file of RGBA bytes (height, width, 4)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines, 9))
        + chunk(b"IEND", b"")
    )


# Parts of pictures


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start", most: int = 17) -> str:
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _writer(kind: str, values: Values) -> Callable[[float], str]:
    """How to write numbers, or dates and times in microseconds, as some distinct values are."""
    if kind == "numbers" or not len(values):
        return _number
    span = values[-1] - values[0]
    if kind == "times":
        if np.any(values % 1e6) and span < MINUTE:
            return lambda value: f"{value / 1e6:.4g} s"
        return _duration
    if np.any(values % DAY) and span < HOUR:  # without the date
        return lambda value: _date(value, "s")[11:]
    if np.any(values % DAY) and span < 60 * DAY:  # without the year
        return lambda value: _date(value, "m")[5:]
    return lambda value: _date(value, "D")


def _duration(value: float) -> str:
    return f"{'-' if value < 0 else ''}{timedelta(seconds=round(abs(value) / 1e6))}"


def _date(value: float, unit: str) -> str:
    return str(np.datetime64(int(value), "us").astype(f"datetime64[{unit}]")).replace("T", " ")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value % 1 == 0 and abs(value) < 1e15 else f"{value:.4g}"
