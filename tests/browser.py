"""A headless Chromium for tests of pages: where it is, a page that tolerates no error, files and drops."""

from __future__ import annotations

import base64
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from PIL import Image

CHROMIUM = os.environ.get("CIRCLE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
PATIENCE = 120_000  # milliseconds: a busy machine is not a failed test

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser test: no chromium on the path (CIRCLE_CHROMIUM)"
)


@contextmanager
def opened_page(allowed: str = "net::ERR_CONNECTION_") -> Iterator[Any]:
    """A page that fails the test on any error but the allowed one, refused script or request to elsewhere.

    By default nobody may be there: the story restarts the server, and the page asks it for news meanwhile.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser test: playwright is not installed")
    playwright.expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1100, "height": 720})
        page.set_default_timeout(PATIENCE)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: problems.append(request.url) if _elsewhere(request.url) else None)
        page.on("dialog", lambda dialog: dialog.accept())
        yield page
        browser.close()
        assert [problem for problem in problems if allowed not in problem] == []


def _elsewhere(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:", "data:,"))


def image_file(name: str, image: Image.Image, kind: str) -> dict[str, Any]:
    """A file as a file picker takes it."""
    content = io.BytesIO()
    image.save(content, kind)
    return {"name": name, "mimeType": f"image/{kind.lower()}", "buffer": content.getvalue()}


def drop(page: Any, where: Any, files: list[dict[str, Any]]) -> None:
    """Drop files on an element, as a hand with a mouse would."""
    contents = [[each["name"], each["mimeType"], base64.b64encode(each["buffer"]).decode()] for each in files]
    transfer = page.evaluate_handle(
        """(contents) => {
            const transfer = new DataTransfer();
            for (const [name, type, text] of contents) {
                const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
                transfer.items.add(new File([bytes], name, { type }));
            }
            return transfer;
        }""",
        contents,
    )
    for event in ("dragover", "drop"):
        where.dispatch_event(event, {"dataTransfer": transfer})
