"""The page in a real browser, as a person uses it. Pictures of it are kept in build/screenshots."""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import compress, crc32

import numpy as np
import pytest
import torch

import bfn
from support import tiny_runs
from support.processes import start

pytestmark = pytest.mark.slow
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
REQUIRED = os.environ.get("BFN_BROWSER") == "required"
DESKTOP, PHONE = (1440, 900), (375, 812)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's chromium; without one the tests are skipped, or fail where it is required."""
    refuse = pytest.fail if REQUIRED else pytest.skip
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
    if path is None:
        refuse("there is no chromium: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        refuse("there is no playwright: pip install -c constraints.txt playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., str]]:
    """Start `bfn serve` with these arguments, or stop one; returns the address that it prints."""
    servers = {}

    def serve(*arguments: object, stop: str = "") -> str:
        if stop:
            servers[stop].send_signal(signal.SIGINT)
            return stop
        server = start("serve", *arguments, "--no-browser", "--port", 0)
        for line in server.stdout:
            if found := re.search(r"http://\S+", line):
                servers[found[0]] = server
                return found[0]
        raise AssertionError(server.stderr.read())

    yield serve
    for server in servers.values():
        server.kill()
        server.communicate(timeout=30)


@pytest.fixture(scope="module")
def address(serve: Callable[..., str]) -> str:
    """The shipped models of digits."""
    return serve()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; in the end there must be no error in its console and no request elsewhere."""
    troubles: list[str] = []
    contexts = []

    def visit(
        address: str, size: tuple[int, int] = DESKTOP, scheme: str = "light", wait: bool = True
    ) -> Any:
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("console", lambda entry: entry.type == "error" and troubles.append(entry.text))
        home = re.match(r"\w+://[^/]*", address)[0]
        allowed = (home, home.replace("http", "ws"), "data:", "blob:")
        page.on("request", lambda r: r.url.startswith(allowed) or troubles.append(r.url))
        page.goto(address)
        page.wait_for_selector("body.ready")  # the first frame is drawn
        if wait:
            ready(page)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert troubles == []


def ready(page: Any) -> None:
    """Wait until everything that was asked for is there."""
    page.wait_for_selector("#stage[aria-busy=false]")
    page.wait_for_timeout(60)  # until it is drawn


def seek(page: Any, t: float) -> None:
    page.locator("#t").evaluate("(s, t) => { s.value = t; s.dispatchEvent(new Event('input')) }", t)
    page.wait_for_timeout(60)  # a frame of the screen


def canvas(page: Any, role: str, which: int = 0) -> Any:
    return page.locator(f"figure[data-role={role}] canvas").nth(which)


def look(page: Any, role: str, which: int = 0) -> str:
    """What is drawn there, pixel by pixel."""
    return canvas(page, role, which).evaluate("canvas => canvas.toDataURL()")


def cells(page: Any, role: str, which: int = 0) -> list[list[int]]:
    """The brightness of each cell of an 8 x 8 picture, beside its middle and within its frame."""
    return canvas(page, role, which).evaluate(
        """canvas => [...Array(8).keys()].map((row) => [...Array(8).keys()].map((column) =>
             canvas.getContext("2d").getImageData((column + 0.3) * canvas.width / 8,
               (row + 0.3) * canvas.height / 8, 1, 1).data[0]))"""
    )


def shade(page: Any, role: str, row: int, column: int) -> int:
    return cells(page, role)[row][column]


def place(page: Any, row: int, column: int) -> dict[str, float]:
    size = canvas(page, "believes").bounding_box()["width"] / 8
    return {"x": (column + 0.5) * size, "y": (row + 0.5) * size}


def tool(page: Any, name: str) -> None:
    page.locator("#tool").get_by_text(name, exact=True).click()


def examine(page: Any, text: str) -> None:
    """Give the page the user's own example."""
    page.fill("#own-text", text)
    page.click("#examine")
    page.wait_for_selector("#badge:has-text('your example')")
    ready(page)
    assert "in all" in page.locator("#unsure").inner_text()


