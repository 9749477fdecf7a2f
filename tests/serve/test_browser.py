"""The whole story in a browser: teach, ask, correct, rename, undo, download, merge, load, forget, camera, restart.

Real images: two photographs that come with scikit-learn, and its handwritten digits. Runs where there is a Chromium
(CIRCLE_CHROMIUM, or on the path); ``CIRCLE_SCREENSHOTS=folder`` keeps what it looked like.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from browser import drop, image_file, needs_chromium, opened_page
from factories import png
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

from circle import CircleClassifier

playwright = pytest.importorskip("playwright.sync_api", reason="no browser test: playwright is not installed")
pytestmark = needs_chromium


def crops(name: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Files with pieces of a photograph, as a file picker takes them."""
    photograph = Image.fromarray(load_sample_image(f"{name}.jpg"))
    random = np.random.default_rng(seed)
    files = []
    for number in range(count):
        side = int(random.integers(120, 260))
        left, top = (int(random.integers(0, end - side)) for end in photograph.size)
        files.append(image_file(f"{name}-{number}.jpg", photograph.crop((left, top, left + side, top + side)), "JPEG"))
    return files


def digit(number: int) -> dict[str, Any]:
    image = Image.fromarray((load_digits().images[number] * 15.9).astype(np.uint8)).resize((96, 96))
    return image_file(f"digit-{number}.png", image, "PNG")


@pytest.fixture
def page() -> Iterator[Any]:
    with opened_page() as page:
        yield page


def narrow_model() -> CircleClassifier:
    """Tells photographs and digits apart as the usual model does, for a tenth of its work."""
    return CircleClassifier.from_preset("small", members=1, extractor__filters=(10,))


def shot(page: Any, name: str) -> None:
    if os.environ.get("CIRCLE_SCREENSHOTS"):
        page.screenshot(path=Path(os.environ["CIRCLE_SCREENSHOTS"]) / f"{name}.png")


def card_of(page: Any, name: str) -> Any:
    return page.locator(f'.card[data-label="{name}"]')


def add_class_on(page: Any, name: str) -> None:
    page.fill("#new-name", name)
    page.click("text=Add class")
    playwright.expect(card_of(page, name)).to_be_visible()


def test_the_whole_story(start_server: Callable[..., Any], page: Any, tmp_path: Path) -> None:
    expect = playwright.expect
    path = tmp_path / "photos.circle"
    server = start_server(path, narrow_model)
    page.goto(server.address)

    card, add_class = partial(card_of, page), partial(add_class_on, page)

    def learned(name: str) -> int:
        return int(re.match(r"(\d+) learned", card(name).locator(".counts").inner_text()).group(1))

    def first_answer(name: str) -> None:
        expect(page.locator("#answers li").first.locator("span").first).to_have_text(name)

    # Classes, files and drops; some images are held back, and the figures move.
    add_class("temple")
    add_class("flower")
    card("temple").locator(".files").set_input_files(crops("china", 8))
    expect(page.locator("#message")).to_contain_text("temple: ")
    drop(page, card("flower"), crops("flower", 8))
    expect(page.locator("#message")).to_contain_text("flower: ")
    samples = learned("temple") + learned("flower")
    held_out = 16 - samples
    assert held_out >= 1
    expect(page.locator("#samples")).to_have_text(str(samples))
    expect(page.locator("#tested")).to_have_text(str(held_out))
    expect(page.locator("#accuracy")).to_contain_text("%")

    # Asking, by picker and by drop.
    page.set_input_files("#test-file", crops("flower", 1, seed=9)[0])
    first_answer("flower")
    drop(page, page.locator("#ask"), crops("china", 1, seed=9))
    first_answer("temple")
    shot(page, "teach-and-ask")

    # A wrong answer, one click, and it is learned.
    add_class("digit")
    drop(page, page.locator("#ask"), [digit(0)])
    expect(page.locator("#answers li")).to_have_count(2)
    page.locator("#choices button", has_text="digit").click()
    first_answer("digit")
    assert learned("digit") == 1

    # Another name: nothing is learned anew.
    version = server.service.snapshot_updater.snapshot.version
    card("digit").locator(".name").fill("number")
    card("digit").locator(".name").press("Enter")
    expect(card("number")).to_be_visible()
    first_answer("number")
    expect(page.locator("#samples")).to_have_text(str(samples + 1))
    assert server.service.snapshot_updater.snapshot.model.samples_ == samples + 1, version

    # The model leaves as a file, comes back as a second helping, and as itself.
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == path.name
    file = tmp_path / "copy.circle"
    download.value.save_as(file)
    assert CircleClassifier.load(file).statistics_ == server.service.store.model.statistics_
    with page.expect_file_chooser() as chooser:
        page.click("#merge")
    chooser.value.set_files(file)
    expect(page.locator("#samples")).to_have_text(str(2 * samples + 2))
    expect(page.locator("#message")).to_contain_text("Merged")
    with page.expect_file_chooser() as chooser:
        page.click("#load")
    chooser.value.set_files(file)
    expect(page.locator("#samples")).to_have_text(str(samples + 1))

    # Undo is exact.
    before = server.service.store.model.copy()
    expect(page.locator("#undo")).to_be_disabled()
    drop(page, card("number"), [digit(1), digit(2), digit(3)])
    expect(page.locator("#undo")).to_have_text("Undo 3 of number")
    page.click("#undo")
    expect(page.locator("#samples")).to_have_text(str(samples + 1))
    assert server.service.store.model.statistics_ == before.statistics_

    # A class leaves.
    card("number").locator(".forget").click()
    expect(card("number")).to_have_count(0)
    expect(page.locator("#answers li")).to_have_count(2)

    # The camera answers by itself, and teaches while its button is held.
    page.click("#camera")
    expect(page.locator("#video")).to_be_visible()
    add_class("camera")
    card("camera").locator(".record").hover()
    page.mouse.down()
    expect(card("camera").locator(".counts")).to_contain_text(re.compile("[3-9] learned"))
    page.mouse.up()
    first_answer("camera")
    shot(page, "camera")
    page.click("#camera")
    expect(page.locator("#video")).to_be_hidden()

    # All of it is there after a restart.
    shown = page.locator("#classes .counts").all_inner_texts()
    counts = server.service.store.counts()
    server.stop()
    again = start_server(path, narrow_model, port=server.port)
    assert again.service.store.counts() == counts
    page.reload()
    expect(page.locator("#classes .card")).to_have_count(len(shown))
    expect(card("camera").locator(".counts")).to_contain_text(f"{counts['camera']} learned")


