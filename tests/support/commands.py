"""Commands as the tests run them."""

from __future__ import annotations

import pytest

from bfn.cli.app import main


class Command:
    """Runs `bfn`; what the last command printed on standard error is `err`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.err = capsys, ""

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """The output of a command or, if it must fail, its one sentence."""
        self.capsys.readouterr()
        found = main([str(argument) for argument in arguments])
        printed = self.capsys.readouterr()
        self.err = printed.err
        assert found == code, self.err
        if not code:
            return printed.out
        assert printed.out == ""
        (sentence,) = self.err.splitlines()
        assert sentence.startswith("bfn: ")
        return sentence
