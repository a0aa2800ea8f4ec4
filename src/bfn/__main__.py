"""`python -m bfn` is `bfn`."""

from __future__ import annotations

import sys

from bfn.cli.app import main

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # `python -m` put the current folder there; a model's files may lie in it
    sys.exit(main())
