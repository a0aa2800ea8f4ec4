"""The documentation: its commands parse, its options, recipes and numbers are the library's.

`make docs` checks links and contents: it fails on any warning.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import bfn
from bfn import recipe as config
from bfn.cli.app import app, main, split
from bfn.recipe import build
from bfn.recipe import keys as recipe_keys

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
NAMES = [page.relative_to(DOCS).as_posix() for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


def lines(page: Path, program: str) -> list[str]:
    """Every command line of a program in a page's shell blocks, continued lines joined."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip().startswith(f"{program} ")]


COMMANDS = [(page.name, line) for page in PAGES for line in lines(page, "bfn")]


def read(line: str) -> tuple[list[str], dict]:
    return split(shlex.split(line.partition(" > ")[0], comments=True)[1:])


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{p}: {c}" for p, c in COMMANDS])
def test_command_lines_parse(page: str, line: str) -> None:
    """The command and its options exist, and their values are of the right kind."""
    rest, overrides = read(line)
    if rest[-1] in ("--version", "--help"):
        return
    _, bound, ignored = app.parse_args(rest, print_error=False, exit_on_error=False)
    if overrides:
        assert "overrides" in ignored, f"{line} takes no recipe keys"
    if rest[0] in ("train", "import"):
        recipe = bound.args[rest[0] == "import"]
        if str(recipe).endswith(".csv"):
            recipe = "table"
        if not str(recipe).endswith(".toml"):
            assert recipe in config.names()
            config.read(recipe, overrides)
            own = config.read(recipe)
            for key in overrides:
                section, _, name = key.partition(".")
                if section == "data":
                    name = name.partition(".")[0]
                    assert name in takes(own.data["source"], overrides), key


def test_scripts_exist() -> None:
    assert len(COMMANDS) > 40
    scripts = [shlex.split(line)[1] for page in PAGES for line in lines(page, "python")]
    scripts = [script for script in scripts if script.partition("/")[0] in ("docs", "benchmarks")]
    assert {"docs/figures/draw.py", "benchmarks/published_ln.py"} <= set(scripts)
    assert all((ROOT / script).is_file() for script in scripts)


def takes(source: str, overrides: dict) -> set[str]:
    chosen = str(overrides.get("data.source", source))
    return {"source", *inspect.signature(bfn.data.source(chosen)).parameters}


@pytest.mark.parametrize("name", NAMES)
def test_inline_options_and_recipes_exist(name: str) -> None:
    """`--option` in the text belongs to some command; `section.key` options to some recipe."""
    text = re.sub(r"^```.*?^```", "", (DOCS / name).read_text(), flags=re.S | re.M)
    known: set[str] = set()
    for command in (name for name in app if not name.startswith("-")):
        for argument in app[command].assemble_argument_collection():
            known |= set(argument.names)
    for recipe in config.names():
        sections = recipe_keys.keys(config.read(recipe)).values()
        known |= {f"--{key.name}" for section in sections for key in section}
    for source in bfn.data.SOURCES:
        known |= {f"--data.{key}" for key in takes(source, {})}
    known |= {"--section.key", "--help", "--version"}
    for option in re.findall(r"`(--[a-z][\w.-]*)", text):
        inner = ".".join(option.split(".")[:2])  # a key may hold a table
        assert option in known or inner in known, option
    names = r"`((?:mnist|cifar10|text8)_\w+|(?:digits|cifar10)-\w+|manual-text)`"
    for recipe in re.findall(names, text):
        assert recipe in config.names(), recipe


def test_suggestions_are_those_of_the_library() -> None:
    page = (DOCS / "schedules.md").read_text()
    for what in ("beta_1", "sigma_1"):
        suggest = getattr(bfn, f"suggest_{what}")
        heads, values = re.findall(
            rf"^\| (?:classes|bins) K \|(.*)\|\n\|[-|]+\|\n\| `suggest_{what}\(K\)` \|(.*)\|$",
            page,
            re.M,
        )[0]
        for K, value in zip(heads.split("|"), values.split("|"), strict=True):
            found = suggest(int(K.replace(",", "")))
            assert found == pytest.approx(float(value), rel=0.03), K


def test_the_tour_shows_the_readme() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks(DOCS / "tour.md", "python")[0] == example


def test_the_recipe_of_one_s_own_works_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "waves", raising=False)
    page = DOCS / "recipes.md"
    Path("waves.py").write_text(blocks(page, "python")[0])
    Path("waves.toml").write_text(blocks(page, "toml")[1])
    commands = [shlex.split(line)[1:] for line in lines(page, "bfn") if "waves" in line]
    for command in commands:
        quick = (
            ["--train.steps", "3", "--data.count", "200"]
            if command[0] == "train"
            else ["--steps", "3"]
        )
        assert main([*command, *quick]) == 0, capsys.readouterr().err
    assert len(commands) == 4
    assert Path("waves.npy").is_file()
    assert "Deviation of the noise on every point." in capsys.readouterr().out
    Path("digits.toml").write_text(blocks(page, "toml")[0])
    recipe = config.read("digits.toml")
    assert recipe_keys.keys(recipe).keys() >= {"data", "net", "flow"}
    assert build.model(recipe).flow == build.model(config.read("digits")).flow


def test_the_page_on_training_in_python_is_one_program_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="the class Net is defined in the running script"):
        exec("\n".join(blocks(DOCS / "python.md", "python")), script.__dict__)
    fit, title, head, first, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Fit\(step 200, loss \d\.\d{4} bits per dimension\)", fit)
    assert title == "200 examples, bits per dimension"
    assert head.split() == ["n", "L^n", "L^r", "total", "s.e."]
    assert first.split()[0] == "10"
    assert float(last.split()[3]) < 2.7  # log2(17) is 4.09


def test_python_blocks_compile() -> None:
    for name, page in zip(NAMES, PAGES, strict=True):
        for block in blocks(page, "python"):
            compile(block, name, "exec")


REFERENCE = (DOCS / "api.md").read_text()
OBJECTS = re.findall(r"^\.\. auto\w+:: (\S+)(?:\n   :members: (.+))?$", REFERENCE, re.M)


@pytest.mark.parametrize(("name", "members"), OBJECTS)
def test_every_name_in_the_reference_is_reachable(name: str, members: str) -> None:
    """After `import bfn` alone: no package hands out a module that it does not name."""
    found: object = bfn
    for part in name.split(".")[1:]:
        home, found = found, getattr(found, part)
        if inspect.ismodule(found):  # which some other test may have imported
            assert part in getattr(home, "__all__", ()), f"{home} does not name {part}"
    for member in filter(None, members.split(", ")):
        assert hasattr(found, member), member


def test_every_public_name_is_in_the_reference() -> None:
    for name in bfn.__all__:
        if name != "__version__":
            assert re.search(rf"\bbfn\.{name}\b", REFERENCE), name
