"""How much time and memory do tables of many rows or many columns take?

    python benchmarks/table_sizes.py 1000000x10 10000x1000 [--steps 20]

Each table is made by rule and written as a CSV file. `bfn train` and `bfn sample --n 1000` then run
on it as a user would run them, with few steps; any further time is proportional to the steps. The
peak is the most memory that either process held, interpreter and torch included.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

BLOCK = 2**22
"""Values that are made at a time."""


def column(i: int, latent: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A column of one of ten kinds, which depends on the rows' latent numbers."""
    n = len(latent)
    x = 0.7 * latent + 0.7 * rng.standard_normal(n)
    match i % 10:
        case 0:
            return np.round(50 + 12 * x, 2)
        case 1:
            return np.rint(40 + 12 * x).astype(np.int64)
        case 2:
            return np.where(x < 0.5, 0, np.rint(np.exp(7 + 1.5 * x))).astype(np.int64)
        case 3:
            return np.array(["never", "seldom", "often", "always"])[np.digitize(x, [-1, 0, 1])]
        case 4:
            return np.array([f"place {k}" for k in range(200)])[rng.zipf(1.5, n).clip(max=200) - 1]
        case 5:
            return x > 0.3
        case 6:
            return np.datetime64("2020-01-01") + np.rint(300 + 100 * x).astype("timedelta64[D]")
        case 7:
            return np.where(rng.random(n) < 0.1, np.nan, np.round(x, 1))
        case 8:
            return x
        case _:
            return rng.poisson(np.exp(x.clip(max=3)))


def write(path: Path, rows: int, columns: int) -> None:
    """A table made by rule, a block of rows at a time."""
    rng, writer, block = np.random.default_rng(0), None, max(1, BLOCK // columns)
    for start in range(0, rows, block):
        latent = rng.standard_normal(min(block, rows - start))
        made = {f"c{i}": pa.array(column(i, latent, rng)) for i in range(columns)}
        table = pa.table(made)
        writer = writer or pyarrow.csv.CSVWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def measured(*command: str) -> tuple[float, float]:
    """The seconds and the peak GiB of `bfn` with these arguments."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "bfn", *command], stdout=sys.stderr)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"bfn {' '.join(command)} failed")
    return time.monotonic() - began, used.ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sizes", nargs="+", metavar="ROWSxCOLUMNS")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    print("| rows | columns | file, GiB | train, s | peak, GiB | sample 1,000, s | peak, GiB |")
    print("|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for size in given.sizes:
        rows, columns = map(int, size.split("x"))
        folder = Path(tempfile.mkdtemp())
        try:
            path, run, steps = folder / "table.csv", str(folder / "run"), str(given.steps)
            write(path, rows, columns)
            found = [f"{rows:,}", f"{columns:,}", f"{path.stat().st_size / 2**30:.2f}"]
            for command in (
                ("train", str(path), "-o", run, "--train.steps", steps),
                ("sample", run, "--n", "1000", "--steps", steps, "-o", str(folder / "new.csv")),
            ):
                seconds, gibibytes = measured(*command)
                found += [f"{seconds:.0f}", f"{gibibytes:.2f}"]
            print(f"| {' | '.join(found)} |", flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
