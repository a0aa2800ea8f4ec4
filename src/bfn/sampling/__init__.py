"""Sampling: from the prior to data, step by step."""

from __future__ import annotations

from bfn.sampling import quality, solvers
from bfn.sampling.batches import in_batches

__all__ = ["in_batches", "quality", "solvers"]
