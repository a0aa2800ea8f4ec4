"""Films: one file that needs nothing else, with the messages that a live page gets."""

from __future__ import annotations

import base64
import hashlib
import html as markup
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bfn
from bfn.cli import main
from bfn.errors import BFNError
from bfn.web import messages, streams
from bfn.web.subject import MOST
from support import untrained
from web import pages as support

PAGE = {name: content.decode() for name, (_, content) in messages.page_files().items()}
MODULES = {name: text for name, text in PAGE.items() if name.endswith(".js")}


def recorded(page: str) -> list[tuple[dict[str, Any], bytes]]:
    """What the film in a page holds."""
    (data,) = re.findall(r'<script type="application/octet-stream" id="film">([^<]*)<', page)
    film = zlib.decompress(base64.b64decode(data))
    return [messages.unpack(message) for message in support.split(film)]


def test_a_film_of_digits_is_one_small_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["view", "digits-labelled", "-o", "film.html", "--label", "3,7", "--steps", "50"]) == 0
    )
    assert capsys.readouterr().out == "film.html: 2 generations, 102 frames\n"
    page = Path("film.html").read_text()
    assert len(page) < 1_000_000
    # Nothing of it lies elsewhere.
    without_film = re.sub(r'id="film">[^<]*<', "", page)
    assert not re.search(r'(src|href)="(?!#|data:)', without_film)
    assert not re.search(r"https?://(?!www\.w3\.org/)", without_film)
    (hello, _), *rest = recorded(page)
    assert hello["live"] is False
    assert [model["id"] for model in hello["models"]] == ["digits-labelled"]
    kinds = [header["kind"] for header, _ in rest]
    assert kinds == 2 * ["start", *["frame"] * 51, "end"]
    assert [header["request"]["label"] for header, _ in rest if header["kind"] == "start"] == [3, 7]
    assert {header["run"] for header, _ in rest} == {0, 1}


def test_a_film_holds_what_a_live_page_gets() -> None:
    subject = support.of(untrained.images(), "digits")
    live = support.streamed(subject, steps=4)
    _, *rest = recorded(streams.record(subject, 1).html)
    assert rest[:-1] == live[:-1]
    assert rest[-1][0]["values"] == live[-1][0]["values"]


def test_several_generations_are_those_of_one_seed() -> None:
    """The second is the second of `bfn sample --n 2`, as its command says."""
    subject = support.of(untrained.images(), "digits")
    _, *rest = recorded(streams.record(subject, 3).html)
    assert [header["kind"] for header, _ in rest] == 3 * ["start", *["frame"] * 5, "end"]
    ends = [header for header, _ in rest if header["kind"] == "end"]
    starts = [header for header, _ in rest if header["kind"] == "start"]
    x = bfn.sampling.in_batches(subject.model, 3, (1, 8, 8), 4, solver="sde2")
    assert [end["values"] for end in ends] == [subject.own(each) for each in x]
    assert [start["run"] for start in starts] == [0, 1, 2]
    assert "--n 3 " in starts[2]["command"]


def test_the_policy_allows_the_films_own_script_and_style_alone() -> None:
    page = streams.record(support.mixed(), 1).html
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    for tag, directive in (("style", "style-src"), ('script type="module"', "script-src")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag.split()[0]}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_notebooks_show_a_film(tmp_path: Path) -> None:
    made = bfn.view("digits", steps=2, solver="ancestral", seed=3)
    (shown,) = re.findall(r'srcdoc="([^"]*)"', made._repr_html_())
    assert markup.unescape(shown) == made.html
    assert 'sandbox="allow-scripts allow-downloads"' in made._repr_html_()
    made.save(tmp_path / "film.html")
    assert (tmp_path / "film.html").read_text() == made.html
    assert repr(made).startswith("Film(3 frames, ")
    start = recorded(made.html)[1][0]
    assert (start["request"]["solver"], start["request"]["seed"]) == ("ancestral", 3)
    model = bfn.BFN.from_pretrained("digits-labelled")
    labels = [
        header["request"]["label"]
        for header, _ in recorded(bfn.view(model, steps=1, label=[1, "2"]).html)
        if header["kind"] == "start"
    ]
    assert labels == [1, 2]


def test_mistakes_with_films() -> None:
    model = bfn.discrete(untrained.Constant(), K=2)
    with pytest.raises(BFNError, match="the model does not say what its data are; train it"):
        bfn.view(model)
    with pytest.raises(BFNError, match=r"n = 0; expected a whole number, at least 1"):
        bfn.view("digits", 0)
    model.data_format = {"medium": "array", "shape": [MOST + 1], "form": {"name": "real"}}
    with pytest.raises(BFNError, match=r"has 16,385 variables, and the page can draw 16,384"):
        bfn.view(model)
    text = support.of(untrained.text(), "text")
    long = replace(text, settings=replace(text.settings, steps=1000))
    with pytest.raises(BFNError, match="64 generations of 1000 steps are too much for one page"):
        streams.record(long, 64)


# The rules by which modules become one script.


@pytest.mark.parametrize("name", MODULES)
def test_modules_keep_the_rules_that_let_them_be_joined(name: str) -> None:
    text = MODULES[name]
    lines = text.splitlines()
    imports = [line for line in lines if re.match(r"\s*import\b", line)]
    for line in imports:
        (other,) = re.findall(r'^import \{[\w, ]+\} from "\./([\w-]+\.js)";$', line)
        assert other in MODULES
    for line in lines:
        if re.match(r"\s*export\b", line):
            assert re.match(r"export (async )?(function\*?|const|let|class) \w", line), line
    assert "</script" not in text.lower()
    assert "import(" not in text


def test_no_name_is_taken_twice_in_the_joined_script() -> None:
    pattern = r"^(?:export )?(?:async )?(?:function\*?|const|let|class) (\w+)"
    names = [found for text in MODULES.values() for found in re.findall(pattern, text, re.M)]
    destructured = r"^(?:export )?const [\[{]([^\]}]*)[\]}] ="
    for text in MODULES.values():
        for found in re.findall(destructured, text, re.M):
            names += re.findall(r"(\w+)(?:,|$)", found)
    assert sorted(names) == sorted(set(names))


def test_the_page_loads_nothing_from_elsewhere() -> None:
    index = PAGE["index.html"]
    assert index.count('<link rel="stylesheet" href="page.css">') == 1
    assert index.count('<script type="module" src="main.js"></script>') == 1
    assert index.count('<meta charset="utf-8">') == 1
    assert "<script" not in index.replace('<script type="module" src="main.js"></script>', "")
    assert not re.search(r"\s(style|on\w+)=", index)
    for name, text in PAGE.items():
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), name
    assert not re.search(r"url\((?!['\"]?data:)", PAGE["page.css"])
