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
_MODULES = {
    "card": "bfn.saving",
    "quality": "bfn.sampling.quality",
    "solvers": "bfn.sampling.solvers",
    "times": "bfn.loss",
}
"""The modules that are not called bfn.NAME."""

__all__ = [
    "BFN",
    "BFNError",
    "Bins",
    "Exponential",
    "Lengths",
    "Logarithmic",
    "MeasurementNoise",
    "Quadratic",
    "Table",
    "Theta",
    "Variable",
    "Windowed",
    "__version__",
    "bin_centre",
    "bin_index",
    "card",
    "codec",
    "continuous",
    "data",
    "discrete",
    "discretise",
    "discretised",
    "evaluate",
    "flow",
    "generate",
    "guidance",
    "infill",
    "loss",
    "mixed",
    "nn",
    "noise",
    "output",
    "published",
    "quality",
    "recipe",
    "register_kind",
    "register_schedule",
    "sampling",
    "schedule",
    "show",
    "solvers",
    "suggest_beta_1",
    "suggest_sigma_1",
    "tables",
    "times",
    "train",
    "view",
]

if TYPE_CHECKING:
    from bfn import (
        codec,
        data,
        evaluate,
        flow,
        guidance,
        loss,
        nn,
        noise,
        output,
        published,
        recipe,
        sampling,
        schedule,
        tables,
        train,
    )
    from bfn import loss as times
    from bfn import saving as card
    from bfn.errors import BFNError
    from bfn.flow import Theta
    from bfn.model import (
        BFN,
        Variable,
        continuous,
        discrete,
        discretised,
        mixed,
        register_kind,
    )
    from bfn.output import Bins, Lengths, MeasurementNoise
    from bfn.output.bins import bin_centre, bin_index, discretise
    from bfn.plots.sheets import show
    from bfn.recipe.suggest import suggest_beta_1, suggest_sigma_1
    from bfn.sampling import quality, solvers
    from bfn.sampling.generate import generate
    from bfn.sampling.infill import infill
    from bfn.schedule import (
        Exponential,
        Logarithmic,
        Quadratic,
        Windowed,
        register_schedule,
    )
    from bfn.tables.table import Table
    from bfn.web.streams import view

__getattr__ = lazy(
    __name__,
    {name: f"bfn.{name}" for name in __all__}
    | _MODULES
    | {name: f"{home}:{name}" for home, names in _NAMES.items() for name in names.split()},
)


def __dir__() -> list[str]:
    return sorted(__all__)
