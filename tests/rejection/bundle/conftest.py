import shutil

import pytest

from pmal.rejection.bundle.saving import save_model
from tests.serving.bundles import make_model, make_network


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A bundle to be read."""
    folder = tmp_path_factory.mktemp("bundles") / "model"
    save_model(folder, make_model(make_network()))
    return folder


@pytest.fixture
def folder(original, tmp_path):
    """A bundle to be damaged."""
    return shutil.copytree(original, tmp_path / "model")
