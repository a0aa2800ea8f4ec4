"""CSV files as exact values and what these do not say: any bytes come back."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfn.errors import BFNError
from bfn.tables import cells
from bfn.tables.columns import Columns

ROWS = 300


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    days = pd.to_datetime(19723 + rng.integers(0, 400, ROWS), unit="D")
    word = rng.choice(["red", "green", "dark, blue", 'a "b"'], ROWS).astype(object)
    word[::9] = None
    price = np.rint(rng.gamma(2, 30, ROWS) * 100) / 100
    price[::11] = np.nan
    return pd.DataFrame(
        {
            "whole": np.where(rng.random(ROWS) < 0.5, 0, rng.integers(1, 5000, ROWS)),
            "price": price,
            "real": rng.standard_normal(ROWS),
            "day": days.strftime("%d.%m.%Y"),
            "word": word,
            "rare": [f"w{i // 2}" for i in range(ROWS)],
            "fixed": "same",
            "note": [f"note {i}" for i in range(ROWS)],
        }
    )


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Columns:
    path = tmp_path_factory.mktemp("cells") / "t.csv"
    table().to_csv(path, index=False)
    return Columns.fit(path, {"note": "drop", "rare": "category"})


def kept(raw: bytes, columns: Columns, path: Path) -> list[cells.Piece]:
    """The pieces of a file, which come back byte for byte."""
    path.write_bytes(raw)
    found = list(cells.pieces(path, columns))
    assert b"".join(piece.raw for piece in found) == raw
    assert b"".join(cells.restore(p.places, p.rest, columns) for p in found) == raw
    return found


def written(**options: Any) -> str:
    return table().to_csv(None, index=False, **options)


FILES = {
    "as in training": written(),
    "semicolons": written(sep=";"),
    "everything in quotes": written(quoting=csv.QUOTE_ALL, na_rep="NA"),
    "CRLF": written(lineterminator="\r\n"),
    "no end of the last line": written().rstrip("\n"),
    "a byte-order mark": "\ufeff" + written(),
    "another order of columns": table()[table().columns[::-1]].to_csv(None, index=False),
    "without a header": table().to_csv(None, index=False, header=False),
    "with an index": table().to_csv(None),
    "spaces": written().replace(",", ", ").replace("dark,  ", "dark, "),
    "comments": "# one\n" + written().replace("\n", "\n# two, three\n", 2),
    "three decimals": written(float_format="%.3f"),
    "other words for missing": written(na_rep="n/a"),
}
"""Ways to write the table."""


@pytest.mark.parametrize("name", FILES)
def test_the_usual_ways_to_write_a_table_cost_next_to_nothing(
    name: str, columns: Columns, tmp_path: Path
) -> None:
    (piece,) = kept(FILES[name].encode(), columns, tmp_path / "t.csv")
    assert piece.places.shape == (ROWS, 6)
    more = {"everything in quotes": 2, "with an index": 4, "spaces": 1}.get(name, 0)
    notes = sum(len(note) + 1 + more for note in table()["note"])
    assert len(piece.rest) < notes + 300


def test_exact_values_are_found_in_their_bins(columns: Columns, tmp_path: Path) -> None:
    """The stored values agree with those that the model is trained on."""
    (piece,) = kept(written().encode(), columns, tmp_path / "t.csv")
    codes = columns.encode(tmp_path / "t.csv")
    volume = columns.log_volume(tmp_path / "t.csv")
    for d, column in enumerate(columns.variables):
        pieces, own = column.pieces, column.piece(piece.places[:, d])
        assert np.array_equal(np.searchsorted(pieces.stops, own, "right"), codes[column.name])
        nats = -np.log(pieces.share[own] / pieces.size[own].astype(float))
        np.testing.assert_allclose(nats, volume[:, d], atol=1e-9)
        for share in np.split(pieces.share, pieces.stops[:-1]):
            assert share.sum() == pytest.approx(1)


CELLS = st.one_of(
    st.sampled_from(["0", "17", "-3", "0.0", "1e3", "12.5", "12.50", "99999999", "1e999", "inf"]),
    st.sampled_from(["", "NA", "?", "nan", " ", "red", " red", '"red"', '"dark, blue"', "w3"]),
    st.sampled_from(["03.02.2024", "3.2.2024", "31.02.2024", "same", "other", '"', '5"', '"a""b"']),
    st.sampled_from(['"two\nlines"', "\r", "é", "\0", "007", "9" * 30, ".5", "-0", "+1"]),
    st.text(max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(CELLS, min_size=7, max_size=9), max_size=12),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.binary(max_size=6),
)
def test_any_bytes_come_back(
    columns: Columns,
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[list[str]],
    delimiter: str,
    newline: str,
    ended: bool,
    junk: bytes,
) -> None:
    lines = [delimiter.join(table().columns), *(delimiter.join(row) for row in rows)]
    raw = newline.join(lines).encode("utf-8", "surrogatepass") + newline.encode() * ended + junk
    kept(raw, columns, tmp_path_factory.mktemp("any") / "t.csv")


def test_long_files_are_read_in_pieces(
    columns: Columns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "ROWS", 70)
    raw = written().encode() + b"one, two\n" * 100
    found = kept(raw, columns, tmp_path / "t.csv")
    assert [len(piece.places) for piece in found] == [69, 70, 70, 70, 21, 0]


def test_a_quote_that_is_never_closed_costs_a_few_lines(columns: Columns, tmp_path: Path) -> None:
    lines = written().splitlines(keepends=True)
    lines[10] = lines[10].replace("note ", '"note ')
    raw = "".join(lines + lines[1:] * 9).encode()
    found = kept(raw, columns, tmp_path / "t.csv")
    assert sum(len(piece.places) for piece in found) > 9 * ROWS


def test_files_without_the_columns(columns: Columns, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    table().to_parquet(buffer)
    for raw, message in (
        (table().drop(columns="price").to_csv(None, index=False).encode(), "it lacks 'price'"),
        (b"", "it lacks 'whole', 'price'"),
        (b"\xff\xfe\0", "is not a CSV file with the model's columns"),
        (buffer.getvalue(), "is a Parquet file, whose bytes cannot be restored"),
    ):
        (tmp_path / "t.csv").write_bytes(raw)
        with pytest.raises(BFNError, match=message):
            list(cells.pieces(tmp_path / "t.csv", columns))


def test_forged_bytes_beside_the_values(columns: Columns, tmp_path: Path) -> None:
    (piece,) = kept(written().encode(), columns, tmp_path / "t.csv")
    for rest in (b"", b"\x00", piece.rest[:-1], piece.rest[:30], piece.rest[::-1]):
        with pytest.raises(BFNError, match="do not fit together"):
            cells.restore(piece.places, rest, columns)
    with pytest.raises(BFNError, match="do not fit together"):
        cells.restore(piece.places[:-1], piece.rest, columns)
