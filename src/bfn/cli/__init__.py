"""The command line; `bfn.cli.app` runs it."""

import os

# Before torch loads. Waiting OpenMP threads spin for some microseconds and then sleep: without the
# spinning a small step takes twice as long, and with more of it twice as long on a busy machine
# (benchmarks/threads.py).
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
