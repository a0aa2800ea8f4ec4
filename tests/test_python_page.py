"""The page on training in Python is one program, and it runs as it is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

PAGE = Path(__file__).parent.parent / "docs" / "python.md"


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M))
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="the class Net belongs to the script"):
        exec(compile(program, str(PAGE), "exec"), script.__dict__)
    fit, title, head, first, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Fit\(step 200, loss \d\.\d{4} bits per dimension\)", fit)
    assert title == "200 examples, bits per dimension"
    assert head.split() == ["n", "L^n", "L^r", "total", "s.e."]
    assert float(last.split()[3]) < 2.7  # log2(17) is 4.09
    assert first.split()[0] == "10"
