"""How a training can end other than well."""

from __future__ import annotations

from bfn.errors import BFNError


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP stopped the training; its state is saved if it has a folder."""


class Diverged(RuntimeError):
    """The loss or the gradient is no longer finite."""


class Unwritten(BFNError):
    """A file of the run could not be written: most often, the disk is full."""


class Stranded(RuntimeError):
    """Another process of the same training is gone."""
