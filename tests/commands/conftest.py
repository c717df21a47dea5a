"""What the tests of several commands take for granted."""

import pytest

from pmal.data.decoding.decode import encode_png
from pmal.rejection.bundle.saving import save_model
from tests.serving.tiny_model import make_model, pictures_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with a model in it."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.toml").touch()
    save_model(folder / "model", make_model())
    return folder


@pytest.fixture
def photos(tmp_path):
    """Two pictures of each class, and two of none."""
    for kind in range(4):
        for i, picture in enumerate(pictures_of(kind, 2, seed=7)):
            file = tmp_path / "photos" / f"kind{kind}" / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode_png(picture.permute(1, 2, 0).numpy()))
    return tmp_path / "photos"
