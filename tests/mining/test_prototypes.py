import dataclasses
import json
from pathlib import Path

import pytest
import torch

from pmal._runtime.tensors import save_tensors
from pmal.errors import DataError
from pmal.mining.prototypes import PrototypeSet


def _mined(**changes):
    columns = {
        "ids": torch.tensor([40, 12, 7, 99, 3]),
        "labels": torch.tensor([0, 0, 0, 2, 2]),
        "log_r": torch.tensor([-0.1, -0.30000000000000004, -0.2, 0.0, -1.7]).double(),
        "gap": torch.tensor([3.5, 1.1, 0.3, 2.0, 1 / 3]).double(),
        "rank": torch.tensor([0, 1, 2, 0, 1]),
        "num_classes": 4,
    }
    return PrototypeSet(**(columns | changes))


NAMED = {
    "class_names": ("cat", "dög", "hen", "owl"),
    "files": tuple(f"images/{i}.png" for i in range(5)),
}


def test_table_and_mask_leave_gaps_for_smaller_classes():
    mined = _mined()
    assert mined.table().tolist() == [[40, 12, 7], [-1, -1, -1], [99, 3, -1], [-1, -1, -1]]
    assert mined.mask.tolist() == [[True] * 3, [False] * 3, [True, True, False], [False] * 3]
    assert mined.per_class == 3
    assert len(mined) == 5
    torch.testing.assert_close(mined.r, mined.log_r.exp())


def test_the_sample_with_id_0_is_a_prototype_like_any_other():
    mined = _mined(ids=torch.tensor([0, 12, 7, 99, 3]))
    assert mined.table()[0].tolist() == [0, 12, 7]
    assert mined.mask.sum() == 5


def test_a_set_without_prototypes_has_an_empty_table(tmp_path):
    empty = torch.tensor([], dtype=torch.int64)
    mined = _mined(ids=empty, labels=empty, rank=empty, log_r=empty.double(), gap=empty.double())
    assert mined.table().shape == mined.mask.shape == (4, 0)
    mined.save(tmp_path / "p")
    assert PrototypeSet.load(tmp_path / "p") == mined


@pytest.mark.parametrize("extra", [{}, NAMED], ids=["bare", "named"])
@pytest.mark.parametrize("name", ["prototypes", "prototypes.json", "v1.5"])
def test_save_and_load_give_the_same_set(tmp_path, name, extra):
    mined = _mined(**extra)
    mined.save(tmp_path / name)
    mined.save(str(tmp_path / name))
    assert PrototypeSet.load(tmp_path / name) == mined
    assert PrototypeSet.load(str(tmp_path / name)) == mined
    assert len(list(tmp_path.iterdir())) == 2


def test_the_file_reads_like_a_list_of_prototypes(tmp_path):
    _mined(**NAMED).save(tmp_path / "prototypes.json")
    entries = json.loads((tmp_path / "prototypes.json").read_text())["about"]["prototypes"]
    assert len(entries) == 5
    assert entries[3] == {
        "id": 99,
        "class": "hen",
        "r": 1.0,
        "gap": 2.0,
        "rank": 0,
        "file": "images/3.png",
    }
    assert [entry["class"] for entry in _mined().entries()] == [0, 0, 0, 2, 2]


def test_equality_looks_at_everything():
    mined = _mined(**NAMED)
    assert mined == _mined(**NAMED)
    assert mined != "prototypes"
    others = {
        "ids": torch.tensor([41, 12, 7, 99, 3]),
        "log_r": mined.log_r + 1e-15,
        "gap": mined.gap * 2,
        "num_classes": 5,
        "class_names": ("a", "b", "c", "d"),
        "files": None,
    }
    for name, value in others.items():
        changed = {"class_names": None} if name == "num_classes" else {}
        assert dataclasses.replace(mined, **changed, **{name: value}) != mined


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.tensor([0, 0, 0, 4, 4])}, "a class that does not exist"),
        ({"labels": torch.tensor([-1, 0, 0, 2, 2])}, "a class that does not exist"),
        ({"labels": torch.tensor([2, 2, 2, 0, 0])}, "not in the order of class"),
        ({"rank": torch.tensor([0, 2, 1, 0, 1])}, "not in the order"),
        ({"rank": torch.tensor([1, 2, 3, 0, 1])}, "not in the order"),
        ({"ids": torch.tensor([40, 12, 7, 99, 40])}, "more than once"),
        ({"ids": torch.tensor([-1, 12, 7, 99, 40])}, "negative"),
        ({"gap": torch.full((5,), torch.inf).double()}, "a gap that is not finite"),
        ({"log_r": torch.full((5,), torch.nan).double()}, "NaN"),
        ({"log_r": torch.zeros(5)}, "log_r is torch.float32"),
        ({"gap": torch.zeros(4).double()}, "gap is torch.float64 of shape"),
        ({"class_names": ("a",)}, "1 class names for 4 classes"),
        ({"files": ("a",)}, "1 file names for 5 prototypes"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(DataError, match=message):
        _mined(**changes)


def _edit(path: Path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_damaged_numbers_are_refused_by_name(tmp_path):
    _mined().save(tmp_path / "p")
    file = tmp_path / "p.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"p\.safetensors: damaged"):
        PrototypeSet.load(tmp_path / "p")
    file.unlink()
    with pytest.raises(DataError, match=r"p\.safetensors: missing"):
        PrototypeSet.load(tmp_path / "p")


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about["prototypes"][1].update(id=13),
        lambda about: about["prototypes"].pop(),
        lambda about: about["prototypes"][0].pop("file"),
        lambda about: about.update(prototypes=None),
        lambda about: about.update(prototypes=[1, 2, 3, 4, 5]),
        lambda about: about.update(num_classes=2),
        lambda about: about.update(num_classes="many"),
        lambda about: about.pop("class_names"),
        lambda about: about.update(class_names=["a"]),
    ],
)
def test_an_edited_list_is_refused_by_name(tmp_path, change):
    _mined(**NAMED).save(tmp_path / "p")
    _edit(tmp_path / "p.json", lambda value: change(value["about"]))
    with pytest.raises(DataError, match=r"p\.json: .*mine again"):
        PrototypeSet.load(tmp_path / "p")


def test_foreign_and_missing_files_are_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"p\.json: no such file"):
        PrototypeSet.load(tmp_path / "p")
    (tmp_path / "p.json").write_text('{"images": []}')
    with pytest.raises(DataError, match=r"p\.json: not written by pmal"):
        PrototypeSet.load(tmp_path / "p")
    save_tensors(tmp_path / "weights", {"w": torch.zeros(3)}, {"epoch": 1})
    with pytest.raises(DataError, match=r"weights\.json: not a set of prototypes"):
        PrototypeSet.load(tmp_path / "weights")


@pytest.mark.parametrize("content", ["{}", "[1]", '{"tensors": "w.safetensors", "sha256": "", "about": {}}'])
def test_a_foreign_file_is_not_overwritten(tmp_path, content):
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(DataError, match=r"p\.json: exists and is not a set of prototypes"):
        _mined().save(tmp_path / "p")
    assert (tmp_path / "p.json").read_text() == content
