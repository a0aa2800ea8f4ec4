"""Tiny trained runs, made once, and a way to run commands in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import bfn
from support import tiny_runs
from support.commands import Command


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of digits, of text and of labelled digits; they must stay as they are."""
    folder = tmp_path_factory.mktemp("trained")
    labels = {"data__labels": True, "net__labels": 10, "train__label_dropout": 0.5}
    for name, kind, given in (
        ("digits", "discretised", {}),
        ("text", "text", {}),
        ("labelled", "discretised", labels),
    ):
        recipe = tiny_runs.read(folder, kind, train__steps=4, **given)
        bfn.train.run(recipe, folder / name, display=False)
    return folder


@pytest.fixture
def output(command: Command) -> Command:
    """Run a command in an empty folder: returns its output, or the sentence of a mistake."""
    return command
