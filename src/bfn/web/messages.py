"""The page, and messages to it: a JSON header and a body of bytes; a film is a list of them.

    4 bytes   the length of the header, little-endian
    header    JSON, padded with spaces so that the body begins at a multiple of 8
    body      for a frame, planes: one or a few numbers per variable, as bytes

Numbers in a plane are quantised: probabilities and shades to a byte.

The page itself is a few files, as `bfn serve` sends them, or one file with a film inside. In one
file the JavaScript modules become one script. They keep to a few rules for that: imports and
exports on lines of their own, `import { a, b } from "./file.js";` and `export function a`, and no
name twice at the top of two modules.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.flow import BayesianFlow, Theta
from bfn.output import Belief, Output
from bfn.output.bins import bin_centre
from bfn.sampling import solvers
from bfn.web.requests import LIMITS
from bfn.web.subject import Group, Subject, thetas

TABLE, SMALL, LARGEST = 64, 1 << 10, 1 << 17
"""With up to TABLE classes, all probabilities are sent unless their table exceeds LARGEST numbers;
with more classes, only if it has at most SMALL."""
TOP = 8
"""Otherwise, this many of the most probable classes are sent."""

PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_STYLE = '<link rel="stylesheet" href="page.css">'
_SCRIPT = '<script type="module" src="main.js"></script>'


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    """One message."""
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return struct.pack("<I", len(text)) + text + body


def unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    """The inverse of `pack`."""
    (length,) = struct.unpack_from("<I", message)
    return json.loads(message[4 : 4 + length]), message[4 + length :]


def join(messages: Iterable[bytes]) -> bytes:
    """A film: messages, each preceded by its length."""
    return b"".join(struct.pack("<I", len(message)) + message for message in messages)


@dataclass(frozen=True)
class Plane:
    """Numbers of a group's variables, (count, per)."""

    name: str
    group: int
    values: np.ndarray


def planes(subject: Subject, shown: Snapshot) -> list[Plane]:
    """What a frame shows."""
    planes = []
    for number, group in enumerate(subject.groups):
        parts = _group_planes(group, shown.inputs[number], shown.beliefs[number], shown.x[number])
        planes += [Plane(name, number, values) for name, values in parts.items()]
    return planes


def describe(planes: Sequence[Plane]) -> list[dict[str, Any]]:
    """Where each plane is in the body."""
    described, offset = [], 0
    for plane in planes:
        (count, per), kind = plane.values.shape, f"u{8 * plane.values.itemsize}"
        where = {"name": plane.name, "group": plane.group, "offset": offset}
        described.append({**where, "type": kind, "per": per, "count": count})
        offset += plane.values.nbytes + plane.values.nbytes % 2
    return described


def body(planes: Sequence[Plane]) -> bytes:
    """Concatenated planes, each at an even offset."""
    return b"".join(p.values.tobytes() + b"\0" * (p.values.nbytes % 2) for p in planes)


@dataclass(frozen=True)
class Snapshot:
    """One example at one time, by group: expected input, belief and a draw, without a batch."""

    inputs: list[Tensor]
    beliefs: list[Belief]
    x: list[Tensor]

    @property
    def entropy(self) -> float | None:
        """The entropy of all variables together, in nats; None if none has any."""
        entropies = [float(each.entropy.sum()) for each in self.beliefs if each.entropy is not None]
        return sum(entropies) if entropies else None


def snapshot(subject: Subject, theta: Theta, output: Output, x: Tensor, rows: slice) -> Snapshot:
    """Some rows of a batch, which are the particles of one example or that example alone."""
    flow = subject.model.flow
    parts = zip(subject.groups, flow.parts, thetas(flow, theta), strict=True)
    inputs = [_input(*each)[rows].mean(0).cpu() for each in parts]
    beliefs = [_pooled(part.belief(), rows) for part in output.each()]
    return Snapshot(inputs, beliefs, [part[rows.start].cpu() for part in subject.split(x)])


def _input(group: Group, flow: BayesianFlow, theta: Theta) -> Tensor:
    """The expected input, or the probabilities of bins if numbers are shown as classes."""
    if group.integers or group.kind != "classes" or group.K is None:
        return flow.expected_input(theta)
    values = bin_centre(torch.arange(group.K, device=theta.V.device), group.K, torch.float64)
    V, beta = theta.V.double().unsqueeze(-1), theta.beta.double().unsqueeze(-1)
    return torch.softmax(V * values - 0.5 * beta * values.square(), -1)


def _pooled(belief: Belief, rows: slice) -> Belief:
    """The joint belief of the particles of one example."""
    p, mean, deviation, entropy = (
        None if each is None else each[rows]
        for each in (belief.p, belief.mean, belief.deviation, belief.entropy)
    )
    one = (rows.stop - rows.start) == 1
    if p is not None and not one:
        entropy = torch.special.entr(p.mean(0, keepdim=True)).sum(-1)
    if deviation is not None and mean is not None and not one:
        within = deviation.square().mean(0, keepdim=True)
        deviation = (within + mean.var(0, correction=0, keepdim=True)).sqrt()
    means = (None if each is None else each.mean(0).cpu() for each in (p, mean, deviation, entropy))
    return Belief(*means)


