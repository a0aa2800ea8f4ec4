"""Generations recorded as one page that needs nothing else: `bfn view` and `bfn.view`."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bfn.errors import BFNError, whole
from bfn.guidance import label_tensor
from bfn.model import BFN
from bfn.web import messages, pages, requests, work
from bfn.web.subject import Subject, load, of_model

MOST, LARGEST = 64, 1 << 25
"""Generations in one film, and its bytes before they are packed."""
HEIGHT = 760


class Film:
    """A page with recorded generations; a notebook shows it."""

    def __init__(self, page: str, frames: int) -> None:
        self.html, self.frames = page, frames

    def save(self, path: str | Path) -> None:
        """Write it to an .html file."""
        Path(path).write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        page = html.escape(self.html)
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-downloads" width="100%" '
            f'height="{HEIGHT}" style="border:0"></iframe>'
        )

    def __repr__(self) -> str:
        size = len(self.html) / 1e6
        return f"Film({self.frames} frames, {size:.2f} MB); save it with .save('film.html')"


def view(
    of: BFN | str | Path,
    n: int = 1,
    *,
    steps: int | None = None,
    solver: str | None = None,
    seed: int | None = None,
    label: Sequence[int | str] | int | str | None = None,
    guidance: float = 1.0,
    trust: bool = False,
) -> Film:
    """Record n generations, to look at in a notebook or to save as a page.

    Args:
        of: a trained model, a run folder, or the name of a shipped model.
        n: the number of generations; for several labels, of each.
        steps, solver, seed: as in `bfn.generate`, by default as the run's recipe says.
        label: a label by number or name, or several.
        guidance: the strength of the label's effect; 1 is as learned.
        trust: as in `BFN.from_pretrained`.
    """
    subject = of_model(of) if isinstance(of, BFN) else load(of, trust=trust)
    given = {"steps": steps, "solver": solver, "seed": seed}
    given = {name: value for name, value in given.items() if value is not None}
    settings = replace(subject.settings, **given, guidance=guidance)
    chosen: Sequence[int | str] = () if label is None else [label]  # pyright: ignore
    if isinstance(label, Sequence) and not isinstance(label, str):
        chosen = label
    numbers = [int(label_tensor(subject.model, each, 1)) for each in chosen]
    return record(replace(subject, settings=settings), n, numbers)


def record(subject: Subject, n: int, chosen: Sequence[int] = ()) -> Film:
    """n generations, or n of each of some labels, with the subject's own settings."""
    settings, recorded = subject.settings, list[bytes]()
    count = whole("n", n, 1) * max(len(chosen), 1)
    if count > MOST:
        raise BFNError(f"a film holds at most {MOST} generations, not {count}; record fewer")

    def emit(kind: str, message: bytes) -> None:
        recorded.append(message)
        if len(message) * (settings.steps + 1) * count > LARGEST:
            raise BFNError(
                f"{count} generations of {settings.steps} steps are too much for one page; record "
                "fewer, or with fewer steps"
            )

    given = {name: getattr(settings, name) for name in ("steps", "solver", "seed", "guidance")}
    for i, label in enumerate(chosen or [None]):
        asked = {"do": "generate", "model": subject.id, "label": label, **given}
        request = requests.read(asked, {subject.id: subject})
        assert isinstance(request, requests.Generate)
        work.stream_generations(subject, request, emit, run=i * n, count=n)
    # The steps of several generations came side by side.
    recorded.sort(key=lambda message: messages.unpack(message)[0]["run"])
    return Film(pages.html([subject], recorded), count * (settings.steps + 1))
