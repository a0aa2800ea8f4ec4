"""Imports point downwards only, and `import bfn` costs nothing.

    cli  web                                   what people touch
    train  evaluate  codec  plots  ...         what they do
    sampling  loss  guidance                   the algorithms
    model  saving                              BFN = net + flow + head
    output
    flow
    schedule
    device  progress
    noise  errors

nn and data stand aside: networks know only errors, data sets also noise and the bins.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import bfn

SOURCE = Path(bfn.__file__).parent
LAYERS: list[set[str]] = [
    {"errors", "noise", "files"},
    {"device", "progress", "recipe"},
    {"schedule"},
    {"flow"},
    {"output"},
    {"model", "saving"},
    {"sampling", "loss", "guidance"},
    {
        *("recipe.build", "recipe.keys", "runs", "evaluate", "plots", "published"),
        *(
            "train",
            "codec",
            "tables",
            "compare",
            "sampling.batches",
            "sampling.quality",
        ),
    },
    {"web"},
    {"cli", "__main__"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
ASIDE = {"nn": {"errors"}, "data": {"errors", "files", "noise", "progress", "output.bins"}}
"""Parts outside the layers, and all they may import. Anything that does things may import them."""
WHO_MAY_LOOK_ASIDE = RANK["train"]
RENAMED = {"saving", "loss"}
"""The modules that are also bfn.card and bfn.times."""


@functools.cache
def modules() -> list[str]:
    """Every module of the package, as flow.base, relative to it."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts:
            found.append(".".join(parts))
    return found


def file_of(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def imported(module: str) -> set[str]:
    """The modules of the package that a module imports anywhere, even inside a function."""
    known, found = set(modules()), set()
    package = module if file_of(module).name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file_of(module).read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ["bfn", *(p for p in package.split(".") if p)]
                above = above[: len(above) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            names = [f"{base}.{alias.name}" for alias in node.names]
        for name in names:
            if not name.startswith("bfn."):
                continue
            inner = name.removeprefix("bfn.")
            if inner.split(".")[0] not in known:
                # A public name of the package itself (bfn.BFN) comes from where it lives.
                public = getattr(bfn, inner.split(".")[0])
                inner = getattr(public, "__module__", public.__name__).removeprefix("bfn.")
            while inner and inner not in known:
                inner = inner.rpartition(".")[0]  # a name inside a module
            found |= {inner} - {""}
    return found


def rank(module: str) -> int:
    return RANK[module] if module in RANK else RANK[module.split(".")[0]]


def allowed(importer: str, target: str) -> bool:
    a, b = importer.split(".")[0], target.split(".")[0]
    if a == b:
        return True
    if a in ASIDE:
        return any(target == given or target.startswith(given + ".") for given in ASIDE[a])
    if b in ASIDE:
        return rank(importer) >= WHO_MAY_LOOK_ASIDE
    return rank(importer) >= rank(target)


def test_every_part_has_its_place() -> None:
    parts = {module.split(".")[0] for module in modules()}
    assert parts <= set(RANK) | set(ASIDE)
    assert {"model", "flow", "nn", "data", "cli"} <= parts


def test_no_folder_is_too_large() -> None:
    """A folder has at most fourteen modules, which a newcomer can look through."""
    sizes = Counter(path.parent for path in SOURCE.rglob("*.py"))
    assert not {folder: size for folder, size in sizes.items() if size > 14}


def test_imports_point_downwards() -> None:
    upward = [(m, target) for m in modules() for target in imported(m) if not allowed(m, target)]
    assert not upward


def test_no_part_imports_itself_in_a_circle() -> None:
    """Modules of one layer may import one another, but not both ways."""
    graph = {module: imported(module) - {module} for module in modules()}
    # A package's own __init__ gathers its modules; what they import is what counts.
    packages = {module for module in graph if file_of(module).name == "__init__.py"}

    def reach(module: str) -> set[str]:
        seen, todo = set(), [module]
        while todo:
            for target in graph[todo.pop()] - seen:
                seen.add(target)
                if target not in packages or not module.startswith(target + "."):
                    todo.append(target)
        return seen

    circles = sorted(module for module in set(graph) - packages if module in reach(module))
    assert not circles


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    ).stdout.strip()


@pytest.mark.parametrize("command", ["sample", "evaluate", "archives", "serve"])
def test_commands_that_use_a_model_never_load_training(command: str) -> None:
    """Nothing that they import, even inside a function, leads to bfn.train."""
    seen, todo = {"cli", "cli.app"}, [f"cli.{command}"]  # app loads the command that is called
    while todo:
        new = imported(todo.pop()) - seen
        seen |= new
        todo.extend(new)
    assert {"model", "runs.folder"} <= seen
    assert not {module for module in seen if module.split(".")[0] == "train"}


def test_importing_the_package_loads_nothing() -> None:
    heavy = ("torch", "numpy", "safetensors", "rich", "cyclopts", "bfn.train")
    code = "import bfn, sys; print(bfn.__version__, 'BFN' in dir(bfn), "
    code += f"[m for m in {heavy} if m in sys.modules])"
    assert run(code) == f"{bfn.__version__} True []"


def test_public_names_cost_little_beside_torch() -> None:
    """All of them at once: our own modules and safetensors, nothing more of torch, no extras."""
    code = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import bfn\n"
        "for name in bfn.__all__: getattr(bfn, name)\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    assert run(code) == "['bfn', 'safetensors']"


def test_public_names_are_what_they_say() -> None:
    for module in (bfn, bfn.codec, bfn.data, bfn.tables):
        for name in module.__all__:
            found = getattr(module, name)
            assert getattr(found, "__name__", name).rpartition(".")[2] in (name, *RENAMED)
        with pytest.raises(AttributeError, match=f"'{module.__name__}' has no attribute 'none'"):
            _ = module.none
    assert set(bfn.__all__) <= set(dir(bfn))
    assert issubclass(bfn.BFNError, ValueError)
