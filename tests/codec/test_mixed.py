"""Mixed data as files and as bytes: every array comes back, or one sentence says why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bfn
from bfn.codec.archive import Archive
from bfn.errors import BFNError

VARIABLES = {
    "sex": bfn.Variable("discrete", K=2),
    "gene": bfn.Variable("discrete", (2, 3), K=4),
    "age": bfn.Variable("discretised", K=10),
    "height": bfn.Variable("continuous", (2,), sigma_1=0.1, reconstruction=bfn.Bins(8, 0.1)),
}
SMALL = ("--steps", 2, "--block", 4)


def mixed(variables: dict[str, bfn.Variable] = VARIABLES) -> bfn.BFN:
    torch.manual_seed(0)
    return bfn.mixed(bfn.nn.MixedMLP.of(variables, width=8, layers=1), variables)


def data(count: int) -> dict[str, np.ndarray]:
    """Arrays of many types; the centres of bins in single and in double precision."""
    draw = np.random.default_rng(0)
    return {
        "sex": draw.integers(0, 2, count).astype(bool),
        "gene": draw.integers(0, 4, (count, 2, 3)).astype(np.uint8),
        "age": (2.0 * draw.integers(0, 10, count) + 1 - 10) / 10,
        "height": ((2.0 * draw.integers(0, 8, (count, 2)) + 1 - 8) / 8).astype(np.float32),
    }


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed") / "run"
    bfn.train.fit(mixed(), data(10), steps=1, batch=4, out=folder, display=False)
    return folder


def test_files_of_arrays(
    run: Path, command: Callable[..., str], comes_back: Callable[..., str]
) -> None:
    """In another order than the model's, and a single example."""
    x = data(13)
    np.savez("a.npz", **dict(reversed(x.items())))
    np.savez("b.npz", **{name: values[0] for name, values in x.items()})
    assert "bits per dimension in 14 examples" in comes_back(run, "a.npz", "b.npz", options=SMALL)
    assert '"mixed"' in command("inspect", "x.bfn")
    command("decompress", "x.bfn", "--run", run, "-o", "one", "--only", "b.npz")
    assert Path("one/b.npz").read_bytes() == Path("b.npz").read_bytes()


X = data(5)
MISTAKES: dict[str, dict[str, Any]] = {
    "holds no array 'age': the model's variables are sex, gene": {"age": None},
    "holds 'more', which is not a variable of the model": {"more": X["sex"]},
    "different numbers of examples, 5 of 'sex', 4 of 'gene'": {"gene": X["gene"][1:]},
    "'gene', which has the shape (5, 3, 2)": {"gene": X["gene"].reshape(5, 3, 2)},
    "in 'gene' the value 4, which would be restored as 3, the nearest one that": {
        "gene": X["gene"] * 0 + 4
    },
    "in 'sex' the value 0.5, which would be restored as 0.0": {"sex": X["sex"] * 0 + 0.5},
    "in 'age' the value 0.05, which would be restored as 0.1": {"age": X["age"] * 0 + 0.05},
    "'height', which holds NaN": {"height": X["height"] * np.nan},
    "'age', which holds values of the type": {"age": X["age"].astype(str)},
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_files_that_do_not_fit(run: Path, is_refused: Callable[..., None], sentence: str) -> None:
    arrays = X | MISTAKES[sentence]
    np.savez("a.npz", **{name: values for name, values in arrays.items() if values is not None})
    is_refused(run, "a.npz", sentence)


def test_mixed_data_do_not_fit_into_one_array(run: Path, is_refused: Callable[..., None]) -> None:
    np.save("a.npy", X["sex"])
    is_refused(run, "a.npy", "is not a file of this model's kind, arrays (.npz)")


def test_numbers_without_bins(tmp_path: Path) -> None:
    model = mixed({"a": bfn.Variable("discrete", K=3), "b": bfn.Variable("continuous")})
    x = {"a": np.zeros(3, np.int64), "b": np.zeros(3, np.float32)}
    with pytest.raises(BFNError, match="in the variable 'b': real numbers have no finite code"):
        bfn.codec.compress(model, x)


@pytest.mark.parametrize("kind", ["mixed", "classes", "bins", "double", "tensors"])
def test_data_become_bytes(kind: str) -> None:
    model, x = mixed(), data(9)
    if kind == "tensors":
        x = {name: torch.from_numpy(values) for name, values in x.items()}
    elif kind == "classes":
        net = bfn.nn.MLP(6, 4, 4, width=8, layers=1)
        model, x = bfn.discrete(net, K=4), {"": x["gene"].reshape(9, 6)}
    elif kind == "bins":
        net = bfn.nn.MLP(2, 1, 2, width=8, layers=1)
        model, x = bfn.discretised(net, K=8), {"": x["height"]}
    elif kind == "double":  # a model in double precision, of data in single precision
        net = bfn.nn.MLP(1, 1, 2, width=8, layers=1)
        model, x = bfn.discretised(net, K=10).double(), {"": x["age"][:, None].astype(np.float32)}
    stored = bfn.codec.compress(model, x.get("", x), steps=2)
    found: Any = bfn.codec.decompress(model, stored)
    found = {"": found} if "" in x else found
    assert list(found) == list(x)
    for name, values in x.items():
        values = np.asarray(values)
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name], values)
    for damaged in (stored[:-1], stored[:40] + b"?" + stored[41:], b"", b"something else"):
        with pytest.raises(BFNError, match="'the data' is"):
            bfn.codec.decompress(model, damaged)


