"""A table as a data set: its splits, and the model that suits its columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from bfn import noise
from bfn.data.base import SPLITS, Rows, hold_out
from bfn.device import find_device
from bfn.errors import BFNError, check_integer
from bfn.flow import MixedFlow
from bfn.model import BFN, mixed
from bfn.nn.accelerate import cpu_multiplies_bfloat16
from bfn.nn.mlp import MixedMLP
from bfn.output import MixedHead
from bfn.recipe import SUGGESTED, Recipe, Train
from bfn.tables.columns import Columns
from bfn.tables.columns.columns import require_several
from bfn.tables.format import TableFormat, variable
from bfn.tables.frame import Frame, read
from bfn.tables.head import TableHead
from bfn.tables.relations import Pair, Relation, find_pairs, find_relations

CONDITION = 64
"""Length of the embedding of t: one as long as the width makes a step 20% slower."""
MOST_WORK = 2**23
"""Maximum number of bin and class probabilities in a training step, which bounds its time and
memory for tables of hundreds of columns."""
WINDOW = 0.5
"""The time in which a column is sent, or 1 / D if the D columns would leave gaps."""
STEPS, PASSES, LEAST_STEPS = 4000, 64, 400
"""The default of `train.steps`, which stands for at most PASSES passes over the training rows, or
LEAST_STEPS if that is more: a small table is soon memorised, and the learning rate should have
fallen to zero before."""
LEAST_EVERY, ROWS_PER_STEP = 5, 10
"""Small tables soon overfit, so one of N rows is validated every N / 10 steps, but at most every 5
steps."""


def table(
    path: str,
    columns: Mapping[str, str] | None = None,
    max_bins: int = 256,
    validation: float = 0.1,
    test: float = 0.1,
) -> TableRows:
    """The rows of a CSV or Parquet file.

    Args:
        path: the file.
        columns: "number", "category", "ordered", "text-id" or "drop" by column name, to override
            the detected kind: --data.columns.age number, "--data.columns.net worth" number, or for
            a name with a dot '--data.columns."a.b"' number.
        max_bins: approximate maximum number of bins of a numeric column.
        validation: fraction of the rows that decide when training stops.
        test: fraction of the rows to hold out for evaluation.
    """
    frame = read(Path(path).expanduser())
    require_several(frame)  # else there would be none to train on
    rows = hold_out(np.arange(len(frame)), validation, test, "number")
    format = TableFormat(Columns.fit(frame, columns, max_bins, rows["train"]))
    codes = format.codes(frame, nearest=True)
    splits = {split: codes[torch.from_numpy(rows[split])] for split in SPLITS}
    return TableRows(Path(path).name, format, splits, frame, rows)


@final
class TableRows(Rows):
    """The stored rows of a table, and the relations between its columns in training."""

    counted = "row"
    least_validation = 1024

    def __init__(
        self,
        name: str,
        format: TableFormat,
        splits: Mapping[str, Tensor],
        frame: Frame,
        numbers: Mapping[str, np.ndarray],
    ) -> None:
        """`numbers` has the row numbers of each split."""
        super().__init__(name, format, splits)
        self.columns, self._frame, self._numbers = format.columns, frame, numbers
        self.relations, self._repeating = find_relations(
            frame, format.columns, splits["train"].numpy(), numbers["train"]
        )
        self.pairs = find_pairs(format.columns, splits["train"].numpy())

    def rows(self, split: str) -> Frame:
        """The rows of a split as a table."""
        self._count(split)
        return self._frame.take(self._numbers[split])

    def adjusted(self, train: Train) -> Train:
        """Smaller batches for a small or wide table, more validations for a small one, and
        bfloat16 on a CPU with instructions for it, which nearly halve the time of a step.

        Unless the user chose a number of steps, fewer for a small table, and hardly any for a
        single column, which its frequencies already describe."""
        N, classes = len(self.split("train")), sum(c.K for c in self.columns.variables)
        every = min(train.validate_every, max(LEAST_EVERY, N // ROWS_PER_STEP))
        most = max(1, min(N, MOST_WORK // classes))
        # A power of two can be divided among processes.
        batch = train.batch if train.batch <= most else 2 ** (most.bit_length() - 1)
        known, steps, single = train.known, train.steps, len(self.columns.variables) == 1
        if single:
            known = 0.0
        if steps == STEPS:
            steps = 1 if single else min(steps, max(LEAST_STEPS, PASSES * N // batch))
        on_cpu = find_device(train.device).type == "cpu"
        fast = train.precision == "auto" and on_cpu and cpu_multiplies_bfloat16()
        precision = "bfloat16" if fast else train.precision
        return dataclasses.replace(
            train,
            batch=batch,
            validate_every=every,
            precision=precision,
            known=known,
            steps=steps,
        )

    def model(self, recipe: Recipe) -> BFN:
        for key, value in (("net.class", recipe.net["class"]), ("flow.kind", recipe.flow["kind"])):
            if value != SUGGESTED:
                raise BFNError(
                    f"{key} cannot be set for tables, whose columns determine it; leave it out"
                )
        given = {key: value for key, value in recipe.net.items() if key != "class"}
        for key in given:
            if key not in ("width", "layers"):
                raise BFNError(
                    f"net.{key} cannot be set for tables; only net.width and net.layers can"
                )
        sizes = {key: check_integer(f"net.{key}", value, 1) for key, value in given.items()}
        sizes["seed"] = recipe.train.seed
        at_once = bool(self._repeating)
        return build(self.columns, self.relations, self.pairs, at_once=at_once, **sizes)


def in_turn(flow: MixedFlow, turns: np.ndarray) -> MixedFlow:
    """The flow with its variables sent one after another, each within its own window of time.

    If all were sent alike, a price would be decided while carat and clarity are as uncertain as the
    price itself. How sharply they determine it would be worth little at any one time, and a network
    would learn it slowly.

    But a table in which a column repeats another one, as payments repeat earlier bills, must be
    sent all at once. If a bill is known while the payment is still uncertain, the payment has a
    narrow peak among all other amounts, which the head cannot express; if both are equally
    uncertain, no peak is narrow.

    Args:
        turns: the turn of each variable, from 0.
    """
    D = len(flow.flows)
    length = max(WINDOW, 1.0 / D)
    starts = np.linspace(0.0, 1.0 - length, D)[turns].tolist()
    pairs = zip(flow.flows, starts, strict=True)
    own = tuple(each.windowed(start, min(1.0, start + length)) for each, start in pairs)
    return dataclasses.replace(flow, flows=own)


def build(
    columns: Columns,
    related: tuple[Relation, ...] = (),
    pairs: tuple[Pair, ...] = (),
    *,
    at_once: bool = False,
    width: int = 256,
    layers: int = 4,
    seed: int = 0,
) -> BFN:
    """An untrained model of a table: independent columns while the network outputs zeros.

    The columns are sent in turn, or at once.
    """
    model = mixed(nn.Identity(), {column.name: variable(column) for column in columns.variables})
    assert isinstance(model.flow, MixedFlow)
    # Columns with missing values come first: when they are imputed, they are not missing, and the
    # others must know that. Classes come before numbers, which they often split into groups.
    late = [2 * (not column.missing) + column.ordered for column in columns.variables]
    if not at_once:
        model.flow = in_turn(model.flow, turns=np.argsort(np.argsort(late, stable=True)))
    assert isinstance(model.head, MixedHead)
    model.head = TableHead(model.flow, model.head.heads, related, pairs)
    names, shape = model.flow.layout.names, (1, *model.flow.shape)
    seen = model.head.features(model.flow, model.flow.prior(shape))
    inputs: dict[str, Any] = {name: tuple(seen[name].shape[1:]) for name in names}
    with torch.random.fork_rng([]):
        torch.manual_seed(noise.seed(seed, "weights"))
        net = MixedMLP(
            inputs, model.head.numbers, width=width, layers=layers, known=True, condition=CONDITION
        )
    nn.init.zeros_(net.readout.weight)
    nn.init.zeros_(net.readout.bias)
    model.net = net
    return model