def keep(page: Any, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def png(width: int, height: int) -> bytes:
    """A picture, dark on the left and bright on the right."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc32(name + data))

    row = b"\0" + bytes(255 * (2 * x // width) for x in range(width))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", compress(row * height)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def drop(page: Any, name: str, data: bytes) -> None:
    """Let go of a file over the page."""
    page.evaluate(
        """([name, bytes]) => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([new Uint8Array(bytes)], name));
          document.body.dispatchEvent(new DragEvent("drop", { bubbles: true, dataTransfer }));
        }""",
        [name, list(data)],
    )


def clock(page: Any) -> float:
    return float(re.match(r"t = ([\d.]+)", page.locator("#clock").inner_text())[1])


def test_it_plays_by_itself_once_and_nothing_moves(address, visit) -> None:
    page = visit(address, wait=False)
    page.evaluate(
        """() => { window.moved = []; new PerformanceObserver((list) => {
             for (const { sources } of list.getEntries()) for (const { node } of sources)
               window.moved.push(node?.id || node?.className || node?.parentElement?.outerHTML);
           }).observe({ type: "layout-shift", buffered: true }); }"""
    )
    assert page.locator("#play").get_attribute("aria-label") == "Pause"
    early, bits = look(page, "believes"), float(page.locator("#bits").inner_text())
    page.wait_for_selector("#play[aria-label=Play]")
    assert clock(page) == 1
    assert look(page, "believes") != early
    assert float(page.locator("#bits").inner_text()) > bits + 10
    # At the end it is certain: what it believes is what it draws.
    assert np.abs(np.subtract(cells(page, "believes"), cells(page, "draws"))).max() < 40
    assert page.evaluate("window.moved") == []


def test_pause_step_and_the_slider(address, visit) -> None:
    page = visit(address, wait=False)
    page.keyboard.press("Space")
    paused = clock(page)
    page.wait_for_timeout(300)
    assert clock(page) == paused < 1
    ready(page)
    seek(page, 0.5)
    assert "call 26 of 51" in page.locator("#clock").inner_text()
    middle = look(page, "received")
    page.keyboard.press("ArrowRight")
    page.click("#step")
    page.wait_for_timeout(60)
    assert "call 28 of 51" in page.locator("#clock").inner_text()
    assert look(page, "received") != middle
    page.click("#back")
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(60)
    assert look(page, "received") == middle
    page.locator("#t").press("End")
    page.wait_for_timeout(60)
    assert clock(page) == 1
    assert "bits" in page.locator("#t").get_attribute("aria-valuetext")
    page.select_option("#speed", "4")
    page.click("#play")
    page.wait_for_selector("#play[aria-label=Play]", timeout=5000)


def test_pinned_pixels_stay_and_undo_brings_the_same_sample_back(address, visit) -> None:
    page = visit(address)
    seek(page, 1)
    alone = cells(page, "draws")
    tool(page, "Pin")
    believes = canvas(page, "believes")
    believes.hover(position=place(page, 3, 1))
    page.mouse.down()
    believes.hover(position=place(page, 3, 6))  # at once: a fast stroke leaves no gaps
    page.mouse.up()
    ready(page)
    assert page.locator("#pin-what").inner_text().startswith("6 of 64")
    assert clock(page) == 1  # it stays where it was
    assert all(shade(page, "draws", 3, column) == 255 for column in range(1, 7))
    assert page.locator("[data-download=known]").is_visible()
    assert "infill" in page.locator("#command").inner_text()
    page.mouse.move(5, 5)
    keep(page, "pinned")
    tool(page, "Unpin")
    believes.click(position=place(page, 3, 1))
    ready(page)
    assert page.locator("#pin-what").inner_text().startswith("5 of 64")
    page.keyboard.press("Control+z")
    ready(page)
    assert page.locator("#pin-what").inner_text().startswith("6 of 64")
    page.click("#unpin")
    ready(page)
    tool(page, "Inspect")
    believes.click(position=place(page, 4, 4))
    page.wait_for_timeout(60)
    assert cells(page, "draws") == alone
    # A bar pins its value; the keyboard does all of it too.
    page.locator("#bars button").nth(16).click()
    ready(page)
    assert page.locator("#pin-what").inner_text().startswith("1 of 64")
    believes.focus()
    for key in ("ArrowUp", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    ready(page)
    assert "Pixel row 4, column 4" in page.locator("#closely-name").inner_text()
    assert page.locator("#pin-what").inner_text().startswith("2 of 64")
    page.keyboard.press("Delete")
    ready(page)
    assert page.locator("#pin-what").inner_text().startswith("1 of 64")


def test_pins_from_the_middle_are_called_approximate(address, visit) -> None:
    page = visit(address)
    seek(page, 0.5)
    page.check("#since")
    tool(page, "Pin")
    canvas(page, "believes").click(position=place(page, 3, 3))
    ready(page)
    assert page.locator("#badge").inner_text() == "approximate"
    seek(page, 0.8)
    canvas(page, "believes").click(position=place(page, 3, 4))
    ready(page)
    what = page.locator("#pin-what").inner_text()
    assert what.startswith("2 of 64 variables held from t = 0.5")
    seek(page, 1)
    assert shade(page, "draws", 3, 3) == shade(page, "draws", 3, 4) == 255
    page.uncheck("#since")
    ready(page)
    assert page.locator("#since").is_disabled()
    assert "unpin all" in page.locator("#since").get_attribute("title")
    page.fill("#particles", "4")
    page.keyboard.press("Tab")
    ready(page)
    assert page.locator("#badge").is_hidden()
    assert shade(page, "draws", 3, 3) == 255
    assert page.locator("#solver").is_disabled()
    assert "ancestral solver" in page.locator("#pin-what").inner_text()
    page.click("#unpin")
    ready(page)
    assert page.locator("#solver").is_enabled()
    assert page.locator("#since").is_disabled()
    page.fill("#particles", "1")
    page.keyboard.press("Tab")
    assert page.locator("#since").is_enabled()


def test_a_sample_is_kept_in_part(address, visit) -> None:
    page = visit(address)
    seek(page, 1)
    before = shade(page, "draws", 2, 3)
    tool(page, "Keep")
    canvas(page, "draws").click(position=place(page, 2, 3))
    page.click("#another")
    ready(page)
    seek(page, 1)
    assert shade(page, "draws", 2, 3) == before


def test_labels_and_guidance_with_the_same_noise(address, visit) -> None:
    page = visit(f"{address}#model=digits-labelled")
    seek(page, 1)
    anything = look(page, "draws")
    page.select_option("#label", label="7")
    ready(page)
    seven = look(page, "draws")
    assert seven != anything
    page.fill("#guidance", "3")
    ready(page)
    assert "--guidance 3" in page.locator("#command").inner_text()
    page.fill("#guidance", "1")
    ready(page)
    page.wait_for_timeout(60)
    assert look(page, "draws") == seven
    for field, typed, nearest in (
        ("guidance", "50", "20"),
        ("calls", "0", "2"),
        ("seed", "-4", "0"),
        ("particles", "65", "64"),
    ):
        page.fill(f"#{field}", typed)
        page.press(f"#{field}", "Tab")
        assert page.input_value(f"#{field}") == nearest
    ready(page)
    assert page.locator("#notice").is_hidden()


def test_a_users_own_picture(address, visit) -> None:
    page = visit(address)
    drop(page, "mine.png", png(8, 8))
    page.wait_for_selector("#badge:has-text('your example')")
    ready(page)
    seek(page, 0.5)
    figure = page.locator("figure[data-role=draws]")
    assert figure.locator("h2").inner_text() == "Where the bits are"
    loss = re.search(r"of about (\d+) in all: ([\d.]+) per", page.locator("#unsure").inner_text())
    assert float(loss[1]) / 64 == pytest.approx(float(loss[2]), abs=0.02)
    keep(page, "example")
    figure.get_by_text("example", exact=True).click()
    page.wait_for_timeout(60)
    assert (shade(page, "draws", 2, 1), shade(page, "draws", 2, 6)) == (0, 255)
    drop(page, "large.png", png(40, 20))
    page.wait_for_selector("#resize:visible")
    assert "40 × 20 pixels; the model's have 8 × 8" in page.locator("#own-what").inner_text()
    page.click("#resize")
    ready(page)
    page.wait_for_selector("#badge:has-text('your example')")
    page.click("#generate-again")
    ready(page)
    assert page.locator("#badge").is_hidden()
    drop(page, "notes.txt", b"no picture")
    page.wait_for_selector("#notice:has-text('cannot read “notes.txt” as a picture')")


def test_two_solvers_side_by_side_use_the_same_noise(address, visit, tmp_path: Path) -> None:
    page = visit(address)
    page.click("#compare")
    ready(page)
    assert page.locator("figure[data-role=believes] canvas").count() == 2
    page.select_option("#solver-b", page.locator("#solver").input_value())
    ready(page)
    seek(page, 0.6)
    assert look(page, "draws", 0) == look(page, "draws", 1)
    page.select_option("#solver-b", "ancestral")
    ready(page)
    seek(page, 0.6)
    assert look(page, "draws", 0) != look(page, "draws", 1)
    keep(page, "solvers")
    # The page shows whose numbers, bars, files and command these are.
    assert re.fullmatch(r"A: t = .*\nB: t = .*", page.locator("#clock").inner_text())
    assert page.locator("#closely-what").inner_text().startswith("A: ")
    assert page.locator("#closely-what-b").inner_text().startswith("B: ")
    assert page.locator("#bars u").count() == 17
    assert "--solver sde2" in page.locator("#command").inner_text()
    page.locator("#whose").get_by_text("B", exact=True).click()
    page.wait_for_timeout(60)
    assert "--solver ancestral" in page.locator("#command").inner_text()
    with page.expect_download() as waiting:
        page.click("[data-download=film]")
    waiting.value.save_as(tmp_path / "film.html")
    film = visit(f"file://{tmp_path / 'film.html'}")
    assert "ancestral" in film.locator("#how").inner_text()
    page.select_option("#model-b", "digits-labelled")
    ready(page)
    page.select_option("#label-b", label="4")
    ready(page)
    seek(page, 0.6)
    four = look(page, "draws", 1)
    keep(page, "models")
    page.select_option("#label-b", label="1")
    ready(page)
    seek(page, 0.6)
    assert look(page, "draws", 1) != four
    page.click("#compare")
    ready(page)
    assert page.locator("figure[data-role=believes] canvas").count() == 1


def test_downloads(address, visit, tmp_path: Path) -> None:
    page = visit(address)
    seek(page, 0.5)
    files = {}
    for what in ("sample", "film"):
        with page.expect_download() as waiting:
            page.click(f"[data-download={what}]")
        files[what] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(files[what])
    assert files["sample"].read_bytes().startswith(b"\x89PNG")
    seek(page, 1)
    drawn = cells(page, "draws")
    film = visit(f"file://{files['film']}")
    seek(film, 1)
    assert cells(film, "draws") == drawn
    assert film.locator("#ask").is_hidden()
    keep(film, "film")
    film.keyboard.press("Space")
    assert film.locator("#play").get_attribute("aria-label") == "Pause"
    # A notebook shows it in a frame that may run scripts and nothing else.
    frame = "<iframe width=880 height=720 sandbox='allow-scripts' srcdoc='{}'></iframe>"
    notebook = tmp_path / "notebook.html"
    notebook.write_text(frame.format(html.escape(files["film"].read_text(), quote=True)))
    outer = film.context.new_page()
    outer.goto(f"file://{notebook}")
    inner = outer.frame_locator("iframe")
    inner.locator("body.ready").wait_for()
    inner.locator("#step").click()
    assert inner.locator("#play").get_attribute("aria-label") == "Play"
    keep(outer, "notebook")


def test_a_reload_shows_the_same_again(address, visit) -> None:
    page = visit(address)
    page.fill("#seed", "5")
    tool(page, "Pin")
    canvas(page, "believes").click(position=place(page, 0, 0))
    ready(page)
    seek(page, 1)
    before = cells(page, "draws")
    page.reload()
    page.wait_for_selector("body.ready")
    ready(page)
    seek(page, 1)
    assert cells(page, "draws") == before
    assert page.locator("#seed").input_value() == "5"


def test_impossible_pins_of_an_address_are_left_out(address, visit) -> None:
    page = visit(f"{address}#model=digits&seed=3&pins=3:999,4:1")
    ready(page)
    assert "The pins in the address are ignored." in page.locator("#notice").inner_text()
    page.wait_for_function("!location.hash.includes('pins') && location.hash.includes('seed=3')")
    tool(page, "Pin")
    canvas(page, "believes").click(position=place(page, 3, 3))
    for focus in ("#t", "input[name=tool]:checked"):
        assert page.locator("#pin-what").inner_text().startswith("1 of 64")
        page.focus(focus)
        page.keyboard.press("Control+z")
        assert page.locator("#pin-what").inner_text().startswith("Hold variables")
        canvas(page, "believes").click(position=place(page, 3, 3))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_both_widths_in_light_and_dark(address, visit, size, scheme) -> None:
    page = visit(address, size, scheme)
    seek(page, 0.5)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] > 128")
    assert light == (scheme == "light")
    keep(page, f"digits-{size[0]}-{scheme}")
    if size == PHONE:  # the figures and the time fit on the first screen
        assert page.locator("#play").bounding_box()["y"] + 38 <= size[1]
    page.click("#compare")
    ready(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_a_text_is_typed_into(serve, visit, tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text", train__steps=2)
    bfn.train.run(recipe, tmp_path / "text", display=False)
    page = visit(serve(tmp_path / "text"))
    seek(page, 1)
    canvas(page, "believes").click(position={"x": 4, "y": 10})
    for letter in "the":
        page.keyboard.press(letter)
    ready(page)
    assert page.locator("#pin-what").inner_text().startswith("3 of 8")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    ready(page)
    assert page.locator("#pin-what").inner_text().startswith("2 of 8")
    keep(page, "text")
    page.keyboard.press("%")
    page.wait_for_selector("#notice:has-text('“%” is not in the model’s alphabet')")
    examine(page, "a belief")
    page.fill("#own-text", "Ω")
    page.click("#examine")
    page.wait_for_selector("#notice:has-text('Ω')")
    page.click("#back")
    page.set_viewport_size({"width": 375, "height": 812})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    keep(page, "text-375")


def test_named_variables_of_three_kinds(serve, visit, tmp_path: Path) -> None:
    torch.manual_seed(0)
    variables = {
        "length": bfn.Variable("continuous", sigma_1=0.05),
        "picture": bfn.Variable("discretised", (1, 4, 4), K=8),
        "species": bfn.Variable("discrete", K=3),
    }
    model = bfn.mixed(bfn.nn.MixedMLP.of(variables, width=16, layers=1), variables)
    data = {
        "length": torch.zeros(8),
        "picture": torch.full((8, 1, 4, 4), 1 / 8),
        "species": torch.ones(8, dtype=torch.long),
    }
    bfn.train.fit(model, data, steps=1, batch=4, display=False)
    model.save_pretrained(tmp_path / "rows")
    page = visit(serve(tmp_path / "rows", "digits"))
    seek(page, 1)
    assert page.locator("figure[data-role=believes] canvas").count() == 3
    canvas(page, "believes", 2).click()
    page.wait_for_selector("#closely-name:text-is('species')")
    page.locator("#bars button").nth(2).click()
    ready(page)
    assert page.locator("#pin-what").inner_text().startswith("1 of 18")
    assert "pinned" in page.locator("#bars button").nth(2).get_attribute("class")
    page.click("#examine-sample")
    page.wait_for_selector("#badge:has-text('your example')")
    ready(page)
    page.fill("#own-text", "1, 2, 3")
    page.click("#examine")
    page.wait_for_selector("#notice:has-text('have 18 values, but you gave 3')")
    keep(page, "rows")
    page.set_viewport_size({"width": 375, "height": 812})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    keep(page, "rows-375")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.select_option("#model", "digits")
    ready(page)
    assert page.locator("#notice").is_hidden()
    page.click("#compare")
    page.select_option("#model-b", index=0)
    ready(page)
    seek(page, 1)
    canvas(page, "believes").click()
    page.wait_for_timeout(60)  # until it is drawn
    pixel = page.locator("#closely-name").inner_text()
    for other in (1, 2, 3):  # the second model's variables are not those of the first
        canvas(page, "believes", other).click()
        page.wait_for_timeout(60)
        assert page.locator("#closely-name").inner_text() == pixel


def test_rows_of_a_table(serve, visit, tmp_path: Path) -> None:
    lines = [
        f"{18 + i % 60},{'' if i % 3 else i % 7},{'yes' if i % 2 else 'no'}" for i in range(90)
    ]
    (tmp_path / "people.csv").write_text("age,income,smoker\n" + "\n".join(lines) + "\n")
    table = bfn.Table(width=16, layers=1, steps=2, display=False).fit(tmp_path / "people.csv")
    table.save(tmp_path / "people")
    page = visit(serve(tmp_path / "people"))
    seek(page, 1)
    canvas(page, "believes", 2).click()
    page.wait_for_selector("#closely-name:text-is('smoker')")
    page.locator("#bars button").nth(1).click()
    ready(page)
    canvas(page, "believes", 1).click()
    page.select_option("#class", label="missing")
    canvas(page, "believes", 1).focus()
    page.keyboard.press("Enter")
    ready(page)
    command = page.locator("#command").inner_text()
    assert "--given income= --given smoker=yes" in command
    again = start(*shlex.split(command)[1:], "--out", tmp_path / "again.csv")
    again.communicate(timeout=60)
    with page.expect_download() as waiting:
        page.click("[data-download=sample]")
    assert (tmp_path / "again.csv").read_bytes() == waiting.value.path().read_bytes()
    page.fill("#particles", "2")
    page.press("#particles", "Tab")
    ready(page)
    assert page.locator("#command").is_hidden()
    assert "No command line reproduces this" in page.locator("#why").inner_text()
    keep(page, "table")
    examine(page, "40, missing, yes")
    page.fill("#own-text", "40, much, yes")
    page.click("#examine")
    page.wait_for_selector("#notice:has-text('; give a value like')")


def test_examples_of_one_film_are_numbered(visit, tmp_path: Path) -> None:
    film = tmp_path / "film.html"
    view = start("view", "digits", "--n", 2, "--steps", 2, "--out", film)
    view.communicate(timeout=60)
    assert view.returncode == 0
    page = visit(f"file://{film}")
    names = page.locator("#film-a option").all_inner_texts()
    assert names == [f"digits · seed 0 · example {k} of 2" for k in (1, 2)]


def test_a_server_that_stops_leaves_what_was_seen(serve, visit) -> None:
    page = visit(serve("digits"))
    seek(page, 0.5)
    before = look(page, "believes")
    serve(stop=page.url.split("#")[0])
    page.wait_for_selector("#reconnect:visible")
    assert look(page, "believes") == before
    page.click("#step")
    page.wait_for_timeout(500)  # the next frame is painted after the click
    assert clock(page) > 0.5
