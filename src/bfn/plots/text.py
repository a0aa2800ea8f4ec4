"""A text run's data and distributions, drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bfn.data.formats import TextFormat
from bfn.errors import BFNError
from bfn.plots import style as s
from bfn.plots.measure import Flow, Run, flow_through_time, real_and_generated
from bfn.plots.sheets import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE, LINES, COLUMN = 66, 40, 220.0  # characters, lines and points of a column of text
SHOWN = 40  # characters of a sequence
ROWS = 30  # classes in a heat map
UNTIL = 0.75
FONT, ADVANCE = "DejaVu Sans Mono", 0.602  # every character's width, in sizes of the font
SPACE = "\N{OPEN BOX}"


def draw_samples(run: Run) -> Figure:
    """Real and generated text, two columns."""
    length = run.data.shape[0]
    lines = -(-length // LINE)
    width = -(-length // lines)
    count = max(1, LINES // (lines + 1))
    size = min(6.5, COLUMN / (ADVANCE * width))
    figure = s.new(0.3 + 1.3 * size / 72 * count * (lines + 0.7))
    panels = figure.subplots(1, 2)
    real, generated = real_and_generated(run, count)
    font = {"family": FONT, "fontsize": size, "linespacing": 1.3, "parse_math": False}
    for axes, x, name in zip(panels, (real, generated), run.titles, strict=True):
        axes.set_title(name, loc="left")
        axes.set(xlim=(0, 1), ylim=(count, 0))
        axes.axis("off")
        for i, text in enumerate(run.data.render(x)):
            shown = "".join(_shown(c) for c in text)
            cut = "\n".join(shown[j : j + width] for j in range(0, length, width))
            axes.text(0, i + 0.1, cut, va="top", **font)
    return figure


def probabilities(values: Tensor, x: Tensor) -> Tensor:
    """(T, L, K) of the one example in `values`, whose class axis two classes do without."""
    if values.ndim == x.ndim + 1:
        values = torch.stack([1.0 - values, values], -1)
    return values[:, 0]


def draw_distributions(run: Run) -> Figure:
    """Heat maps of character probabilities at three times, input beside output."""
    found = flow_through_time(run, 1, 4, run.until or UNTIL)
    x = found.x[0, :SHOWN]
    sides = [p[1:, :SHOWN] for p in _sides(found)]
    rows = _rows(sides, x)
    figure = s.new(1.1 + 3 * 0.081 * max(len(rows), 12))
    panels = figure.subplots(3, 2)
    names = _names(run)
    image = None
    for side, p, title in zip(panels.T, sides, ("Input", "Output"), strict=True):
        for axes, values, t in zip(side, p, found.t[1:].tolist(), strict=True):
            shown = values[:, rows].T.numpy()
            image = axes.imshow(shown, aspect="auto", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(f"{title} distribution, $t={t:.2f}$", pad=3)
            axes.tick_params(length=0, pad=1)
            axes.set_yticks(range(len(rows)), labels=[names[k] for k in rows])
            axes.set_xticks(range(len(x)), labels=[names[k] for k in x.tolist()])
            for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
                label.set(family=FONT, fontsize=5.5, parse_math=False)
    assert image is not None
    bar = figure.colorbar(image, ax=panels, location="bottom", aspect=50, pad=0.01, shrink=0.6)
    bar.set_label("probability")
    return figure


def draw_letters(run: Run) -> Figure:
    """At each place the characters on top of one another, as high as they are probable."""
    found = flow_through_time(run, 1, 11, run.until or UNTIL)
    x, times = found.x[0, :SHOWN], found.t[1:].tolist()
    names = _names(run)
    figure = s.new(6.6)
    panels = figure.subplots(2, 1)
    for axes, p, title in zip(panels, _sides(found), ("Input", "Output"), strict=True):
        placed = list(_letters(p[1:, :SHOWN], x, names))
        collection = need("matplotlib.collections").PathCollection(
            [path for path, _ in placed],
            facecolors=[colour for _, colour in placed],
            linewidths=0,
            transform=axes.transData,
        )
        axes.add_collection(collection, autolim=False)
        axes.set(xlim=(-0.1, len(x) + 0.1), ylim=(len(times) + 0.1, -0.1), ylabel="time $t$")
        axes.set_title(f"{title} distribution; the text\u2019s own characters in blue")
        axes.set_yticks([i + 0.5 for i in range(len(times))], labels=[f"${t:.2f}$" for t in times])
        axes.set_xticks([i + 0.5 for i in range(len(x))], labels=[names[k] for k in x.tolist()])
        for label in axes.get_xticklabels():
            label.set(family=FONT, fontsize=8, parse_math=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


LEAST = 0.03
"""Characters less probable than this are left out: they would be thinner than a line."""


def _letters(p: Tensor, x: Tensor, names: list[str]) -> Iterator[tuple[Any, str]]:
    """Glyphs (T, L, K) placed in cells of height 1, downwards in time, the likeliest on top."""
    transforms, glyphs = need("matplotlib.transforms"), {}
    for row, step in enumerate(p):
        for column, values in enumerate(step):
            base = row + 1.0
            order = values.argsort()
            for k in order[values[order] >= LEAST].tolist():
                if k not in glyphs:
                    glyphs[k] = _glyph(names[k])
                share = 0.9 * float(values[k])
                move = transforms.Affine2D().scale(0.9, -share).translate(column + 0.05, base)
                colour = s.BLUE if k == int(x[column]) else s.ORANGE
                yield move.transform_path(glyphs[k]), colour
                base -= share


def _glyph(character: str) -> Any:
    """A character's outline in a box of height 1 and the width of the font's cells."""
    if character == SPACE:  # stretched, its sign would look like a u
        return (
            need("matplotlib.path")
            .Path.unit_rectangle()
            .transformed(
                need("matplotlib.transforms").Affine2D().scale(0.8, 0.15).translate(0.1, 0)
            )
        )
    text, fonts = need("matplotlib.textpath"), need("matplotlib.font_manager")
    path = text.TextPath((0, 0), character, size=1, prop=fonts.FontProperties(family=FONT))
    box = path.get_extents()
    move = need("matplotlib.transforms").Affine2D()
    height = max(box.height, 1e-3)
    return move.translate(0, -box.y0).scale(1 / ADVANCE, 1 / height).transform_path(path)


def _shown(character: str) -> str:
    """The character itself if it can be printed in our font, else a dot."""
    fonts = need("matplotlib.font_manager")
    known = fonts.get_font(fonts.findfont(FONT)).get_char_index(ord(character)) > 0
    return character if known and character.isprintable() else "\N{MIDDLE DOT}"


def _sides(found: Flow) -> list[Tensor]:
    return [probabilities(values, found.x) for values in (found.inputs, found.outputs)]


def _rows(sides: list[Tensor], x: Tensor) -> list[int]:
    """The classes to show: all, or those of the text and the likeliest others, in order."""
    K = sides[0].shape[-1]
    weight = sum(p.sum((0, 1)) for p in sides) + 1e6 * torch.bincount(x, minlength=K).clamp_max(1)
    return sorted(torch.as_tensor(weight).argsort(descending=True)[:ROWS].tolist())


def _names(run: Run) -> list[str]:
    """One sign for every class."""
    if not isinstance(run.data.format, TextFormat):
        raise BFNError("characters are drawn of text; this run's data are none")
    K = run.data.format.alphabet.K
    texts = run.data.format.alphabet
    signs = []
    for k in range(K):
        text = texts.text(torch.tensor([k]).numpy())
        sign = text.decode("latin-1") if isinstance(text, bytes) else text
        signs.append(SPACE if sign == " " else _shown(sign))
    return signs
