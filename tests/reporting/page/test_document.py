import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser

import pytest

from pmal.errors import UsageError
from pmal.reporting.page.document import (
    Cell,
    Details,
    Facts,
    Figure,
    Gallery,
    Page,
    Picture,
    Section,
    Stat,
    Still,
    Table,
    Verdict,
    check_can_render,
    embedded_json,
    render_page,
)
from pmal.reporting.page.pictures import Sheet

EVIL = "</script><script>alert(1)</script><!-- \" onload='x' &amp; {{ 7*7 }} \u2028"


def page_of(word):
    """The word in every place that a page has for text."""
    still = Still("", "", 1.0, (word, word), word, [word])
    cells = [Cell(word, word, word, 0.5, 0.7, (0.1, 0.5, 0.9)), Cell(word)]
    blocks = [
        Facts([(word, [(word, word)])]),
        Table(word, cells, [[Cell(word)], cells], note=word),
        Figure("figure", "lines", {word: [word]}, word, word, still=still),
        Gallery(word, word, [(word, [Picture("train", 0, word, [word]), Picture("train", None, word)])]),
    ]
    sections = [Section("one", word, word, [*blocks, Details(word, [Facts([])])])]
    sheets, verdict = [Sheet("train", "data:,", 1, 1)], Verdict(word, word, word)
    return Page(word, word, word, [Stat(word, word, word)], sections, sheets, word, verdict)


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.comments = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_comment(self, data):
        self.comments.append(data)


def test_no_text_becomes_markup():
    plain, evil = Elements(render_page(page_of("owl"))), Elements(render_page(page_of(EVIL)))
    assert evil.tags == plain.tags
    assert evil.attributes == plain.attributes
    assert "onload" not in evil.attributes
    assert evil.comments == []
    assert "49" not in re.sub(
        r"<style>.*?</style>|<script>.*?</script>", "", render_page(page_of("{{ 7*7 }}")), flags=re.S
    )


def test_data_reach_the_script_as_they_were():
    text = render_page(page_of(EVIL))
    [data] = re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)
    assert json.loads(data) == {EVIL: [EVIL]}
    with pytest.raises(ValueError, match="JSON"):
        embedded_json(float("nan"))


def test_the_browser_may_run_this_script_alone_and_load_nothing():
    text = render_page(page_of("owl"))
    [script] = re.findall(r"<script>(.*?)</script>", text, re.S)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert not re.findall(r"@import|url\((?!data:)", text)


def test_without_jinja2_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=r"needs jinja2: pip install 'pmal\[report\]'"):
        check_can_render()
