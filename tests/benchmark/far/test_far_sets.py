"""Which sets are shown to a model, and what is said of those that are not."""

import numpy as np
import pytest
from PIL import Image

from pmal.benchmark.far.far_sets import FAR_SETS, open_far_set
from pmal.data.sources.readers import is_named


@pytest.fixture
def root(tmp_path):
    """A data root with a folder of class folders, as photos are."""
    for name, count in (("ant", 6), ("bee", 4)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(np.full((9, 9, 3), i, np.uint8)).save(tmp_path / "photos" / name / f"{i}.png")
    return str(tmp_path)


def test_images_are_evenly_spaced_and_no_more_than_asked_for(root):
    samples, line = open_far_set("photos", "cifar10", ("cat",), root, 5)
    assert (len(samples), line) == (5, "")
    assert samples.ids.tolist() == [0, 2, 4, 7, 9]
    assert len(open_far_set("photos", "cifar10", ("cat",), root, 100)[0]) == 10


def test_a_folder_may_lie_anywhere(root):
    samples, _ = open_far_set(f"{root}/photos", "cifar10", (), None, 100)
    assert len(samples) == 10


def test_classes_with_the_name_of_a_known_one_are_left_out(root):
    samples, line = open_far_set("photos", "elsewhere", ("bee", "cat"), root, 100)
    assert set(samples.labels.tolist()) == {0}
    assert line == "photos: without its 1 classes that have the name of a known one"
    samples, line = open_far_set("photos", "elsewhere", ("ant", "bee"), root, 100)
    assert samples is None
    assert "all of its classes" in line


@pytest.mark.parametrize(("name", "own"), [("mnist", "sample"), ("cifar10", "cifar+10"), ("svhn", "svhn")])
def test_the_model_s_own_set_is_left_out(name, own, root):
    samples, line = open_far_set(name, own, (), root, 100)
    assert samples is None
    assert line == f"{name} is left out: the model was trained on images of this kind ({own})"


@pytest.mark.parametrize("name", FAR_SETS)
def test_a_set_that_is_not_there_is_left_out_with_a_line(name, tmp_path, monkeypatch):
    from pmal.data.sources.published import _named

    monkeypatch.setattr(
        "pmal.data.sources.readers.NAMED",
        {key: _named.dataclasses.replace(known, fallback=()) for key, known in _named.NAMED.items()},
    )
    samples, line = open_far_set(name, "own", (), str(tmp_path), 100)
    assert samples is None
    assert line.startswith(f"{name} is left out: ")
    assert str(tmp_path) in line


def test_without_a_data_root_there_are_no_photos():
    samples, line = open_far_set("photos", "own", (), None, 100)
    assert samples is None
    assert line.startswith("photos is left out: no such file or folder")


def test_the_sets_have_names_but_for_photos():
    assert [name for name in FAR_SETS if not is_named(name)] == ["photos"]


def test_real_sets_are_found(real_data):
    for name in FAR_SETS:
        samples, line = open_far_set(name, "own", (), str(real_data), 20)
        assert samples is None or len(samples) == 20, line
