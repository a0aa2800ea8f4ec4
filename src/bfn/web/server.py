"""The server behind `bfn serve`: one page, one WebSocket per tab, and threads that compute.

Every pane of a page has a thread, which runs one request at a time; a new request cancels the one
before it. Files are made when the pane is idle, and restarted after an interruption: a download
neither cancels a generation nor is lost to one. Threads take turns at every step (`Turns`): first
the panes of one page among themselves, then the pages, so that all pages get an equal share
of the model. Messages that a page has not fetched yet wait in its `Mailbox`, where a new frame
replaces an older one: a slow page gets fewer frames once the buffers of its connection are full.

Requests without the token in the address get a 404; requests from other sites are refused by their
Host or Origin; and only the files of the page are served, which are read at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from bfn.errors import BFNError, Diverged
from bfn.web import requests, streams
from bfn.web.messages import hello, pack, page_files
from bfn.web.requests import LIMITS, Download, Request, Stop
from bfn.web.streams import Stopped
from bfn.web.subject import Subject

PAGES, RATE = 16, 30
"""Maximum number of tabs, and requests of each per second."""
ERRORS = 8
"""Maximum number of errors waiting for a page that does not read."""
FILES = 8
"""Maximum number of pending files of a pane."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Scope = MutableMapping[str, Any]


