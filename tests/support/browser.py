"""Pages in Debian's chromium, driven by playwright; where either is missing, the test is skipped."""

import contextlib
import os
import shutil
from dataclasses import dataclass, field

import pytest

from tests.support.hanging import HANGING

CHROMIUM = os.environ.get("PMAL_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--use-fake-ui-for-media-stream",  # a camera of its own, and nobody to ask for it
    "--use-fake-device-for-media-stream",
)


@dataclass
class Seen:
    """What happened in a page since it was opened."""

    errors: list = field(default_factory=list)
    """Errors on the console, exceptions that nobody caught, dialogs."""
    warnings: list = field(default_factory=list)
    """Those on the console."""
    requests: list = field(default_factory=list)
    """Addresses that were asked for, except those of data in the page itself."""


_users = []
"""The running playwright, its browser, and a mark for each one that uses it."""


@contextlib.contextmanager
def open_page(width, height, **context):
    """An empty page of this size; `page.seen` collects errors and requests. More goes to `new_context`."""
    with keep_browser() as browser:
        page = browser.new_context(viewport={"width": width, "height": height}, **context).new_page()
        page.seen = _watch(page)
        page.set_default_timeout(1000 * HANGING)
        try:
            yield page
        finally:
            page.context.close()


@contextlib.contextmanager
def keep_browser():
    """The browser, which pages that are opened within use: starting it takes longer than most tests."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"no chromium at {CHROMIUM}: apt install chromium")
    with _browser(api) as browser:
        yield browser


@contextlib.contextmanager
def _browser(api):
    """One for all pages that are open at the same time: playwright cannot be started twice."""
    if not _users:
        playwright = api.sync_playwright().start()
        _users[:] = [playwright, playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))]
    playwright, browser = _users[:2]
    _users.append(object())
    try:
        yield browser
    finally:
        _users.pop()
        if len(_users) == 2:
            _users.clear()
            browser.close()
            playwright.stop()


def _watch(page):
    seen = Seen()

    def console(message):
        listed = {"error": seen.errors, "warning": seen.warnings}.get(message.type, [])
        listed.append(message.text)

    def request(asked):
        if not asked.url.startswith(("data:", "blob:")):
            seen.requests.append(asked.url)

    def dialog(opened):
        seen.errors.append(opened.message)
        opened.dismiss()

    page.on("console", console)
    page.on("dialog", dialog)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("request", request)
    return seen
