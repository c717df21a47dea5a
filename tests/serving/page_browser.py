"""Pages in Debian's chromium."""

import contextlib
from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
]


@contextlib.contextmanager
def browser():
    """A browser, where there is one."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(CHROMIUM), args=OPTIONS)
        try:
            yield found
        finally:
            found.close()


@contextlib.contextmanager
def open_page(found, url, width=1280, height=800, color_scheme="light", allowed=None):
    """A page that must not complain, ask others, or open a dialog."""
    context = found.new_context(viewport={"width": width, "height": height}, color_scheme=color_scheme)
    page, complaints, origin = context.new_page(), [], "/".join(url.split("/")[:3])
    page.on(
        "console", lambda message: message.type in ("error", "warning") and complaints.append(message.text)
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on(
        "request",
        lambda request: request.url.startswith((origin, "blob:")) or complaints.append(request.url),
    )
    page.goto(url)
    try:
        yield page
        assert [text for text in complaints if not (allowed and allowed in text)] == []
    finally:
        context.close()


def drop(page, *files):
    """Drop (name, bytes) on the page, as a mouse would."""
    page.evaluate(
        """(files) => {
            const dropped = new DataTransfer();
            for (const [name, bytes] of files) dropped.items.add(new File([new Uint8Array(bytes)], name));
            document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: dropped, bubbles: true}));
        }""",
        [[name, list(data)] for name, data in files],
    )
