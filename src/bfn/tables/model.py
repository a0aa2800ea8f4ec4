"""What a model of a table can do: sample, impute, predict, score and save."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from bfn import noise
from bfn.data.formats import Known
from bfn.device import over_rows
from bfn.errors import BFNError, check_integer, join_names, plural
from bfn.flow import Theta
from bfn.guidance import Pinned, Wrapper
from bfn.model import BFN
from bfn.output import MixedOutput, Output
from bfn.output.base import by_part
from bfn.sampling.batches import in_batches
from bfn.tables.columns import Columns
from bfn.tables.columns.column import Number
from bfn.tables.format import TableFormat
from bfn.tables.frame import Frame, read
from bfn.tables.head import add_logits

NEVER = -1e4
"""The logit of an impossible value."""
BATCH = 4096
"""Rows to predict or score per batch, if memory holds them."""


class Estimate(NamedTuple):
    """A number for each row, or for each value (N, D), and the standard error of each row."""

    value: Any
    error: Any


class TableModel:
    """A fitted table; `bfn.Table` adds fitting, which commands that use a model do not load."""

    model_: BFN

    @property
    def _model(self) -> BFN:
        if not hasattr(self, "model_"):
            raise BFNError("the table has not been fitted; call fit(df) or Table.load first")
        return self.model_

    @property
    def _format(self) -> TableFormat:
        description = self._model.data_format
        assert description is not None
        if not hasattr(self, "_read") or self._read[0] is not description:
            self._read = description, TableFormat.build(description)
        return self._read[1]

    @property
    def _present(self) -> Present:
        """The model without missing values, for imputing and predicting."""
        return Present(self._model, self._format.columns)

    # What the model can do.

    def sample(
        self,
        n: int,
        given: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        steps: int = 100,
        batch: int = 2048,
        **options: Any,
    ) -> Any:
        """n new rows, as a table of the type that was fitted.

        Args:
            given: values by column, one for all rows or one for each; None for a missing value.
            seed: random seed for the noise.
            steps: Bayesian updates; more are slower and closer to the model.
            batch: rows per batch.
            options: of `bfn.generate`, such as solver.
        """
        n, given = check_integer("n", n, 1), {} if given is None else given
        if not isinstance(given, Mapping):
            raise BFNError(f"given = {given!r}; expected a dict, as in given={{'sex': 'Male'}}")
        like = self.columns_.rows(given, n)
        x = self._draw(*self._known(like, given), seed, steps, batch, **options)
        return self._format.decode(x, seed=seed, like=like)

    def impute(
        self,
        table: Any,
        *,
        n: int | None = None,
        final: Literal["sample", "mode"] = "sample",
        seed: int = 0,
        steps: int = 100,
        batch: int = 2048,
        **options: Any,
    ) -> Any:
        """The table with its missing values filled in; all others stay as they are.

        Args:
            n: number of different imputations to return as a list; by default a single table.
            final: "sample" draws missing values, "mode" takes the most probable ones in the end.
            seed, steps, batch, options: as in `sample`.
        """
        if final not in ("sample", "mode"):
            raise BFNError(f"final = {final!r}; expected 'sample' or 'mode'")
        frame = read(table).typed(self.columns_.types)
        x, mask = self._known(frame)
        holes = ~mask.all(1)
        drawn = []
        for i in range(check_integer("n", 1 if n is None else n, 1)):
            filled = x.clone()
            if holes.any():
                own = noise.seed(seed, "imputation", i) if i else seed
                filled[holes] = self._draw(
                    x[holes], mask[holes], own, steps, batch, final, present=True, **options
                )
            drawn.append(self._format.decode(filled, seed=seed + i, like=frame))
        return drawn[0] if n is None else drawn

    def _known(self, frame: Frame, given: Collection[Any] = ()) -> Known:
        """The rows of a table and which values are known, with a warning if any are replaced."""
        known = self._format.known(frame, [str(name) for name in given])
        self._warn_replaced(frame, self.columns_.impossible(frame, holes=True))
        return known

    def _draw(
        self,
        x: Tensor,
        mask: Tensor,
        seed: int,
        steps: int,
        batch: int,
        final: str = "sample",
        present: bool = False,
        **options: Any,
    ) -> Tensor:
        """The rows x (N, D), with new values where they are not known."""
        model, x = self._present if present else self._model, x.clone()
        options = {"solver": "sde2", "final": final, "batch": batch, **options}
        # A single missing value follows the network's output at t = 0.
        one = (~mask).sum(1) == 1 if present else torch.zeros(len(x), dtype=torch.bool)
        if one.any():
            x[one] = self._completed(model, x[one], mask[one], seed, batch, final)
        several = (~mask).any(1) & ~one
        if several.any():
            rest = x[several], mask[several]
            if rest[1].any():
                options |= {"known": rest, "observed": "learned"}
            drawn = in_batches(model, len(rest[0]), self._format.shape, steps, seed=seed, **options)
            x[several] = self._model.pack(drawn)
        return x

    def _completed(
        self, model: BFN | Present, x: Tensor, mask: Tensor, seed: int, batch: int, final: str
    ) -> Tensor:
        def complete(rows: Tensor, x: Tensor, mask: Tensor) -> Tensor:
            output = _at_start(model, x, mask)
            keys = noise.Keyed([noise.seed(seed, "one", i) for i in rows.tolist()])
            return output.mode() if final == "mode" else output.sample(keys)

        with model.evaluating():
            return over_rows(batch, complete, torch.arange(len(x)), x, mask)

    def predict_proba(self, table: Any, target: str, *, batch: int = BATCH) -> np.ndarray:
        """The probabilities of the target's classes or bins, given the other columns: (N, K).

        `classes(target)` lists the corresponding values. Missing values of other columns are
        treated as unknown, which the network was trained for, rather than averaged over.
        """
        model, format = self._model, self._format
        column = format.columns[target]
        frame = read(table).without(column.name).typed(format.columns.types)
        if column.K < 2:
            return np.ones((len(frame), 1))
        place = format.columns.variables.index(column)
        x, mask = self._known(frame)

        def logits(x: Tensor, mask: Tensor) -> Tensor:
            return _at_start(self._present, x, mask).each()[place].law().logits

        with model.evaluating():
            p = torch.softmax(over_rows(batch, logits, x, mask).double(), -1)
        return p[:, : column.K - column.missing].numpy()

    def classes(self, target: str) -> list[Any]:
        """The values for the columns of `predict_proba`: one of each class or bin."""
        return self._values(target).to_pylist()

    def _values(self, target: str) -> Any:
        """A value of each class or bin except that of missing values, as an Arrow array."""
        column = self._format.columns[target]
        return column.representatives()[: column.K - (column.missing and column.K > 1)]

    def predict(self, table: Any, target: str) -> np.ndarray:
        """The most probable class of the target, or the median of its numbers, for each row."""
        column, p = self._format.columns[target], self.predict_proba(table, target)
        if column.ordered:
            k = (p.cumsum(1) < 0.5).sum(1).clip(0, p.shape[1] - 1)
        else:
            k = p.argmax(1)
        return self._values(target).to_numpy(zero_copy_only=False)[k]

    def log_prob(
        self,
        table: Any,
        *,
        given: Sequence[str] = (),
        by_column: bool = False,
        draws: int = 8,
        seed: int = 0,
        nearest: bool = False,
    ) -> Estimate:
        """A lower bound on the log probability of every row, in nats, and its standard error.

        It is -inf, with a warning, for rows with a value that the model cannot produce, such as a
        number outside the training range or a category that did not occur in training.

        Args:
            given: columns to condition on; the bound is then that of the others.
            by_column: return the terms of the D columns of `columns_.columns` separately, (N, D).
            draws: random times per row, at least 2; the error falls with their square root.
            seed: random seed for times and noise; other draws if memory forces smaller batches.
            nearest: score the nearest number that the model can produce instead of one that it
                cannot, and the rarest category instead of one that did not occur in training.
        """
        draws = check_integer("draws", draws, 2)
        given = [given] if isinstance(given, str) else given
        format, frame, model = self._format, read(table), self._model
        x = format.form.encode(format.codes(frame, nearest=True))
        fixed = {format.columns[name].name for name in given}
        for name in fixed.intersection(frame.names):  # refuses new categories
            format.columns[name].encode(frame.column(name), nearest=nearest)
        free = np.array([column.name not in fixed for column in format.columns.variables])
        wrong = {} if nearest else format.columns.impossible(frame)
        self._warn_replaced(frame, {name: rows for name, rows in wrong.items() if name in fixed})
        wrong = {name: rows for name, rows in wrong.items() if name not in fixed}
        if wrong:
            count = len(np.unique(np.concatenate(list(wrong.values()))))
            warnings.warn(
                f"the log probability of {plural(count, 'row')} is -inf, because the model cannot "
                f"produce {self._count_by_column(frame, wrong)}; nearest=True scores the nearest "
                "numbers and the rarest categories instead",
                stacklevel=2,
            )

        def with_error(rows: Tensor, x: Tensor) -> Tensor:
            known = torch.from_numpy(~free).to(model.device).expand(x.shape)
            bounds = bound(model, x.to(model.device), known, draws, noise.seed(seed, int(rows[0])))
            return torch.cat([bounds.value, bounds.error[:, None]], 1)

        costs = over_rows(BATCH, with_error, torch.arange(len(x)), x).double().numpy()
        cost, error = costs[:, :-1], costs[:, -1]
        cost = cost + format.columns.log_volume(frame, nearest=True) * free
        terms = self._by_column(-cost, wrong)
        return Estimate(terms if by_column else terms.sum(1), error)

    def independent(self, table: Any, *, nearest: bool = False) -> np.ndarray:
        """The log probability of every value under the marginal of its column: (N, D)."""
        format, frame = self._format, read(table)
        x = format.form.encode(format.codes(frame, nearest=True))
        cost = over_rows(
            BATCH, lambda x: independent_cost(self._model, x.to(self._model.device)), x
        )
        wrong = {} if nearest else format.columns.impossible(frame)
        cost = cost.double().numpy()
        return self._by_column(-cost - format.columns.log_volume(frame, nearest=True), wrong)

    def _warn_replaced(self, frame: Frame, wrong: Mapping[str, np.ndarray]) -> None:
        """Warn of values that are not used as they are, given the row numbers by column."""
        if wrong:
            are_numbers = [isinstance(self.columns_[name], Number) for name in wrong]
            uses = ["the nearest numbers are used instead"] * any(are_numbers)
            uses += ["new categories count as unknown"] * (not all(are_numbers))
            warnings.warn(
                f"the model cannot produce {self._count_by_column(frame, wrong)}; "
                f"{' and '.join(uses)}",
                stacklevel=3,
            )

    def _count_by_column(self, frame: Frame, wrong: Mapping[str, np.ndarray]) -> str:
        """A count of each column's wrong values, given their row numbers, with one example and the
        nearest value that the model can produce."""
        parts = []
        for name, rows in wrong.items():
            value, column = frame.column(name).slice(rows[0], 1), self.columns_[name]
            near = ""
            if isinstance(column, Number) and value[0].is_valid:
                near = f" (nearest: {column.nearest(value)[0]})"
            parts.append(f"{plural(len(rows), 'value')} of {name!r} such as {value[0]}{near}")
        return join_names(parts)

    def _by_column(self, found: np.ndarray, wrong: Mapping[str, np.ndarray]) -> np.ndarray:
        """The variables' log probabilities, with 0 for constant columns and -inf where a value is
        wrong."""
        columns = self.columns_
        places = {column.name: i for i, column in enumerate(columns.columns)}
        every = np.zeros((len(found), len(places)))
        every[:, [places[column.name] for column in columns.variables]] = found
        for name, rows in wrong.items():
            every[rows, places[name]] = -np.inf
        return every

    def compress(self, file: str | Path, out: str | Path, *, steps: int = 25) -> int:
        """Compress a CSV file losslessly, as `bfn compress` does; returns the archive's size.

        Args:
            file: with the columns of the table that was fitted.
            out: the archive; an existing file is replaced.
            steps: messages about each row; more are slower and need fewer bits.
        """
        from bfn.codec.pack import pack

        pack(self._model, self._format, [Path(file)], Path(out), steps=steps)
        return Path(out).stat().st_size

    def decompress(self, archive: str | Path, folder: str | Path) -> None:
        """Restore the file of an archive, with its name and byte for byte, into a folder."""
        from bfn.codec.archive import Archive
        from bfn.codec.pack import unpack

        opened = Archive.read(Path(archive))
        unpack(opened, self._model, self._format, Path(folder), run="the table")

    def save(self, folder: str | Path) -> None:
        """Write the model and its columns to a folder."""
        self._model.save_pretrained(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """A saved table, or the run of one that `bfn train` trained."""
        model = BFN.from_pretrained(folder)
        if (model.data_format or {}).get("medium") != "table":
            raise BFNError(f"the model in {str(folder)!r} is not a model of a table")
        return cls.of(model)

    @classmethod
    def of(cls, model: BFN) -> Self:
        """A trained model of a table, as `bfn train` makes one."""
        table = cls()
        table.model_ = model
        return table

    @property
    def columns_(self) -> Columns:
        """How the columns of the fitted table are modelled."""
        return self._format.columns

    def __repr__(self) -> str:
        numbers = sum(p.numel() for p in self._model.net.parameters())
        return f"{type(self).__name__} of {numbers:,} parameters and {self.columns_!r}"


def _at_start(model: BFN | Present, x: Tensor, mask: Tensor) -> Any:
    """The output at t = 0, given only the known values."""
    x, mask = x.to(model.device), mask.to(model.device)
    t = torch.zeros(len(x), device=x.device)
    theta = model.flow.prior(x.shape, device=x.device)
    # A model of a single column was never trained with known values.
    return Pinned(model, x, mask, "learned")(theta, t) if mask.any() else model(theta, t)


def independent_cost(model: BFN, x: Tensor) -> Tensor:
    """-ln p(x_d) of every value: what independent variables would cost, (N, D)."""
    with model.evaluating():
        zeros = x.new_zeros(model.head.output_shape(tuple(x.shape)))
        nothing, start = model.flow.prior(x.shape, device=x.device), x.new_zeros(len(x))
        return -by_part(model.output(zeros, nothing, start).log_prob(x))


def bound(model: BFN, x: Tensor, known: Tensor, draws: int, seed: int) -> Estimate:
    """The cost in nats of every value of the rows x, (N, D), given the known values, which cost 0.

    L^inf + L^r is estimated at random times, at which a fine column of numbers costs either very
    little or very much. But with posterior heads, a network that outputs zeros is the exact model
    of independent variables, whose cost is known: -ln p(x_d) for every x. So only the difference
    from it is estimated, at the same times and from the same messages:

        -ln p(x)  <=  sum_d -ln p(x_d) + E[cost of the network's outputs - cost of the posteriors]

    Args:
        known: true where a value is given, (N, D).
        draws: random times per row.
    """
    with model.evaluating():
        seen = model
        if known.any() and not known.all():
            seen = Pinned(model, x, known, "learned")
        zeros = x.new_zeros(model.head.output_shape(tuple(x.shape)))
        keys = torch.Generator(x.device).manual_seed(noise.seed(seed, "bound"))
        u = noise.uniform((len(x),), keys, device=x.device)
        costs = []
        for i in range(draws):
            t = (u + i) / draws
            theta, alpha = model.flow.sample(x, t, keys), model.flow.schedule.alpha(t)
            rates = seen(theta, t).rate(x, alpha) - model.output(zeros, theta, t).rate(x, alpha)
            end = torch.ones_like(t)
            theta = model.flow.sample(x, end, keys)
            left = seen(theta, end).reconstruction(x)
            left = left - model.output(zeros, theta, end).reconstruction(x)
            costs.append((by_part(rates) + by_part(left)) * ~known)
        differences = torch.stack(costs)
        error = differences.sum(2).std(0) / draws**0.5
        return Estimate(independent_cost(model, x) * ~known + differences.mean(0), error)


class Present(Wrapper):
    """A model of a table without missing values, each the last class of its column; for imputing
    and predicting."""

    def __init__(self, model: BFN | Wrapper, columns: Columns) -> None:
        super().__init__(model)
        self.names = {column.name for column in columns.variables if column.missing}

    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        output = self.model(theta, t, **cond)
        assert isinstance(output, MixedOutput)
        parts = {
            name: _without_last(part) if name in self.names else part
            for name, part in output.parts.items()
        }
        return MixedOutput(parts, output.flow)


def _without_last(output: Output) -> Output:
    never = torch.zeros_like(output.law().logits)  # pyright: ignore[reportAttributeAccessIssue]
    never[..., -1] = NEVER
    return add_logits(output, never)
