"""Where the files of well-known data sets lie, and how missing ones are downloaded.

A source looks in the folder it is given, else in the one named by the environment variable
BFN_DATA, else in the user's cache; there, files may lie directly or in a sub-folder named after the
source. What is missing is downloaded to that sub-folder, or into the folder that was given: a
recipe may come from anywhere, so it can name a folder but not make one. A download is written under
a temporary name and renamed only when its SHA-256 is right, so no half-written file is ever found.
"""

from __future__ import annotations

import contextlib
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tarfile import TarError
from zipfile import BadZipFile

from bfn.errors import BFNError, require_extra


@dataclass(frozen=True)
class Remote:
    """A file on the web: its name here, its SHA-256, and the addresses to try in turn."""

    name: str
    sha256: str
    urls: tuple[str, ...]


def find(source: str, dir: str | None, names: Iterable[str]) -> Path | None:
    """The first file with one of these names in the folders of a source."""
    base = _home(dir)
    for folder in (base, base / source):
        for name in names:
            if os.path.isfile(folder / name):
                return folder / name
    return None


def fetch(source: str, remote: Remote, dir: str | None) -> Path:
    """Download a file that was not found; returns its path."""
    folder = _home(dir) if dir else _home(dir) / source
    by_hand = f"or put {remote.name} into {folder} yourself"
    try:
        pooch = require_extra("pooch", "data", f"downloading {remote.name}")
    except BFNError as error:
        raise BFNError(f"{error}, {by_hand}") from None
    from requests.exceptions import HTTPError, RequestException

    from bfn.progress import waiting

    pooch.get_logger().setLevel(logging.WARNING)
    failures = []
    for url in remote.urls:
        try:
            with waiting(f"downloading {remote.name}") as (report, _):
                get = pooch.HTTPDownloader(
                    progressbar=_Bar(report),
                    chunk_size=1 << 18,
                    timeout=30,
                    # A server that compresses it again would change the hash.
                    headers={"Accept-Encoding": "identity"},
                )
                hash = f"sha256:{remote.sha256}"
                path = Path(pooch.retrieve(url, hash, remote.name, folder, downloader=get))
        except RequestException as error:
            # The class says enough (ConnectionError, ReadTimeout, ...), its text far too much.
            answered = isinstance(error, HTTPError)
            failures.append(str(error) if answered else f"{type(error).__name__} at {url}")
        except ValueError:
            failures.append(f"wrong SHA-256 at {url}")
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


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name a file that is not what its name says."""
    try:
        yield
    except (OSError, EOFError, KeyError, ValueError, zlib.error, TarError, BadZipFile) as error:
        raise BFNError(
            f"{path} cannot be read ({error}); replace it with an intact copy, or delete it to "
            "download it again"
        ) from None


def _home(dir: str | None) -> Path:
    """The folder to look in: `dir`, else BFN_DATA, else the user's cache."""
    if dir and not Path(dir).expanduser().is_dir():
        raise BFNError(
            f"there is no folder {dir!r} to look for the data in; create it, name another with "
            "--data.dir, or leave dir out to use the cache"
        )
    chosen = dir or os.environ.get("BFN_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "bfn"


class _Bar:
    """The interface that pooch expects of a progress bar."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self.report, self.done, self.total = report, 0, 0

    def update(self, count: int) -> None:
        self.done += count
        if self.total:
            self.report(self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass
