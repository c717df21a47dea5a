"""The service's page in a browser."""

import contextlib

from tests.support import browser


@contextlib.contextmanager
def open_page(url, width=1280, height=800, color_scheme="light", allowed=None):
    """A page that must not complain, ask others, or open a dialog."""
    origin = "/".join(url.split("/")[:3])
    with browser.open_page(width, height, color_scheme=color_scheme) as page:
        page.goto(url)
        yield page
        complaints = page.seen.errors + page.seen.warnings
        assert [text for text in complaints if not (allowed and allowed in text)] == []
        assert [asked for asked in page.seen.requests if not asked.startswith(origin)] == []


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
