"""What a page may ask for, and the sentence that answers everything else."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from bfn.errors import BFNError
from bfn.web import requests
from web import pages

SUBJECTS = pages.subjects()
RGB = base64.b64encode(bytes(3 * 64)).decode()


def pinned(i: int, v: float, **message: Any) -> dict[str, Any]:
    return {"pins": {"i": [i], "v": [v]}, **message}


def examined(model: str = "discretised", **message: Any) -> dict[str, Any]:
    return {"do": "examine", "model": model, **message}


def picture(side: int, rgb: str = RGB) -> dict[str, Any]:
    return {"width": side, "height": side, "rgb": rgb}


def read(message: dict[str, Any]) -> requests.Request:
    return requests.read(message, SUBJECTS)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({}, "do = None; expected one of generate, examine, stop, download"),
        ({"do": ["generate"]}, "do = ['generate']; expected one of"),
        ({"model": "nope"}, "model = 'nope'; expected one of discretised, continuous, discrete"),
        ({"model": None}, "model = None; expected one of"),
        ({"steps": 0}, "steps = 0; expected a whole number from 1 to 1000"),
        ({"steps": 10**9}, "expected a whole number from 1 to 1000"),
        ({"steps": "10"}, "steps = '10'; expected a whole number"),
        ({"steps": True}, "steps = True; expected a whole number"),
        ({"seed": -1}, "seed = -1; expected a whole number from 0"),
        ({"solver": "sed"}, "solver = 'sed'; expected one of ancestral, sde, sde2, ode, ode2"),
        ({"label": 3}, "the model 'discretised' has no labels; leave the label out"),
        ({"pins": [1]}, "pins = [1]; expected a table"),
        ({"pins": {"i": [0]}}, "v = None; expected a list of at most 64 numbers"),
        ({"pins": {"i": [0], "v": []}}, "pins need a value for each variable, numbered 0 to 63"),
        (pinned(64, 1), "numbered 0 to 63"),
        (pinned(0.5, 1), "numbered 0 to 63"),  # pyright: ignore
        (pinned(0, 17), "is not possible; expected whole numbers 0 to 16"),
        (pinned(0, float("nan")), "a list of finite numbers"),
        ({"pins": {"i": [*range(64)], "v": [0] * 64}}, "everything is pinned"),
        ({"particles": 4}, "particles compete for what is pinned; pin something first"),
        (pinned(0, 0, particles=4, since=0.5), "particles cannot go on from the middle"),
        ({"since": 1.5}, "since = 1.5; expected a number from 0 to 1"),
        ({"guidance": float("inf")}, "guidance = inf; expected a number from 0 to 20"),
        (pinned(0, 5, model="array"), "a value lies outside the range of the data, -0.98"),
        (pinned(2, 3, model="mixed"), "variable 'colour' is not possible; expected whole numbers"),
        (examined(), "values = None; expected a list of at most 64 numbers"),
        (examined(values=[0]), "the example has 1 values; expected 64"),
        (examined(text="hello"), "the data of 'discretised' are not texts; give a pic"),
        (examined(picture=picture(28)), "28 x 28 pixels, but those of 'discretised' have 8 x 8"),
        (examined(picture=picture(8, "AAAA")), "the picture's pixels are damaged; drop it again"),
        (examined("text", text="Straße und s"), "holds 'S' at position 0 and 1 more characters"),
        (examined("text", text="short"), "the text has 5 characters; this model's texts have 12"),
        (examined("text", picture=picture(8)), "the data of 'text' are not pictures; give a text"),
        ({"do": "download", "what": "sample"}, "do = None; expected one of"),
        (
            {"do": "download", "what": "x", "request": {"do": "generate", "model": "text"}},
            "what = 'x'; expected one of sample, film, state, known",
        ),
        ({"do": "download", "request": {"do": "stop"}}, "a download needs the request of a gen"),
    ],
)
def test_a_wrong_request_gets_a_sentence(message: dict[str, Any], sentence: str) -> None:
    given = {"do": "generate", "model": "discretised", **message} if message else {}
    with pytest.raises(BFNError) as caught:
        read(given)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"x"', "[" * 100_000, "NaN"])
def test_anything_but_a_request_is_refused(text: str) -> None:
    with pytest.raises(BFNError, match="the message is not a JSON object; reload the page"):
        requests.parse(text)


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


def test_pictures_become_levels() -> None:
    shades = bytes(value for k in range(64) for value in [k * 4] * 3)
    found = read(examined(picture=picture(8, base64.b64encode(shades).decode())))
    assert isinstance(found, requests.Examine)
    assert found.values == tuple(round(4 * k / 255 * 16) for k in range(64))
    red = bytes(value for _ in range(64) for value in (255, 0, 0))
    found = read(examined(picture=picture(8, base64.b64encode(red).decode())))
    assert isinstance(found, requests.Examine)
    assert set(found.values) == {round(0.299 * 16)}
