"""Kept cells of the ledger are found, measured on far images and compared with what is asked of them."""

import json

import numpy as np
import pytest

from benchmarks import far_cells
from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.benchmark.cells.running import Places, run_cell
from pmal.benchmark.grid import Planned
from pmal.config import Resources
from pmal.data.decoding.fitting import ImageShape
from pmal.errors import UsageError
from tests.benchmark.ledgers import tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    places = Places(folder / "ledger", folder, keep=True)
    run_cell(Planned(tiny(), "pmal benchmark"), places, open_session(Resources(device="cpu"), Lines()))
    return folder


def test_kept_cells_are_measured_one_by_one_and_compared_with_the_goals(work, tmp_path):
    with pytest.raises(UsageError, match="--keep"):
        far_cells.finished(work, "*/cifar10-*")
    images = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    np.savez_compressed(tmp_path / "svhn", images=images, labels=[0, 1, 2, 3, 4, 5])
    resources, sets, out = Resources(device="cpu"), (str(tmp_path / "svhn.npz"),), tmp_path / "far.json"
    runs = far_cells.measure(far_cells.finished(work, "*/sample-*"), resources, sets, 10, out)
    assert json.loads(out.read_text())["runs"] == runs
    rows = {row["images"]: row for row in runs[0]["far"]}
    lines = far_cells.verdict(runs).splitlines()
    assert lines[0].startswith("softmax, 1 runs: ")
    near, both = rows["svhn"]["scores"]["logit"]["auroc"], rows["svhn"]["scores"]["both"]["auroc"]
    words = f"  svhn: auroc {100 * both:.1f}, near score alone {100 * near:.1f}, asked 96.0: "
    assert words + ("holds" if both >= 0.96 else "FALLS SHORT") in lines
    assert "  cifar100: not measured" in lines
    near = rows["unknown classes"]["scores"]["logit"]["auroc"] - 0.003
    assert any(line.startswith("  unknown classes") and f"asked {100 * near:.1f}" in line for line in lines)


def test_packed_images_are_those_of_the_sets(real_data, tmp_path):
    from pmal.benchmark.far.far_sets import open_far_set
    from pmal.data.decoding.loading import load_images

    far_cells.pack(tmp_path, str(real_data), 7)
    for name in far_cells.SETS:
        packed, line = open_far_set(str(tmp_path / f"{name}.npz"), "cifar10", (), None, 7)
        own, _ = open_far_set(name, "cifar10", (), str(real_data), 7)
        assert line == ""
        assert packed.class_names == own.class_names
        assert packed.labels.tolist() == own.labels.tolist()
        for samples in (packed, own):
            found = load_images(samples, ImageShape(32, 3)).images
            np.testing.assert_array_equal(found, np.load(tmp_path / f"{name}.npz")["images"])
