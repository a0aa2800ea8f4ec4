"""The command line; `bfn.cli.app` runs it."""

import os

# Before torch loads: beside another busy process, spinning OpenMP threads make a small step fifty
# times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
