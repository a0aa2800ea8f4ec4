"""Help and tables: in 80 columns, and complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from bfn.cli import results
from bfn.cli.app import COMMANDS, app, main
from support.commands import Command


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_fits_the_terminal(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(" ".join(["Usage: bfn", *command]))
    assert max(map(len, lines)) <= 80
    assert not any("default: False" in line for line in lines)


def test_commands_are_listed_in_the_order_of_work(command: Command) -> None:
    words = [line.split()[1:2] for line in command("--help").splitlines() if "│" in line]
    assert [word[0] for word in words if word[0] in COMMANDS] == list(COMMANDS)


def test_o_is_short_for_out_everywhere() -> None:
    options = [option for name in COMMANDS for option in app[name].assemble_argument_collection()]
    outs = [option.names for option in options if "--out" in option.names]
    assert len(outs) > 10
    assert {names for names in outs if "-o" not in names} == set()


def test_tildes_that_the_shell_did_not_expand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(["runs", "~/runs"]) == 0
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5, "unit": "nats"}\n')
    assert main(["plot", ".", "--out=~/curve.svg"]) == 0
    assert (tmp_path / "curve.svg").is_file()
    assert main(["train", "images", "--data.path=~/nowhere"]) == 2
    assert f"'{tmp_path}/nowhere' does not exist" in capsys.readouterr().err


def test_tables_wrap_words_and_keep_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a description of " + 20 * "many words "
    path = "/".join(20 * ["folder"])
    columns = ["name", "a heading of words", "what", "where"]
    text = results.show(columns, [["one", "123,456", long, path], ["two", "1", "", ""]])
    assert text == capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert " 123,456 " in text
    assert "".join(text.split()).count("folder") > 5, "paths are folded, not cut"
    wide = results.show([f"{i}" for i in range(30)], [["123456"] * 30])
    assert wide.count("123456") == 30
