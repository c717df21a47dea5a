import csv
import json
import stat

import pytest
import torch

from pmal.errors import UsageError
from pmal.mining.files.mined_files import OutputFiles, plain_cell, write_prototypes_csv, write_samples_csv
from pmal.mining.prototypes import PrototypeSet

PROTOTYPES = PrototypeSet(
    ids=torch.tensor([7, 3, 5]),
    labels=torch.tensor([0, 0, 2]),
    log_r=torch.tensor([-0.1, -0.25, -700.0], dtype=torch.float64),
    gap=torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64),
    rank=torch.tensor([0, 1, 0]),
    num_classes=3,
    class_names=("cat, tabby", "dog", "=1+1"),
    files=("a/7.png", "-3.png", 'say "hi".png'),
)


def _read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_prototypes(tmp_path):
    write_prototypes_csv(tmp_path / "p.csv", PROTOTYPES)
    rows = _read(tmp_path / "p.csv")
    assert list(rows[0]) == ["class", "rank", "id", "r", "gap", "path"]
    assert [row["class"] for row in rows] == ["cat, tabby", "cat, tabby", "'=1+1"]
    assert [row["path"] for row in rows] == ["a/7.png", "'-3.png", 'say "hi".png']
    assert [(int(row["rank"]), int(row["id"])) for row in rows] == [(0, 7), (1, 3), (0, 5)]
    assert [float(row["r"]) for row in rows] == PROTOTYPES.r.tolist()
    assert [float(row["gap"]) for row in rows] == [2.0, 1.0, 0.0]
    assert b"\r" not in (tmp_path / "p.csv").read_bytes()


def test_samples(tmp_path):
    log_r = torch.tensor([-0.25, -700.0, -1 / 3, -0.1], dtype=torch.float64)
    candidates = torch.tensor([True, True, False, True])
    labels, ids = torch.tensor([0, 2, 1, 0]), torch.tensor([3, 5, 6, 7])
    write_samples_csv(tmp_path / "s.csv", log_r, candidates, labels, ids, PROTOTYPES, ["@x", "b", "", "d"])
    rows = _read(tmp_path / "s.csv")
    assert list(rows[0]) == ["id", "class", "r", "log_r", "candidate", "rank", "path"]
    assert [float(row["log_r"]) for row in rows] == log_r.tolist()
    assert [float(row["r"]) for row in rows] == log_r.exp().tolist()
    assert [tuple(row[k] for k in ("id", "class", "candidate", "rank", "path")) for row in rows] == [
        ("3", "cat, tabby", "1", "1", "'@x"),
        ("5", "'=1+1", "1", "0", "b"),
        ("6", "dog", "0", "", ""),
        ("7", "cat, tabby", "1", "0", "d"),
    ]


def test_without_names_and_paths(tmp_path):
    plain = PrototypeSet(
        PROTOTYPES.ids, PROTOTYPES.labels, PROTOTYPES.log_r, PROTOTYPES.gap, PROTOTYPES.rank, num_classes=3
    )
    write_prototypes_csv(tmp_path / "p.csv", plain)
    assert [(row["class"], row["path"]) for row in _read(tmp_path / "p.csv")] == [
        ("0", ""),
        ("0", ""),
        ("2", ""),
    ]


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\tx", "\rx"])
def test_no_text_is_a_formula(text):
    assert plain_cell(text) == "'" + text


@pytest.mark.parametrize("value", ["a=1", "", "1", "é", " =1", -5, 0])
def test_other_cells_stay(value):
    assert plain_cell(value) == value


def test_files_follow_the_umask(tmp_path):
    write_prototypes_csv(tmp_path / "p.csv", PROTOTYPES)
    (tmp_path / "other").touch()
    assert stat.S_IMODE((tmp_path / "p.csv").stat().st_mode) == stat.S_IMODE(
        (tmp_path / "other").stat().st_mode
    )


# -- names


@pytest.mark.parametrize(
    ("out", "stem"), [("a", "a"), ("a.json", "a"), ("a.csv", "a"), ("a.b", "a.b"), ("a.b.json", "a.b")]
)
def test_names(tmp_path, out, stem):
    files = OutputFiles.named(tmp_path / out)
    assert [file.name for file in files.readable] == [f"{stem}.json", f"{stem}.csv", f"{stem}.samples.csv"]


def test_a_folder_is_no_name(tmp_path):
    with pytest.raises(UsageError, match="is a folder: name a file in it"):
        OutputFiles.named(tmp_path)


def test_folders_are_made_and_tried_before_the_work(tmp_path):
    OutputFiles.named(tmp_path / "new/deep/a").prepare(tmp_path / "e.npz", force=False)
    assert (tmp_path / "new/deep").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write to"):
        OutputFiles.named(tmp_path / "file/a").prepare(tmp_path / "e.npz", force=False)


@pytest.mark.parametrize("ending", [".json", ".csv", ".samples.csv", ".safetensors"])
def test_nothing_is_replaced_unasked(tmp_path, ending):
    PROTOTYPES.save(tmp_path / "b")
    files = OutputFiles.named(tmp_path / "a")
    if ending == ".json":
        PROTOTYPES.save(tmp_path / "a")
    else:
        (tmp_path / f"a{ending}").touch()
    with pytest.raises(UsageError, match=f"a{ending} exists: choose another --out, or pass --force"):
        files.prepare(tmp_path / "e.npz", force=False)
    files.prepare(tmp_path / "e.npz", force=True)


@pytest.mark.parametrize(
    "content", ["{}", "[1, 2]", "no json", json.dumps({"tensors": "x", "sha256": "", "about": {}})]
)
def test_a_foreign_json_is_never_replaced(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UsageError, match=r"a.json exists and is not a whole set of prototypes: move it away"):
        OutputFiles.named(tmp_path / "a").prepare(tmp_path / "e.npz", force=True)


@pytest.mark.parametrize("name", ["a.safetensors", "a.next.safetensors"])
def test_the_input_is_never_replaced(tmp_path, name):
    (tmp_path / name).write_bytes(b"embeddings")
    with pytest.raises(UsageError, match="would be overwritten by its own prototypes: choose another --out"):
        OutputFiles.named(tmp_path / "a").prepare(tmp_path / name, force=True)
