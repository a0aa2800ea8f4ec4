"""Messages: packed and unpacked, and what a frame says about beliefs that are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bfn.web import messages
from web import pages

SUBJECTS = pages.subjects()


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
    """As the page reads it, by what `start` says."""
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
    # A fast solver asks the network just above t = 0 first, and the page says so.
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
    """And its end says the same, in the data's own units."""
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


def test_before_any_message_all_is_open() -> None:
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
    """The belief of two particles that disagree is open, however sure each is."""
    subject = SUBJECTS["binary"]
    flow, model = subject.model.flow, subject.model
    theta = flow.prior((2, 1, 8, 8))
    sure = torch.full((2, 1, 8, 8), 50.0) * torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1)
    output = model.head(sure, theta, torch.zeros(2))
    look = messages.look(subject, theta, output, output.mode(), slice(0, 2))
    assert look.entropy == pytest.approx(64 * math.log(2))
    for row in range(2):
        alone = messages.look(subject, theta, output, output.mode(), slice(row, row + 1))
        assert alone.entropy == pytest.approx(0.0, abs=1e-6)
