"""No test reads or fills the user's own folders, or connects to an outside server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bfn.data import known

NOBODY = "http://127.0.0.1:9/"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BFN_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(known, "MNIST_HOMES", (NOBODY,))
    for name in ("CIFAR10", "TEXT8"):
        remote = dataclasses.replace(getattr(known, name), urls=(f"{NOBODY}x",))
        monkeypatch.setattr(known, name, remote)
