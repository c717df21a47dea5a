import contextlib
import csv
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pmal.config import MiningConfig
from pmal.errors import DataError, UsageError
from pmal.geometry.robustness import topology_robustness
from pmal.mining.candidates import select_candidates
from pmal.mining.diversity import DIVERSITY_RULES
from pmal.mining.files.file_miner import mine_file
from pmal.mining.miner import mine_prototypes
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import QUALITY_RULES


class Recorder:
    """A display that remembers."""

    def __init__(self):
        self.stages, self.said = {}, []

    @contextlib.contextmanager
    def stage(self, name, total, unit, done=0):
        self.stages[name] = [total, unit, 0]

        def advance(n):
            self.stages[name][2] += n

        yield advance

    def say(self, text):
        self.said.append(text)


def _heads_file(path, samples=90, classes=3, seed=0, **more):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % classes)
    entries = {"labels": labels}
    for u, channels in enumerate((6, 8)):
        weight = rng.normal(size=(classes, channels)).astype(np.float32)
        entries[f"W_{u}"] = weight
        entries[f"z_{u}"] = (2 * weight[labels] + rng.normal(size=(samples, channels))).astype(np.float32)
    np.savez(path, **(entries | more))
    return {name: value for name, value in (entries | more).items() if value is not None}


def _frozen_features(samples=600, classes=8, channels=32, damaged=0.1, seed=0):
    """Blobs, and a tenth of the samples with features that say nothing of their class."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % classes)
    z = rng.normal(size=(classes, channels))[labels] + rng.normal(size=(samples, channels))
    bad = rng.random(samples) < damaged
    z[bad] = 1.4 * rng.normal(size=(bad.sum(), channels))
    return z.astype(np.float32), labels, bad


def _read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _damage_auroc(log_r, bad):
    clean, worse = log_r[~bad], log_r[bad]
    return float((clean[:, None] > worse[None, :]).mean() + 0.5 * (clean[:, None] == worse[None, :]).mean())


# -- with the heads of the file


def test_is_mine_prototypes_on_the_arrays(tmp_path):
    paths = [f"img/{i}.png" for i in range(90)]
    names = ["x", "y", "z"]
    entries = _heads_file(tmp_path / "e.npz", paths=np.array(paths), class_names=np.array(names))
    mined = mine_file(tmp_path / "e.npz", tmp_path / "out", MiningConfig(epsilon=0.8, per_class=4))
    spaces = [(entries[f"z_{u}"], entries[f"W_{u}"]) for u in range(2)]
    labels = entries["labels"]
    expected = mine_prototypes(spaces, labels, epsilon=0.8, per_class=4, class_names=names, files=paths)
    assert mined.prototypes == expected
    log_r = topology_robustness(spaces)
    assert torch.equal(mined.log_r, log_r)
    assert torch.equal(mined.candidates, select_candidates(log_r, labels, epsilon=0.8, at_least=4))
    assert mined.head_accuracies == ()
    assert mined.spaces == 2


def test_what_is_written_says_what_was_found(tmp_path):
    _heads_file(tmp_path / "e.npz", ids=np.arange(90)[::-1] * 3, class_names=np.array(["x", "y", "=z"]))
    mined = mine_file(tmp_path / "e.npz", tmp_path / "out.json", MiningConfig(per_class=5))
    assert [file.name for file in mined.files] == ["out.json", "out.csv", "out.samples.csv"]
    assert PrototypeSet.load(tmp_path / "out.json") == mined.prototypes
    rows = _read(tmp_path / "out.csv")
    assert [int(row["id"]) for row in rows] == mined.prototypes.ids.tolist()
    assert {row["class"] for row in rows} == {"x", "y", "'=z"}
    samples = _read(tmp_path / "out.samples.csv")
    assert [int(row["id"]) for row in samples] == mined.ids.tolist() == list(range(0, 270, 3))
    assert [float(row["log_r"]) for row in samples] == mined.log_r.tolist()
    assert [int(row["candidate"]) for row in samples] == mined.candidates.int().tolist()
    ranked = {int(row["id"]): int(row["rank"]) for row in samples if row["rank"]}
    assert ranked == dict(zip(mined.prototypes.ids.tolist(), mined.prototypes.rank.tolist(), strict=True))
    assert all(int(row["candidate"]) for row in samples if row["rank"])
    summary = json.loads(json.dumps(mined.summary()))
    assert (summary["samples"], summary["classes"], summary["spaces"]) == (90, 3, 2)
    assert (summary["prototypes"], summary["fewest_per_class"], summary["most_per_class"]) == (15, 5, 5)
    assert summary["candidates"] == int(mined.candidates.sum())


@pytest.mark.parametrize(
    ("quality", "diversity"), [*((quality, "gap") for quality in QUALITY_RULES), ("topology", "random")]
)
def test_the_order_in_the_file_does_not_matter(tmp_path, quality, diversity):
    ids = np.random.default_rng(3).permutation(500)[:90]
    entries = _heads_file(tmp_path / "e.npz", ids=ids)
    order = np.random.default_rng(4).permutation(90)
    moved = {k: v[order] if k in ("z_0", "z_1", "labels", "ids") else v for k, v in entries.items()}
    np.savez(tmp_path / "moved.npz", **moved)
    options = {"quality": quality, "diversity": diversity, "landmarks": 40}
    first = mine_file(tmp_path / "e.npz", tmp_path / "a", MiningConfig(**options), seed=5)
    again = mine_file(tmp_path / "moved.npz", tmp_path / "b", MiningConfig(**options), seed=5)
    assert again.prototypes == first.prototypes
    assert (tmp_path / "a.samples.csv").read_text() == (tmp_path / "b.samples.csv").read_text()
    spaces = [(entries[f"z_{u}"], entries[f"W_{u}"]) for u in range(2)]
    assert first.prototypes == mine_prototypes(spaces, entries["labels"], ids=ids, seed=5, **options)


def test_progress_counts_every_pair(tmp_path):
    _heads_file(tmp_path / "e.npz", note=np.zeros(3))
    display = Recorder()
    mine_file(tmp_path / "e.npz", tmp_path / "a", display=display)
    assert display.stages == {"topology": [90 * 90, "pairs", 90 * 90]}
    assert display.said == [f"{tmp_path / 'e.npz'}: not used: note"]
    display = Recorder()
    mine_file(tmp_path / "e.npz", tmp_path / "b", MiningConfig(landmarks=20), display=display)
    assert display.stages == {"topology": [90 * 20, "pairs", 90 * 20]}


def test_identical_spaces_are_said_and_filtered_by_id(tmp_path):
    entries = _heads_file(tmp_path / "e.npz")
    np.savez(tmp_path / "same.npz", **(entries | {"z_1": entries["z_0"], "W_1": entries["W_0"]}))
    display = Recorder()
    mined = mine_file(tmp_path / "same.npz", tmp_path / "a", display=display)
    assert (mined.log_r == 0).all()
    assert any("same topology" in note for note in mined.warnings)
    assert display.said == [f"warning: {note}" for note in mined.warnings]
    firsts = mined.prototypes.table()[:, 0].tolist()
    assert firsts == [int(np.flatnonzero(entries["labels"] == k)[0]) for k in range(3)]


def test_few_landmarks_alone_are_nothing_to_warn_of(tmp_path):
    _heads_file(tmp_path / "e.npz")
    display = Recorder()
    mined = mine_file(tmp_path / "e.npz", tmp_path / "a", MiningConfig(landmarks=2), display=display)
    assert mined.warnings == ()
    assert display.said == []


# -- with heads that are fitted


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_frozen_features_are_enough(tmp_path, ending):
    z, labels, bad = _frozen_features()
    if ending == "npz":
        np.savez(tmp_path / "e.npz", z=z, labels=labels)
    else:
        save_file(
            {"embeddings": torch.from_numpy(z), "labels": torch.from_numpy(labels)},
            tmp_path / "e.safetensors",
        )
    display = Recorder()
    mined = mine_file(tmp_path / f"e.{ending}", tmp_path / "out", display=display)
    assert _damage_auroc(mined.log_r.numpy(), bad) > 0.8
    assert mined.spaces == len(mined.head_accuracies) == 2
    assert all(0.85 < accuracy < 1 for accuracy in mined.head_accuracies)
    assert display.stages["fitting linear heads"] == [2, "heads", 2]
    assert bad[mined.candidates.numpy()].mean() < bad.mean() / 3


def test_several_spaces_get_a_head_each(tmp_path):
    z, labels, bad = _frozen_features()
    rng = np.random.default_rng(1)
    spaces = {f"z_{u}": z @ rng.normal(size=(32, 32 + u)).astype(np.float32) for u in range(3)}
    np.savez(tmp_path / "e.npz", labels=labels, **spaces)
    display = Recorder()
    mined = mine_file(tmp_path / "e.npz", tmp_path / "a", display=display)
    assert mined.spaces == len(mined.head_accuracies) == 3
    assert display.stages["topology"] == [600 * 600 * 3, "pairs", 600 * 600 * 3]
    assert _damage_auroc(mined.log_r.numpy(), bad) > 0.8
    assert mine_file(tmp_path / "e.npz", tmp_path / "b", heads=4).spaces == 4


def test_the_same_seed_gives_the_same_files(tmp_path):
    z, labels, _ = _frozen_features(samples=200)
    np.savez(tmp_path / "e.npz", z=z, labels=labels)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(seed + len(name))
        mine_file(tmp_path / "e.npz", tmp_path / name, seed=seed)
    assert (tmp_path / "a.samples.csv").read_text() == (tmp_path / "b.samples.csv").read_text()
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    assert (tmp_path / "a.samples.csv").read_text() != (tmp_path / "c.samples.csv").read_text()


def test_heads_that_agree_are_no_error(tmp_path):
    """Two classes have one logit to differ in: all heads have the same topology, up to its scale."""
    z = np.array([[0.0], [0.0], [5.0], [5.0]], np.float32)
    np.savez(tmp_path / "e.npz", z=z, labels=[0, 0, 1, 1])
    mined = mine_file(tmp_path / "e.npz", tmp_path / "a")
    assert mined.head_accuracies == (1.0, 1.0)
    assert mined.log_r.exp().tolist() == [1.0] * 4
    assert len(mined.warnings) == 1
    assert mined.prototypes.table().tolist() == [[0, 1], [2, 3]]


def test_identical_samples_are_no_error(tmp_path):
    np.savez(tmp_path / "e.npz", z=np.full((6, 3), 2.0, np.float32), labels=[0, 0, 1, 1, 2, 2])
    mined = mine_file(tmp_path / "e.npz", tmp_path / "a")
    assert (mined.log_r == 0).all()
    assert mined.prototypes.gap.tolist() == [0.0] * 6


@pytest.mark.parametrize("scale", [1e20, 1e-20])
def test_the_scale_of_embeddings_does_not_matter(tmp_path, scale):
    z, labels, bad = _frozen_features(samples=300)
    np.savez(tmp_path / "e.npz", z=z * np.float32(scale), labels=labels)
    mined = mine_file(tmp_path / "e.npz", tmp_path / "a")
    assert mined.log_r.isfinite().all()
    assert mined.prototypes.gap.isfinite().all()
    assert _damage_auroc(mined.log_r.numpy(), bad) > 0.8


def test_small_and_missing_classes(tmp_path):
    """A class of one sample gives it; one smaller than T gives all; one that never occurs is not there."""
    z, labels, _ = _frozen_features(samples=100, classes=4)
    labels = np.where(labels == 3, 9, labels)
    z, labels = np.concatenate([z, z[:4] + 9]), np.concatenate([labels, [5, 7, 7, 7]])
    np.savez(tmp_path / "e.npz", z=z, labels=labels)
    mined = mine_file(tmp_path / "e.npz", tmp_path / "a", MiningConfig(per_class=6))
    assert mined.prototypes.class_names == ("0", "1", "2", "5", "7", "9")
    assert mined.prototypes.mask.sum(dim=1).tolist() == [6, 6, 6, 1, 3, 6]
    assert mined.prototypes.table()[3, 0] == 100
    assert mined.summary()["fewest_per_class"] == 1
    assert not mined.prototypes.gap.isnan().any()


@pytest.mark.parametrize("diversity", DIVERSITY_RULES)
def test_one_fitted_head_serves_rules_that_need_no_second(tmp_path, diversity):
    z, labels, _ = _frozen_features(samples=100, classes=4)
    np.savez(tmp_path / "e.npz", z=z, labels=labels)
    settings = MiningConfig(quality="probability", diversity=diversity)
    mined = mine_file(tmp_path / "e.npz", tmp_path / "a", settings, heads=1)
    assert (mined.spaces, len(mined.prototypes)) == (1, 40)


# -- refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": "topolgy"}, "unknown quality 'topolgy': did you mean 'topology'?"),
        ({"diversity": "gaps"}, "unknown diversity 'gaps': did you mean 'gap'?"),
        ({"topology": "units"}, "unknown topology 'units': did you mean 'unit'?"),
        ({"epsilon": 1.5}, "epsilon=1.5"),
        ({}, "unknown device 'abacus'"),
    ],
)
def test_wrong_options_are_found_before_the_file_is_read(tmp_path, options, message):
    with pytest.raises(UsageError) as error:
        mine_file(tmp_path / "none.npz", tmp_path / "new" / "out", MiningConfig(**options), device="abacus")
    assert str(error.value).startswith(message)
    assert not (tmp_path / "new").exists()


def test_topology_needs_two_spaces(tmp_path):
    z, labels, _ = _frozen_features(samples=40, classes=4)
    np.savez(tmp_path / "e.npz", z=z, labels=labels)
    with pytest.raises(UsageError, match="heads=1: quality=topology compares two or more"):
        mine_file(tmp_path / "e.npz", tmp_path / "a", heads=1)
    with pytest.raises(UsageError, match="heads=0: must be at least 1"):
        mine_file(tmp_path / "e.npz", tmp_path / "a", heads=0)
    np.savez(tmp_path / "one.npz", z_0=z, W_0=z[:4], labels=labels)
    with pytest.raises(
        UsageError, match=r"compares two spaces, .*one.npz has one: add z_1 and W_1, or leave out"
    ):
        mine_file(tmp_path / "one.npz", tmp_path / "a")
    assert mine_file(tmp_path / "one.npz", tmp_path / "a", MiningConfig(quality="logit")).spaces == 1


def test_data_errors_name_the_file_and_leave_nothing(tmp_path):
    z, labels, _ = _frozen_features(samples=40)
    z[7, 0] = np.nan
    np.savez(tmp_path / "e.npz", z=z, labels=labels)
    np.savez(
        tmp_path / "huge.npz", z_0=np.full((4, 2), 1e200), W_0=np.full((3, 2), 1e200), labels=[0, 1, 2, 0]
    )
    np.savez(tmp_path / "single.npz", z_0=z[:1], z_1=z[:1], W_0=z[1:4], W_1=z[1:4], labels=[0])
    for name, options, message in (
        ("e.npz", {}, "e.npz: z: sample 7 has NaN or infinite values"),
        ("huge.npz", {"quality": "logit"}, "huge.npz: space 0: the logits of sample 0 overflow"),
        ("single.npz", {}, "single.npz: spaces hold 1 sample: a topology needs 2 or more"),
        ("none.npz", {}, "none.npz: no such file"),
    ):
        with pytest.raises(DataError) as error:
            mine_file(tmp_path / name, tmp_path / "out", MiningConfig(**options))
        assert message in str(error.value)
        assert not list(tmp_path.glob("out*"))


def test_force_replaces_prototypes_of_an_earlier_run(tmp_path):
    _heads_file(tmp_path / "e.npz")
    first = mine_file(tmp_path / "e.npz", tmp_path / "out", MiningConfig(per_class=3))
    with pytest.raises(
        UsageError, match=r"out.json exists: choose another --out, or pass --force to replace it"
    ):
        mine_file(tmp_path / "e.npz", tmp_path / "out", MiningConfig(per_class=4))
    assert PrototypeSet.load(tmp_path / "out") == first.prototypes
    second = mine_file(tmp_path / "e.npz", tmp_path / "out", MiningConfig(per_class=4), force=True)
    assert PrototypeSet.load(tmp_path / "out") == second.prototypes
    assert len(_read(tmp_path / "out.csv")) == 12
    third = mine_file(tmp_path / "e.npz", tmp_path / "out", MiningConfig(per_class=2), force=True)
    assert PrototypeSet.load(tmp_path / "out") == third.prototypes
    assert len(list(tmp_path.glob("out*"))) == 4


def test_the_file_itself_is_safe(tmp_path):
    z, labels, _ = _frozen_features(samples=40)
    path = tmp_path / "e.safetensors"
    save_file({"z": torch.from_numpy(z), "labels": torch.from_numpy(labels)}, path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="would be overwritten by its own prototypes"):
        mine_file(path, tmp_path / "e", force=True)
    assert path.read_bytes() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_does_not_matter(tmp_path):
    z, labels, _ = _frozen_features(samples=3000)
    np.savez(tmp_path / "e.npz", z=z, labels=labels)
    _heads_file(tmp_path / "heads.npz", samples=3000)
    for name in ("heads", "e"):
        cpu = mine_file(tmp_path / f"{name}.npz", tmp_path / f"{name}-cpu", device="cpu")
        gpu = mine_file(tmp_path / f"{name}.npz", tmp_path / f"{name}-gpu", device="cuda")
        if name == "heads":
            torch.testing.assert_close(gpu.log_r, cpu.log_r, rtol=3e-5, atol=0)
        # Heads are fitted in float32, and stop where little changes: not to the last digit the same.
        assert torch.corrcoef(torch.stack([gpu.log_r, cpu.log_r]))[0, 1] > 0.99
