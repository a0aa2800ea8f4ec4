"""The error for mistakes a user can fix, and the checks that raise it most often."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class BFNError(ValueError):
    """One sentence: what was wrong, what was expected, what to do."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP stopped the training; its state is saved if it has a folder."""


class Diverged(RuntimeError):
    """The loss, the gradient, the weights or a network's output are no longer finite."""

    def __init__(self, message: str, step: int = 0) -> None:
        super().__init__(message)
        self.step = step


class WriteFailed(BFNError):
    """A file of the run could not be written: most often, the disk is full."""


class ProcessLost(RuntimeError):
    """Another process of the same training has died."""


def check_integer(name: str, value: Any, least: int, needs: str = "expected") -> int:
    """Check an argument that must be an integer; nothing is rounded, and '20' is not 20."""

    def right(number: float) -> bool:
        return least <= number < 2**63 and not number % 1

    check_number(name, value, f"a whole number, at least {least}", right, needs)
    return int(value)


def check_number(
    name: str, value: Any, kind: str, right: Callable[[float], bool], needs: str = "expected"
) -> float:
    """Check a numeric argument; `kind` describes in words what `right` accepts."""
    try:
        number = None if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        # None, a list, a tensor of several numbers, a number beyond all floats
        number = None
    if number is None or not right(number):
        raise BFNError(f"{name} = {value!r}; {needs} {kind}")
    return number


def did_you_mean(name: object, known: Iterable[str], shown: Callable[[str], str] = repr) -> str:
    """A hint such as "; did you mean 'text'?", or nothing if no known name is close."""
    known = list(known)
    # lr is the learning_rate.
    abbreviated = [each for each in known if "".join(re.findall("(?:^|_)(.)", each)) == name]
    lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1)
    near = abbreviated or [lower[each] for each in close]
    return f"; did you mean {shown(near[0])}?" if near else ""


def suggestion(name: object, known: Iterable[str]) -> str:
    """A hint for an unknown name: the known one that is close, else all of them."""
    known = list(known)
    return did_you_mean(name, known) or f"; expected {', '.join(known)}"


def is_ours(name: object) -> bool:
    """Whether a name such as "bfn.nn:UNet" is one of this package."""
    return str(name).startswith(("bfn.", "bfn:"))


def require_trust(name: object, trust: bool) -> None:
    """Refuse a name of code in a file, unless the user trusts the file."""
    if not trust:
        what = "not a data source or flow of bfn" if is_ours(name) else "not part of bfn"
        raise BFNError(
            f"{str(name)!r} is {what} and could run any code; if you trust its author, give "
            "--trust (trust=True in Python)"
        )


def join_names(names: Iterable[str], most: int = 5) -> str:
    """A list of names, cut short: "a, b, c, d, e and 7 more"."""
    (*listed,) = names
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def without_none(**values: Any) -> dict[str, Any]:
    """The arguments that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def plural(count: int, noun: str) -> str:
    """A number of things: "1 file", "2,100 files"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def import_name(name: str, *, trust: bool) -> Any:
    """The object named "package.module:name"; any that is not bfn's own needs the user's trust."""
    if not is_ours(name):
        require_trust(name, trust)
        # The user's network or data source may be in the current folder.
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
    try:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise BFNError(
            f"{name!r} could not be imported ({error}); expected package.module:name of something "
            "installed here"
        ) from error


def require_extra(module: str, extra: str, purpose: str) -> Any:
    """Import an optional dependency, or say which extra of bfn installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BFNError(
            f"{purpose} needs {module.partition('.')[0]}, which is not installed; add it with: "
            f"pip install 'bfn[{extra}]'"
        ) from None


def lazy(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The __getattr__ of a module whose names are loaded when first used.

    `homes` has the place of each name: package.module:name, or the module that it stands for.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, attribute = homes[name].partition(":")
        home = importlib.import_module(place)
        return getattr(home, attribute) if attribute else home

    return load


class Extra:
    """An optional dependency, imported when first used, or named in an error."""

    def __init__(self, module: str, extra: str, purpose: str) -> None:
        self._needed = module, extra, purpose

    def __getattr__(self, name: str) -> Any:
        return getattr(require_extra(*self._needed), name)


def printable(text: str) -> str:
    """Text with control and unprintable characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
