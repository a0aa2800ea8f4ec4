"""What a page is sent about a generation or an example, and films of it."""

from __future__ import annotations

import base64
import hashlib
import html as markup
import math
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bfn
from bfn import noise
from bfn.cli.app import main
from bfn.data.forms import LETTERS
from bfn.errors import BFNError
from bfn.flow import Theta
from bfn.plots.figures import path
from bfn.web import messages, requests, streams
from bfn.web.subject import MOST, Subject, load, subject
from support import untrained
from web import pages

SUBJECTS = pages.subjects()


@pytest.fixture(scope="module")
def digits() -> Subject:
    return load("digits-labelled")


def values(found: list) -> list:
    return found[-1][0]["values"]


def test_only_a_control_changes_and_the_noise_does_not(digits: Subject) -> None:
    """A pin that the sample has anyway changes nothing that was drawn before or after it."""
    sampled = values(pages.streamed(digits, steps=3, solver="sde"))
    again = values(pages.streamed(digits, steps=3, solver="sde"))
    assert again == sampled
    stronger = values(pages.streamed(digits, steps=3, solver="sde", label=1, guidance=1.0))
    other = values(pages.streamed(digits, steps=3, solver="sde", label=1, guidance=1.0, seed=1))
    assert stronger != other
    late = pages.streamed(digits, steps=5, solver="sde", pins={"i": [0], "v": [16]}, since=0.7)
    free = pages.streamed(digits, steps=5, solver="sde")
    bodies = [[body for _, body in found[1:-1]] for found in (late, free)]
    same = [a == b for a, b in zip(*bodies, strict=True)]
    assert same == [True] * 4 + [False] * 2  # t = 0.8 is the first from 0.7 on


@pytest.mark.parametrize("id", SUBJECTS)
def test_the_rates_of_variables_add_up_to_the_loss(id: str) -> None:
    given = SUBJECTS[id]
    model, g = given.model, torch.Generator().manual_seed(0)
    x = bfn.generate(model, (1, *given.format.shape), steps=2, generator=g)
    x, t = model.pack(x), torch.tensor([0.6])
    theta = model.flow.sample(x, t, g)
    with model.evaluating():
        output = model(theta, t)
        rates = streams.rates(model, x, 0.6, output)
        whole = output.rate(x, model.flow.schedule.alpha(t)).sum()
    assert rates.shape == (given.D,)
    torch.testing.assert_close(rates.sum(), whole, rtol=1e-4, atol=1e-4)
    if x.is_floating_point():  # and each is where its variable is
        moved = x.clone()
        moved.view(-1)[0] += 0.25
        changed = streams.rates(model, moved, 0.6, output) != rates
        assert changed.nonzero().flatten().tolist() == [0]


def test_an_examples_bits_are_those_of_the_losses(digits: Subject) -> None:
    """A mean over many draws of the page's estimate, against `bfn.loss`."""
    example = values(pages.streamed(digits, steps=8, seed=2))
    runs = [
        pages.streamed(digits, do="examine", values=example, steps=16, seed=seed)
        for seed in range(8)
    ]
    ends = [found[-1] for found in runs]
    for found in runs:  # the area below the curve
        rates = [header["rate"] for header, _ in found[1:-1]]
        bits = [header["bits"] for header, _ in found[1:-1]]
        areas = [np.trapezoid(rates[: i + 1], dx=1 / 16) for i in range(17)]
        np.testing.assert_allclose(bits, areas, rtol=1e-4, atol=1e-3)
    x, _ = digits.example(dict(enumerate(example)))
    g = torch.Generator().manual_seed(0)
    many = x.expand(128, -1, -1, -1)
    with digits.model.evaluating():
        nats = bfn.loss.continuous_time(digits.model, many, generator=g)
        last = bfn.loss.reconstruction(digits.model, many, generator=g)
    maps = [np.frombuffer(body, "<f4") for _, body in ends]
    infinite = [float(map.sum()) for map in maps]
    reconstructed = [end["bits"] - sent for (end, _), sent in zip(ends, infinite, strict=True)]
    for bits, exact in ((infinite, nats), (reconstructed, last)):
        errors = [
            np.std(bits, ddof=1) / math.sqrt(len(bits)),
            float(exact.std() / math.sqrt(len(many))),
        ]
        expected = float(exact.mean()) / math.log(2)
        # Even times leave an error of their own, of a few percent.
        assert abs(np.mean(bits) - expected) < 4 * sum(errors) + 0.05 * expected
    assert {map.shape for map in maps} == {(64,)}
    assert [end["values"] for end, _ in ends] == [example] * 8


