"""Breaks the code in one place at a time, and says whether the tests notice.

    python tests/breaks.py             all breaks: some ten minutes on one core
    python tests/breaks.py codec loss  those of files whose path contains one of the words

breaks.txt lists them like a patch: a file of src/bfn and test files, then the text that must occur
once in the file (-) and what takes its place (+). One of the tests must fail; a break that stays
green shows what no test looks at. All happens in a temporary copy of the tree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Break(NamedTuple):
    """In `file`, `old` becomes `new`, and one of `tests` must fail."""

    file: Path
    old: str
    new: str
    tests: list[Path]


def read() -> list[Break]:
    """The breaks of breaks.txt; paths are relative to the tree."""
    text = (ROOT / "tests" / "breaks.txt").read_text()
    found = []
    for file, tests, old, new in re.findall(r"^(\S+): (.+)\n((?:-.*\n)+)((?:\+.*\n)+)", text, re.M):
        lines = ("\n".join(line[1:] for line in part.splitlines()) for part in (old, new))
        paths = [Path("tests") / test for test in tests.split()]
        found.append(Break(Path("src", "bfn", file), *lines, paths))
    return found


def run(tree: Path, tests: list[Path]) -> tuple[int, str]:
    """pytest's exit code for some files of a tree, and the test that failed."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    # Python takes a file that has changed within a second for the one that it has compiled.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
    done = subprocess.run(
        [*command, *map(str, tests)], cwd=tree, env=environment, capture_output=True, text=True
    )
    failed = re.search(r"^FAILED (\S+)", done.stdout, re.M)
    return done.returncode, failed[1] if failed else ""


def try_out(broken: Break, tree: Path) -> tuple[str, str]:
    """Break the tree, run the tests and repair it: red is good."""
    path = tree / broken.file
    before = path.read_text()
    if before.count(broken.old) != 1:
        return "GONE", "the old text does not occur exactly once"
    path.write_text(before.replace(broken.old, broken.new))
    try:
        code, failed = run(tree, broken.tests)
    finally:
        path.write_text(before)
    # Any other code means that pytest itself could not go on.
    return {0: "GREEN", 1: "red"}.get(code, f"pytest: {code}"), failed


def main(words: list[str]) -> int:
    chosen = [b for b in read() if not words or any(word in str(b.file) for word in words)]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        for i, broken in enumerate(chosen, 1):
            start = time.monotonic()
            result, failed = try_out(broken, tree)
            wrong += result != "red"
            took = f"{time.monotonic() - start:.0f} s"
            print(
                f"{i}/{len(chosen)} {result}, {took}: {broken.file}: {' '.join(broken.new.split())}"
            )
            print(f"    {failed}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} breaks were noticed")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
