"""A table's rows as examples of mixed data: how they are stored, read and written."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bfn import noise
from bfn.data.formats import Format, Known
from bfn.data.forms import Form
from bfn.device import kept
from bfn.errors import BFNError
from bfn.model import Variable
from bfn.tables import cells
from bfn.tables.columns import Columns
from bfn.tables.columns.column import Column
from bfn.tables.frame import read, write


def variable(column: Column) -> Variable:
    """The variable of a mixed model that a column becomes."""
    if column.ordered:
        return Variable("discretised", K=column.K, head="smooth", spikes=column.spikes)
    return Variable("discrete", K=column.K, head="posterior", inputs="posterior")


@dataclass(frozen=True)
class Codes(Form):
    """The bins and classes of a row's variables, stored as small whole numbers (N, D)."""

    columns: Columns
    name: ClassVar[str] = "codes"
    K = None

    @property
    def kind(self) -> str:
        return "table"

    def encode(self, values: Tensor, generator: noise.Source = None) -> Tensor:
        K, ordered = self._of(values.device)
        return torch.where(ordered, (2.0 * values + 1.0 - K) / K, values.float())

    def decode(self, x: Tensor) -> Tensor:
        K, ordered = self._of(x.device)
        k = torch.where(ordered, (0.5 * K * (x + 1.0)).floor(), x)
        return k.clamp_min(0.0).minimum(K - 1.0).long()

    def check(self, values: Tensor, where: str) -> None:
        """`Columns.encode` made them."""

    @kept
    def _of(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """K of every variable, and whether its bins have an order."""
        variables = self.columns.variables
        K = torch.tensor([float(column.K) for column in variables])
        ordered = torch.tensor([column.ordered for column in variables])
        return K.to(device), ordered.to(device)


@dataclass(frozen=True)
class TableFormat(Format):
    """The format of a row: the columns of its table."""

    columns: Columns
    medium: ClassVar[str] = "table"
    block: ClassVar[int | None] = cells.ROWS

    @property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (len(self.columns.variables),)

    @cached_property
    def form(self) -> Form:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Codes(self.columns)

    @property
    def unit(self) -> str:
        return "nats per row"

    @property
    def laws(self) -> Sequence[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.columns.variables

    def pieces(self, path: Path) -> Iterator[cells.Piece]:
        return cells.pieces(path, self.columns)

    def piece(self, places: np.ndarray, rest: bytes) -> bytes:
        return cells.restore(places, rest, self.columns)

    def codes(
        self,
        source: Any,
        *,
        holes: bool = False,
        given: Collection[str] = (),
        nearest: bool = False,
    ) -> Tensor:
        """A table's rows as stored (N, D); arguments as in `Columns.encode`."""
        codes = self.columns.encode(source, holes, given=given, nearest=nearest)
        return torch.from_numpy(np.stack(list(codes.values()), 1))

    def encode(self, raw: Any, generator: noise.Source = None) -> Tensor:
        return self.form.encode(self.codes(raw))

    def decode(self, x: Tensor, *, seed: int = 0, like: Any = None) -> Any:
        """A table; `like` keeps the values that it has."""
        codes = self.form.decode(x.cpu()).numpy()
        names = [column.name for column in self.columns.variables]
        return self.columns.decode(dict(zip(names, codes.T, strict=True)), seed, like)

    def render(self, x: Tensor) -> Any:
        return self.decode(x)

    def file(self, x: Tensor, *, seed: int = 0, like: Any = None) -> bytes:
        """A table as the content of a CSV file; the arguments are those of `decode`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.csv"
            write(self.decode(x, seed=seed, like=like), path, self.columns.origin.dialect)
            return path.read_bytes()

    def read_example(
        self, what: str, mask: Path | None = None, *, blank: str | None = None, resize: bool = False
    ) -> Known:
        """The rows of a CSV or Parquet file, in which missing values are holes."""
        if mask is not None or blank is not None or resize:
            raise BFNError(
                "the missing values of a table are those to fill in; leave out --mask, --blank and "
                "--resize"
            )
        return self.known(read(what))

    def read_prefix(self, prefix: str) -> Known:
        raise BFNError("a table has no prefix; give column values with --given")

    def known(self, source: Any, given: Collection[str] = ()) -> Known:
        """The rows of a table and which of their values are known: both (N, D).

        Missing values are unknown, except in the given columns, where they are known to be missing.
        """
        codes = self.codes(source, holes=True, given=given)
        return self.form.encode(codes.clamp_min(0)), codes >= 0

    def describe(self) -> dict[str, Any]:
        names = [column.name for column in self.columns.columns]
        return {"medium": self.medium, "names": names, "columns": self.columns.describe()}

    @classmethod
    def build(cls, description: dict[str, Any]) -> TableFormat:
        """The format that `describe` described."""
        return cls(Columns.build(description["columns"]))
