"""The one error for mistakes a user can mend."""

from __future__ import annotations


class BFNError(ValueError):
    """One sentence: what was wrong, what was expected, what to do."""