def test_the_total_of_several_variables_has_each_of_them_once() -> None:
    given = SUBJECTS["mixed"]
    own = {0: 0.5, 1: -0.375, 2: 1, 3: 0, 4: 1}
    *_, (last, _), (end, _) = pages.streamed(given, do="examine", values=[*own.values()], steps=3)
    x, _ = given.example(own)
    keys = noise.Keyed([noise.seed("look", 0, 0)])
    theta = path(given.model.flow, x, torch.linspace(0, 1, 4, dtype=torch.float64), keys)[-1]
    theta = Theta(theta.V.float(), theta.beta.float())
    with given.model.evaluating():
        nats = given.model(theta, torch.ones(1)).reconstruction(x).sum()
    assert end["bits"] == pytest.approx(last["bits"] + float(nats) / math.log(2), rel=1e-4)


class Silent(torch.nn.Module):
    """With a posterior head, the exact model of independent fair coins."""

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return torch.zeros_like(features)


def test_received_bits_are_those_by_which_the_entropy_falls() -> None:
    model = bfn.discrete(Silent(), K=2, beta_1=4.0, head="posterior")
    coins = subject("coins", model, SUBJECTS["binary"].format, pages.SETTINGS)
    runs = [pages.streamed(coins, steps=20, solver="ancestral", seed=seed) for seed in range(16)]
    for step in (5, 10, 20):
        headers = [found[1 + step][0] for found in runs]
        sums = [header["bits"] + header["entropy"] for header in headers]
        assert abs(np.mean(sums) - 64) < 4 * np.std(sums, ddof=1) / math.sqrt(len(sums))
        assert np.std(sums) < 8
    assert np.mean([header["bits"] for header in headers]) > 40


def test_a_run_can_be_stopped(digits: Subject) -> None:
    calls = 0

    def emit(kind: str, message: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise streams.Stopped

    with pytest.raises(streams.Stopped):
        streams.stream(digits, pages.ask(digits, steps=50), emit)
    assert calls == 3


@pytest.fixture(scope="module")
def people() -> Subject:
    """A table: a category, and a number of which some are missing."""
    pytest.importorskip("pyarrow")
    ages = [18, 25, 33, 33, 47, None] * 20
    model, format = pages.table({"sex": ["male", "female", "female"] * 40, "age": ages})
    return subject("people", model, format, pages.SETTINGS)


def test_rows_of_tables_are_shown_by_their_values(people: Subject) -> None:
    description = people.describe()
    assert (description["medium"], description["about"]) == ("mixed", "2 columns: sex, age")
    assert [group["symbols"] for group in description["groups"]] == [
        ["female", "male"],
        ["18", "25", "33", "47", "missing"],
    ]
    found = pages.streamed(people, steps=3, pins={"i": [1], "v": [2]})
    planes = {(plane["name"], plane["group"]) for plane in found[0][0]["planes"]}
    names = ("input_p", "p", "entropy", "sample")
    assert planes == {(name, group) for name in names for group in range(2)}
    assert values(found)[1] == 2
    ((name, row),) = pages.files(people, "sample", pins={"i": [1], "v": [2]}, steps=2)
    assert (name, row.endswith(b",33\n")) == ("people-0.csv", True)


@pytest.fixture(scope="module")
def incomes() -> Subject:
    """A table whose numbers are in wide bins, with a column that never varies."""
    pytest.importorskip("pyarrow")
    pay = [1000.5 + 37.25 * i for i in range(120)]
    data = {"pay": pay, "town": ["Rome", "Oslo"] * 60, "year": [7] * 120}
    return subject("incomes", *pages.table(data, 8), pages.SETTINGS)


def test_a_pinned_number_is_the_one_in_the_file(incomes: Subject) -> None:
    pinned = incomes.describe()["groups"][0]["symbols"][3]
    ((_, rows),) = pages.files(incomes, "sample", pins={"i": [0], "v": [3]}, steps=2)
    pay = rows.decode().splitlines()[1].split(",")[0]
    assert f"{float(pay):.6g}" == pinned


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1000.5, Rome", (0, 0)), ("5433.25,Oslo\n", (-1, 1)), (' 1000.5,"Oslo"', (0, 1))],
)
def test_a_row_is_given_in_its_own_words(incomes: Subject, text: str, expected: Any) -> None:
    request = pages.ask(incomes, do="examine", text=text)
    K = len(incomes.groups[0].symbols or [])
    assert isinstance(request, requests.Examine)
    assert request.values == tuple(k if k >= 0 else K - 1 for k in expected)
    assert pages.streamed(incomes, do="examine", text=text, steps=2)[-1][0]["values"] == [
        *request.values
    ]


