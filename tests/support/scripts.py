"""The scripts of examples/, docs/ and benchmarks/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load(script: str) -> ModuleType:
    """A script, such as "examples/audio"."""
    name = script.replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their types
    spec.loader.exec_module(module)
    return module
