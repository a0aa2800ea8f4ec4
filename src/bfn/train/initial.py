"""Weights to start with: those of another run, of a shipped model, or of one on the hub."""

from __future__ import annotations

from collections.abc import Callable

from bfn import serialise
from bfn.errors import BFNError
from bfn.model import BFN


def start_from(model: BFN, name: str, say: Callable[[str], None]) -> None:
    """Copy the exported weights of another model, whose network must be of the same sizes."""
    other = BFN.from_pretrained(name)
    theirs, ours = other.net.state_dict(), model.net.state_dict()
    given = f"the weights of {name!r} do not fit this network:"
    advice = "give it the same [net] keys as that model has in its recipe.toml"
    for key in {**ours, **theirs}:
        if key not in theirs:
            raise BFNError(f"{given} they lack {key}; {advice}")
        if key not in ours:
            raise BFNError(f"{given} they have {key}, which it has not; {advice}")
        if ours[key].shape != theirs[key].shape:
            raise BFNError(
                f"{given} {key} is {tuple(theirs[key].shape)}, expected "
                f"{tuple(ours[key].shape)}; {advice}"
            )
    model.net.load_state_dict(theirs)
    for part in ("flow", "head"):
        mine, old = (serialise.describe(getattr(each, part)) for each in (model, other))
        if mine != old:
            say(f"the model in {name} had another {part}: {short(old)}, now {short(mine)}")


def short(description: dict) -> str:
    """What `serialise.describe` says of a part of a model, in a few words."""
    arguments = description["arguments"]
    values = ", ".join(
        f"{key}={short(value) if isinstance(value, dict) and 'class' in value else value}"
        for key, value in arguments.items()
    )
    return f"{description['class'].rpartition(':')[2]}({values})"
