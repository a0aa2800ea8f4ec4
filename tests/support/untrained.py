"""Untrained runs of every medium, whose numbers can be worked out by hand."""

from __future__ import annotations

import numpy as np

import bfn
from bfn.data import from_arrays, load
from bfn.data.base import Stream
from bfn.data.formats import TextFormat
from bfn.data.forms import Alphabet
from bfn.plots.figures import Run
from bfn.recipe import Sample
from support.toys import Constant

SAMPLING = Sample(n=4, steps=3)


def images(form: str = "discretised", **settings) -> Run:
    """Digits, with heads that never override the network."""
    models = {
        "binary": lambda: bfn.discrete(Constant(), K=2, beta_1=4.0, head="plain"),
        "discretised": lambda: bfn.discretised(Constant(2), K=17, sigma_1=0.05),
        "discrete": lambda: bfn.discrete(Constant(17, True), K=17, beta_1=1.0, head="plain"),
        "continuous": lambda: bfn.continuous(Constant(), sigma_1=0.05),
    }
    return Run(models[form](), load("digits", form=form), SAMPLING, **settings)


def text(
    alphabet: str | None = " abcdefghijklmnopqrstuvwxyz",
    words: str = "the cat sat on a mat and ",
    **settings,
) -> Run:
    symbols = Alphabet(alphabet)
    classes = symbols.classes(words * 30)
    splits = {"train": classes, "validation": classes, "test": classes}
    data = Stream("words", TextFormat(symbols, 12), splits)
    net = Constant(symbols.K, True) if symbols.K > 2 else Constant()
    model = bfn.discrete(net, K=symbols.K, beta_1=0.75, head="plain")
    return Run(model, data, SAMPLING, **settings)


def arrays(width: int, **settings) -> Run:
    values = np.random.default_rng(0).uniform(-1, 1, (80, width)).astype(np.float32)
    model = bfn.continuous(Constant(), sigma_1=0.05)
    return Run(model, from_arrays(values), SAMPLING, **settings)
