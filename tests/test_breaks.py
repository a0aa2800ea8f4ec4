"""The list of breaks fits the code; `python tests/breaks.py` tries them out."""

import pytest

import breaks


@pytest.mark.parametrize("broken", breaks.read(), ids=lambda b: f"{b.file.name}: {b.new.strip()}")
def test_what_is_to_be_broken_is_there_once(broken: breaks.Break) -> None:
    found = (breaks.ROOT / broken.file).read_text().count(broken.old)
    assert found == 1, (
        f"change breaks.txt too: {broken.old!r} occurs {found} times in {broken.file}"
    )
    assert broken.new != broken.old
    assert all((breaks.ROOT / test).is_file() for test in broken.tests)
    assert len(breaks.read()) > 100
