"""`Table`: a model of a table with scikit-learn's interface."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from bfn import noise
from bfn.errors import BFNError, Interrupted, check_number
from bfn.recipe import Recipe, Train
from bfn.recipe import read as read_recipe
from bfn.recipe.build import fitted
from bfn.runs.folder import RunFolder
from bfn.tables.columns import Columns
from bfn.tables.format import TableFormat
from bfn.tables.frame import read
from bfn.tables.model import TableModel
from bfn.tables.source import STEPS, TableRows

HOLDOUT, LEAST_HELD, MOST_HELD = 0.05, 100, 10_000
"""The fraction of the rows that decide when to stop; for a small table LEAST_HELD rows but at most
a fifth, and for a large one MOST_HELD."""
SECTIONS = {
    "data": ("columns", "max_bins"),
    "net": ("width", "layers"),
    "train": ("steps", "seconds", "batch", "learning_rate", "known", "seed", "device"),
}
"""The recipe keys of a table's arguments."""


class Table(TableModel):
    """A model of a table: fit it, and sample, impute, predict, score and save.

        table = bfn.Table().fit(df)
        table.sample(1000, given={"sex": "Male"}, seed=0)

    Args:
        columns: "number", "category", "ordered", "text-id" or "drop" by column name, to override
            the detected kind.
        max_bins: approximate maximum number of bins of a numeric column.
        width, layers: of the network, a `bfn.nn.MixedMLP`.
        steps: maximum training steps; training stops once held-out rows no longer improve. The
            default stands for fewer if the table is small; any other number is taken as it is.
        seconds: time limit, by which the learning rate has fallen to zero; 0 for none.
        batch: maximum rows per training step; small and wide tables use fewer.
        learning_rate: the peak learning rate.
        known: fraction of training rows in which some columns are given, which trains `sample`
            with given values, `impute` and `predict`; above 0.
        seed: random seed for weights, row order and noise.
        device: "cpu", "cuda" or "auto".
        display: whether to show progress.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str] | None = None,
        max_bins: int = 256,
        width: int = 256,
        layers: int = 4,
        steps: int = STEPS,
        seconds: float = 0.0,
        batch: int = 512,
        learning_rate: float = 3e-3,
        known: float = 0.05,
        seed: int = 0,
        device: str = "auto",
        display: bool = True,
    ) -> None:
        self.columns, self.max_bins = columns, max_bins
        self.width, self.layers = width, layers
        self.steps, self.seconds, self.batch = steps, seconds, batch
        self.learning_rate, self.known = learning_rate, known
        self.seed, self.device, self.display = seed, device, display

    # scikit-learn's conventions.

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn expects them."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor."""
        for name, value in params.items():
            if name not in self.get_params():
                raise BFNError(
                    f"Table has no argument {name!r}; it has {', '.join(self.get_params())}"
                )
            setattr(self, name, value)
        return self

    def save(self, folder: str | Path) -> None:
        """Write the model, its columns and the constructor's arguments to a folder."""
        params = self.get_params().items()
        arguments = {k: v.item() if isinstance(v, np.generic) else v for k, v in params}
        self._model.data_format = {**(self._model.data_format or {}), "arguments": arguments}
        super().save(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """A saved table, or the run of one that `bfn train` trained."""
        table = super().load(folder)
        params = dict((table.model_.data_format or {}).get("arguments", {}))
        if (run := RunFolder(folder)).is_run():
            recipe = run.recipe()
            for section, names in SECTIONS.items():
                values = vars(recipe.train) if section == "train" else getattr(recipe, section)
                params |= {name: values[name] for name in names if name in values}
        return table.set_params(**params)

    # Training.

    def fit(self, table: Any, y: Any = None, *, holdout: Any = None) -> Self:
        """Train on a table; Ctrl-C keeps the best model so far.

        Args:
            table: a DataFrame of pandas or polars, an Arrow table, a dict of arrays, or the path
                of a CSV or Parquet file.
            y: ignored; scikit-learn's pipelines pass it.
            holdout: rows that decide when to stop and are never trained on; by default a twentieth
                of the table, or up to 100 rows if that is more. In rows that you give, a number
                outside the training range counts as the nearest one, and a category unseen in
                training as the rarest.
        """
        from bfn.train import fit

        frame = read(table)
        rows, held = np.arange(len(frame)), None
        if holdout is None:
            rows, held = _split(rows, self.seed)
        # The columns know the values of all rows, so that the table itself can be scored or filled.
        format = TableFormat(Columns.fit(frame, self.columns, self.max_bins))
        codes = format.codes(frame, nearest=True)
        train = codes[rows]
        held = codes[held] if holdout is None else format.codes(holdout, nearest=True)
        splits = {"train": train, "validation": held, "test": held[:0]}
        data = TableRows("the table", format, splits, frame, {"train": rows})
        recipe = fitted(self._recipe(), data)
        model = data.model(recipe)
        try:
            fit(model, data, display=self.display, **vars(recipe.train))
        except Interrupted:
            self.model_ = model
            raise
        self.model_ = model
        return self

    def _recipe(self) -> Recipe:
        """The shipped recipe with these arguments, except for the data."""
        check_number(
            "known", self.known, "a number above 0, at most 1", lambda known: 0 < known <= 1
        )
        sizes = {f"net.{name}": getattr(self, name) for name in SECTIONS["net"]}
        own = {name: getattr(self, name) for name in SECTIONS["train"]}
        recipe = read_recipe("table", sizes)
        return dataclasses.replace(recipe, train=Train.read(vars(recipe.train) | own, {}))

    def __repr__(self) -> str:
        if hasattr(self, "model_"):
            return super().__repr__()
        changed = {k: v for k, v in self.get_params().items() if v != getattr(Table(), k)}
        return f"Table({', '.join(f'{k}={v!r}' for k, v in changed.items())})"


def _split(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on, and a random fraction of them to hold out."""
    N = len(rows)
    held = min(MOST_HELD, max(1, round(HOLDOUT * N), min(LEAST_HELD, N // 5)))
    generator = torch.Generator().manual_seed(noise.seed(seed, "holdout"))
    order = torch.randperm(len(rows), generator=generator).numpy()
    return np.sort(order[held:]), np.sort(order[:held])