@pytest.mark.parametrize("text", ["male,missing", "male,"])
def test_a_missing_value_is_given_by_its_name(people: Subject, text: str) -> None:
    request = pages.ask(people, do="examine", text=text)
    assert isinstance(request, requests.Examine)
    assert request.values == (1, 4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("much,Rome", "column 'pay' holds numbers, not 'much'; give a value like"),
        ("1200,Paris", "column 'town' holds 'Paris', which did not occur"),
        ("1200,\ud800", "column 'town' holds text, not '\\ud800'; give a value like"),
        (",Rome", "column 'pay' is never missing; give a value like"),
        ("1200,missing", "column 'town' holds 'missing', which did not"),
        ("1200", "the row has 1 value; expected 2, separated by commas: pay, town"),
        ("1200,Rome\n1300,Oslo", "the example is not one row; give its values on one line"),
        ("", "the example is not one row"),
        ("1" * 200_000 + ",Rome", "the example is not one row"),
    ],
)
def test_a_wrong_row_gets_a_sentence_about_its_column(
    incomes: Subject, text: str, sentence: str
) -> None:
    with pytest.raises(BFNError) as caught:
        pages.ask(incomes, do="examine", text=text)
    assert sentence in str(caught.value)


def test_bins_shown_as_classes_follow_bayes_rule(people: Subject) -> None:
    """The posterior of equally probable bins, from the density of the messages themselves."""
    model, group = people.model, people.groups[1]
    flow, g = model.flow, torch.Generator().manual_seed(0)
    x, _ = people.example({0: 0, 1: 3})
    t = torch.tensor([0.3])
    theta = flow.sample(x, t, g)
    with model.evaluating():
        output = model(theta, t)
    shown = messages.snapshot(people, theta, output, x, slice(0, 1)).inputs[1]
    part = flow.unpack_theta(theta)["age"]
    V, beta = float(part.V), float(part.beta)
    density = [math.exp(-((V - beta * c) ** 2) / (2 * beta)) for c in (-0.8, -0.4, 0, 0.4, 0.8)]
    assert group.K == 5
    np.testing.assert_allclose(shown, np.array(density) / sum(density), rtol=1e-5)


@pytest.fixture(scope="module")
def lines() -> Subject:
    return subject("lines", *pages.lines(12), pages.SETTINGS)


def test_lines_have_the_length_that_is_asked_for(lines: Subject) -> None:
    assert lines.describe()["longest"] == 12
    found = pages.streamed(lines, steps=3, length=5)
    start, end = found[0][0], found[-1][0]
    assert start["exists"] == 5
    assert start["command"].endswith("--length 5")
    assert [value is None for value in end["values"]] == [False] * 5 + [True] * 7
    drawn = {pages.streamed(lines, steps=1, seed=seed)[0][0]["exists"] for seed in range(6)}
    assert len(drawn) > 1
    pinned = pages.streamed(lines, steps=2, pins={"i": [7], "v": [1]})
    assert pinned[0][0]["exists"] >= 8
    assert pinned[-1][0]["values"][7] == 1
    with pytest.raises(BFNError, match="x is observed beyond the length 5"):
        pages.streamed(lines, steps=2, pins={"i": [7], "v": [1]}, length=5)


def test_a_short_line_has_no_bits_beyond_its_end(lines: Subject) -> None:
    *_, (end, body) = pages.streamed(lines, do="examine", text="hello", steps=4)
    bits = np.frombuffer(body, "<f4")
    assert (bits[:5] > 0).all()
    assert (bits[5:] == 0).all()
    assert "".join(LETTERS[k] for k in end["values"] if k is not None) == "hello"
    again = pages.streamed(lines, do="examine", values=end["values"], steps=4)
    assert again[-1][0]["bits"] == end["bits"]  # the values with which a run ends can be examined


