"""The page on which groups get their names: one HTML file that loads nothing, and sends nothing anywhere."""

import base64
import io
import json
from importlib import resources
from typing import Any

from PIL import Image

from pmal._runtime.text import plain_cell, printable
from pmal.reporting.contact_sheet import Row, contact_sheet
from pmal.reporting.page.discovery.pile import SortedPile

GROUPS_SHOWN, PICTURES_SHOWN, SHEET_PICTURES = 100, 60, 10
"""Groups on page and sheet, pictures of a group on the page and on the sheet, at most."""


def groups_page(pile: SortedPile, run: str) -> str:
    """Return the page of a pile; `run` is what the commands on it name."""
    data = {
        "run": run,
        "summary": pile.summary(),
        "shown": PICTURES_SHOWN,
        "classes": list(pile.class_names),
        "groups": [
            {"number": number, "tightness": group.tightness, **_files(pile, group.members.tolist())}
            for number, group in enumerate(pile.groups, 1)
        ],
        "left": _files(pile, pile.left),
    }
    template = resources.files(__package__).joinpath("groups.html").read_text(encoding="utf-8")
    # In a script block of data nothing but its end could be taken for HTML.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return template.replace("{{DATA}}", text)


def groups_sheet(pile: SortedPile) -> Image.Image:
    """Return the contact sheet: a row for each group, its most central images first."""
    rows = []
    for number, group in enumerate(pile.groups[:GROUPS_SHOWN], 1):
        shown = [(pile.picture(i), "") for i in group.members[:SHEET_PICTURES].tolist()]
        title = f"group {number}: {len(group.members)} {pile.samples.unit}, tightness {group.tightness:.2f}"
        rows.append(Row(title, shown))
    if pile.left:
        shown = [(pile.picture(i), "") for i in pile.left[:SHEET_PICTURES]]
        rows.append(Row(f"in no group: {len(pile.left)} {pile.samples.unit}", shown))
    return contact_sheet(pile.summary(), rows)


def _files(pile: SortedPile, positions: list[int]) -> dict[str, Any]:
    """Return all files, with pictures of the first ones."""
    files = [
        {
            "cell": plain_cell(pile.samples.name(i)),
            "name": printable(pile.samples.name(i)),
            "picture": _uri(pile.picture(i)) if rank < PICTURES_SHOWN else None,
        }
        for rank, i in enumerate(positions)
    ]
    return {"files": files}


def _uri(picture: Any) -> str | None:
    if isinstance(picture, str):
        return None
    data = io.BytesIO()
    Image.fromarray(picture).save(data, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