def test_bytes_of_something_else(run: Path, command: Callable[..., str]) -> None:
    model = bfn.BFN.from_pretrained(run)
    stored = bfn.codec.compress(model, data(4), steps=2)
    with pytest.raises(BFNError, match="was made with another model"):
        bfn.codec.decompress(mixed(), stored)
    np.savez("a.npz", **data(4))
    command("compress", run, "a.npz", "-o", "x.bfn", *SMALL)
    with pytest.raises(BFNError, match="restore them with bfn decompress"):
        bfn.codec.decompress(model, Path("x.bfn").read_bytes())


def test_forged_names_of_arrays() -> None:
    """The values have no names in their checksum, and a .npy file has a single one."""
    model = bfn.discrete(bfn.nn.MLP(6, 4, 4, width=8, layers=1), K=4)
    stored = bfn.codec.compress(model, data(4)["gene"].reshape(4, 6), steps=2)
    true = Archive.from_bytes(stored, "the data")
    (entry,) = true.contents.entries
    ((_, dtype, shape),) = entry.about
    for about in ([["foo", dtype, shape]], [["", dtype, [2, 6]], ["foo", dtype, [2, 6]]], []):
        contents = replace(true.contents, entries=[replace(entry, about=about)])
        with pytest.raises(BFNError, match="does not decode to the original"):
            bfn.codec.decompress(model, replace(true, contents=contents).to_bytes())


def test_mistakes_in_python() -> None:
    x: Any = data(4)
    for sentence, wrong in {
        "expected a dict of tensors, one for each of sex": x["sex"],
        "different numbers of examples": {**x, "age": x["age"][1:]},
        "in the variable 'gene': x contains 1": {**x, "gene": x["gene"] + 9},
    }.items():
        with pytest.raises(BFNError, match=sentence):
            bfn.codec.compress(mixed(), wrong, steps=2)


def test_classes_that_python_has_trained_on(
    command: Callable[..., str], comes_back: Callable[..., str]
) -> None:
    """A run of data in the model's own convention: its samples are classes, and can be stored."""
    model = bfn.discrete(bfn.nn.MLP(6, 4, 4, width=8, layers=1), K=4)
    x = data(9)["gene"].reshape(9, 6)
    bfn.train.fit(model, x, steps=1, batch=4, out="run", display=False)
    command("sample", "run", "--n", 5, "--steps", 2, "--out", "a.npy")
    assert np.load("a.npy").dtype == np.int64
    np.save("b.npy", x)
    comes_back("run", "a.npy", "b.npy", options=SMALL)
