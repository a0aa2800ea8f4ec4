"""The recipes shipped with the package: one TOML file each, found by name."""

from __future__ import annotations

from pathlib import Path

from bfn.errors import BFNError, did_you_mean

_HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.stem for path in _HERE.glob("*.toml"))


def find(recipe: str | Path) -> Path:
    """The file of a shipped recipe, or the path of another one."""
    path = Path(recipe)
    if str(recipe) in names():
        return _HERE / f"{recipe}.toml"
    if (path / "recipe.toml").is_file():
        raise BFNError(
            f"{str(recipe)!r} is the folder of a run; its recipe is {path}/recipe.toml, and bfn "
            f"train {path}/recipe.toml --out {path} --resume continues it"
        )
    if path.suffix == ".toml" or len(path.parts) > 1:
        if path.is_file():
            return path
        raise BFNError(f"there is no recipe file {str(recipe)!r}; give the path of a .toml file")
    expected = f"; expected {', '.join(names())}, or the path of a .toml file"
    raise BFNError(f"unknown recipe {str(recipe)!r}{did_you_mean(recipe, names()) or expected}")
