"""What a page may request, and the command lines that reproduce it."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bfn
from bfn.cli.app import main
from bfn.data import from_arrays
from bfn.data.formats import TextFormat
from bfn.data.forms import LETTERS, Alphabet
from bfn.errors import BFNError
from bfn.web import messages, requests, streams
from bfn.web.subject import Subject, load, of_model
from web import pages

SUBJECTS = pages.subjects()


def pinned(i: int, v: float, **message: Any) -> dict[str, Any]:
    return {"pins": {"i": [i], "v": [v]}, **message}


def examined(model: str = "discretised", **message: Any) -> dict[str, Any]:
    return {"do": "examine", "model": model, **message}


def read(message: dict[str, Any]) -> requests.Request:
    return requests.read(message, SUBJECTS)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"steps": 0}, "steps = 0; expected a whole number, at least 1"),
        ({"steps": 1001}, "steps = 1001; expected a whole number from 1 to 1000"),
        ({"seed": -1}, "seed = -1; expected a whole number, at least 0"),
        (pinned(0, 17), "is not possible; expected whole numbers 0 to 16"),
        (pinned(0, float("nan")), "is not possible; expected whole numbers 0 to 16"),
        ({"pins": {"i": [*range(64)], "v": [0] * 64}}, "everything is pinned"),
        (pinned(0, 5, model="array"), "a value lies outside the range of the data, -0.98"),
        (pinned(2, 3, model="mixed"), "variable 'colour' is not possible; expected whole numbers"),
        (examined(values=[0]), "the example has 1 values; expected 64"),
        (examined("mixed", values=[0, None]), "shorter than the longest cannot be examined"),
        (examined("text", text="Straße und s"), "holds 'S' at position 0 and 1 more characters"),
        (examined("text", text="short"), "the text has 5 characters; this model's texts have 12"),
    ],
)
def test_a_wrong_request_gets_a_sentence(message: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BFNError) as caught:
        read({"do": "generate", "model": "discretised", **message})
    assert sentence in str(caught.value)


def test_defaults_are_the_models() -> None:
    found = read({"do": "generate", "model": "discretised"})
    assert isinstance(found, requests.Generate)
    assert (found.solver, found.steps, found.seed) == ("sde2", 4, 0)
    pinned = {"particles": 2, "pins": {"i": [5, 1], "v": [3, 4]}}
    found = read({"do": "generate", "model": "discretised", "solver": "ode", **pinned})
    assert isinstance(found, requests.Generate)
    assert found.solver == "ancestral"  # particles need it
    assert found.describe()["pins"] == {"i": [1, 5], "v": [4, 3]}
    assert read(found.describe()) == found  # as a download sends it back


# Command lines.


LABELS = {"labels": 3}


def image(channels: int = 1, levels: int = 16) -> bfn.BFN:
    """Pictures of 4 x 4 pixels."""
    net = bfn.nn.UNet(
        channels, outputs=2, width=4, multipliers=[1], blocks=1, heads=1, groups=2, **LABELS
    )
    values = np.arange(80 * channels * 16, dtype=np.uint16).reshape(80, channels, 4, 4) % levels
    data = from_arrays(values, form="discretised", bins=levels, levels=levels, image=True)
    return described(bfn.discretised(net, K=levels, sigma_1=0.05), data.format)


def binary() -> bfn.BFN:
    net = bfn.nn.UNet(1, outputs=1, width=4, multipliers=[1], blocks=1, heads=1, groups=2)
    values = np.arange(80 * 16, dtype=np.uint8).reshape(80, 1, 4, 4) % 7
    data = from_arrays(values, form="binary", levels=7, image=True)
    return described(bfn.discrete(net, K=2, beta_1=4.0), data.format)


def text(K: int = 27, **options: Any) -> bfn.BFN:
    net = bfn.nn.Transformer(length=8, inputs=K, outputs=K, width=8, layers=1, heads=2, **LABELS)
    alphabet = Alphabet(LETTERS if K == 27 else None)
    model = bfn.discrete(net, K=K, beta_1=0.75)
    return described(model, TextFormat(alphabet, 8, **options))


def lines() -> bfn.BFN:
    return described(*pages.lines(8, **LABELS))


def array() -> bfn.BFN:
    values = 20.0 + 10 * np.random.default_rng(0).uniform(size=(80, 5)).astype(np.float32)
    net = bfn.nn.MLP(5, outputs=1, width=8, layers=1, **LABELS)
    return described(bfn.continuous(net, sigma_1=0.05), from_arrays(values).format)


def sequence() -> bfn.BFN:
    """Arrays of different lengths."""
    values = np.random.default_rng(0).uniform(size=(80, 6)).astype(np.float32)
    net = bfn.nn.Transformer(length=6, inputs=1, outputs=1, width=8, layers=1, heads=2)
    model = described(bfn.continuous(net, sigma_1=0.05), from_arrays(values).format)
    model.lengths = bfn.Lengths.of(torch.tensor([3, 4, 6]), 6)
    return model


def table(**options: Any) -> bfn.BFN:
    """Values of every type, of which some are missing."""
    pa = pytest.importorskip("pyarrow")
    hours, when = range(40), datetime.datetime(2020, 2, 3, 4, 5, 6)
    span = [datetime.timedelta(days=h, seconds=90.5) for h in hours]
    data = {
        "sex": pa.array(["male", "female"] * 20),
        "age": pa.array([18, 25, 33, None] * 10),
        "height": pa.array([1.5 + 0.1 * h + 1e-9 * h**3 for h in hours]),
        "born": pa.array([when.date() + datetime.timedelta(days=h) for h in hours]),
        "seen": pa.array([when + datetime.timedelta(hours=h) for h in hours], pa.timestamp("ns")),
        "up": pa.array([datetime.time(h % 24, 7, 8) for h in hours], pa.time32("s")),
        "slept": pa.array(span, pa.duration("ms")),
        "a name, 'quoted'": pa.array([True, None] * 20),
    }
    model, format = pages.table(pa.table(data), 8, **options)
    model.train_known = 0.5 if options else 0.0
    return described(model, format)


def described(model: bfn.BFN, format: Any) -> bfn.BFN:
    model.data_format = format.describe()
    return model


MODELS: dict[str, Callable[[], bfn.BFN]] = {
    "image": image,
    "colour": lambda: image(3),
    "binary": binary,
    "text": text,
    "bytes": lambda: text(256),
    "lines": lines,
    "array": array,
    "sequence": sequence,
    "mixed": lambda: described(*pages.named(**LABELS)),
    "table": lambda: table(known=True),
}
PINS = {
    "image": {"i": [3, 9], "v": [15, 0]},
    "colour": {"i": [3, 19, 35], "v": [15, 0, 4]},
    "binary": {"i": [3, 9], "v": [1, 0]},
    "text": {"i": [0, 4], "v": [20, 0]},
    "bytes": {"i": [0, 4], "v": [65, 95]},
    "lines": {"i": [0, 4], "v": [20, 1]},
    "array": {"i": [0, 2], "v": [21.5, 28.25]},
    "sequence": {"i": [0, 4], "v": [0.25, 0.5]},
    "mixed": {"i": [0, 2, 4], "v": [0.25, 1, 1]},
    "table": {"i": [0, 1, 3, 4, 5, 6, 7], "v": [1, 3, 5, 4, 3, 2, 1]},  # one is left
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "solver": {"solver": "ode2", "seed": 5},
    "ancestral": {"solver": "ancestral", "seed": 2**40},
    "label": {"label": 2},
    "guidance": {"label": 0, "guidance": 2.123456789},
    "length": {"length": 4},
    "pinned": {"pins": True},
    "pinned, solver": {"pins": True, "solver": "ode", "seed": 3},
    "pinned, label": {"pins": True, "label": 1, "guidance": 3.0},
    "pinned, length": {"pins": True, "length": 6},
    "particles": {"pins": True, "particles": 3},
    "particles, label": {"pins": True, "particles": 3, "label": 1},
    "since": {"pins": True, "since": 0.699999988079071, "steps": 10},  # 0.7 in float32
}


WITHOUT = {
    "label": ("binary", "sequence", "table"),
    "length": tuple(kind for kind in MODELS if kind not in ("lines", "sequence")),
}
CASES = [
    (kind, way)
    for kind in MODELS
    for way, asked in WAYS.items()
    if not any(kind in WITHOUT.get(name, ()) for name in asked)
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """A model that was saved in a folder whose name needs quotes."""
    found: dict[str, Subject] = {}

    def loaded(kind: str) -> Subject:
        if kind not in found:
            folder = tmp_path_factory.mktemp("runs") / f"a {kind}"
            with torch.random.fork_rng([]):
                torch.manual_seed(0)
                model = MODELS[kind]()
                for parameter in model.net.parameters():  # labels and known values are to matter
                    torch.nn.init.normal_(parameter, std=0.3)
            model.save_pretrained(folder)
            found[kind] = load(folder)
        return found[kind]

    return loaded


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_the_command_makes_the_same_file(
    kind: str, way: str, loaded: Callable[[str], Subject], empty_folder: None
) -> None:
    given, message = loaded(kind), dict(WAYS[way])
    pins = PINS[kind] if message.pop("pins", False) else {"i": [], "v": []}
    message = {"steps": 4, **message, "pins": pins}
    found = pages.streamed(given, **message)
    start, values = found[0][0], found[-1][0]["values"]
    assert [values[i] for i in pins["i"]] == pytest.approx(pins["v"])
    if kind == "table" and way in ("particles", "since"):
        assert start["command"] is None
        assert "bfn sample --given supports neither particles nor" in start["why"]
        assert start["needs"] == []
        return
    assert start["why"] is None
    assert way != "guidance" or "--guidance 2.123456789" in start["command"]
    assert way != "since" or "--since 0.7" in start["command"]
    known = pages.files(given, "known", **message) if start["needs"] else []
    assert [name for name, _ in known] == start["needs"]
    for name, content in known:
        Path(name).write_bytes(content)
    ((name, content),) = pages.files(given, "sample", **message)
    out = Path(name).with_stem("again")
    assert main([*shlex.split(start["command"])[1:], "--out", str(out)]) == 0
    if out.suffix in (".npy", ".npz"):  # numbers went through a file
        again, sample = (np.load(file) for file in (out, _written(Path(name), content)))
        for key in getattr(sample, "files", [...]):
            np.testing.assert_allclose(again[key], sample[key], rtol=1e-4, atol=1e-5)
    else:
        assert out.read_bytes() == content


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_the_second_of_several_is_the_last_that_its_command_makes(
    loaded: Callable[[str], Subject], empty_folder: None
) -> None:
    given = loaded("table")
    recorded: list[bytes] = []
    request = pages.ask(given, pins={"i": [0], "v": [1]}, steps=3)
    assert isinstance(request, requests.Generate)
    streams.stream_generations(given, request, lambda _, message: recorded.append(message), count=2)
    headers = [messages.unpack(each)[0] for each in recorded]
    commands = [header["command"] for header in headers if header["kind"] == "start"]
    values = [header["values"] for header in headers if header["kind"] == "end"]
    assert main([*shlex.split(commands[1])[1:], "--out", "rows.csv"]) == 0
    codes = given.format.codes("rows.csv").tolist()  # pyright: ignore
    assert codes == values


@pytest.mark.parametrize(
    ("kind", "pins", "why"),
    [
        ("colour", {"i": [3, 19, 35, 4], "v": [15, 0, 4, 15]}, "some pixels have only one pinned."),
        ("bytes", {"i": [3], "v": [200]}, "the pinned values cannot be written in one."),
    ],
)
def test_the_page_says_why_no_command_reproduces_the_sample(
    kind: str, pins: dict, why: str, loaded: Callable[[str], Subject]
) -> None:
    start = pages.streamed(loaded(kind), pins=pins, steps=1)[0][0]
    assert start["command"] is None
    assert start["why"].startswith("No command line reproduces this: ")
    assert why in start["why"]


def test_a_level_that_no_png_can_hold_has_no_command() -> None:
    given = replace(of_model(image(levels=1000)), id="fine")
    start = pages.streamed(given, pins={"i": [3], "v": [101]}, steps=1)[0][0]
    assert start["command"] is None
    assert start["why"].endswith("the pinned values cannot be written in one.")


def test_a_row_of_a_model_that_was_not_trained_for_it_has_no_command() -> None:
    start = pages.streamed(of_model(table()), pins=PINS["table"], steps=1)[0][0]
    assert start["command"] is None


def test_a_model_in_memory_has_no_command() -> None:
    start = pages.streamed(of_model(array()), steps=1)[0][0]
    assert (start["command"], "only in memory" in start["why"]) == (None, True)


def test_the_command_of_a_trusted_model_has_trust(tmp_path: Path) -> None:
    array().save_pretrained(tmp_path / "run")
    start = pages.streamed(load(tmp_path / "run", trust=True), steps=1)[0][0]
    assert start["command"].endswith("--trust")


def test_every_value_of_a_table_can_be_typed_as_it_is_shown() -> None:
    given = of_model(table(known=True))
    shown = [group.symbols or [] for group in given.groups]
    for k in range(max(map(len, shown))):
        row = [min(k, len(symbols) - 1) for symbols in shown]
        text = ",".join(symbols[each] for symbols, each in zip(shown, row, strict=True))
        request = pages.ask(given, do="examine", text=text)
        assert list(request.values) == row  # pyright: ignore
