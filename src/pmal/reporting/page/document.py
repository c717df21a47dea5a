"""A page of sections as one HTML file that asks the network for nothing.

Sections hold blocks: facts, tables, figures, rows of pictures. A figure is the name of a drawing function in
assets/ and its data; what a page is about, its sections say.
All text is escaped, in HTML and in the data.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, ClassVar

from pmal.errors import UsageError
from pmal.reporting.page.pictures import Sheet

SCRIPTS = ("core.js", "plots.js", "histogram.js", "robustness.js", "scatter.js", "scatter_keys.js")
"""Drawing functions. `start.js` comes last: it calls them."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    note: str = ""
    """Smaller, after the text."""
    tag: str = ""
    """A word on a colored ground."""
    share: float | None = None
    """0 to 1, as a bar behind a figure."""
    shade: float | None = None
    """0 to 1, as the color of the cell."""
    span: tuple[float, float, float] | None = None
    """Low, value and high, each 0 to 1, as a dot on a line."""
    number: bool = False
    mark: str = ""
    """How the cell is set off: total, own, unknown."""


@dataclass(frozen=True)
class Facts:
    """Names and values, in groups."""

    kind: ClassVar[str] = "facts"
    groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]


@dataclass(frozen=True)
class Table:
    """The first cell of a row is its heading; a row of one cell is the heading of those that follow."""

    kind: ClassVar[str] = "table"
    label: str
    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    style: str = ""
    title: str = ""
    """A title above the picture, if that of the section does not say enough."""


@dataclass(frozen=True)
class Still:
    """A histogram with its threshold, for browsers that run no script."""

    known: str
    """Path of the bars, 100 wide and 40 high."""
    unknown: str
    threshold: float | None
    """0 to 100."""
    ends: tuple[str, str]
    """What stands below the ends of the axis."""
    title: str
    lines: Sequence[str]
    """What the picture says, in words."""


@dataclass(frozen=True)
class Figure:
    """Drawn in the browser by the function `draw` from its data."""

    kind: ClassVar[str] = "figure"
    name: str
    """Unique on the page."""
    draw: str
    data: Any
    label: str
    """The text that screen readers say in its place."""
    caption: str = ""
    title: str = ""
    still: Still | None = None


@dataclass(frozen=True)
class Picture:
    """One of a sheet, and what stands below it."""

    sheet: str
    place: int | None
    alt: str
    lines: Sequence[str] = ()
    mark: str = ""


@dataclass(frozen=True)
class Gallery:
    """Rows of pictures under one heading."""

    kind: ClassVar[str] = "gallery"
    title: str
    note: str
    rows: Sequence[tuple[str, Sequence[Picture]]]


@dataclass(frozen=True)
class Details:
    """Closed until it is asked for."""

    kind: ClassVar[str] = "details"
    title: str
    blocks: Sequence["Block"]


Block = Facts | Table | Figure | Gallery | Details


@dataclass(frozen=True)
class Section:
    """A chapter of the page; `name` is its address."""

    name: str
    title: str
    lead: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Stat:
    """A figure that stands at the top of the page."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the figures mean, above all others."""

    grade: str
    """One word, by which it is marked."""
    finding: str
    advice: str


@dataclass(frozen=True)
class Page:
    """Everything that is rendered."""

    title: str
    kicker: str
    summary: str
    stats: Sequence[Stat]
    sections: Sequence[Section]
    sheets: Sequence[Sheet] = field(default_factory=tuple)
    foot: str = ""
    verdict: Verdict | None = None


def render_page(page: Page, drawing: str = "") -> str:
    """Return the HTML text. drawing: a script with drawing functions for figures of the caller's own."""
    jinja2 = _jinja2()
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FunctionLoader(_asset),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = "\n".join([*map(_asset, SCRIPTS), drawing, _asset("start.js")])
    trusted = environment.filters["safe"]
    environment.filters["as_data"] = lambda value: trusted(embedded_json(value))
    text: str = environment.get_template("page.html.j2").render(
        page=page, style=trusted(_asset("style.css")), script=trusted(script), script_sum=_sum(script)
    )
    return text


def embedded_json(value: Any) -> str:
    r"""Return JSON that may stand in a script element: no text in it can end the element or open a comment.

    >>> embedded_json({"class": "</script><!--"})
    '{"class":"\\u003c/script\\u003e\\u003c!--"}'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def check_can_render() -> None:
    """Fail before any work is done for a page that cannot be made."""
    _jinja2()


def _jinja2() -> Any:
    try:
        import jinja2
    except ImportError:
        raise UsageError("the report needs jinja2: pip install 'pmal[report]'") from None
    return jinja2


def _asset(name: str) -> str:
    folder = resources.files("pmal.reporting.page") / "assets"
    return (folder / name).read_text(encoding="utf-8")


def _sum(script: str) -> str:
    """Return the hash by which the browser runs this script and no other: a class name cannot add one."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