def _group_planes(group: Group, inputs: Tensor, belief: Belief, x: Tensor) -> dict[str, np.ndarray]:
    count, K = group.count, group.K
    p = None if belief.p is None else belief.p.reshape(count, -1)
    inputs = inputs.reshape(count, -1)
    if group.integers and K == 2:
        inputs = torch.cat([1 - inputs, inputs], 1)
    planes: dict[str, np.ndarray] = {}
    if group.kind == "classes":
        assert p is not None
        planes |= _classes("input_", inputs) | _classes("", p)
    else:
        if group.integers:
            assert K is not None
            assert p is not None
            shades = torch.linspace(0, 1, K, dtype=p.dtype)
            inputs, mean = inputs.to(p.dtype) @ shades, p @ shades
            deviation = (p * (shades - mean[:, None]).square()).sum(1).sqrt()
        else:
            assert belief.mean is not None
            inputs, mean = 0.5 * (inputs[:, 0] + 1), 0.5 * (belief.mean.flatten() + 1)
            deviation = None if belief.deviation is None else 0.5 * belief.deviation.flatten()
            if group.kind == "levels" and group.binned:  # level k is the centre of bin k
                assert K is not None
                inputs, mean = ((K * value - 0.5) / (K - 1) for value in (inputs, mean))
                deviation = None if deviation is None else deviation * K / (K - 1)
        planes |= {"input": _bytes(inputs), "mean": _bytes(mean)}
        if deviation is not None:
            planes["deviation"] = _bytes(2 * deviation)
        if p is not None and _fits(p):
            planes["p"] = _bytes(p)
    if belief.entropy is not None and group.entropy_max:
        nats = belief.entropy.flatten()
        planes["entropy"] = _bytes(nats / (group.entropy_max * np.log(2)))
    own = group.own(x)
    if group.kind == "numbers":
        span = (group.high - group.low).clamp_min(1e-300)
        sample = _numbers((own - group.low) / span, np.uint16)
    else:
        own = own.nan_to_num().clamp_min(0).reshape(count, 1).numpy()
        sample = own.astype(np.uint8 if (K or 0) <= 256 else np.uint16)
    return planes | {"sample": sample}


def _classes(prefix: str, p: Tensor) -> dict[str, np.ndarray]:
    if _fits(p):
        return {f"{prefix}p": _bytes(p)}
    most = p.topk(min(TOP, p.shape[1]), 1)
    classes = most.indices.numpy().astype(np.uint16)
    return {f"{prefix}top": classes, f"{prefix}top_p": _bytes(most.values)}


def _fits(p: Tensor) -> bool:
    return p.numel() <= (LARGEST if p.shape[1] <= TABLE else SMALL)


def _bytes(shares: Tensor) -> np.ndarray:
    return _numbers(shares, np.uint8)


def _numbers(shares: Tensor, kind: type[np.unsignedinteger[Any]]) -> np.ndarray:
    """Numbers from 0 to 1 scaled to the full range of an unsigned type, (count, per)."""
    most = int(np.iinfo(kind).max)
    values = shares.double().nan_to_num().clamp(0, 1).mul(most).round()
    return values.reshape(len(shares), -1).numpy().astype(kind)


# The page.


@functools.cache
def page_files() -> dict[str, tuple[str, bytes]]:
    """The type and content of every file that is served, by name."""
    paths = (path for path in sorted(PAGE.iterdir()) if path.suffix in TYPES)
    return {path.name: (TYPES[path.suffix], path.read_bytes()) for path in paths}


def hello(subjects: Iterable[Subject], *, live: bool) -> bytes:
    """The first message: the models, the solvers and the limits."""
    return pack(
        {
            "kind": "hello",
            "live": live,
            "models": [subject.describe() for subject in subjects],
            "solvers": [
                {"name": name, "about": (solver.rule.__doc__ or "").strip().split("\n")[0]}
                for name, solver in solvers.SOLVERS.items()
            ],
            "limits": LIMITS,
        }
    )


def film_page(subjects: Sequence[Subject], recorded: Iterable[bytes]) -> str:
    """A self-contained page with a film."""
    film = join([hello(subjects, live=False), *recorded])
    data = base64.b64encode(zlib.compress(film, 9)).decode()
    style, script = _text("page.css"), _joined_script()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    page = _text("index.html")
    page = page.replace(
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        1,
    )
    page = page.replace(_STYLE, f"<style>{style}</style>", 1)
    block = f'<script type="application/octet-stream" id="film">{data}</script>'
    return page.replace(_SCRIPT, f'{block}\n<script type="module">{script}</script>', 1)


def _text(name: str) -> str:
    return page_files()[name][1].decode()


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


@functools.cache
def _joined_script() -> str:
    """All modules as one script, each after those that it imports."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        done[name] = ""  # keeps the order where modules import one another
        source = _text(name)
        for other in _IMPORT.findall(source):
            add(other)
        del done[name]
        done[name] = re.sub(r"^export ", "", _IMPORT.sub("", source), flags=re.MULTILINE)

    add("main.js")
    return "\n".join(done.values())
