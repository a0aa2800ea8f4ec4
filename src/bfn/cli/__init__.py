"""The command line.

Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted. An error is one sentence on
standard error.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence

# Beside another busy process, spinning OpenMP threads make a small step fifty times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    from bfn.cli.app import run
    from bfn.errors import BFNError, Diverged, ProcessLost, WriteFailed

    try:
        run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except ProcessLost as error:
        # Threads still waiting for the lost process must not keep this one alive.
        code = _answer(str(error), FAILED, at_once=True)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    except KeyboardInterrupt as error:
        return INTERRUPTED if rank() else _answer(str(error) or "interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        where = f": {str(error.filename)!r}" if error.filename else ""
        return _answer(f"{error.strerror or error}{where}", FAILED)
    except (BFNError, Diverged, MemoryError) as error:
        misused = isinstance(error, BFNError) and not isinstance(error, WriteFailed)
        return _answer(str(error) or type(error).__name__, MISUSED if misused else FAILED)
    return DONE


def _answer(sentence: str, code: int, *, at_once: bool = False) -> int:
    """Print one line on standard error and return the exit code."""
    from bfn.errors import printable

    sentence = printable(" ".join(sentence.split()))
    if rank() and not at_once:
        # The first process probably reports the same, and the launcher then ends the others.
        time.sleep(3.0)
        sentence = f"process {rank()}: {sentence}"
    ending = "" if sentence.endswith((".", "?")) else "."
    with contextlib.suppress(OSError):  # the reader may be gone
        print(f"bfn: {sentence}{ending}", file=sys.stderr, flush=True)
    return code


def rank() -> int:
    """The number of this process among those that torchrun started."""
    given = os.environ.get("RANK", "0")
    return int(given) if given.isdecimal() else 0
