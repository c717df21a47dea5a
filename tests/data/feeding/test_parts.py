from dataclasses import replace

import numpy as np
import pytest
import torch

from pmal._runtime.progress import Lines
from pmal._runtime.session import Session, open_session
from pmal.config import DataConfig, Resources
from pmal.data.decoding.decode import encode_png
from pmal.data.decoding.decoded import DecodedImages
from pmal.data.decoding.fitting import ImageShape
from pmal.data.feeding.batches import StreamedImages, is_resident, sequential_plan
from pmal.data.feeding.parts import image_shape, open_part, training_statistics
from pmal.data.sources.folder import open_folder
from pmal.errors import DataError, UsageError


class Recorder:
    """A display that remembers what it was told to say."""

    def __init__(self):
        self.said = []

    def stage(self, name, total, unit, done=0):
        return open_session(Resources(device="cpu")).display.stage(name, total, unit, done)

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def session():
    return Session(torch.device("cpu"), Resources(), Recorder())


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    for i in range(40):
        file = tmp_path / "abcd"[i % 4] / f"{i:02d}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(encode_png(random.integers(0, 256, (10, 10, 3), dtype=np.uint8)))
    return tmp_path


def streaming(session):
    return Session(session.device, Resources(memory_limit=0.0, workers=1), session.display)


def test_unreadable_images_are_listed_counted_and_said(folder, session):
    (folder / "b" / "05.png").write_bytes(b"")
    part = open_part("train", open_folder(folder).train, ImageShape(10, 3), session)
    quarantine = part.quarantine()
    assert quarantine["total"] == 40 == quarantine["readable"] + len(quarantine["unreadable"])
    assert quarantine["unreadable"][0]["name"].endswith("b/05.png")
    assert len(part.images) == len(part.samples) == len(part.labels(session.device)) == 39
    assert session.display.said == ["train: 1 of 40 images left out, see quarantine.json"]


def test_a_class_of_hardly_any_images_is_said(folder, session):
    for file in sorted((folder / "c").iterdir())[:-1]:
        file.unlink()
    for file in sorted((folder / "d").iterdir())[:-5]:  # enough
        file.unlink()
    train = open_folder(folder).train
    open_part("test", train, ImageShape(10, 3), session)
    assert session.display.said == []
    open_part("train", train, ImageShape(10, 3), session)
    [said] = session.display.said
    assert said == "warning: few images: only 1 to learn class 'c' from; 1 of 4 classes have less than 5"


def test_a_class_that_is_lost_altogether_stops(folder, session):
    for file in (folder / "c").iterdir():
        if file.name != "02.png":
            file.unlink()
    (folder / "c" / "02.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="no image of class 'c' is readable"):
        open_part("train", open_folder(folder).train, ImageShape(10, 3), session)


def test_a_class_that_a_part_never_had_is_not_lost(folder, session):
    train = open_folder(folder).train
    part = open_part("test", train.at(train.labels != 2), ImageShape(10, 3), session)
    assert len(part.images) == 30


def test_images_are_held_in_memory_while_their_pixels_fit(folder, session):
    samples, pixels = open_folder(folder).train, 40 * 3 * 10 * 10
    for limit, resident in ((pixels, True), (pixels - 1, False)):
        limited = replace(session, resources=Resources(memory_limit=limit / 2**30, workers=1))
        assert is_resident(open_part("test", samples, ImageShape(10, 3), limited).images) == resident


def test_a_cache_that_cannot_be_used_is_said_before_anything_is_read(folder, session, tmp_path, monkeypatch):
    monkeypatch.setattr("pmal.data.feeding.parts.verify_images", lambda *args, **options: pytest.fail("read"))
    resources = Resources(memory_limit=0.0, workers=1, cache=str(tmp_path / "missing"))
    with pytest.raises(DataError, match=r"--cache .*missing: .*No such file"):
        open_part(
            "train", open_folder(folder).train, ImageShape(10, 3), replace(session, resources=resources)
        )


def test_a_cache_that_has_no_use_is_said_once(folder, session, tmp_path):
    resources = Resources(cache=str(tmp_path / "missing"))
    samples = open_folder(folder).train
    for name in ("train", "held out", "test"):
        open_part(name, samples, ImageShape(10, 3), replace(session, resources=resources))
    [said] = session.display.said
    assert said.startswith(f"--cache {tmp_path}/missing is not used: ")


def test_a_cache_is_for_the_training_part_without_its_unreadable_images(folder, session, tmp_path):
    (folder / "b" / "05.png").write_bytes(b"")
    kept = replace(session, resources=Resources(memory_limit=0.0, workers=1, cache=str(tmp_path)))
    samples = open_folder(folder).train
    expected = open_part("train", samples, ImageShape(10, 3), session).images
    part = open_part("train", samples, ImageShape(10, 3), kept)
    assert isinstance(part.images, DecodedImages)
    assert len(part.images) == 39
    for _ in range(2):
        assert torch.equal(torch.cat(list(part.images.stream(sequential_plan(39, 10)))), expected.images)
    assert isinstance(open_part("test", samples, ImageShape(10, 3), kept).images, StreamedImages)


def test_too_many_unreadable_images_stop(folder, session):
    for file in sorted(folder.rglob("*.png"))[::4]:
        file.write_bytes(b"")
    with pytest.raises(DataError, match="10 of 40 images unreadable"):
        open_part("train", open_folder(folder).train, ImageShape(10, 3), session)


def test_statistics_do_not_depend_on_streaming(folder, session, monkeypatch):
    monkeypatch.setattr("pmal.data.feeding.parts.STATISTICS_LIMIT", 15)
    samples = open_folder(folder).train
    held = open_part("train", samples, ImageShape(8, 3), session)
    streamed = open_part("train", samples, ImageShape(8, 3), streaming(session))
    for a, b in zip(training_statistics(held.images), training_statistics(streamed.images), strict=True):
        assert torch.equal(a, b)
    expected = held.images.images[::3].double().mean(dim=(0, 2, 3)) / 255
    torch.testing.assert_close(training_statistics(held.images)[0].double(), expected, rtol=1e-6, atol=0)


def test_only_statistics_that_take_long_are_displayed(folder, session, capsys):
    samples = open_folder(folder).train
    for how, expected in ((session, []), (streaming(session), ["mean and deviation: 40 images"])):
        images = open_part("train", samples, ImageShape(8, 3), how).images
        capsys.readouterr()
        training_statistics(images, Lines())
        assert [line.partition(" in ")[0] for line in capsys.readouterr().err.splitlines()] == expected


def test_the_shape_is_the_images_own_or_the_one_asked_for(folder):
    samples = open_folder(folder).train
    assert image_shape(samples, DataConfig()) == (10, 3, "bilinear")
    for side in (8, 32):
        assert image_shape(samples, DataConfig(image_size=side)) == (side, 3, "bilinear")
    with pytest.raises(UsageError, match=r"data\.image_size to 8 or more"):
        image_shape(samples, DataConfig(image_size=7))
