"""Rows of small pictures with captions, as one image."""

from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from pmal.data.decoding.decode import fit_to
from pmal.data.samples import Pixels

SIDE, GAP, CAPTION, MARGIN, TITLE = 96, 8, 16, 16, 28
BACKGROUND, INK = "white", "black"


@dataclass(frozen=True)
class Row:
    """A line of pictures, each with a caption."""

    title: str
    pictures: list[tuple[Pixels | str, str]]
    """Pictures and captions. A text in place of a picture is drawn in a frame."""


def contact_sheet(title: str, rows: list[Row]) -> Image.Image:
    """Return an image with the title, and below it each row with its own title."""
    columns = max((len(row.pictures) for row in rows), default=1) or 1
    width = 2 * MARGIN + columns * (SIDE + GAP) - GAP
    height = 2 * MARGIN + TITLE + len(rows) * (TITLE + SIDE + CAPTION + GAP)
    sheet = Image.new("RGB", (width, height), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    large, small = ImageFont.load_default(20), ImageFont.load_default(12)
    draw.text((MARGIN, MARGIN), _fitting(title, large, width - 2 * MARGIN), INK, large)
    top = MARGIN + TITLE
    for row in rows:
        draw.text((MARGIN, top + TITLE - 20), row.title, INK, ImageFont.load_default(14))
        for column, (pixels, caption) in enumerate(row.pictures):
            left = MARGIN + column * (SIDE + GAP)
            if isinstance(pixels, str):
                draw.rectangle((left, top + TITLE, left + SIDE - 1, top + TITLE + SIDE - 1), outline=INK)
                draw.text((left + 4, top + TITLE + 4), _fitting(pixels, small, SIDE - 8), INK, small)
            else:
                sheet.paste(Image.fromarray(fit_to(pixels, SIDE, 3)), (left, top + TITLE))
            draw.text((left, top + TITLE + SIDE + 1), caption, INK, small)
        top += TITLE + SIDE + CAPTION + GAP
    return sheet


def _fitting(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int) -> str:
    """Return the text, cut if it is wider than this."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
