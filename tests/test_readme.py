"""The README's example runs as printed, and what the README points to exists."""

from __future__ import annotations

import math
import re
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "notation.md"]


def test_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """As printed, but with fewer steps."""
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 20
    assert example.count("range(200)") == 1
    example = example.replace("range(200)", "range(60)")

    names: dict = {}
    with torch.random.fork_rng():
        exec(compile(example, "README.md", "exec"), names)

    # It has learnt something: far below the 4.09 bits of uniform pixels.
    bits = float(names["nats"].mean()) / (64 * math.log(2))
    assert 1.0 < bits < 2.7
    assert f"{bits:.2f} bits per pixel" in capsys.readouterr().out
    # The margins of the generated digits are black, as those of the true ones are.
    levels = names["digits"].decode(names["samples"]).float()
    true = names["digits"].decode(names["x"]).float()
    assert levels.shape == (16, 1, 8, 8)
    assert levels[..., 0].mean() < 1.0
    assert true[..., 0].mean() < 1.0
    assert levels.mean() == pytest.approx(float(true.mean()), abs=1.5)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    for link in links:
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_tree_names_what_exists() -> None:
    """Every path of the annotated source tree is there, and every module is in the tree."""
    (tree,) = re.findall(r"```text\n(src/bfn/.*?)```", README, re.S)
    named = set(re.findall(r"^  (\S+)", tree, re.M))
    package = ROOT / "src" / "bfn"
    there = {path.name + ("/" if path.is_dir() else "") for path in package.iterdir()}
    there -= {"py.typed", "__pycache__/"}
    assert not named - there, "the README's tree names what does not exist"
    assert not there - named, "the README's tree lacks a part of src/bfn: describe it there"


def test_tree_lists_the_commands() -> None:
    from bfn.cli.app import app

    (listed,) = re.findall(r"^  cli/ +bfn (.*)$", README, re.M)
    commands = {name for name in app if not name.startswith("-")}
    assert set(listed.split(" | ")) == commands


def test_the_files_that_commands_name_can_be_made(tmp_path: Path) -> None:
    """By one of the examples, so that every command can be tried as printed."""
    files = runpy.run_path(str(ROOT / "examples" / "files.py"))
    files["main"](tmp_path)
    (commands,) = re.findall(r"```sh\n(python examples.files.py.*?bfn recipes.*?)```", README, re.S)
    reads = r"(?:--data\.path|train|infill digits|--mask|compress digits) ([^\s/]*[./]\S*|photos)"
    named = {name.rstrip("/") for name in re.findall(reads, commands)}
    assert {path.name for path in tmp_path.iterdir()} == named
