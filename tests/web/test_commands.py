"""`bfn serve` and `bfn view`: what they print, and mistakes."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest

import bfn
from bfn.cli.app import main
from bfn.errors import BFNError
from bfn.web.subject import subject
from support import angles, processes
from support.commands import Command
from web import pages

COMMANDS = ("serve --no-browser --port 0", "view -o x.html")
MISTAKES = [
    *((f"{each} nowhere", "there is no run folder 'nowhere'; give the") for each in COMMANDS),
    *((f"{each} digts", "no run folder 'digts'; did you mean 'digits'?") for each in COMMANDS),
    *((f"{each} empty", "'empty' holds no config.json") for each in COMMANDS),
    ("view digits -o x.gif", "'x.gif' has the wrong ending; expected .html"),
    ("view digits -o mine.html", "'mine.html' exists; give another name, or --force"),
    ("view digits --n 65", "a film holds at most 64 generations, not 65; record fewer"),
    ("view digits --steps 1001", "steps = 1001; expected a whole number from 1 to 1000"),
    ("view digits --calls 5 --steps 4", "exclude each other: n steps take n + 1 calls"),
    ("view digits --label 3", "a label was given to a model without labels"),
    ("view digits-labelled --label 12", "label = 12 is out of range"),
    ("view digits --solver ods", "unknown solver 'ods'; did you mean 'ode'?"),
    ("view", "bfn view needs RUN"),
    ("serve --port 99999", "port = 99999; expected 1 to 65535"),
    ("serve --host nowhere.invalid", "cannot listen on nowhere.invalid"),
]


@pytest.mark.parametrize(("line", "sentence"), MISTAKES)
def test_mistakes(line: str, sentence: str, command: Command) -> None:
    if line.startswith("serve"):
        pytest.importorskip("starlette")
    Path("empty").mkdir()
    Path("mine.html").write_text("mine")
    assert sentence in command(*line.split(), code=2)
    assert {path.name for path in Path().iterdir()} == {"empty", "mine.html"}


def test_a_port_that_is_taken(command: Command) -> None:
    pytest.importorskip("starlette")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        output = command("serve", "--no-browser", "--port", port, code=2)
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use); give another" in output
    assert "--port 0 for a free one" in output


@pytest.mark.parametrize("module", ["starlette", "uvicorn", "websockets"])
def test_without_the_extra(module: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("starlette", "uvicorn", "websockets"):
        monkeypatch.setitem(sys.modules, name, None if name == module else sys)
    output = command("serve", "--no-browser", code=2)
    assert output == (
        f"bfn: bfn serve needs {module}, which is not installed; add it with: pip install "
        "'bfn[web]'."
    )


def test_a_model_that_the_page_cannot_draw() -> None:
    model = angles.angle(angles.Small(2, 6), 6, 30.0)
    format = bfn.data.ArrayFormat((2,), angles.Degrees())
    with pytest.raises(BFNError, match="AngleOutput cannot be drawn; give it a method belief"):
        subject("angles", model, format, pages.SETTINGS)


@pytest.mark.parametrize("there_is_one", [True, False])
def test_the_address_is_printed_and_a_browser_opened(
    there_is_one: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("starlette")
    from bfn.web import server

    class Answering:
        """A server that stops at once."""

        def __init__(self, shared: Any) -> None:
            tokens.append(shared.token)

        def run(self, sockets: list[socket.socket]) -> None: ...

    tokens: list[str] = []
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or there_is_one)
    monkeypatch.setattr(server, "answering", Answering)
    for options in ((), ("--no-browser",)):
        assert main(["serve", "digits", "--port", "0", *options]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    (address,) = opened
    assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/{tokens[0]}/", address)
    assert first == f"open {address}  (Ctrl-C stops the server)"
    assert len(rest) == (1 if there_is_one else 2)
    assert there_is_one or rest[0] == "no browser was found; open that address yourself"
    assert tokens[0] != tokens[1]
    assert len(tokens[0]) >= 20


@pytest.mark.slow
def test_a_real_server_starts_answers_and_stops() -> None:
    pytest.importorskip("starlette")
    process = processes.start("serve", "--no-browser", "--port", 0)
    line = process.stdout.readline()  # pyright: ignore[reportOptionalMemberAccess]
    port, path = re.findall(r"http://127\.0\.0\.1:(\d+)(/\S+/)", line)[0]
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
    connection.request("GET", path)
    assert connection.getresponse().status == 200
    connection.close()
    process.send_signal(signal.SIGINT)
    code, _, err = processes.finish(process)
    assert code == 130
    assert "Traceback" not in err
