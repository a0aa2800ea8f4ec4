"""Bayesian Flow Networks.

    model = bfn.discretised(net, K=256, sigma_1=1e-3)
    loss = bfn.loss.continuous_time(model, x).mean()
    x = bfn.generate(model, shape=(64, 3, 32, 32), steps=100)

Names are loaded when first used, so that `import bfn` itself costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bfn.errors import lazy

__version__ = "0.1.0"

_NAMES = {
    "bfn.errors": "BFNError",
    "bfn.flow": "Theta",
    "bfn.model": "BFN Variable continuous discrete discretised mixed register_kind",
    "bfn.output": "Bins Lengths MeasurementNoise",
    "bfn.output.bins": "bin_centre bin_index discretise",
    "bfn.plots.sheets": "show",
    "bfn.recipe.suggest": "suggest_beta_1 suggest_sigma_1",
    "bfn.sampling.generate": "generate",
    "bfn.sampling.infill": "infill",
    "bfn.schedule": "Exponential Logarithmic Quadratic Windowed register_schedule",
    "bfn.tables.table": "Table",
    "bfn.web.streams": "view",
}
_MODULES = (
    "codec data evaluate flow guidance loss nn noise output published recipe sampling schedule "
    "tables train"
)
_RENAMED = {
    "card": "bfn.saving",
    "quality": "bfn.sampling.quality",
    "solvers": "bfn.sampling.solvers",
    "times": "bfn.loss",
}
"""The modules that are not called bfn.NAME."""
_HOMES = (
    {name: f"bfn.{name}" for name in _MODULES.split()}
    | _RENAMED
    | {name: f"{home}:{name}" for home, names in _NAMES.items() for name in names.split()}
)
__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from bfn import codec as codec
    from bfn import data as data
    from bfn import evaluate as evaluate
    from bfn import flow as flow
    from bfn import guidance as guidance
    from bfn import loss as loss
    from bfn import loss as times
    from bfn import nn as nn
    from bfn import noise as noise
    from bfn import output as output
    from bfn import published as published
    from bfn import recipe as recipe
    from bfn import sampling as sampling
    from bfn import saving as card
    from bfn import schedule as schedule
    from bfn import tables as tables
    from bfn import train as train
    from bfn.errors import BFNError as BFNError
    from bfn.flow import Theta as Theta
    from bfn.model import BFN as BFN
    from bfn.model import Variable as Variable
    from bfn.model import continuous as continuous
    from bfn.model import discrete as discrete
    from bfn.model import discretised as discretised
    from bfn.model import mixed as mixed
    from bfn.model import register_kind as register_kind
    from bfn.output import Bins as Bins
    from bfn.output import Lengths as Lengths
    from bfn.output import MeasurementNoise as MeasurementNoise
    from bfn.output.bins import bin_centre as bin_centre
    from bfn.output.bins import bin_index as bin_index
    from bfn.output.bins import discretise as discretise
    from bfn.plots.sheets import show as show
    from bfn.recipe.suggest import suggest_beta_1 as suggest_beta_1
    from bfn.recipe.suggest import suggest_sigma_1 as suggest_sigma_1
    from bfn.sampling import quality as quality
    from bfn.sampling import solvers as solvers
    from bfn.sampling.generate import generate as generate
    from bfn.sampling.infill import infill as infill
    from bfn.schedule import Exponential as Exponential
    from bfn.schedule import Logarithmic as Logarithmic
    from bfn.schedule import Quadratic as Quadratic
    from bfn.schedule import Windowed as Windowed
    from bfn.schedule import register_schedule as register_schedule
    from bfn.tables.table import Table as Table
    from bfn.web.streams import view as view

__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
