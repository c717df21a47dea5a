import base64
import io

import numpy as np
import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from pmal.data.samples import ArrayStore, BadImage, Samples
from pmal.data.sources.folder import FileStore
from pmal.reporting.page.pictures import Album, make_sheet


def pixels_of(sheet):
    head, _, data = sheet.uri.partition(",")
    return head, np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def album_of(*counts, side=8):
    parts, label = [], 0
    for count in counts:
        store = ArrayStore(
            "birds",
            np.arange(count, dtype=np.uint8)[:, None, None, None]
            + np.full((count, side, side, 1), label, np.uint8),
        )
        parts.append(Samples.whole(store, np.zeros(count), ("owl",)))
        label += 100
    return Album.of("test", parts)


def test_pictures_lie_where_the_album_says():
    album = album_of(3, 4)
    places = {key: album.place(key) for key in (6, 0, 4, 6)}
    assert places == {6: 0, 0: 1, 4: 2}
    sheet = album.sheet(10_000)
    head, pixels = pixels_of(sheet)
    assert head == "data:image/png;base64"
    assert (sheet.columns, sheet.rows, pixels.shape) == (2, 2, (16, 16))
    for key, place in places.items():
        top, left = place // sheet.columns * 8, place % sheet.columns * 8
        assert (pixels[top : top + 8, left : left + 8] == (key if key < 3 else 100 + key - 3)).all()


def test_what_has_no_pixels_has_no_place():
    def read(key):
        raise BadImage("broken")

    album = Album("test", read)
    assert album.place(1) is None
    assert album.sheet(1000) is None


def test_photographs_are_jpeg_and_shrink_to_the_budget():
    random = np.random.default_rng(0)
    noise = [random.integers(0, 256, (64, 64, 3), dtype=np.uint8) for _ in range(50)]
    large, small = make_sheet("test", noise, 10**7), make_sheet("test", noise, 30_000)
    assert large.uri.startswith("data:image/jpeg;")
    assert pixels_of(large)[1].shape == (7 * 64, 8 * 64, 3)
    assert pixels_of(small)[1].shape[1] < 8 * 64
    assert len(small.uri) < 45_000


@pytest.mark.parametrize(("side", "drawn"), [(28, 28), (33, 32), (300, 64)])
def test_pictures_of_any_size(side, drawn):
    picture = np.zeros((side, side + 7, 1), np.uint8)
    assert pixels_of(make_sheet("test", [picture, np.zeros((9, 9, 3), np.uint8)], 10**6))[1].shape[0] == drawn


def test_large_photographs_are_not_decoded_whole(tmp_path, monkeypatch):
    Image.new("RGB", (4000, 3000), (200, 40, 40)).save(tmp_path / "a.jpg")
    sizes, draft = [], JpegImageFile.load

    def load(image):
        sizes.append(image.size)
        return draft(image)

    monkeypatch.setattr(JpegImageFile, "load", load)
    store = FileStore(str(tmp_path), ["a.jpg"])
    album = Album.of("test", [Samples.whole(store, np.zeros(1, np.int64), ("red",))])
    assert album.place(0) == 0
    assert sizes[0] == (500, 375)
    assert album.pictures[0].shape == (64, 64, 3)
