"""The recipes shipped with the package: one TOML file each, found by name."""

from __future__ import annotations

from pathlib import Path

from bfn.errors import BFNError

_HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.stem for path in _HERE.glob("*.toml"))


def find(recipe: str | Path) -> Path:
    """The file of a shipped recipe's name, or the path of one's own."""
    path = Path(recipe)
    if str(recipe) in names():
        return _HERE / f"{recipe}.toml"
    if path.suffix == ".toml" or len(path.parts) > 1:
        if path.is_file():
            return path
        raise BFNError(f"there is no recipe file {str(recipe)!r}; give the path of a .toml file")
    import difflib

    near = difflib.get_close_matches(str(recipe), names(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise BFNError(
        f"unknown recipe {str(recipe)!r}; {hint}expected {', '.join(names())}, "
        "or the path of a .toml file"
    )