# Messages.


def test_messages_and_films_come_back() -> None:
    for size in range(20):
        header, body = {"kind": "x" * size, "é": [1, None, 0.5]}, bytes(range(size))
        message = messages.pack(header, body)
        assert messages.unpack(message) == (header, body)
        assert (len(message) - size) % 8 == 0
    film = [messages.pack({"n": n}, b"b" * n) for n in range(5)]
    assert pages.split(messages.join(film)) == film
    assert pages.split(b"") == []


def plane(start: dict[str, Any], body: bytes, name: str, group: int = 0) -> np.ndarray:
    """As the page reads it, from the layout in `start`."""
    (found,) = [each for each in start["planes"] if (each["name"], each["group"]) == (name, group)]
    kind = {"u8": "<u1", "u16": "<u2"}[found["type"]]
    assert found["offset"] % 2 == 0
    count = found["count"] * found["per"]
    values = np.frombuffer(body, kind, count, found["offset"])
    return values.reshape(found["count"], found["per"])


def names(start: dict[str, Any], group: int = 0) -> set[str]:
    return {each["name"] for each in start["planes"] if each["group"] == group}


@pytest.mark.parametrize("id", SUBJECTS)
def test_a_run_has_a_start_all_frames_and_an_end(id: str) -> None:
    found = pages.streamed(SUBJECTS[id], steps=4, seed=3)
    kinds = [header["kind"] for header, _ in found]
    assert kinds == ["start", *["frame"] * 5, "end"]
    start, frames = found[0][0], found[1:-1]
    assert [header["step"] for header, _ in frames] == [0, 1, 2, 3, 4]
    # A fast solver first calls the network just above t = 0, and the page says so.
    assert [header["t"] for header, _ in frames] == pytest.approx([1e-3, 0.25, 0.5, 0.75, 1.0])
    sizes = {"u8": 1, "u16": 2}
    size = sum(-(-p["count"] * p["per"] * sizes[p["type"]] // 2) * 2 for p in start["planes"])
    assert {len(body) for _, body in frames} == {size}
    bits = [header["bits"] for header, _ in frames]
    if id in ("continuous", "array"):
        assert bits == [None] * 5
    else:
        assert bits[0] == 0
        assert bits == sorted(bits)


@pytest.mark.parametrize("id", SUBJECTS)
def test_the_last_frame_shows_the_sample(id: str) -> None:
    """And its end has the same values, in the data's own units."""
    subject = SUBJECTS[id]
    (start, _), *_, (_, body), (end, _) = pages.streamed(subject, steps=2, seed=1)
    assert len(end["values"]) == subject.D
    for number, group in enumerate(subject.groups):
        own = np.array(end["values"][group.start : group.start + group.count])
        shown = plane(start, body, "sample", number)[:, 0]
        if group.kind != "numbers":
            assert (shown == own).all()
            continue
        low, high = group.low.numpy(), group.high.numpy()
        np.testing.assert_allclose(low + shown / 65535 * (high - low), own, atol=1e-4)


def test_before_any_message_nothing_is_known() -> None:
    """An untrained network's outputs at t = 0 can be written down."""
    (start, _), (header, body), *_ = pages.streamed(SUBJECTS["discrete"], steps=2)
    assert names(start) == {"input", "mean", "deviation", "entropy", "p", "sample"}
    assert (plane(start, body, "p") == round(255 / 17)).all()
    assert (plane(start, body, "entropy") == 255).all()
    for name in ("input", "mean"):  # 127.5, rounded either way
        assert set(plane(start, body, name).flatten()) <= {127, 128}
    # 17 equally probable shades from 0 to 1: their variance is (17^2 - 1) / (12 16^2).
    assert (plane(start, body, "deviation") == round(255 * 2 * math.sqrt(288 / 12) / 16)).all()
    assert header["entropy"] == pytest.approx(64 * math.log2(17), abs=1e-3)
    (start, _), (header, body), *_ = pages.streamed(SUBJECTS["text"], steps=2)
    assert names(start) == {"input_p", "p", "entropy", "sample"}
    assert (plane(start, body, "input_p") == round(255 / 27)).all()
    (start, _), (header, body), *_ = pages.streamed(SUBJECTS["bytes"], steps=2)
    assert names(start) == {"input_top", "input_top_p", "top", "top_p", "entropy", "sample"}
    assert (plane(start, body, "top_p") == 1).all()  # 1 / 256
    (start, _), (header, body), *_ = pages.streamed(SUBJECTS["continuous"], steps=2)
    assert names(start) == {"input", "mean", "sample"}
    assert header["entropy"] is None


@pytest.mark.parametrize("id", ["discretised", "discrete"])
def test_a_shade_that_is_known_has_the_byte_of_its_level(id: str) -> None:
    """Black is 0 and white 255, also where the model itself knows them as the centres of bins."""
    pins = {"i": [3, 5, 9], "v": [0, 16, 4]}
    (start, _), (_, body), *_ = pages.streamed(SUBJECTS[id], steps=2, pins=pins)
    assert plane(start, body, "mean")[pins["i"], 0].tolist() == [0, 255, 64]
    assert plane(start, body, "deviation")[pins["i"], 0].tolist() == [0, 0, 0]


def test_groups_of_mixed_data_have_the_planes_of_their_kinds() -> None:
    subject = SUBJECTS["mixed"]
    (start, _), *_ = pages.streamed(subject, steps=2)
    assert [group.name for group in subject.groups] == ["height", "age", "colour", "answers"]
    assert [group.kind for group in subject.groups] == ["numbers", "numbers", "classes", "classes"]
    assert names(start, 0) == {"input", "mean", "sample"}
    assert names(start, 1) == {"input", "mean", "deviation", "entropy", "p", "sample"}
    for number in (2, 3):
        assert names(start, number) == {"input_p", "p", "entropy", "sample"}


def test_particles_are_shown_together() -> None:
    """The joint belief of two particles that disagree is uncertain, however sure each is."""
    subject = SUBJECTS["binary"]
    flow, model = subject.model.flow, subject.model
    theta = flow.prior((2, 1, 8, 8))
    sure = torch.full((2, 1, 8, 8), 50.0) * torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1)
    output = model.head(sure, theta, torch.zeros(2))
    shown = messages.snapshot(subject, theta, output, output.mode(), slice(0, 2))
    assert shown.entropy == pytest.approx(64 * math.log(2))
    for row in range(2):
        alone = messages.snapshot(subject, theta, output, output.mode(), slice(row, row + 1))
        assert alone.entropy == pytest.approx(0.0, abs=1e-6)


# Films.


PAGE = {name: content.decode() for name, (_, content) in messages.page_files().items()}
MODULES = {name: text for name, text in PAGE.items() if name.endswith(".js")}


def recorded(page: str) -> list[tuple[dict[str, Any], bytes]]:
    """What the film in a page holds."""
    (data,) = re.findall(r'<script type="application/octet-stream" id="film">([^<]*)<', page)
    film = zlib.decompress(base64.b64decode(data))
    return [messages.unpack(message) for message in pages.split(film)]


def test_a_film_of_digits_is_one_small_file(
    empty_folder: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["view", "digits-labelled", "-o", "film.html", "--label", "3,7", "--steps", "50"]) == 0
    )
    assert capsys.readouterr().out == "film.html: 2 generations, 102 frames\n"
    page = Path("film.html").read_text()
    assert len(page) < 1_000_000
    # Nothing of it lies elsewhere.
    without_film = re.sub(r'id="film">[^<]*<', "", page)
    assert not re.search(r'(src|href)="(?!#|data:)', without_film)
    assert not re.search(r"https?://(?!www\.w3\.org/)", without_film)
    (hello, _), *rest = recorded(page)
    assert hello["live"] is False
    assert [model["id"] for model in hello["models"]] == ["digits-labelled"]
    kinds = [header["kind"] for header, _ in rest]
    assert kinds == 2 * ["start", *["frame"] * 51, "end"]
    assert [header["request"]["label"] for header, _ in rest if header["kind"] == "start"] == [3, 7]
    assert {header["run"] for header, _ in rest} == {0, 1}


