"""The page: its files as `bfn serve` sends them, and all in one file, with a film inside.

In one file the JavaScript modules become one script. They keep to a few rules for that: imports and
exports on lines of their own, `import { a, b } from "./file.js";` and `export function a`, and no
name twice at the top of two modules.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import bfn
from bfn.sampling import solvers
from bfn.web import messages
from bfn.web.requests import LIMITS
from bfn.web.subject import Subject

PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_STYLE = '<link rel="stylesheet" href="page.css">'
_SCRIPT = '<script type="module" src="main.js"></script>'


@functools.cache
def files() -> dict[str, tuple[str, bytes]]:
    """The type and content of every file, by name; nothing else is ever served."""
    paths = (path for path in sorted(PAGE.iterdir()) if path.suffix in TYPES)
    return {path.name: (TYPES[path.suffix], path.read_bytes()) for path in paths}


def hello(subjects: Iterable[Subject], *, live: bool) -> bytes:
    """The first message: what there is."""
    return messages.pack(
        {
            "kind": "hello",
            "protocol": messages.PROTOCOL,
            "version": bfn.__version__,
            "live": live,
            "models": [subject.describe() for subject in subjects],
            "solvers": [
                {"name": name, "about": (solver.rule.__doc__ or "").strip().split("\n")[0]}
                for name, solver in solvers.SOLVERS.items()
            ],
            "limits": LIMITS,
        }
    )


def html(subjects: Sequence[Subject], recorded: Iterable[bytes]) -> str:
    """One page with a film inside, which needs nothing else."""
    film = messages.join([hello(subjects, live=False), *recorded])
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
    return files()[name][1].decode()


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


@functools.cache
def _joined_script() -> str:
    """All modules as one, each after those that it imports."""
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
