"""The command line.

Exit codes: 0 done, 1 failed, 2 used wrongly, 130 interrupted. A mistake is answered with one
sentence on standard error. torch is imported only by commands that need it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence

# With another busy process, spinning OpenMP threads make a small step take fifty times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (or ends, if other processes of a training did)."""
    from cyclopts import CycloptsError

    from bfn.cli.app import run
    from bfn.errors import BFNError, Diverged, Stranded, Unwritten

    try:
        # A network or data source of one's own may live in a file beside the recipe.
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except CycloptsError as error:
        error.verbose = False
        said = " ".join(str(error).split()).rstrip("., ")
        command = " ".join(("bfn", *(error.command_chain or ())))
        more = "" if said.endswith("?") else f"; {command} --help says more"
        return _answer(said + more, MISUSED)
    except Unwritten as error:
        return _answer(" ".join(str(error).split()), FAILED)
    except BFNError as error:
        return _answer(" ".join(str(error).split()), MISUSED)
    except Stranded as error:
        # Whatever still waits for the process that is gone must not keep this one.
        code = _answer(str(error), FAILED, at_once=True)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    except KeyboardInterrupt as interruption:
        if rank():
            return INTERRUPTED
        return _answer(str(interruption) or "interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Diverged, MemoryError, OSError) as error:
        return _answer(" ".join(str(error).split()) or type(error).__name__, FAILED)
    return DONE


def _answer(sentence: str, code: int, *, at_once: bool = False) -> int:
    if rank() and not at_once:
        # The first process most likely has the same to say, and the launcher then ends the others.
        time.sleep(3.0)
        sentence = f"process {rank()}: {sentence}"
    ending = "" if sentence.endswith((".", "?")) else "."
    with contextlib.suppress(OSError):  # nobody may be reading any more
        print(f"bfn: {sentence}{ending}", file=sys.stderr, flush=True)
    return code


def rank() -> int:
    """The number of this process among those that torchrun started."""
    given = os.environ.get("RANK", "0")
    return int(given) if given.isdecimal() else 0
