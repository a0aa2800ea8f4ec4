"""Generations and examples: the same as from the command line and the losses."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bfn
from bfn.errors import BFNError
from bfn.web import messages, requests, streams
from bfn.web.subject import Subject, load, subject
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
    x, _ = digits.example(range(64), example)
    g = torch.Generator().manual_seed(0)
    many = x.expand(128, -1, -1, -1)
    with digits.model.evaluating():
        nats = bfn.loss.continuous_time(digits.model, many, generator=g)
        last = bfn.loss.reconstruction(digits.model, many, generator=g)
    for name, exact in (("infinite_time", nats), ("reconstruction", last)):
        bits = [end["loss"][name] for end, _ in ends]
        errors = [
            np.std(bits, ddof=1) / math.sqrt(len(bits)),
            float(exact.std() / math.sqrt(len(many))),
        ]
        expected = float(exact.mean()) / math.log(2)
        # Even times leave an error of their own, of a few percent.
        assert abs(np.mean(bits) - expected) < 4 * sum(errors) + 0.05 * expected
    for end, body in ends:
        map = np.frombuffer(body, "<f4")
        assert map.shape == (64,)
        assert map.sum() == pytest.approx(end["loss"]["infinite_time"], rel=1e-4)
        assert end["values"] == example


class Silent(torch.nn.Module):
    """With a posterior head, the exact model of independent fair coins."""

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return torch.zeros_like(features)


def test_received_bits_are_those_that_are_no_longer_open() -> None:
    model = bfn.discrete(Silent(), K=2, beta_1=4.0, head="posterior")
    coins = subject("coins", model, SUBJECTS["binary"].format, pages.SETTINGS)
    runs = [pages.streamed(coins, steps=20, solver="ancestral", seed=seed) for seed in range(16)]
    for step in (5, 10, 20):
        headers = [found[1 + step][0] for found in runs]
        sums = [header["bits"] + header["entropy"] for header in headers]
        assert abs(np.mean(sums) - 64) < 4 * np.std(sums, ddof=1) / math.sqrt(len(sums))
        assert np.std(sums) < 8
    assert np.mean([header["bits"] for header in headers]) > 40


def test_state_is_all_of_it(digits: Subject) -> None:
    request = pages.ask(digits, steps=4)
    found = json.loads(json.dumps(streams.state(digits, request, 2, lambda: None)))
    assert found["t"] == 0.5
    p = np.array(found["output"][""]["p"])
    assert p.shape == (1, 8, 8, 17)
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)
    seen = []
    bfn.generate(
        digits.model, (1, 1, 8, 8), steps=4, solver=request.solver, seed=request.seed,  # pyright: ignore
        callback=lambda i, t, theta, output: seen.append(theta.V),
    )  # fmt: skip
    np.testing.assert_allclose(found["theta"]["V"], seen[2].numpy())


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
    said = people.describe()
    assert (said["medium"], said["about"]) == ("mixed", "2 columns: sex, age")
    assert [group["symbols"] for group in said["groups"]] == [
        ["female", "male"],
        ["18", "25", "33", "47", "missing"],
    ]
    found = pages.streamed(people, steps=3, pins={"i": [1], "v": [2]})
    planes = {(plane["name"], plane["group"]) for plane in found[0][0]["planes"]}
    names = ("input_p", "p", "entropy", "sample")
    assert planes == {(name, group) for name in names for group in range(2)}
    assert values(found)[1] == 2
    ((name, _, row),) = pages.files(people, "sample", pins={"i": [1], "v": [2]}, steps=2)
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
    ((_, _, rows),) = pages.files(incomes, "sample", pins={"i": [0], "v": [3]}, steps=2)
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
        ("much,Rome", "column 'pay' holds double values, and 'much' is none; give one like"),
        ("1200,Paris", "column 'town' holds 'Paris', which did not occur"),
        ("1200,\ud800", "column 'town' holds string values, and '\\ud800' is none"),
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
    x, _ = people.example([0, 1], [0, 3])
    t = torch.tensor([0.3])
    theta = flow.sample(x, t, g)
    with model.evaluating():
        output = model(theta, t)
    shown = messages.look(people, theta, output, x, slice(0, 1)).inputs[1]
    part = flow.unpack_theta(theta)["age"]
    V, beta = float(part.V), float(part.beta)
    density = [math.exp(-((V - beta * c) ** 2) / (2 * beta)) for c in (-0.8, -0.4, 0, 0.4, 0.8)]
    assert group.K == 5
    np.testing.assert_allclose(shown, np.array(density) / sum(density), rtol=1e-5)


@pytest.fixture(scope="module")
def lines() -> Subject:
    return subject("lines", *pages.lines(12), pages.SETTINGS)


def test_lines_have_the_length_that_is_asked_for(lines: Subject) -> None:
    assert lines.describe()["lengths"] == {"least": 1, "most": 12}
    found = pages.streamed(lines, steps=3, length=5)
    start, end = found[0][0], found[-1][0]
    assert start["exists"] == len(end["text"]) == 5
    assert start["command"].endswith("--length 5")
    assert [value is None for value in end["values"]] == [False] * 5 + [True] * 7
    drawn = {pages.streamed(lines, steps=1, seed=seed)[0][0]["exists"] for seed in range(6)}
    assert len(drawn) > 1
    pinned = pages.streamed(lines, steps=2, pins={"i": [7], "v": [1]})
    assert pinned[0][0]["exists"] >= 8
    assert pinned[-1][0]["text"][7] == "a"
    with pytest.raises(BFNError, match="x is observed beyond the length 5"):
        pages.streamed(lines, steps=2, pins={"i": [7], "v": [1]}, length=5)


def test_a_short_line_has_no_bits_beyond_its_end(lines: Subject) -> None:
    *_, (end, body) = pages.streamed(lines, do="examine", text="hello", steps=4)
    bits = np.frombuffer(body, "<f4")
    assert (bits[:5] > 0).all()
    assert (bits[5:] == 0).all()
    assert end["text"] == "hello"
    assert end["loss"]["per_variable"] == pytest.approx(end["loss"]["bits"] / 5)
