"""`python -m bfn` is `bfn`."""

from __future__ import annotations

import sys

from bfn.cli import main

if __name__ == "__main__":
    sys.exit(main())