def test_a_film_holds_what_a_live_page_gets() -> None:
    subject = pages.of(untrained.images(), "digits")
    live = pages.streamed(subject, steps=4)
    _, *rest = recorded(streams.record(subject, 1).html)
    assert rest[:-1] == live[:-1]
    assert rest[-1][0]["values"] == live[-1][0]["values"]


def test_several_generations_are_those_of_one_seed() -> None:
    """The second is the second of `bfn sample --n 2`, as its command says."""
    subject = pages.of(untrained.images(), "digits")
    _, *rest = recorded(streams.record(subject, 3).html)
    assert [header["kind"] for header, _ in rest] == 3 * ["start", *["frame"] * 5, "end"]
    ends = [header for header, _ in rest if header["kind"] == "end"]
    starts = [header for header, _ in rest if header["kind"] == "start"]
    x = bfn.sampling.in_batches(subject.model, 3, (1, 8, 8), 4, solver="sde2")
    assert [end["values"] for end in ends] == [subject.own(each) for each in x]
    assert [start["run"] for start in starts] == [0, 1, 2]
    assert "--n 3 " in starts[2]["command"]


def test_the_policy_allows_the_films_own_script_and_style_alone() -> None:
    page = streams.record(pages.mixed(), 1).html
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    for tag, directive in (("style", "style-src"), ('script type="module"', "script-src")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag.split()[0]}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_notebooks_show_a_film(tmp_path: Path) -> None:
    made = bfn.view("digits", steps=2, solver="ancestral", seed=3)
    (shown,) = re.findall(r'srcdoc="([^"]*)"', made._repr_html_())
    assert markup.unescape(shown) == made.html
    assert 'sandbox="allow-scripts allow-downloads"' in made._repr_html_()
    made.save(tmp_path / "film.html")
    assert (tmp_path / "film.html").read_text() == made.html
    assert repr(made).startswith("Film(3 frames, ")
    start = recorded(made.html)[1][0]
    assert (start["request"]["solver"], start["request"]["seed"]) == ("ancestral", 3)
    model = bfn.BFN.from_pretrained("digits-labelled")
    labels = [
        header["request"]["label"]
        for header, _ in recorded(bfn.view(model, steps=1, label=[1, "2"]).html)
        if header["kind"] == "start"
    ]
    assert labels == [1, 2]


