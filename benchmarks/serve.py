"""How many frames a second does `bfn serve` send, to one page and to five, and what does a page
cost that does not read them?

    PYTHONPATH=src python benchmarks/serve.py [--model digits] [--seconds 5]

A server runs in a process of its own, as `bfn serve` starts it; pages are WebSockets in this one.
Each asks for one generation of 1,000 steps after another and reads all frames. The last page asks
but reads nothing: the script prints the server's memory before and after, and the frames that
another page gets meanwhile. The server's CPU time per frame is meaningful even on a busy machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from measure import print_row
from websockets.sync.client import ClientConnection, connect

from bfn.web import messages


def ask(page: ClientConnection, model: str, run: int) -> None:
    page.send(
        json.dumps({"do": "generate", "model": model, "steps": 1000, "run": run, "seed": run})
    )


def frames(address: str, model: str, seconds: float) -> list[float]:
    """When each frame came, in seconds since the first."""
    found: list[float] = []
    runs = itertools.count()
    with connect(address, max_size=None, proxy=None) as page:
        while not found or found[-1] - found[0] < seconds:
            header, _ = messages.unpack(page.recv())  # pyright: ignore[reportArgumentType]
            if header["kind"] == "frame":
                found.append(time.perf_counter())
            elif header["kind"] in ("hello", "end"):
                ask(page, model, next(runs))
            elif header["kind"] == "error":
                raise RuntimeError(header["message"])
    return found


def together(address: str, model: str, seconds: float, count: int) -> list[float]:
    """The frames a second of each of some pages that are open at once."""
    rates = [0.0] * count

    def watch(i: int) -> None:
        found = frames(address, model, seconds)
        rates[i] = (len(found) - 1) / (found[-1] - found[0])

    threads = [threading.Thread(target=watch, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rates


def cpu(process: subprocess.Popen[str]) -> float:
    """Seconds of CPU time that a process has taken."""
    after_name = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")


def memory(process: subprocess.Popen[str]) -> float:
    """MiB that a process has in memory."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    command = [sys.executable, "-m", "bfn", "serve", given.model, "--no-browser", "--port", "0"]
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        print(f"started in {time.perf_counter() - begun:.1f} s, torch's import included\n")
        address = re.findall(r"http(://\S+/)", line)[0]
        address = f"ws{address}live"
        together(address, given.model, 1.0, 1)  # the first calls of a network are slow
        print_row(["pages", "frames/s of each", "of all", "CPU ms per frame"], head=True)
        for count in (1, 2, 5):
            begun, spent = time.perf_counter(), cpu(process)
            rates = together(address, given.model, given.seconds, count)
            each = ", ".join(f"{rate:.1f}" for rate in rates)
            frames_sent = sum(rates) * (time.perf_counter() - begun)
            cost = 1000 * (cpu(process) - spent) / frames_sent
            print_row([str(count), each, f"{sum(rates):.1f}", f"{cost:.1f}"])
        before = memory(process)
        with connect(address, max_queue=1, proxy=None, close_timeout=0.2) as slow:
            for run in range(20):
                ask(slow, given.model, run)
            (rate,) = together(address, given.model, given.seconds, 1)
            after = memory(process)
        print_row(["1 beside one that reads nothing", f"{rate:.1f}", "", ""])
        print(f"\nmemory: {before:.0f} MiB; the page that reads nothing: {after - before:+.1f} MiB")
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
