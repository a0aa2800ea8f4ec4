"""What a wheel holds, that versions agree, and what `bfn --help` does without."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bfn

ROOT = Path(__file__).parent.parent


def test_wheel_holds_every_file_of_the_package() -> None:
    """According to its build backend."""
    wheel = pytest.importorskip("hatchling.builders.wheel")
    files = wheel.WheelBuilder(str(ROOT)).recurse_included_files()
    wheel_files = {Path(file.distribution_path).as_posix() for file in files}
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "bfn").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected == wheel_files
    assert {"bfn/py.typed", "bfn/data/digits.npz", "bfn/recipe/shipped/digits.toml"} <= expected
    assert "bfn/pretrained/digits/model.safetensors" in expected


def test_version_is_the_same_everywhere() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        document = tomllib.load(file)
    assert "version" in document["project"]["dynamic"]
    assert document["tool"]["hatch"]["version"]["path"] == "src/bfn/__init__.py"
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (\S+)$", citation, re.M)[1] == bfn.__version__  # pyright: ignore
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[([^]]+)\]", changelog, re.M)[1] == bfn.__version__  # pyright: ignore


def test_constraints_pin_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert pins["torch"] == "2.13.0"  # no local label: it must match every build of that release
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    needed = [*project["dependencies"], "hatchling", "editables"]
    for extra in project["optional-dependencies"].values():
        needed += extra
    names = {re.match(r"[\w.-]+", each)[0].lower().replace("_", "-") for each in needed}  # pyright: ignore
    assert names - {"bfn"} <= pins.keys()


def test_help_imports_no_torch() -> None:
    program = """
import sys
sys.argv = ["bfn", "--help"]
from bfn.cli.app import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print([name for name in ("torch", "numpy", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
