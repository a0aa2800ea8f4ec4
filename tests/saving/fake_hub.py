"""A folder that stands in for the Hugging Face hub."""

from __future__ import annotations

import shutil
import types
from fnmatch import fnmatch
from pathlib import Path
from typing import Any


class FakeHub:
    """huggingface_hub's calls that reach the network, on a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.failure: Exception | None = None

    def module(self) -> types.ModuleType:
        found = types.ModuleType("huggingface_hub")
        found.snapshot_download = self.snapshot_download  # pyright: ignore
        found.HfApi = lambda token=None: self  # pyright: ignore
        return found

    def _call(self, name: str, **arguments: Any) -> None:
        self.calls.append((name, arguments))
        if self.failure is not None:
            raise self.failure

    def snapshot_download(
        self, repo_id: str, *, revision: Any, token: Any, allow_patterns: list[str]
    ) -> str:
        self._call("download", repo_id=repo_id, revision=revision, token=token)
        if not (self.root / repo_id).is_dir():
            raise FileNotFoundError(f"404 Client Error.\n\nRepository Not Found for {repo_id}")
        cache = self.root / "cache" / repo_id.replace("/", "--")
        self._copy(self.root / repo_id, cache, allow_patterns)
        return str(cache)

    def create_repo(self, repo_id: str, *, private: Any, exist_ok: bool) -> Any:
        self._call("create", repo_id=repo_id, private=private, exist_ok=exist_ok)

        class Address(str):
            pass

        address = Address(f"https://hub.example/{repo_id}")
        address.repo_id = repo_id  # pyright: ignore
        return address

    def upload_folder(
        self, *, repo_id: str, folder_path: str, allow_patterns: list[str], commit_message: str
    ) -> None:
        self._call("upload", repo_id=repo_id, message=commit_message)
        self._copy(Path(folder_path), self.root / repo_id, allow_patterns)

    def _copy(self, source: Path, target: Path, patterns: list[str]) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in patterns):
                shutil.copyfile(file, target / file.name)
