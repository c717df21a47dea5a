"""Features are computed once for each image, whatever its name."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal.config import Resources
from pmal.data.samples import Samples
from pmal.data.sources.folder import FileStore
from pmal.encoders import features
from pmal.encoders.features import FeatureCache, open_features
from pmal.encoders.pretrained.backbone import Backbone
from pmal.encoders.pretrained.preprocessing import Preprocessing

CPU = torch.device("cpu")


class Means(nn.Module):
    """The mean of each channel; counts the images it has seen."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor, self.seen = nn.Parameter(torch.tensor(factor)), 0
        self.die_after = None

    def forward(self, x):
        self.seen += len(x)
        if self.die_after is not None and self.seen > self.die_after:
            raise KeyboardInterrupt
        return self.factor * x.mean(dim=(2, 3))


def make_backbone(factor=1.0):
    images = Preprocessing(8, 8, (0.0,) * 3, (1.0,) * 3)
    return Backbone("means", Means(factor), images, num_features=3, architecture={})


def session(checkpoint_seconds=1e9):
    return Session(CPU, Resources(checkpoint_seconds=checkpoint_seconds), Silent())


@pytest.fixture
def samples(tmp_path):
    """Forty images of two classes."""
    names = [f"{i}.png" for i in range(40)]
    for i, name in enumerate(names):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    return Samples.whole(FileStore(tmp_path, names), np.arange(40) % 2, ("a", "b"))


def embed(samples, backbone, path, write=True, seconds=1e9):
    here = session(seconds)
    return open_features("test", samples, backbone, FeatureCache(backbone, path, here, write=write), here)


def rows(part):
    return torch.cat(list(part.images.stream([torch.arange(len(part.samples))]))).flatten(1)


def test_a_second_run_embeds_nothing(samples, tmp_path):
    first, second = make_backbone(), make_backbone()
    expected = rows(embed(samples, first, tmp_path / "features"))
    assert first.body.seen == 40
    assert torch.equal(rows(embed(samples, second, tmp_path / "features")), expected)
    assert second.body.seen == 0
    pixels = np.stack([samples.read(i) for i in range(40)]) / 255
    np.testing.assert_allclose(expected, pixels.mean(axis=(1, 2)), atol=1e-6)


def test_what_is_only_read_is_not_written(samples, tmp_path):
    embed(samples, make_backbone(), tmp_path / "features", write=False)
    assert not (tmp_path / "features.json").exists()


def test_features_of_another_network_are_ignored(samples, tmp_path):
    embed(samples, make_backbone(), tmp_path / "features")
    other = make_backbone(2.0)
    found = rows(embed(samples, other, tmp_path / "features"))
    assert other.body.seen == 40
    torch.testing.assert_close(found, 2 * rows(embed(samples, make_backbone(), tmp_path / "none", False)))


def test_the_same_content_is_embedded_once(samples, tmp_path):
    for i in range(10, 20):
        (tmp_path / f"{i}.png").write_bytes((tmp_path / "3.png").read_bytes())
    backbone = make_backbone()
    found = rows(embed(samples, backbone, tmp_path / "features"))
    assert backbone.body.seen == 30
    assert all(torch.equal(found[i], found[3]) for i in range(10, 20))


def test_unreadable_images_are_set_aside_with_the_reason(samples, tmp_path):
    for i in (4, 5):  # the second has the content of the first
        (tmp_path / f"{i}.png").write_bytes(b"no image")
    (tmp_path / "7.png").unlink()
    part = embed(samples, make_backbone(), tmp_path / "features")
    assert [bad.id for bad in part.unreadable] == [4, 5, 7]
    assert part.unreadable[0].reason == part.unreadable[1].reason
    assert part.unreadable[0].reason.startswith("not a JPEG")
    assert len(part.samples) == len(rows(part)) == 37


def test_a_killed_process_keeps_what_it_has_saved(samples, tmp_path, monkeypatch):
    monkeypatch.setitem(features.BLOCK, "cpu", 8)
    dying = make_backbone()
    dying.body.die_after = 16
    with pytest.raises(KeyboardInterrupt):
        embed(samples, dying, tmp_path / "features", seconds=0)
    again = make_backbone()
    embed(samples, again, tmp_path / "features")
    assert again.body.seen == 24


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def test_images_of_every_mode_become_upright_color(tmp_path):
    half = Image.new("RGB", (16, 16), (0, 0, 0))
    half.paste((255, 255, 255), (0, 0, 16, 8))  # white above
    turned = Image.Exif()
    turned[0x0112] = 3
    files = {
        "gray.png": encoded(Image.new("L", (16, 16), 51), "PNG"),
        "cmyk.jpg": encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"),
        "alpha.png": encoded(Image.new("RGBA", (16, 16), (0, 0, 0, 0)), "PNG"),
        "turned.jpg": encoded(half, "JPEG", exif=turned, quality=100),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    samples = Samples.whole(FileStore(tmp_path, list(files)), np.zeros(4, int), ("a",))

    class Top(Means):
        def forward(self, x):
            return self.factor * x[:, :, :3].mean(dim=(2, 3))

    backbone = make_backbone()
    backbone.body = Top()
    found = rows(embed(samples, backbone, tmp_path / "features"))
    expected = [[0.2] * 3, [1, 0, 0], [1] * 3, [0] * 3]  # transparent shows white; turned is black above
    torch.testing.assert_close(found, torch.tensor(expected), atol=0.03, rtol=0)


def test_room_for_all_new_features_is_made_once(samples, tmp_path, monkeypatch):
    """Rows that were kept between blocks of pixels made the memory of a run grow by its pixels."""
    monkeypatch.setitem(features.BLOCK, "cpu", 8)
    backbone, places = make_backbone(), set()
    cache = FeatureCache(backbone, tmp_path / "features", session(), write=False)
    add = cache.add

    def adding(digests, features_BD):
        add(digests, features_BD)
        places.add(cache.features(digests).shape[0] and cache._features_MD.data_ptr())

    monkeypatch.setattr(cache, "add", adding)
    open_features("test", samples, backbone, cache, session())
    assert len(cache) == 40
    assert len(places) == 1


def test_what_is_known_is_not_kept_twice(tmp_path):
    cache = FeatureCache(make_backbone(), tmp_path / "features", session(), write=False)
    cache.add([b"a", b"b"], torch.eye(3)[:2])
    cache.add([b"b", b"c"], torch.eye(3)[[0, 2]])
    assert len(cache) == 3
    assert torch.equal(cache.features([b"c", b"b", b"a"]), torch.eye(3)[[2, 1, 0]])
    assert cache.features([]).shape == (0, 3)
