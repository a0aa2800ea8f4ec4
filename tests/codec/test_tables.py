"""Tables as files: CSV comes back byte for byte, and costs what the model says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import bfn
from bfn.codec import Codec
from bfn.codec.archive import Archive
from bfn.codec.pack import codec_for, pack, unpack
from bfn.codec.stack import Exact, constriction
from bfn.tables.columns import Columns
from bfn.tables.format import TableFormat
from bfn.tables.source import build


def rows(n: int, seed: int = 0) -> pd.DataFrame:
    """Numbers with spikes and gaps, one that nearly repeats another, dates, words, and holes."""
    rng = np.random.default_rng(seed)
    bill = np.where(rng.random(n) < 0.3, 0, rng.lognormal(7, 1, n).astype(int))
    word = rng.choice(["red", "green", "blue"], n, p=[0.6, 0.3, 0.1]).astype(object)
    word[rng.random(n) < 0.1] = None
    return pd.DataFrame(
        {
            "bill": bill,
            "paid": bill + rng.integers(1, 50, n),
            "real": np.where(rng.random(n) < 0.2, np.nan, rng.standard_normal(n)),
            "word": word,
            "day": pd.to_datetime(19723 + bill % 90, unit="D").strftime("%F"),
            "old": rng.choice(["yes", "no"], n),
            "fixed": 7,
        }
    )


def write(table: pd.DataFrame, name: str | Path) -> None:
    table.to_csv(name, index=False)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with relations between columns, which are sent in turn, hardly trained."""
    folder = tmp_path_factory.mktemp("tables")
    write(rows(800), folder / "t.csv")
    table = bfn.Table(steps=4, width=16, layers=1, batch=64, display=False)
    table.fit(folder / "t.csv").save(folder / "run")
    flow, head = table.model_.flow, table.model_.head
    assert head.relations  # pyright: ignore[reportAttributeAccessIssue]
    assert all(isinstance(each.schedule, bfn.Windowed) for each in flow.flows)  # pyright: ignore[reportAttributeAccessIssue]
    return folder / "run"


def test_tables_come_back(
    run: Path, command: Callable[..., str], comes_back: Callable[..., str]
) -> None:
    write(rows(80, 1), "a.csv")
    odd = rows(20, 2).astype({"bill": object, "word": object})
    odd.loc[3, "bill"], odd.loc[5, "word"], odd.loc[7, "fixed"] = 10**9, "yellow", 8
    odd.to_csv("b.csv", sep=";", lineterminator="\r\n", na_rep="NA")
    Path("c.csv").write_bytes(b"\xef\xbb\xbf" + Path("a.csv").read_bytes()[:1000])
    names = ("a.csv", "b.csv", "c.csv")
    assert "bits per value in 1" in comes_back(run, *names, options=("--steps", 2))
    assert "bits/value" in command("inspect", "x.bfn")
    archive = Path("x.bfn").read_bytes()
    command("decompress", "x.bfn", "--run", run, "-o", "one", "--only", "c.csv")
    assert Path("one/c.csv").read_bytes() == Path("c.csv").read_bytes()
    for block in (1, 7, 20):
        comes_back(run, "c.csv", options=("--block", block, "--steps", 1))
    comes_back(run, *names, options=("--steps", 2))
    assert Path("x.bfn").read_bytes() == archive


def test_files_that_do_not_fit(run: Path, is_refused: Callable[..., None]) -> None:
    rows(20).drop(columns="word").to_csv("a.csv", index=False)
    rows(20).to_parquet("b.parquet")
    Path("c.csv").write_bytes(b"")
    is_refused(run, "a.csv", "'a.csv' is not a CSV file with the model's columns: it lacks 'word'")
    is_refused(run, "b.parquet", "is a Parquet file, whose bytes cannot be restored exactly")
    is_refused(run, "c.csv", "'c.csv' is not a CSV file")


