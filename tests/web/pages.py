"""Models for the page, and a server that runs while a test talks to it."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import bfn
from bfn.data.formats import MixedFormat, TextFormat
from bfn.data.forms import LETTERS, Alphabet
from bfn.recipe import Sample
from bfn.tables.columns import Columns
from bfn.tables.format import TableFormat, variable
from bfn.web import messages, requests, streams
from bfn.web.requests import Examine, Generate
from bfn.web.subject import Subject, subject
from support import untrained

SETTINGS = Sample(steps=4, solver="sde2")
TOKEN = "a-token"


def named(**options: Any) -> tuple[bfn.BFN, MixedFormat]:
    """A model of a number, one in bins, a class of three, two yes-or-no answers."""
    variables = {
        "height": bfn.Variable("continuous"),
        "age": bfn.Variable("discretised", K=8),
        "colour": bfn.Variable("discrete", K=3),
        "answers": bfn.Variable("discrete", (2,), K=2),
    }
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = bfn.nn.MixedMLP.of(variables, width=8, layers=1, **options)
    model = bfn.mixed(net, variables)
    return model, MixedFormat(model.flow.variables)


def mixed() -> Subject:
    return subject("mixed", *named(), SETTINGS)


def lines(length: int, **options: Any) -> tuple[bfn.BFN, TextFormat]:
    """A model of lines of up to a given number of letters."""
    net = bfn.nn.Transformer(
        length=length, inputs=27, outputs=27, width=8, layers=1, heads=2, **options
    )
    model = bfn.discrete(net, K=27, beta_1=0.75)
    model.lengths = bfn.Lengths.of(torch.tensor([3, 5, length]), length)
    return model, TextFormat(Alphabet(LETTERS), length, lines=True)


def table(data: Any, max_bins: int = 256, **options: Any) -> tuple[bfn.BFN, TableFormat]:
    """A model of a table's rows."""
    columns = Columns.fit(data, max_bins=max_bins)
    variables = {column.name: variable(column) for column in columns.variables}
    net = bfn.nn.MixedMLP.of(variables, width=8, layers=1, **options)
    return bfn.mixed(net, variables), TableFormat(columns)


def of(run: Any, id: str) -> Subject:
    return subject(id, run.model, run.data.format, SETTINGS)


def subjects() -> dict[str, Subject]:
    """One of every kind of data."""
    forms = ("discretised", "continuous", "discrete", "binary")
    found = [of(untrained.images(form), form) for form in forms]
    found += [of(untrained.text(), "text"), of(untrained.text(alphabet=None), "bytes")]
    found += [of(untrained.arrays(5), "array"), mixed()]
    return {each.id: each for each in found}


def ask(given: Subject, **message: Any) -> Generate | Examine:
    request = requests.read({"do": "generate", "model": given.id, **message}, {given.id: given})
    assert isinstance(request, Generate | Examine)
    return request


def files(given: Subject, what: Any, **message: Any) -> list[tuple[str, bytes]]:
    """The name and content of what a request leads to."""
    download = requests.Download(what, ask(given, **message))
    return streams.files(given, download, lambda: None)


def streamed(given: Subject, **message: Any) -> list[tuple[dict[str, Any], bytes]]:
    """All messages to a page about a request."""
    found: list[bytes] = []
    streams.stream(given, ask(given, **message), lambda kind, message: found.append(message))
    return [messages.unpack(each) for each in found]


def split(film: bytes) -> list[bytes]:
    """The messages of a film, as the page reads them: each after its length."""
    found, place = [], 0
    while place < len(film):
        (length,) = struct.unpack_from("<I", film, place)
        found.append(film[place + 4 : place + 4 + length])
        place += 4 + length
    return found


@contextlib.contextmanager
def serving(given: Sequence[Subject]) -> Iterator[int]:
    """The port of a server of these models."""
    from bfn.web import server

    at = server.listen("127.0.0.1", 0)
    port = at.getsockname()[1]
    answering = server.answering(server.Server(given, TOKEN))
    thread = threading.Thread(target=answering.run, kwargs={"sockets": [at]}, daemon=True)
    thread.start()
    try:
        yield port
    finally:
        answering.should_exit = True
        thread.join(30)
        at.close()