def test_mistakes_with_films() -> None:
    model = bfn.discrete(untrained.Constant(), K=2)
    with pytest.raises(BFNError, match="the model does not describe its data; train it"):
        bfn.view(model)
    with pytest.raises(BFNError, match=r"n = 0; expected a whole number, at least 1"):
        bfn.view("digits", 0)
    model.data_format = {"medium": "array", "shape": [MOST + 1], "form": {"name": "real"}}
    with pytest.raises(BFNError, match=r"has 16,385 variables, but the page can show only 16,384"):
        bfn.view(model)
    text = pages.of(untrained.text(), "text")
    long = replace(text, settings=replace(text.settings, steps=1000))
    with pytest.raises(BFNError, match="64 generations of 1000 steps are too much for one page"):
        streams.record(long, 64)


# The rules by which modules become one script.


@pytest.mark.parametrize("name", MODULES)
def test_modules_keep_the_rules_that_let_them_be_joined(name: str) -> None:
    text = MODULES[name]
    lines = text.splitlines()
    imports = [line for line in lines if re.match(r"\s*import\b", line)]
    for line in imports:
        (other,) = re.findall(r'^import \{[\w, ]+\} from "\./([\w-]+\.js)";$', line)
        assert other in MODULES
    for line in lines:
        if re.match(r"\s*export\b", line):
            assert re.match(r"export (async )?(function\*?|const|let|class) \w", line), line
    assert "</script" not in text.lower()
    assert "import(" not in text


def test_no_name_is_taken_twice_in_the_joined_script() -> None:
    pattern = r"^(?:export )?(?:async )?(?:function\*?|const|let|class) (\w+)"
    names = [found for text in MODULES.values() for found in re.findall(pattern, text, re.M)]
    destructured = r"^(?:export )?const [\[{]([^\]}]*)[\]}] ="
    for text in MODULES.values():
        for found in re.findall(destructured, text, re.M):
            names += re.findall(r"(\w+)(?:,|$)", found)
    assert sorted(names) == sorted(set(names))