class Turns:
    """A fair lock: it goes to the thread that has waited longest."""

    def __init__(self) -> None:
        self._lock, self._taken = threading.Lock(), False
        self._waiting: deque[threading.Event] = deque()

    def take(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        turn.wait()

    def give(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False


class Mailbox:
    """Messages that a page has yet to fetch: for each pane a start, a frame, an end and a file."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._lock, self._wake = threading.Lock(), wake
        self._waiting: dict[tuple[Any, ...], bytes] = {}
        self._errors = 0

    def put(self, pane: int, kind: str, message: bytes, name: str = "") -> None:
        """Replace the waiting message of that kind; a file, only one of the same name."""
        with self._lock:
            if kind == "start":  # the page no longer shows the run of the waiting messages
                for key in [key for key in self._waiting if key[0] == pane and key[1] != "file"]:
                    del self._waiting[key]
            self._waiting[pane, kind, name] = message
        self._wake()

    def files(self, pane: int) -> int:
        """The number of files of a pane that wait."""
        with self._lock:
            return sum(key[:2] == (pane, "file") for key in self._waiting)

    def put_error(self, message: bytes) -> None:
        with self._lock:
            self._errors = (self._errors + 1) % ERRORS
            self._waiting["error", "", self._errors] = message
        self._wake()

    def take(self) -> bytes | None:
        with self._lock:
            key = next(iter(self._waiting), None)
            return None if key is None else self._waiting.pop(key)

    @property
    def size(self) -> int:
        """Bytes that wait."""
        with self._lock:
            return sum(map(len, self._waiting.values()))


class Pane:
    """A thread that serves the latest request, and then makes the requested files."""

    def __init__(self, page: Page, number: int) -> None:
        self.page, self.number = page, number
        self._news = threading.Condition()
        self._asked: tuple[int | None, Request] | None = None
        self._files: deque[tuple[int | None, Request]] = deque()
        self._changed = False
        self._thread: threading.Thread | None = None

    def ask(self, run: int | None, request: Request) -> None:
        with self._news:
            if not isinstance(request, Download):
                self._asked, self._changed = (run, request), True
            elif len(self._files) + self.page.mail.files(self.number) < FILES:
                self._files.append((run, request))
            else:
                raise BFNError(f"{FILES} files are already on their way; wait for one of them")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            self._news.notify()

    def close(self) -> None:
        with self._news:
            self._asked, self._changed = None, True
            self._news.notify()

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._changed and not self._files:
                    self._news.wait()
                asked = self._asked if self._changed else self._files[0]
                self._changed = False
            if asked is None:
                return
            run, request = asked
            done = isinstance(request, Stop) or self._do(run, request)
            if done and isinstance(request, Download):
                self._files.popleft()

    def _do(self, run: int | None, request: Request) -> bool:
        """Serve a request; returns whether it was completed."""
        page = self.page
        page.take_turn()
        try:
            self._stream(run, request)
        except Stopped:
            return False
        except (BFNError, Diverged) as error:
            page.say(str(error), run, self.number)
        except Exception as error:  # must not affect other pages
            page.say(f"something went wrong ({type(error).__name__}: {error})", run, self.number)
        finally:
            page.give_turn()
        return True

    def _check(self) -> None:
        """Let others have a turn; raises if there is a newer request."""
        self.page.give_turn()
        self.page.take_turn()
        if self._changed:
            raise Stopped

    def _stream(self, run: int | None, request: Any) -> None:
        page = self.page

        def emit(kind: str, message: bytes) -> None:
            if self._changed:
                raise Stopped
            page.mail.put(self.number, kind, message)
            if kind == "frame":
                self._check()

        if not isinstance(request, Download):
            subject = page.server.subjects[request.model]
            streams.stream(subject, request, emit, run or 0, self.number)
            return
        subject = page.server.subjects[request.request.model]
        for name, kind, content in streams.files(subject, request, self._check):
            place = {"run": run, "pane": self.number, "what": request.file}
            header = {"kind": "file", **place, "name": name, "type": kind}
            page.mail.put(self.number, "file", pack(header, content), name)


class Page:
    """One tab."""

    def __init__(self, server: Server, wake: Callable[[], None]) -> None:
        self.server, self.mail = server, Mailbox(wake)
        self.panes = [Pane(self, number) for number in range(LIMITS["panes"])]
        self._own = Turns()
        self._budget, self._when = float(RATE), time.monotonic()

    def take_turn(self) -> None:
        self._own.take()
        self.server.turns.take()

    def give_turn(self) -> None:
        self.server.turns.give()
        self._own.give()

    def say(self, sentence: str, run: int | None, pane: int | None) -> None:
        """Send an error message."""
        sentence = " ".join(sentence.split())
        sentence = sentence[:1].upper() + sentence[1:] + "." * (sentence[-1:] not in (".", "?"))
        error = {"kind": "error", "run": run, "pane": pane, "message": sentence}
        self.mail.put_error(pack(error))

    def receive(self, text: str) -> None:
        """Handle a message, or send the error."""
        run = pane = None
        try:
            self._spend()
            message = requests.parse(text)
            reader = requests.Reader(message)
            pane = reader.integer("pane", 0, len(self.panes) - 1, 0)
            run = reader.integer("run", 0, 2**53, 0)
            self.panes[pane].ask(run, requests.read(message, self.server.subjects))
        except BFNError as error:
            self.say(str(error), run, pane)

    def _spend(self) -> None:
        now = time.monotonic()
        self._budget = min(RATE, self._budget + RATE * (now - self._when))
        self._when = now
        if self._budget < 1:
            raise BFNError(f"that is more than {RATE} requests a second; wait a moment")
        self._budget -= 1

    def close(self) -> None:
        for pane in self.panes:
            pane.close()


class Server:
    """The application: its pages, and what they share."""

    def __init__(self, subjects: Iterable[Subject], token: str, hosts: Iterable[str]) -> None:
        self.subjects = {subject.id: subject for subject in subjects}
        self.hello = hello(self.subjects.values(), live=True)
        self.token, self.hosts = token, set(hosts)
        self.turns = Turns()
        self.pages: set[Page] = set()
        self._routes = Starlette(
            routes=[
                Route("/{token}/", self._file, methods=["GET"]),
                Route("/{token}/{name}", self._file, methods=["GET"]),
                WebSocketRoute("/{token}/live", self._live),
            ]
        )

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Admit requests that know the token and come from our own page."""
        if scope["type"] not in ("http", "websocket") or self._allows(scope):
            await self._routes(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _nothing()(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts, origins = headers.get("host", []), headers.get("origin", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return False
        if origins not in ([], [f"http://{hosts[0].lower()}"]):
            return False
        _, _, path = scope["path"].partition("/")
        return hmac.compare_digest(path.partition("/")[0].encode(), self.token.encode())

    async def _file(self, request: HttpRequest) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in page_files():
            return _nothing()
        kind, content = page_files()[name]
        return Response(content, 200, HEADERS, kind)

    async def _live(self, socket: WebSocket) -> None:
        if len(self.pages) >= PAGES:
            await socket.accept()
            await socket.close(1013, f"{PAGES} pages are already open; close one.")
            return
        await socket.accept()
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(news.set)

        page = Page(self, wake)
        self.pages.add(page)
        sender = asyncio.create_task(self._send(socket, page, news))
        try:
            while True:
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                text = message.get("text")
                page.receive(text if text is not None else "")
        except WebSocketDisconnect:
            pass
        finally:
            self.pages.discard(page)
            page.close()
            sender.cancel()

    async def _send(self, socket: WebSocket, page: Page, news: asyncio.Event) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the page has gone
            await socket.send_bytes(self.hello)
            while True:
                message = page.mail.take()
                if message is None:
                    await news.wait()
                    news.clear()
                else:
                    await socket.send_bytes(message)


def _nothing() -> Response:
    return Response("There is nothing here.\n", 404, HEADERS, "text/plain")


def hosts(host: str, port: int) -> set[str]:
    """The values of the Host header that are accepted by a server at this address."""
    names = {host}
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.version == 6:
            names = {f"[{host}]"}
        if address.is_loopback:
            names |= {"localhost"}
        if address.is_unspecified:
            names |= {"localhost", "127.0.0.1", "[::1]", socket.gethostname(), *_addresses()}
    return {f"{name.lower()}:{port}" for name in names} | (
        {name.lower() for name in names} if port == 80 else set()
    )


def _addresses() -> set[str]:
    """The addresses of this machine."""
    with contextlib.suppress(OSError):
        addresses = {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)}
        return {f"[{name}]" if ":" in name else name for name in addresses}
    return set()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at this address."""
    if not 0 <= port < 1 << 16:
        raise BFNError(f"port = {port}; expected 1 to 65535, or 0 for a free one")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        raise BFNError(
            f"the server cannot listen on {host}:{port} ({_reason(error)}); give another --port, "
            "or --port 0 for a free one"
        ) from None


def _reason(error: OSError) -> str:
    """The system's own message, without what `socket.create_server` adds."""
    known = isinstance(error.errno, int) and error.errno > 0
    return os.strerror(error.errno) if known else str(error.strerror or error)  # pyright: ignore


def answering(server: Server, started: Callable[[], None]) -> uvicorn.Server:
    """A uvicorn server, which calls `started` when pages can be opened."""

    class Answering(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            started()

    config = uvicorn.Config(
        server,
        log_level="critical",
        ws="websockets-sansio",
        ws_max_size=LIMITS["message"],
        ws_per_message_deflate=False,
        limit_concurrency=256,
        h11_max_incomplete_event_size=1 << 14,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
        server_header=False,
        date_header=False,
        lifespan="off",
    )
    return Answering(config)
