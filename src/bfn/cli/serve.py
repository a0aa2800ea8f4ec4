"""`bfn serve` and `bfn view`: watch models generate on a web page, live or recorded."""

from __future__ import annotations

import dataclasses
import secrets
import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bfn.cli.options import Calls, Force, Integer, Out, Run, SampleKeys, Trust, chosen
from bfn.cli.sample import with_calls


def serve(
    *runs: Path,
    host: str = "127.0.0.1",
    port: Integer = 8321,
    browser: Annotated[bool, Parameter(negative="--no-browser")] = True,
    trust: Trust = False,
) -> None:
    """Watch models generate in the browser, pin values, and compare models.

    Args:
        runs: Run folders, shipped models, or owner/name on the hub; by default all shipped models.
        host: The address to listen on. Any other than 127.0.0.1 admits other machines that know the
            token.
        port: The port to listen on; 0 picks a free one.
        browser: Open the page in a browser.
    """
    from bfn.errors import require_extra

    for module in ("starlette", "uvicorn", "websockets"):
        require_extra(module, "web", "bfn serve")
    from bfn.saving import shipped
    from bfn.web import server, subject

    with server.listen(host, port) as at:
        port = at.getsockname()[1]
        subjects = [subject.load(run, trust=trust) for run in runs or shipped()]
        token, shown = secrets.token_urlsafe(16), f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{port}/{token}/"

        print(f"open {address}  (Ctrl-C stops the server)", flush=True)
        if browser and not webbrowser.open(address):
            print("no browser was found; open that address yourself", flush=True)
        # The socket listens already: a browser that is faster than the server waits for it.
        server.answering(server.Server(subjects, token)).run(sockets=[at])


def view(
    run: Run,
    /,
    *,
    out: Out | None = None,
    keys: SampleKeys = None,
    calls: Calls = None,
    force: Force = False,
    trust: Trust = False,
) -> None:
    """Record generations in one HTML file that any browser opens.

    Records --n generations, one by default; with several labels, as many of each.

    Args:
        out: The .html file to write; named after the run by default.
    """
    from bfn.errors import plural
    from bfn.files import check_free
    from bfn.guidance import read_labels
    from bfn.web import streams, subject

    asked = chosen(keys)
    loaded = subject.load(run, trust=trust, device=asked.get("device"))
    settings = dataclasses.replace(loaded.settings, n=1).updated(**asked)
    settings = with_calls(settings, calls, asked.get("steps"))
    out = out or Path(f"{run.resolve().name}.html")
    check_free(out, force, endings=(".html",))
    wanted = read_labels(loaded.model, settings.label) if settings.label else []
    made = streams.record(dataclasses.replace(loaded, settings=settings), settings.n, wanted)
    made.save(out)
    count = plural(settings.n * max(1, len(wanted)), "generation")
    print(f"{out}: {count}, {plural(made.frames, 'frame')}")
