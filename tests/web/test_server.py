"""The server: fair, bounded, and closed to other sites."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra web")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from bfn.web import messages, server
from web import pages

SUBJECTS = [pages.of(pages.untrained.images(), "digits"), pages.mixed()]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with pages.serving(SUBJECTS) as found:
        yield found


@contextlib.contextmanager
def opened(port: int, **options: Any) -> Iterator[ClientConnection]:
    address = f"ws://127.0.0.1:{port}/{pages.TOKEN}/live"
    # A client that has stopped reading would wait ten seconds for the answer to its goodbye.
    options = {"max_size": None, "max_queue": None, "proxy": None, **options}
    with connect(address, **options) as found:
        header, _ = messages.unpack(found.recv(30))  # pyright: ignore[reportArgumentType]
        assert header["kind"] == "hello"
        assert [model["id"] for model in header["models"]] == ["digits", "mixed"]
        yield found


def send(page: ClientConnection, **message: Any) -> None:
    page.send(json.dumps({"do": "generate", "model": "digits", **message}))


def until(page: ClientConnection, *kinds: str) -> list[dict[str, Any]]:
    """The headers of messages up to the first of some kinds."""
    found = []
    while not found or found[-1]["kind"] not in kinds:
        found.append(messages.unpack(page.recv(30))[0])  # pyright: ignore[reportArgumentType]
    return found


def wait_for(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def status(port: int, path: str, method: str = "GET", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def test_a_page_gets_its_frames_and_others_go_on(port: int) -> None:
    with opened(port) as page:
        send(page, run=7, pane=1, steps=3)
        headers = until(page, "end")
        assert {(header["run"], header["pane"]) for header in headers} == {(7, 1)}
        assert headers[-2]["step"] == 3
        send(page, run=8, model="nope")
        (error,) = until(page, "error")
        assert error["message"] == "The request is damaged; reload the page."
        send(page, run=8, steps=1001)
        (error,) = until(page, "error")
        assert error["message"] == "Steps = 1001; expected a whole number from 1 to 1000."
        send(page, run=9, do="examine", values=[0] * 64, steps=2)
        assert until(page, "end")[-1]["bits"] > 0
        request = {"do": "generate", "model": "digits", "steps": 2}
        send(page, run=10, do="download", what="sample", request=request)
        assert until(page, "file")[-1]["name"] == "digits-0.png"


def test_what_a_page_may_load_and_nothing_else(port: int) -> None:
    assert status(port, f"/{pages.TOKEN}/") == 200
    assert status(port, f"/{pages.TOKEN}/main.js") == 200
    for path in (
        *("/", "/main.js", "/index.html", f"/{pages.TOKEN}x/", "/a-toke/", "//", "/%00/"),
        *(f"/{pages.TOKEN}/{name}" for name in ("../server.py", "..%2fserver.py", "__init__.py")),
        *(f"/{pages.TOKEN}/{name}" for name in ("%2e%2e/server.py", "/etc/passwd", "page/main.js")),
        *(f"/{pages.TOKEN}/live", f"/{pages.TOKEN}/%ff", f"/{pages.TOKEN}/.."),
    ):
        assert status(port, path) == 404, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert status(port, f"/{pages.TOKEN}/", method) == 405
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", f"/{pages.TOKEN}/")
    response = connection.getresponse()
    assert "default-src 'none'; script-src 'self'" in response.headers["Content-Security-Policy"]
    assert "unsafe" not in response.headers["Content-Security-Policy"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    connection.close()


def test_foreign_sites_cannot_open_a_socket(port: int) -> None:
    for path, options in (
        ("wrong/live", {}),
        (f"{pages.TOKEN}/live", {"origin": "http://evil.example"}),
        (f"{pages.TOKEN}/live", {"origin": f"http://127.0.0.1:{port + 1}"}),
        (f"{pages.TOKEN}/live", {"origin": "null"}),
    ):
        with (
            pytest.raises((InvalidStatus, ConnectionClosed)),
            connect(f"ws://127.0.0.1:{port}/{path}", proxy=None, **options) as page,
        ):
            page.recv(20)
    with opened(port, origin=f"http://127.0.0.1:{port}"):
        pass


def test_closing_a_page_stops_its_work(port: int) -> None:
    threads = threading.active_count()
    with opened(port) as page:
        send(page, run=1, steps=1000)
        until(page, "frame")
    wait_for(lambda: threading.active_count() <= threads)


def test_a_new_request_replaces_the_old_one(port: int) -> None:
    with opened(port) as page:
        for run in range(5):
            send(page, run=run, steps=1000 if run < 4 else 3)
        headers = until(page, "end")
        assert headers[-1]["run"] == 4
        send(page, run=5, steps=1000)
        until(page, "frame")
        send(page, do="stop")
        send(page, run=6, pane=1, steps=2)
        assert {header["run"] for header in until(page, "end")} <= {5, 6}


def test_only_the_last_of_many_requests_waits_for_the_model() -> None:
    class Counted(server.Turns):
        taken = 0

        def take(self) -> None:
            self.taken += 1
            super().take()

    shared = server.Server(SUBJECTS, pages.TOKEN)
    page, shared.turns = server.Page(shared, lambda: None), Counted()
    shared.turns.take()  # the model is busy
    for run in range(50):
        page.receive(json.dumps({"do": "generate", "model": "digits", "run": run, "steps": 1}))
    shared.turns.give()
    received: list[dict[str, Any]] = []

    def ended() -> bool:
        while (message := page.mail.take()) is not None:
            received.append(messages.unpack(message)[0])
        return bool(received) and received[-1]["kind"] == "end"

    wait_for(ended)
    page.close()
    assert {header["run"] for header in received} == {49}
    assert shared.turns.taken < 12


def test_a_download_and_a_generation_do_not_end_each_other(
    port: int,
) -> None:
    request = {"do": "generate", "model": "digits", "steps": 100}
    with opened(port) as page:
        send(page, run=1, steps=100)
        until(page, "frame")
        send(page, run=2, do="download", what="film", request=request)
        send(page, run=3, do="download", what="sample", request=request)
        send(page, run=4, steps=300)
        last = [until(page, "end", "file")[-1] for _ in range(3)]
        found = {(each["kind"], each["run"]) for each in last}
        assert found == {("end", 4), ("file", 2), ("file", 3)}


def test_pages_share_the_model_fairly(port: int) -> None:
    """While three pages generate, all get on at the same pace."""
    with opened(port) as a, opened(port) as b, opened(port) as c:
        for page in (a, b, c):
            send(page, run=0, steps=150)
        until(b, "end")
        for page in (a, c):
            send(page, do="stop")
            send(page, run=9, model="nope")
            assert max(header.get("step", 0) for header in until(page, "error")) > 100


def test_a_slow_page_gets_fewer_frames() -> None:
    """Whatever a page does not fetch, at most a few messages wait for it."""
    woken = []
    mail = server.Mailbox(lambda: woken.append(1))
    frames = [messages.pack({"kind": "frame", "step": step}, bytes(1000)) for step in range(500)]
    mail.put(0, "error", b"error")
    for pane in range(2):
        mail.put(pane, "start", b"old")
        mail.put(pane, "frame", frames[0])
        mail.put(pane, "start", b"start")
        for frame in frames:
            mail.put(pane, "frame", frame)
        mail.put(pane, "last", b"last")
        mail.put(pane, "end", b"end")
    for name in ("a.png", "b.png"):  # files replace neither each other nor frames
        mail.put(0, "file", name.encode(), name)
    waiting = [b"error", *2 * [b"start", frames[-1], b"last", b"end"]]
    assert list(iter(mail.take, None)) == [*waiting, b"a.png", b"b.png"]
    assert len(woken) == 1 + 2 * 505 + 2


def test_a_page_that_never_reads_does_not_hold_up_the_others(
    port: int,
) -> None:
    with opened(port, max_queue=1, close_timeout=0.2) as slow, opened(port) as quick:
        for run in range(20):
            send(slow, run=run, steps=200)
        send(quick, run=1, steps=20)
        assert until(quick, "end")[-1]["kind"] == "end"


def test_a_message_that_is_too_long_closes_only_its_page(
    port: int,
) -> None:
    with opened(port) as page:
        page.send("x" * (1 << 19))
        with pytest.raises(ConnectionClosed):
            until(page, "end")
    with opened(port) as page:
        send(page, run=1, steps=2)
        until(page, "end")


# Fuzzing.

WORDS = [
    *(None, True, False, 0, 1, -1, 3, 63, 64, 10**30, -(10**30), 0.5, 1e308, 1e400),
    *("", "x", "\u0000", "é" * 50, "digits", "mixed", "sde2", "generate", "examine", "stop"),
    *("download", "film", "sample", "known"),
    *([], [0], [[]], [0] * 64, [0.5] * 64, [-1] * 6, [1e400]),
    *({}, {"i": "x"}, {"i": [0], "v": [3]}, {"i": [1, 1], "v": [0, 1]}),
]
KEYS = (
    *("do", "run", "pane", "model", "solver", "steps", "seed", "label", "guidance", "length"),
    *("pins", "particles", "since", "values", "text", "what", "request"),
)


def fuzzed(random: random.Random) -> str:
    """A message that is more or less wrong."""
    message: dict[str, Any] = {"do": "generate", "model": "digits", "steps": 1, "run": 1, "pane": 0}
    message["do"] = random.choice(["generate", "examine", "stop", "download"])
    if message["do"] == "download":
        message["request"] = {"do": "generate", "model": "digits", "steps": 1}
        message["what"] = random.choice(["film", "sample", "known"])
    if message["do"] == "examine":
        message["values"] = [random.randrange(18) for _ in range(64)]
    for _ in range(random.randrange(4)):
        message[random.choice(KEYS)] = random.choice(WORDS)
    if type(message.get("steps")) is int:
        message["steps"] = min(message["steps"], 3)
    text = json.dumps(message)
    if random.random() < 0.3:  # cut, or with a wrong character
        place = random.randrange(len(text))
        text = text[:place] + random.choice(["", "}", '"', "\u0000", "9", text[place + 1 :]])
    return text


def test_the_server_survives_thousands_of_wrong_messages() -> None:
    chance = random.Random(0)
    with pages.serving(SUBJECTS) as port:
        for _ in range(5):
            with opened(port) as page:
                for _ in range(400):
                    page.send(fuzzed(chance))
                page.send(json.dumps({"do": "stop", "pane": 1}))
                send(page, run=4321, pane=0, steps=2)
                while until(page, "end")[-1]["run"] != 4321:
                    pass
