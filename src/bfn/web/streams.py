"""Generations, and a user's own examples, as streams of messages, films and files.

A generation is `bfn.sampling.batches.sample_as`, as for the command line, observed by its callback;
so the same seed gives the same sample there. Messages about a user's own example are sent at evenly
spaced times, and the model's loss is the integral of

    rate of variable d  =  alpha(t) / (2 v) |m(x)_d - m_d|^2        nats per unit of time

over those times. The nats that a generation has received so far are estimated as the sum over its
steps of KL(p_S(. | x') || p_R), with x' drawn from the output: what the model itself expects.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError, check_integer, without_none
from bfn.files import write
from bfn.flow import Theta
from bfn.guidance import label_tensor
from bfn.model import BFN
from bfn.output import Output
from bfn.output.base import by_part
from bfn.plots import sheets
from bfn.plots.figures import through_time
from bfn.sampling import batches
from bfn.sampling.generate import Callback
from bfn.tables.format import TableFormat
from bfn.web import messages
from bfn.web.messages import film_page, pack, snapshot, unpack
from bfn.web.requests import (
    KNOWN,
    Download,
    Examine,
    Generate,
    command,
    known_files,
    pinned_row,
    pinned_texts,
    read,
)
from bfn.web.subject import Subject, load, of_model

Emit = Callable[[str, bytes], None]
"""Takes a message and its kind: start, frame, last (for the last frame) or end. Raises to stop."""
BITS = 1 / math.log(2)
MOST_GENERATIONS, LARGEST_FILM = 64, 1 << 25
"""Maximum generations in one film, and its maximum size before compression."""
HEIGHT = 760  # of a film in a notebook, in pixels


def finite(value: float | None) -> float | None:
    """The number, or None if JSON cannot hold it."""
    return None if value is None or not math.isfinite(value) else value


class Stopped(Exception):
    """The page sent a newer request, or was closed."""


def stream(
    subject: Subject, request: Generate | Examine, emit: Emit, run: int = 0, pane: int = 0
) -> None:
    """All messages about one run."""
    if isinstance(request, Examine):
        _stream_example(subject, request, emit, run, pane)
    else:
        stream_generations(subject, request, emit, run, pane)


class Received:
    """The nats that a generation has received so far, one number per row of the batch."""

    def __init__(self, model: BFN, seed: int, rows: int) -> None:
        self.model, self.seed, self.rows = model, seed, rows
        self.nats, self.most, self.before = torch.zeros(rows), torch.zeros(rows), None

    def at(self, i: int, t: float, output: Output) -> Tensor:
        """The nats received before step i, which begins at time t."""
        if self.before is not None:
            s, last = self.before
            ends = torch.tensor([[s], [t]], dtype=torch.float64).expand(2, self.rows)
            alpha_i = self.model.flow.schedule.increment(*ends)
            keys = noise.Keyed([noise.seed("received", self.seed, i, j) for j in range(self.rows)])
            x = last.sample(keys)
            alpha_i = alpha_i.to(x.device, self.model.dtype)
            self.nats = self.nats + by_part(last.divergence(x, alpha_i, keys)).sum(1).cpu()
        self.before = t, output
        # An estimated divergence may be negative, but received information is never lost.
        self.most = torch.maximum(self.most, self.nats)
        return self.most


def stream_generations(
    subject: Subject,
    request: Generate,
    emit: Emit,
    run: int = 0,
    pane: int = 0,
    count: int = 1,
) -> None:
    """All messages about `count` generations, which have the numbers run, run + 1, ..."""
    P, steps = request.particles, request.steps
    places = [{"run": run + row, "pane": pane} for row in range(count)]
    # With the same noise at every step, samples change smoothly.
    seeds = [noise.seed("look", request.seed, i) for i in range(count * P)]
    received, held = Received(subject.model, request.seed, count * P), []
    lengths = _lengths(subject, request, count)

    def send(i: int, header: dict[str, Any], row: int, shown: messages.Snapshot) -> None:
        planes = messages.planes(subject, shown)
        if i == 0:
            again = _again(subject, request, row, lengths)
            emit("start", _start(subject, request, places[row], planes, **again))
        emit("last" if i == steps else "frame", pack(header, messages.body(planes)))

    def observe(i: int, t: Tensor, theta: Theta, output: Output) -> None:
        time = float(t[0])
        # Solvers that call the network just above t = 0 begin their first step at 0.
        x, nats = output.sample(noise.Keyed(seeds)), received.at(i, time if i else 0.0, output)
        for row in range(count):
            rows = slice(row * P, (row + 1) * P)
            shown = snapshot(subject, theta, output, x, rows)
            bits = None if shown.entropy is None else float(nats[rows].mean()) * BITS
            header = _frame(places[row], i, time, bits, shown)
            if i < steps:
                send(i, header, row, shown)
            else:  # it shows the final sample, which is not drawn yet
                held.append((header, shown))

    x = _generate(subject, request, count, lengths, observe)
    for row, (header, shown) in enumerate(held):
        own = [part[row] for part in subject.split(x)]
        send(steps, header, row, replace(shown, x=own))
        emit("end", pack({"kind": "end", **places[row], "values": subject.own(x[row])}))


def _generate(
    subject: Subject,
    request: Generate,
    count: int,
    lengths: Tensor | None,
    callback: Callback,
) -> Tensor:
    """The samples; `callback` is that of `bfn.generate`."""
    names = subject.labels or []
    settings = replace(
        subject.settings,
        n=count,
        batch=count * request.particles,
        steps=request.steps,
        solver=request.solver,
        seed=request.seed,
        label="" if request.label is None else names[request.label],
        guidance=request.guidance,
    )
    options: dict[str, Any] = {} if lengths is None else {"length": lengths}
    if request.pins:
        particles = request.particles
        observed = batches.default_observation(subject.model, subject.format, particles)
        options |= {"known": subject.example(request.pins), "observed": observed}
        options |= {"particles": particles, "since": request.since}

    shape = subject.format.shape
    return batches.sample_as(subject.alone(), shape, settings, callback=callback, **options)


def _lengths(subject: Subject, request: Generate, count: int) -> Tensor | None:
    law = subject.model.lengths
    if law is None:
        return None
    if request.length is not None:
        return torch.full((count,), request.length)
    least = 1
    if request.pins:
        _, mask = subject.example(request.pins)
        least = subject.model.flow.reach(mask[None])
    keys = noise.Keyed([noise.seed("length", request.seed, i) for i in range(count)])
    return law.sample(count, keys, least)


def rates(model: BFN, x: Tensor, t: float, output: Output) -> Tensor:
    """The loss of every variable of x (1, *shape) at time t, (D,) in nats per unit of time."""
    flow, m = model.flow, output.m
    alpha_t = flow.schedule.alpha(torch.full((1,), t, dtype=torch.float64)).to(m)
    weight = flow.over(alpha_t, m) / (2.0 * flow.variance(torch.ones_like(m)))
    nats = weight * (flow.embed(x).to(m) - m).square()
    D = x.numel()
    numbers = flow.spread(torch.arange(D, device=x.device).reshape(x.shape), m).expand_as(m)
    return torch.zeros(D, device=x.device).index_add_(0, numbers.flatten(), nats.flatten().float())


def _stream_example(subject: Subject, request: Examine, emit: Emit, run: int, pane: int) -> None:
    place, model = {"run": run, "pane": pane}, subject.alone()
    exists = len(request.values)
    x, _ = subject.example(dict(enumerate(request.values)))
    x, cond = x.to(model.device), dict[str, Any]()
    if request.label is not None:
        cond["label"] = torch.full((1,), request.label, device=x.device)
    if model.lengths is not None:
        cond["length"] = exists * model.lengths.longest // subject.D
        x = model.without_padding(x, cond)
    times = torch.linspace(0, 1, request.steps + 1, dtype=torch.float64)
    sent, drawn = ([noise.seed("look", request.seed, i)] for i in range(2))
    watched = through_time(model, x, times, noise.Keyed(sent), **cond)
    nats, before, output = torch.zeros(subject.D), torch.zeros(subject.D), None
    with model.evaluating():
        for i, (t, (theta, output)) in enumerate(zip(times.tolist(), watched, strict=True)):
            rate = rates(model, x, t, output).cpu()
            if i > 0:
                nats = nats + 0.5 / request.steps * (before + rate)
            before = rate
            shown = snapshot(subject, theta, output, output.sample(noise.Keyed(drawn)), slice(0, 1))
            header = _frame(place, i, t, float(nats.sum()) * BITS, shown)
            header["rate"] = finite(float(rate.sum()) * BITS)
            planes = messages.planes(subject, shown)
            if i == 0:
                emit("start", _start(subject, request, place, planes, exists=exists))
            emit("last" if i == request.steps else "frame", pack(header, messages.body(planes)))
    assert output is not None
    total = float(nats.sum()) + float(by_part(output.reconstruction(x)).sum())
    shown = x if "mask" not in cond else model.flow.padded(x, cond["mask"])
    end = {"kind": "end", **place, "values": subject.own(shown[0]), "bits": finite(total * BITS)}
    emit("end", pack(end, (nats * BITS).numpy().tobytes()))


# Headers.


def _frame(
    place: dict[str, Any], i: int, t: float, bits: float | None, shown: messages.Snapshot
) -> dict[str, Any]:
    entropy = None if shown.entropy is None else finite(round(shown.entropy * BITS, 3))
    bits = None if bits is None else finite(round(bits, 3))
    return {"kind": "frame", **place, "step": i, "t": t, "bits": bits, "entropy": entropy}


def _start(
    subject: Subject,
    request: Generate | Examine,
    place: dict[str, Any],
    planes: list[messages.Plane],
    **more: Any,
) -> bytes:
    header = {
        "kind": "start",
        **place,
        "request": request.describe(),
        "command": None,
        "why": None,
        "needs": [],
        "exists": subject.D,
        **more,
        "planes": messages.describe(planes),
    }
    return pack(header)


def _again(subject: Subject, request: Generate, row: int, lengths: Tensor | None) -> dict[str, Any]:
    """How to reproduce the sample, and how much of it exists."""
    length, text = None if lengths is None else int(lengths[row]), subject.format.medium == "text"
    line, why = command(subject, request, row + 1, length)
    return {
        "command": line,
        "why": why,
        "needs": KNOWN.get(subject.format.medium, []) if line and request.pins else [],
        "exists": length if text and length is not None else subject.D,
    }


# Files.


def files(
    subject: Subject, download: Download, check: Callable[[], None]
) -> list[tuple[str, bytes]]:
    """The name and content of the requested files; `check` is called often, and may raise."""
    request, name = download.request, f"{subject.title}-{download.request.seed}"
    if download.file == "film":
        recorded: list[bytes] = []

        def emit(kind: str, message: bytes) -> None:
            check()
            recorded.append(message)

        stream(subject, request, emit)
        return [(f"{name}.html", film_page([subject], recorded).encode())]
    assert isinstance(request, Generate)
    if download.file == "known":
        return [*known_files(subject, request).items()]
    lengths = _lengths(subject, request, 1)
    x = _generate(subject, request, 1, lengths, lambda *step: check())
    if isinstance(subject.format, TableFormat):
        pinned = pinned_texts(subject.format, request.pins)
        like = pinned_row(subject.format, pinned) if pinned else None
        return [(f"{name}.csv", subject.format.file(x, seed=request.seed, like=like))]
    ending = sheets.suffix(subject.format)
    return [(f"{name}{ending}", sheets.sheet(subject.format, x, ending))]


# Films.


class Film:
    """A page with recorded generations; a notebook shows it."""

    def __init__(self, page: str, frames: int) -> None:
        self.html, self.frames = page, frames

    def save(self, path: str | Path) -> None:
        """Write it to an .html file."""
        write(Path(path), self.html)

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
    """Record n generations, to show in a notebook or to save as a page.

    Args:
        of: a trained model, a run folder, or the name of a shipped model.
        n: the number of generations; for several labels, of each.
        steps, solver, seed: as in `bfn.generate`; by default those of the run's recipe.
        label: a label by number or name, or several.
        guidance: the strength of label guidance; 1 is as trained.
        trust: as in `BFN.from_pretrained`.
    """
    subject = of_model(of) if isinstance(of, BFN) else load(of, trust=trust)
    changes = without_none(steps=steps, solver=solver, seed=seed)
    settings = replace(subject.settings, **changes, guidance=guidance)
    chosen: Sequence[int | str] = () if label is None else [label]  # pyright: ignore
    if isinstance(label, Sequence) and not isinstance(label, str):
        chosen = label
    numbers = [int(label_tensor(subject.model, each, 1)) for each in chosen]
    return record(replace(subject, settings=settings), n, numbers)


def record(subject: Subject, n: int, chosen: Sequence[int] = ()) -> Film:
    """n generations, or n of each of some labels, with the subject's own settings."""
    settings, recorded = subject.settings, list[bytes]()
    count = check_integer("n", n, 1) * max(len(chosen), 1)
    if count > MOST_GENERATIONS:
        raise BFNError(
            f"a film holds at most {MOST_GENERATIONS} generations, not {count}; record fewer"
        )

    def emit(kind: str, message: bytes) -> None:
        recorded.append(message)
        if len(message) * (settings.steps + 1) * count > LARGEST_FILM:
            raise BFNError(
                f"{count} generations of {settings.steps} steps are too much for one page; record "
                "fewer, or with fewer steps"
            )

    options = {name: getattr(settings, name) for name in ("steps", "solver", "seed", "guidance")}
    for i, label in enumerate(chosen or [None]):
        asked = {"do": "generate", "model": subject.id, "label": label, **options}
        request = read(asked, {subject.id: subject})
        assert isinstance(request, Generate)
        stream_generations(subject, request, emit, run=i * n, count=n)
    # The steps of several generations were interleaved.
    recorded.sort(key=lambda message: unpack(message)[0]["run"])
    return Film(film_page([subject], recorded), count * (settings.steps + 1))
