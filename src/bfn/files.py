"""Reading files; and writing them completely or not at all, over others only if asked to."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from bfn.errors import BFNError

FIGURES = (".png", ".pdf", ".svg")
"""Endings of the files that figures can be written to."""
TABLES = (".csv", ".tsv", ".parquet")
"""Endings of the files that tables can be written to."""
READERS = {
    "archive 1": "bfn of 2026-11-16 (commit a6d3a61)",
    "archive 2": "bfn of 2026-11-16 (commit d95ebc1)",
    "archive 3": "bfn of 2026-11-16 (commit c76d3bd)",
    "archive 4": "bfn of 2026-11-16 (commit dabc76f)",
    "archive 5": "bfn of 2026-11-18 (commit eff6c5a)",
    "checkpoint 1": "bfn of 2026-11-15 (commit 821fb6e)",
    "run 1": "bfn of 2026-11-18 (commit d46b5b4)",
}
"""A commit that reads and writes each earlier format: none of them was in a release."""


def check_format(kind: str, path: Path | str, found: object, expected: int) -> None:
    """Refuse a file of another format with the name of a version that reads it."""
    if found != expected:
        reader = READERS.get(f"{kind} {found}", "the bfn that wrote it, if it is intact")
        raise BFNError(
            f"the {kind} {str(path)!r} has format {found}, this version of bfn reads {expected}; "
            f"read it with {reader}"
        )


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BFNError(
            f"{str(path)!r} cannot be read: {error.strerror or error}; give the name of a file"
        ) from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path next to `path` to write to; it is renamed if all goes well.

    A link, a pipe or a device, such as /dev/stdout, is written directly.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        yield path
        return
    _check_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all; text in UTF-8."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise BFNError(f"there is no folder {str(folder)!r}; create it, or give another name")


def sha256(path: Path) -> str:
    """The digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_free(
    path: Path | None, force: bool, *, folder: bool = False, endings: Sequence[str] = ()
) -> None:
    """Refuse an existing file (or filled folder), or a place that cannot be written to."""
    if path is None:  # nothing is to be written
        return
    if endings and path.suffix not in endings:
        raise BFNError(f"{str(path)!r} has the wrong ending; expected {' or '.join(endings)}")
    if path.is_dir() and not folder:
        raise BFNError(f"{str(path)!r} is a folder; give the name of a file")
    if folder and path.exists() and not path.is_dir():
        raise BFNError(f"{str(path)!r} is a file; give the name of a folder")
    taken = any(path.iterdir()) if path.is_dir() else path.exists()
    if taken and not force:
        raise BFNError(f"{str(path)!r} exists; give another name, or --force to replace it")
    parent = path if path.is_dir() else path.parent
    _check_folder(parent)
    try:
        # Only trying tells what is permitted; an existing file is left as it is.
        probe = parent / f".{path.name}.part"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BFNError(
            f"{str(path)!r} cannot be written ({error.strerror}); give another name"
        ) from None