def picture(name: str, number: int = 0) -> dict[str, Any]:
    return {"name": f"{name}-{number}.png", "mimeType": "image/png", "buffer": png(name, number)}


def test_what_goes_wrong_on_a_phone(start_server: Callable[..., Any], tmp_path: Path) -> None:
    """Broken images, long names, late answers, undone and lost lessons; nothing stays that is no longer true."""
    expect = playwright.expect
    server = start_server()
    long = "W" * 64
    with opened_page(allowed="Failed to load resource") as page:
        page.set_viewport_size({"width": 390, "height": 720})
        page.goto(server.address)

        card, add_class = partial(card_of, page), partial(add_class_on, page)

        # Nothing was learned yet: the image stays, and can be taught.
        add_class("ant")
        page.set_input_files("#test-file", picture("ant"))
        expect(page.locator("#message")).to_contain_text("nothing was learned yet")
        expect(page.locator("#shown")).to_be_visible()
        page.locator("#choices button", has_text="ant").click()
        expect(page.locator("#answers li")).to_have_count(1)
        expect(card("ant").locator(".thumbs img")).to_have_count(1)

        # A broken image leaves nothing of the one before it; the message is in view, wherever the page is.
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        broken = {"name": "broken.png", "mimeType": "image/png", "buffer": b"no image"}
        page.set_input_files("#test-file", broken)
        expect(page.locator("#message")).to_contain_text("not a readable image")
        expect(page.locator("#message")).to_be_in_viewport(ratio=1)
        for gone in ("#shown", "#correct", "#answers li"):
            expect(page.locator(gone)).to_be_hidden()
        expect(page.locator("#ask-hint")).to_be_visible()

        # The longest name fits; what is undone is no longer shown.
        add_class(long)
        drop(page, card(long), [picture("bee", number) for number in range(3)])
        expect(page.locator("#undo")).to_have_text(re.compile("Undo [123] of W{19}…"))
        expect(card(long).locator(".thumbs img")).to_have_count(3)
        page.set_input_files("#test-file", picture("ant", 1))
        expect(page.locator("#answers li")).to_have_count(2)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        shot(page, "phone")
        page.click("#undo")
        expect(page.locator("#message")).to_contain_text("Taken back: 3 of W")
        expect(card(long).locator(".thumbs img")).to_have_count(0)
        expect(card("ant").locator(".thumbs img")).to_have_count(1)

        # The answer to a rename comes later than the news of it: one card, and it works.
        def late(route: Any) -> None:
            answer = route.fetch()
            time.sleep(1.5)  # the page asks for news every second
            route.fulfill(response=answer)

        page.route("**/api/rename", late)
        card("ant").locator(".name").fill("emmet")
        card("ant").locator(".name").press("Enter")
        expect(page.locator("#message")).to_contain_text("ant is now called emmet")
        expect(card("emmet")).to_have_count(1)
        expect(page.locator("#classes .card")).to_have_count(2)
        drop(page, card("emmet"), [picture("ant", 2)])
        expect(card("emmet").locator(".counts")).to_contain_text("2 learned")
        expect(card("emmet").locator(".thumbs img")).to_have_count(2)

        # A key held down records as a finger does; the last frame stays in view when the camera is off.
        page.click("#camera")
        record = card(long).locator(".record")
        expect(record).to_be_visible()
        record.focus()
        page.keyboard.down("Space")
        expect(record).to_have_class(re.compile(r"\bon\b"))
        expect(card(long).locator(".counts")).to_contain_text(re.compile("[1-9] learned"))
        page.keyboard.up("Space")
        expect(record).not_to_have_class(re.compile(r"\bon\b"))
        expect(page.locator("#answers li")).to_have_count(2)
        page.click("#camera")
        expect(page.locator("#video")).to_be_hidden()
        expect(page.locator("#shown")).to_be_visible()

        # Another model: its lessons were not these.
        file = tmp_path / "copy.circle"
        file.write_bytes(httpx.get(f"{server.address}/api/model").content)
        with page.expect_file_chooser() as chooser:
            page.click("#load")
        chooser.value.set_files(file)
        expect(page.locator("#message")).to_contain_text("Loaded copy.circle")
        expect(page.locator(".thumbs img")).to_have_count(0)

        server.stop()
        expect(page.locator("#message")).to_contain_text("The server cannot be reached")


def test_a_server_with_a_token(start_server: Callable[..., Any], page: Any) -> None:
    expect = playwright.expect
    server = start_server(token="open-sesame-0123456789", host="0.0.0.0")
    page.goto(f"{server.address}/#token=open-sesame-0123456789")
    page.fill("#new-name", "<b>bold & brave</b>")
    page.click("text=Add class")
    expect(page.locator(".card .name")).to_have_value("<b>bold & brave</b>")
    assert page.locator("#classes b").count() == 0, "names are text, whatever they hold"
    assert "token" not in page.url
    page.reload()
    expect(page.locator(".card")).to_have_count(1)
