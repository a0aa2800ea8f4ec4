"""Where data files lie, and how missing ones are fetched.

A source looks in the folder it is given, else in the one named by the environment variable
BFN_DATA, else in the user's cache; there, files may lie directly or in a sub-folder named after the
source. What is missing is downloaded to that sub-folder. A download is written under a temporary
name and takes its own only when its SHA-256 is right, so no half-written file is ever found.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bfn.errors import BFNError


@dataclass(frozen=True)
class Remote:
    """A file on the web: its name here, its SHA-256, and the addresses to try in turn."""

    name: str
    sha256: str
    urls: tuple[str, ...]


def extra(module: str, purpose: str) -> ModuleType:
    """Import a module of the optional `data` extra, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = {"PIL": "pillow"}.get(module.split(".")[0], module.split(".")[0])
        raise BFNError(
            f'{purpose} needs {package}, which is not installed; pip install "bfn[data]"'
        ) from None


def home(dir: str | os.PathLike[str] | None) -> Path:
    """The folder to look in: `dir`, else BFN_DATA, else the user's cache."""
    chosen = dir or os.environ.get("BFN_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "bfn"


def find(source: str, dir: str | os.PathLike[str] | None, names: Iterable[str]) -> Path | None:
    """The first file or folder of one of these names in the folders of a source."""
    base = home(dir)
    if base.is_file():
        return base if base.name in set(names) else None
    for folder in (base, base / source):
        for name in names:
            try:
                if (folder / name).exists():
                    return folder / name
            except OSError as error:
                raise BFNError(f"cannot look into {folder}: {error.strerror}") from None
    return None


def fetch(source: str, remote: Remote, dir: str | os.PathLike[str] | None) -> Path:
    """Download a file that was not found; returns where it now lies."""
    base = home(dir)
    if base.is_file():
        raise BFNError(f"{base} is not a file that {source} can read; expected {remote.name}")
    folder = base if base.name == source else base / source
    by_hand = f"or put {remote.name} into {folder} yourself"
    try:
        pooch = extra("pooch", f"downloading {remote.name}")
    except BFNError as error:
        raise BFNError(f"{error}, {by_hand}") from None
    from requests.exceptions import RequestException

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BFNError(
            f"cannot create {folder} for {remote.name}: {error.strerror}; give another dir"
        ) from None
    pooch.get_logger().setLevel(logging.WARNING)
    failures = []
    for url in remote.urls:
        try:
            with _bar(remote.name) as bar:
                # Asked for as it is: a server that packs it once more would change the hash.
                get = pooch.HTTPDownloader(
                    progressbar=bar,
                    chunk_size=1 << 18,
                    timeout=30,
                    headers={"Accept-Encoding": "identity"},
                )
                hash = f"sha256:{remote.sha256}"
                path = Path(pooch.retrieve(url, hash, remote.name, folder, downloader=get))
        except RequestException as error:
            failures.append(f"{url}: {_reason(error)}")
        except ValueError:
            failures.append(f"{url}: the file arrived damaged (its SHA-256 is wrong)")
        except OSError as error:
            raise BFNError(
                f"cannot write {remote.name} into {folder}: {error.strerror}; give another dir"
            ) from None
        else:
            path.chmod(0o644)  # temporary files are private; a data folder is often shared
            return path
    raise BFNError(
        f"could not download {remote.name} ({'; '.join(failures)}); try again later, {by_hand}"
    )


def _reason(error: Exception) -> str:
    from requests import exceptions

    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code}"
    if isinstance(error, exceptions.Timeout):
        return "no answer in time"
    if isinstance(error, exceptions.ChunkedEncodingError):
        return "the connection broke off"
    if isinstance(error, exceptions.ConnectionError):
        return "no connection"
    return str(error) or type(error).__name__


@contextmanager
def _bar(name: str) -> Iterator[Any]:
    """A rich progress bar with the few methods that pooch calls."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task(f"downloading {name}", total=None)

        class Bar:
            total = 0

            def update(self, count: int) -> None:
                progress.update(task, total=self.total or None, advance=count)

            def reset(self) -> None:
                progress.reset(task, total=self.total or None)

            def close(self) -> None:
                pass

        yield Bar()


def damaged(path: Path | str, what: str) -> BFNError:
    """The error for a file that cannot be what its name says."""
    return BFNError(f"{path} {what}; replace it by an intact copy (delete it to download it anew)")
