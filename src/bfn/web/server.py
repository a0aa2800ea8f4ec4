"""The server behind `bfn serve`: one page, one WebSocket per tab, and threads that compute.

Every pane of a page has a thread, which runs one request at a time; a new request cancels the one
before it. Another thread of the page makes files, one after the other. Threads take turns at every
step (`Turns`), so that all get an equal share of the model. Messages that a page has not fetched
yet wait in its `Mailbox`, where a new frame replaces an older one: a slow page gets fewer frames
once the buffers of its connection are full.

Addresses without the token get a 404, sockets that another site opens are refused, and only the
files of the page are served, which are read at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from bfn.errors import BFNError, Diverged
from bfn.web import requests, streams
from bfn.web.messages import hello, pack, page_files
from bfn.web.requests import LIMITS, Download, Examine, Generate, Request, Stop
from bfn.web.streams import Stopped
from bfn.web.subject import Subject

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
    """Messages that a page has yet to fetch: for each pane a start, a frame, an end, its files."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._lock, self._wake = threading.Lock(), wake
        self._waiting: dict[tuple[Any, ...], bytes] = {}

    def put(self, pane: int | None, kind: str, message: bytes, name: str = "") -> None:
        """Replace the waiting message of that kind; a file, only one of the same name."""
        with self._lock:
            if kind == "start":  # the page no longer shows the run of the waiting messages
                for key in [*self._waiting]:
                    if key[0] == pane and key[1] not in ("file", "error"):
                        del self._waiting[key]
            self._waiting[pane, kind, name] = message
        self._wake()

    def take(self) -> bytes | None:
        with self._lock:
            key = next(iter(self._waiting), None)
            return None if key is None else self._waiting.pop(key)


class Page:
    """One tab: a thread for each pane, which serves its latest request, and one for files."""

    def __init__(self, server: Server, wake: Callable[[], None]) -> None:
        self.server, self.mail = server, Mailbox(wake)
        self._latest: list[Request | None] = [None] * LIMITS["panes"]
        self._panes = [ThreadPoolExecutor(1) for _ in self._latest]
        self._files = ThreadPoolExecutor(1)
        self._closed = False

    def receive(self, text: str) -> None:
        """Handle a message, or send the error."""
        run = pane = None
        try:
            message = json.loads(text)
            run, pane = int(message.get("run", 0)), range(LIMITS["panes"])[message.get("pane", 0)]
            request = requests.read(message, self.server.subjects)
            if isinstance(request, Download):
                self._files.submit(self._serve, run, pane, request)
            else:
                self._latest[pane] = request
                self._panes[pane].submit(self._serve, run, pane, request)
        except BFNError as error:
            self.say(str(error), run, pane)
        except Exception:  # must not affect other pages
            self.say("the request is damaged; reload the page", run, pane)

    def say(self, sentence: str, run: int | None, pane: int | None) -> None:
        """Send an error message."""
        sentence = " ".join(sentence.split())
        sentence = sentence[:1].upper() + sentence[1:] + "." * (sentence[-1:] not in (".", "?"))
        error = {"kind": "error", "run": run, "pane": pane, "message": sentence}
        self.mail.put(pane, "error", pack(error), str(run))

    def _serve(self, run: int, pane: int, request: Request) -> None:
        turns = self.server.turns

        def unwanted() -> bool:
            replaced = not isinstance(request, Download) and request is not self._latest[pane]
            return self._closed or replaced

        def check() -> None:
            """Let others have a turn; raises if nobody waits for the request any more."""
            turns.give()
            turns.take()
            if unwanted():
                raise Stopped

        if unwanted():  # a dragged slider sends many: only the last of them waits for a turn
            return
        turns.take()
        try:
            check()
            if isinstance(request, Download):
                self._send_files(run, pane, request, check)
            elif not isinstance(request, Stop):
                self._stream(run, pane, request, check)
        except Stopped:
            pass
        except (BFNError, Diverged) as error:
            self.say(str(error), run, pane)
        except Exception as error:  # must not affect other pages
            self.say(f"something went wrong ({type(error).__name__}: {error})", run, pane)
        finally:
            turns.give()

    def _stream(
        self, run: int, pane: int, request: Generate | Examine, check: Callable[[], None]
    ) -> None:
        def emit(kind: str, message: bytes) -> None:
            check()
            self.mail.put(pane, kind, message)

        streams.stream(self.server.subjects[request.model], request, emit, run, pane)

    def _send_files(
        self, run: int, pane: int, download: Download, check: Callable[[], None]
    ) -> None:
        subject = self.server.subjects[download.request.model]
        for name, content in streams.files(subject, download, check):
            header = {"kind": "file", "run": run, "pane": pane, "name": name}
            self.mail.put(pane, "file", pack(header, content), name)

    def close(self) -> None:
        self._closed = True
        for threads in (*self._panes, self._files):
            threads.shutdown(wait=False, cancel_futures=True)


class Server:
    """The application, and what its pages share."""

    def __init__(self, subjects: Iterable[Subject], token: str) -> None:
        self.subjects = {subject.id: subject for subject in subjects}
        self.hello = hello(self.subjects.values(), live=True)
        self.token, self.turns = token, Turns()
        self.app = Starlette(
            routes=[
                WebSocketRoute(f"/{token}/live", self._live),
                Route(f"/{token}/", self._file),
                Route(f"/{token}/{{name}}", self._file),
            ]
        )

    async def _file(self, request: HttpRequest) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in page_files():
            raise HTTPException(404)
        kind, content = page_files()[name]
        return Response(content, 200, HEADERS, kind)

    async def _live(self, socket: WebSocket) -> None:
        # Browsers name the site that opens a socket; other programs do not.
        origin, host = socket.headers.get("origin"), socket.headers.get("host")
        if origin is not None and urlsplit(origin).netloc != host:
            await socket.close(1008)
            return
        await socket.accept()
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(news.set)

        page = Page(self, wake)
        sender = asyncio.create_task(self._send(socket, page, news))
        try:
            async for text in socket.iter_text():
                page.receive(text)
        finally:
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


def answering(server: Server) -> uvicorn.Server:
    """What answers on a socket: run(sockets=[...])."""
    config = uvicorn.Config(
        server.app,
        log_level="critical",
        ws="websockets-sansio",
        ws_max_size=LIMITS["message"],
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    return uvicorn.Server(config)
