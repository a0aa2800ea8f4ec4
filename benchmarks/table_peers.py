"""Other generators of tables, each with its defaults, in an environment of its own.

    python benchmarks/table_peers.py NAME train.csv new.csv --rows 32561 --seed 0 --categories a,b

reads a table, fits the generator called NAME, and writes new rows. `tables.py` calls it with the
Python of the environment in which that generator is installed, so it imports nothing of bfn.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

PACKAGES = {
    "ctgan": "ctgan",
    "tvae": "ctgan",
    "copula": "sdv",
    "forest": "ForestDiffusion",
    "mostlyai": "mostlyai-engine",
}
"""What is installed for each generator; those of one package share an environment."""


def of_ctgan(train: pd.DataFrame, categories: list[str], rows: int, seed: int) -> Any:
    from ctgan import CTGAN

    yield from _fit_and_sample(CTGAN(), train, categories, rows)


def of_tvae(train: pd.DataFrame, categories: list[str], rows: int, seed: int) -> Any:
    from ctgan import TVAE

    yield from _fit_and_sample(TVAE(), train, categories, rows)


def _fit_and_sample(model: Any, train: pd.DataFrame, categories: list[str], rows: int) -> Any:
    model.fit(train, categories)
    yield
    yield model.sample(rows)


def of_copula(train: pd.DataFrame, categories: list[str], rows: int, seed: int) -> Any:
    from sdv.metadata import Metadata
    from sdv.single_table import GaussianCopulaSynthesizer

    kinds = {c: {"sdtype": "categorical" if c in categories else "numerical"} for c in train}
    metadata = Metadata.load_from_dict({"tables": {"table": {"columns": kinds}}})
    model = GaussianCopulaSynthesizer(metadata)
    model.fit({"table": train})
    yield
    yield model.sample(rows)["table"]


def of_forest(train: pd.DataFrame, categories: list[str], rows: int, seed: int) -> Any:
    """Categories are given as numbers, as this library wants them."""
    from ForestDiffusion import ForestDiffusionModel

    codes = {c: pd.factorize(train[c]) for c in categories}
    numbers = train.assign(**{c: code for c, (code, _) in codes.items()}).to_numpy(float)
    kinds = {"bin": [], "cat": [], "int": [], "number": []}
    for i, c in enumerate(train):
        if c in categories:
            kinds["bin" if len(codes[c][1]) <= 2 else "cat"].append(i)
        else:
            kinds["int" if pd.api.types.is_integer_dtype(train[c]) else "number"].append(i)
    model = ForestDiffusionModel(
        numbers,
        bin_indexes=kinds["bin"],
        cat_indexes=kinds["cat"],
        int_indexes=kinds["int"],
        seed=seed,
    )
    yield
    new = pd.DataFrame(model.generate(batch_size=rows), columns=train.columns)
    for c, (_, values) in codes.items():
        new[c] = np.asarray(values)[new[c].astype(int)]
    yield new


def of_mostlyai(train: pd.DataFrame, categories: list[str], rows: int, seed: int) -> Any:
    import tempfile

    from mostlyai import engine

    engine.set_random_state(seed)
    folder = tempfile.mkdtemp()
    kinds = {c: "TABULAR_CATEGORICAL" if c in categories else "TABULAR_NUMERIC_AUTO" for c in train}
    engine.split(workspace_dir=folder, tgt_data=train, tgt_encoding_types=kinds)
    engine.analyze(workspace_dir=folder)
    engine.encode(workspace_dir=folder)
    engine.train(workspace_dir=folder)
    yield
    engine.generate(workspace_dir=folder, sample_size=rows)
    yield pd.read_parquet(Path(folder) / "SyntheticData")


GENERATORS = {
    "ctgan": of_ctgan,
    "tvae": of_tvae,
    "copula": of_copula,
    "forest": of_forest,
    "mostlyai": of_mostlyai,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a generator of tables and write new rows.")
    parser.add_argument("name", choices=GENERATORS)
    parser.add_argument("train", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--categories", default="")
    given = parser.parse_args()
    np.random.seed(given.seed)
    try:
        import torch

        torch.manual_seed(given.seed)
    except ImportError:  # forests need no torch
        pass
    categories = [name for name in given.categories.split(",") if name]
    train = pd.read_csv(
        given.train, dtype=dict.fromkeys(categories, str), keep_default_na=False, na_values=[""]
    )
    steps = GENERATORS[given.name](train, categories, given.rows, given.seed)
    start = time.perf_counter()
    next(steps)
    fitted = time.perf_counter()
    new = next(steps)
    done = time.perf_counter()
    new[list(train)].to_csv(given.new, index=False)
    print(json.dumps({"fit": fitted - start, "sample": done - fitted}))


if __name__ == "__main__":
    main()
