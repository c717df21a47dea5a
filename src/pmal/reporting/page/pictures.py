"""Many small pictures as one image in a data URI, so that a page with hundreds of them stays small."""

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from pmal.data.decoding.decode import decode_small, fit_to
from pmal.data.samples import BadImage, EncodedStore, Pixels, Samples

SIDES = (64, 48, 32, 24, 16)


@dataclass(frozen=True)
class Sheet:
    """Square pictures in a grid, row by row."""

    name: str
    uri: str
    columns: int
    rows: int


@dataclass
class Album:
    """Pictures by key, in the order of first use. Images that cannot be read have no place."""

    name: str
    read: Callable[[int], Pixels]
    places: dict[int, int | None] = field(default_factory=dict)
    pictures: list[Pixels] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, parts: Sequence[Samples]) -> "Album":
        """Return an album of samples, by their position, counted through all parts."""
        starts = np.cumsum([0, *map(len, parts)])

        def read(position: int) -> Pixels:
            part = int(np.searchsorted(starts, position, side="right")) - 1
            samples, i = parts[part], position - int(starts[part])
            if isinstance(samples.store, EncodedStore):  # photographs would take minutes at their full size
                return decode_small(samples.store.encoded(int(samples.ids[i])), SIDES[0])
            return samples.read(i)

        return cls(name, read)

    def place(self, key: int) -> int | None:
        """Return the place of a picture on the sheet. None: the image cannot be read."""
        if key not in self.places:
            try:
                pixels = self.read(key)
            except BadImage:
                self.places[key] = None
            else:
                self.places[key] = len(self.pictures)
                self.pictures.append(_small(pixels))
        return self.places[key]

    def sheet(self, budget: int) -> Sheet | None:
        """Return all pictures at the largest side at which the file fits the budget, in bytes.

        None: there are no pictures.
        """
        return make_sheet(self.name, self.pictures, budget) if self.pictures else None


def make_sheet(name: str, pictures: Sequence[Pixels], budget: int) -> Sheet:
    """Return pictures as one sheet, at the largest side at which the file fits the budget.

    If none fits, the smallest side is used.

    Args:
        name: of the sheet.
        pictures: of any size.
        budget: bytes of the file.
    """
    largest = max(min(picture.shape[:2]) for picture in pictures)
    native = largest if largest < 32 else min(SIDES[0], largest - largest % 8)  # JPEG's blocks have 8 px
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    for side in [native, *(s for s in SIDES if s < native)]:
        kind, data = _encode(_grid(pictures, side, columns, rows))
        if len(data) <= budget:
            break
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return Sheet(name, uri, columns, rows)


def _small(pixels: Pixels) -> Pixels:
    """Return a picture no larger than it is drawn: thousands of photographs would fill the memory."""
    side = min(*pixels.shape[:2], SIDES[0])
    return fit_to(pixels, side, pixels.shape[2])


def _grid(pictures: Sequence[Pixels], side: int, columns: int, rows: int) -> Image.Image:
    channels = max(picture.shape[2] for picture in pictures)
    grid = np.zeros((rows * side, columns * side, channels), np.uint8)
    for i, picture in enumerate(pictures):
        top, left = i // columns * side, i % columns * side
        grid[top : top + side, left : left + side] = fit_to(picture, side, channels)
    return Image.fromarray(grid if channels == 3 else grid[:, :, 0])


def _encode(image: Image.Image) -> tuple[str, bytes]:
    """Return kind and bytes: PNG for drawings and digits, JPEG for photographs, which is much smaller."""
    png, jpeg = io.BytesIO(), io.BytesIO()
    image.save(jpeg, "JPEG", quality=82)
    image.save(png, "PNG")
    small_png = len(png.getvalue()) <= 1.5 * len(jpeg.getvalue())
    return ("png", png.getvalue()) if small_png else ("jpeg", jpeg.getvalue())