def test_a_table_compresses_from_python(run: Path, tmp_path: Path) -> None:
    write(rows(20, 1), tmp_path / "a.csv")
    table = bfn.Table.load(run)
    size = table.compress(tmp_path / "a.csv", tmp_path / "a.bfn", steps=2)
    assert size == (tmp_path / "a.bfn").stat().st_size
    # A saved model also holds the arguments of its table, which say nothing of the rows.
    table.set_params(batch=7).save(tmp_path / "saved")
    for name, each in (("out", table), ("loaded", bfn.Table.load(tmp_path / "saved"))):
        each.decompress(tmp_path / "a.bfn", tmp_path / name)
        assert (tmp_path / name / "a.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()


def test_forged_rows_are_refused(run: Path, tmp_path: Path) -> None:
    model = bfn.BFN.from_pretrained(run)
    format = TableFormat.build(model.data_format or {})
    write(rows(5), tmp_path / "a.csv")
    archive = pack(model, format, [tmp_path / "a.csv"], tmp_path / "a.bfn", steps=1)
    contents, (entry,) = archive.contents, archive.contents.entries
    forgeries = [(b"\xc1", [[5, 1]]), (archive.plain, [[5, -1]]), (archive.plain, [["x", 3]])]
    (_, *layout), lines, columns = msgpack.unpackb(archive.plain)
    number = msgpack.packb([[5, *layout], lines, columns[:1]])  # in place of a delimiter
    for rest, about in (*forgeries, (number, [[5, len(number)]])):
        forged = replace(contents, entries=[replace(entry, plain=len(rest), about=about)])
        with pytest.raises(bfn.BFNError, match="does not decode to the original"):
            unpack(Archive.of(forged, archive.blocks, rest), model, format, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("block", "examples", "lanes"),
    [(1, 1, 1), (40, 10**6, 16), (2000, 10**6, 16), (1 << 16, 1 << 16, 1)],
)
def test_long_blocks_are_coded_many_rows_at_a_time(
    run: Path, block: int, examples: int, lanes: int
) -> None:
    """Part of the file format: both sides derive lanes and width from the same numbers."""
    model = bfn.BFN.from_pretrained(run)
    codec = codec_for(model, TableFormat.build(model.data_format or {}), 2, block, examples)
    fair = 34 * max(1.0, codec.chain.startup_bits() / codec.chain.even_bits)
    assert (codec.lanes, codec.width) == (lanes, min(256, max(1, int(block / fair))))
    assert (codec.width > 1) == (block > 100)


# What it costs.


def silent(table: pd.DataFrame) -> tuple[bfn.BFN, TableFormat]:
    """The exact model of independent columns."""
    format = TableFormat(Columns.fit(table))
    model = build(format.columns, (), width=8, layers=1, seed=0)
    model.head = model.head.fitted(format.encode(table))
    return model, format


def test_exact_values_cost_what_their_law_says() -> None:
    """From bins of single values to all reals, of which there are 2^50 in a bin."""
    rng = np.random.default_rng(0)
    n = 3000
    table = {
        "spikes": np.where(rng.random(n) < 0.7, 0, rng.integers(0, 10**6, n)),
        "real": rng.standard_normal(n) * np.exp(rng.standard_normal(n)),
        "huge": rng.integers(-(10**17), 10**17, n),
        "word": rng.permutation([f"w{i}" for i in range(1500)] * 2),
    }
    columns = Columns.fit(table, {"word": "category"})
    new = columns.decode(columns.encode(table), seed=1)
    text = {
        name: pa.array(map(str, values.tolist()), "large_string") for name, values in new.items()
    }
    places = np.stack([c.places(text[c.name])[0] for c in columns.variables], 1)
    exact, coder = Exact(columns.variables), constriction().stack.AnsCoder()
    exact.push(coder, places)
    codes, found = columns.encode(new), exact.codes(places)
    for d, column in enumerate(columns.variables):
        assert np.array_equal(found[:, d], codes[column.name])
    expected = columns.log_volume(new).sum() / math.log(2)
    assert expected > 80 * n
    assert coder.num_valid_bits() == pytest.approx(expected, rel=0.001)
    assert np.array_equal(exact.pop(coder, found), places)
    assert coder.is_empty()


def test_an_archive_attains_the_bound(tmp_path: Path) -> None:
    """For independent columns it is exact: ln p of all values, within a few per cent."""
    model, format = silent(rows(3000).drop(columns="paid"))
    drawn = format.columns.encode(rows(2000, 1).drop(columns="paid"))
    write(format.columns.decode(drawn, seed=2), tmp_path / "a.csv")
    pack(model, format, [tmp_path / "a.csv"], tmp_path / "a.bfn", steps=1)
    model.data_format = format.describe()
    truth = -bfn.Table.of(model).independent(tmp_path / "a.csv").sum() / math.log(2)
    bits = 8 * (tmp_path / "a.bfn").stat().st_size
    assert 0.99 * truth < bits < 1.03 * truth


def test_rows_cost_what_the_loss_says(run: Path, tmp_path: Path) -> None:
    """L^n + L^r and the law inside bins, of many rows at a time; relations are heeded."""
    model, n = bfn.BFN.from_pretrained(run), 3
    format = TableFormat.build(model.data_format or {})
    generator = torch.Generator().manual_seed(1)
    for p in model.net.parameters():
        p.data.add_(0.05 * torch.randn(p.shape, generator=generator))
    write(rows(650, 3), tmp_path / "a.csv")
    (fragment,) = format.pieces(tmp_path / "a.csv")
    places = torch.from_numpy(fragment.places)
    codec = Codec(model, format.shape, n, lanes=1, width=32, exact=Exact(format.laws))
    (coded,) = codec.encode([places])
    (back,) = codec.decode([coded.payload], [len(places)])
    assert torch.equal(back, places)
    x = format.form.encode(torch.from_numpy(codec.exact.codes(fragment.places)))  # pyright: ignore[reportOptionalMemberAccess]
    chained = x[: len(x) - coded.startup_examples]
    with model.evaluating():
        nats = [
            bfn.loss.discrete_time(model, chained, n, steps="all", generator=generator)
            + bfn.loss.reconstruction(model, chained, generator=generator)
            for _ in range(4)
        ]
    volume = [
        -np.log(c.pieces.share[own] / c.pieces.size[own].astype(float)).sum()
        for c, k in zip(format.columns.variables, fragment.places.T, strict=True)
        for own in [c.piece(k)]
    ]
    expected = float(torch.stack(nats).mean(0).sum()) + sum(volume)
    found = (sum(coded.bits["steps"]) + coded.bits["reconstruction"]) * math.log(2)
    assert found == pytest.approx(expected, rel=0.015)
