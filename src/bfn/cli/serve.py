"""`bfn serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bfn.cli.options import Trust, Whole


def serve(
    *runs: Path,
    host: str = "127.0.0.1",
    port: Whole = 8321,
    browser: Annotated[bool, Parameter(negative="--no-browser")] = True,
    trust: Trust = False,
) -> None:
    """Open a page on which to watch models think, pin values, and compare.

    Args:
        runs: Run folders, shipped models, or owner/name on the hub; by default all shipped models.
        host: The address to listen at. Anything but 127.0.0.1 lets other machines in that know
            the token.
        port: The port to listen at; 0 for any that is free.
        browser: Open the page in a browser.
    """
    from bfn.errors import require_extra

    for module in ("starlette", "uvicorn", "websockets"):
        require_extra(module, "web", "bfn serve")
    import secrets
    import webbrowser

    from bfn.saving.hub import shipped
    from bfn.web import server, subject

    with server.listen(host, port) as at:
        port = at.getsockname()[1]
        subjects = [subject.load(run, trust=trust) for run in runs or shipped()]
        token, shown = secrets.token_urlsafe(16), f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{port}/{token}/"

        def started() -> None:
            print(f"open {address}  (Ctrl-C stops the server)", flush=True)
            if browser and not webbrowser.open(address):
                print("no browser was found here: open that address in one", flush=True)

        shared = server.Server(subjects, token, server.hosts(host, port))
        server.answering(shared, started).run(sockets=[at])
