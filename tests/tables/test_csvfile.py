"""CSV files: how they are read, written again byte for byte, and the messages about broken ones."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from bfn.errors import BFNError
from bfn.tables.csvfile import HEAD, Dialect, fill_csv, read_csv, write_csv

FILES = {
    "with a header": "age,name,size\n39,Ann,1.5\n4,Bo,2\n",
    "without one": "39,Ann,1.5\n4,Bo,2\n5,Bo,1\n",
    "words only, without a header": "a,b\na,c\nd,b\n",
    "spaces and question marks": "39, Ann, 1.5\n4, ?, 2\n?, Bo, 3\n",
    "semicolons and carriage returns": "a;b\r\n1;x,y\r\n2;z\r\n",
    "tabs": "a\tb\n1\tx\n2\ty\n",
    "all text in quotes": '"a","b"\n1,"x"\n2,"y, ""z"""\n',
    "quotes where needed": 'a,b\n1,x\n2,"y, ""z"""\n3,"two\nlines"\n',
    "two decimals": "a,b\n1.50,x\n12.00,y\n-0.25,z\n",
    "at least one decimal": "a,b\n55.0,1\n61.5,2\n0.125,3\n",
    "codes": "code,n\n007,1\n012,2\n",
    "words for missing": "a,b\nNA,x\n1,NA\n2,y\n",
    "scientific": "a,b\n1e-7,x\n1.5,y\n",
    "one column": "a\n1\n2\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_written_as_it_was(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(FILES[name].encode())
    table, dialect = read_csv(path)
    write_csv(table, tmp_path / "again.csv", dialect)
    assert (tmp_path / "again.csv").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("a,b\n0.0,x\n0,\n1.50,y\n,z\n", "a,b\n0.0,x\n0,x\n1.50,y\n0,z\n"),
        ('a,b\r\n1e5,"x"\r\n+0.0,?\r\n', 'a,b\r\n1e5,"x"\r\n+0.0,"x"\r\n'),
        ("39, Ann\n4, ?\n?, Bo\n5, Bo", "39, Ann\n4, Ann\n39, Bo\n5, Bo"),
        ('a;b\n"1";"x;\ny"\n2;\n3;"u ""v"""\n', 'a;b\n"1";"x;\ny"\n2;"x;\ny"\n3;"u ""v"""\n'),
        ("\ufeffa|b|\n1||x\n\n007|y|NA\n", "\ufeffa|b|\n1|y|x\n\n007|y|x\n"),
    ],
)
def test_filled_files_keep_every_cell_as_it_was(text: str, filled: str, tmp_path: Path) -> None:
    """Each hole is filled with the first value of its column."""
    path, out = tmp_path / "t.csv", tmp_path / "out.csv"
    path.write_text(text, encoding="utf-8", newline="")
    holes, dialect = read_csv(path)
    columns = [column.fill_null(column.drop_null()[0]) for column in holes.columns]
    table = pa.table(columns, names=holes.column_names)
    fill_csv(path, holes, table, dialect, out)
    assert out.read_bytes().decode() == filled


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("a,b,c\n1,1.50,007\n-2,,012\n", {"a": [1, -2], "b": [1.5, None], "c": ["007", "012"]}),
        ("39, ?\n40, x\n41, x\n", {"column_1": [39, 40, 41], "column_2": [None, "x", "x"]}),
        (",a\n0,x\n1,y\n", {"column_1": [0, 1], "a": ["x", "y"]}),
        ("n;2019;2020\n7;1;2\n8;3;4\n", {"n": [7, 8], "2019": [1, 3], "2020": [2, 4]}),
        ("\ufeffa,b\n1,x\n", {"a": [1], "b": ["x"]}),
        ("1,2\n5,x\n6,y\n", {"1": [5, 6], "2": ["x", "y"]}),
        ("0,1,2\n5,6,7\n6,0,1\n", {"0": [5, 6], "1": [6, 0], "2": [7, 1]}),
        (f"a,b\n{2**63 - 1},{2**63}\n1,1\n", {"a": [2**63 - 1, 1], "b": [str(2**63), "1"]}),
    ],
)
def test_what_is_read(text: str, columns: dict[str, list[object]], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("t.csv", "t.csv.gz"):
        assert read_csv(tmp_path / name)[0].to_pydict() == columns


def test_long_cells_are_read(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    text = "many, many words\n" * 200_000
    (tmp_path / "t.csv").write_text(f'n,text\n1,"{text}"\n2,few\n', newline="")
    assert read_csv(tmp_path / "t.csv")[0].to_pydict() == {"n": [1, 2], "text": [text, "few"]}
    assert csv.field_size_limit() == limit < len(text)


def test_the_line_in_which_the_head_ends_is_not_looked_at(tmp_path: Path) -> None:
    """The text is not ASCII, so that the head has fewer characters than bytes."""
    line = "39, Zoë\n".encode()
    begin = b"age, name\n" + line * ((HEAD - 20) // len(line))
    # The head ends right after the comma of a line, which hides the space that follows.
    begin += b"1" * (HEAD - len(begin) - 1) + b","
    assert len(begin) == HEAD
    (tmp_path / "t.csv").write_bytes(begin + " Zoë\n".encode())
    table, dialect = read_csv(tmp_path / "t.csv")
    assert dialect.space
    assert table["age"].to_pylist()[:-1] == [39] * (table.num_rows - 1)
    assert table["name"].to_pylist() == ["Zoë"] * table.num_rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no rows"),
        (b"a,b", "holds no rows; expected a header and at least one row"),
        (b"PK\0\0", "is not text; expected a CSV or Parquet file"),
        (b"PK\x03\x04\x14", "is a workbook or another archive; save the table as CSV"),
        ("a,b\n1,2\n".encode("utf-16"), "is in UTF-16; save it in UTF-8"),
        ("a,b\n1,2\n".encode("utf-16-be"), "is in UTF-16; save it in UTF-8"),
        (b'[{"a": 1}, {"a": 2}]', "is JSON, HTML or XML; save the table as CSV"),
        (b"<!DOCTYPE html>\n<html>", "is JSON, HTML or XML; save the table as CSV"),
        (b"a b\n1 2\n3 4\n", "seem to be separated by spaces; separate them by commas"),
        (b"a,b\n1,2\n3,4,5\n6,7\n", "line 3 of .* has 3 values, expected 2: '5' is beyond column"),
        (b"a,b\n1,2\n3,4\n5\n", "line 4 of .* has 1 value, expected 2: column 'b' is the first"),
        (b"|1x3 Cross validator\n1,2\n3,4\n", "line 1 of .* has 1 value, but most lines have 2"),
        (b"a,b\nx,y\nx,caf\xe9\n", "line 3, column 'b' of .* is not UTF-8"),
        (b"a,gr\xf6\xdfe\n1,2\n3,4\n", "line 1, column 'gr\ufffd\ufffde' of .* is not UTF-8"),
        (b"gr\xf6,\xef\xbf\xbd\n1,2\n3,4\n", "line 1, column 'gr\ufffd' of .* is not UTF-8"),
        (b"a,a\n1,2\n3,4\n", "more than one column called 'a'"),
        (b'a,b\n1,"x"\n2,"y\n3,z\n', "line 3 of .* opens a quote but never closes it"),
        (b'a,b\n1,"x\n' + b"3,z\n" * 50_000, "line 2 of .* opens a quote but never closes it"),
        (b'a,b\n1,x"y\rz"y\n2,3,4\n', "line 4 of .* has 3 values, expected 2"),
        (b"a,b\n1,2\n3," + b"x" * 2**25, "a line of .* is longer than 16 MiB; shorten it"),
    ],
)
def test_broken_files_get_a_sentence(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(BFNError, match=message):
        read_csv(tmp_path / "t.csv")


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n")
    table = pa.table({"a": [1], "b": [[1, 2]]})  # lists cannot be written as CSV
    with pytest.raises(pa.ArrowNotImplementedError):
        write_csv(table, path, Dialect())
    assert path.read_text() == "a\n1\n"
    assert list(tmp_path.iterdir()) == [path]
