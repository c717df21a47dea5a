import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal._runtime.seeds import stream
from pmal.config import MiningConfig
from pmal.errors import DataError, UsageError
from pmal.geometry.logits import centered_logits
from pmal.geometry.robustness import topology_robustness
from pmal.mining.candidates import select_candidates
from pmal.mining.diversity import DIVERSITY_RULES, diversity_gaps
from pmal.mining.miner import mine, mine_prototypes
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import QUALITY_RULES
from tests.reference import mining as reference

# A grid with few levels: equal points, equal r, classes of one sample and empty classes all occur.
SAMPLES = st.lists(
    st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(-16, 0), st.integers(0, 4)),
    min_size=1,
    max_size=40,
)


def _spaces(samples=60, classes=3, seed=0):
    """Two noisy views of clustered samples."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % classes)
    spaces = []
    for channels in (6, 8):
        weight = rng.normal(size=(classes, channels))
        z = 2 * weight[labels] + rng.normal(size=(samples, channels))
        spaces.append((z, weight, rng.normal(size=classes)))
    return spaces, labels


# -- against the transcription


@settings(deadline=None)
@given(SAMPLES, st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.integers(1, 6))
def test_is_the_transcription(samples, epsilon, per_class):
    x, y, q, labels = zip(*samples, strict=True)
    points, log_r = [[float(a), float(b)] for a, b in zip(x, y, strict=True)], [n / 8 for n in q]
    settings = MiningConfig(epsilon=epsilon, per_class=per_class)
    mined = mine(log_r, points, labels, settings, num_classes=5)
    expected = reference.mine(log_r, points, labels, 5, epsilon, per_class)
    rows = zip(mined.table().tolist(), mined.mask.tolist(), strict=True)
    assert [[i for i, real in zip(*row, strict=True) if real] for row in rows] == expected
    assert mined.log_r.tolist() == [log_r[i] for i in mined.ids.tolist()]
    assert not mined.gap.isnan().any()


def test_the_whole_is_the_sum_of_its_parts():
    spaces, labels = _spaces()
    mined = mine_prototypes(spaces, labels, epsilon=0.8, per_class=4)
    log_r = topology_robustness([(z, weight) for z, weight, _ in spaces])
    points = centered_logits(*spaces[0][:2])
    candidates = select_candidates(log_r, labels, epsilon=0.8, at_least=4).numpy()
    for k in range(3):
        members = np.flatnonzero(candidates & (labels == k))
        chosen = reference.filter_diverse(points[members].tolist(), log_r[members].tolist(), 4)
        mine_k = mined.labels == k
        assert mined.ids[mine_k].tolist() == members[chosen].tolist()
        gaps = diversity_gaps(points[members], log_r[members])
        torch.testing.assert_close(mined.gap[mine_k], gaps[chosen], rtol=1e-14, atol=0)
        torch.testing.assert_close(mined.log_r[mine_k], log_r[members[chosen]], rtol=0, atol=0)


# -- properties


# Diversity sees the samples' quality as numbers alone: each rule of one kind with one of the other.
EACH_RULE = [
    *((quality, "gap") for quality in QUALITY_RULES),
    *(("topology", rule) for rule in DIVERSITY_RULES),
]


@pytest.mark.parametrize(("quality", "diversity"), dict.fromkeys(EACH_RULE))
def test_the_order_of_the_samples_does_not_matter(quality, diversity):
    spaces, labels = _spaces()
    ids = np.random.default_rng(1).choice(1000, size=60, replace=False)
    options = {"quality": quality, "diversity": diversity, "per_class": 5, "passes": 4, "seed": 7}
    mined = mine_prototypes(spaces, labels, ids=ids, files=[f"{i}.png" for i in ids], **options)
    shuffled = np.random.default_rng(2).permutation(60)
    moved = [(z[shuffled], weight, bias) for z, weight, bias in spaces]
    names = [f"{i}.png" for i in ids[shuffled]]
    again = mine_prototypes(moved, labels[shuffled], ids=ids[shuffled], files=names, **options)
    assert again == mined
    assert mined.files == tuple(f"{i}.png" for i in mined.ids.tolist())
    assert (mined.mask.sum(dim=1) == 5).all()


def test_mine_does_not_depend_on_the_order_either():
    rng = np.random.default_rng(0)
    points, log_r, labels, ids = (
        rng.normal(size=(50, 3)),
        -rng.random(50),
        rng.integers(3, size=50),
        np.arange(50),
    )
    mined = mine(log_r, points, labels, MiningConfig(per_class=4), num_classes=3)
    p = rng.permutation(50)
    again = mine(log_r[p], points[p], labels[p], MiningConfig(per_class=4), ids=ids[p], num_classes=3)
    assert again == mined


def test_ties_are_decided_by_id():
    points = np.zeros((4, 2))
    settings = MiningConfig(per_class=2)
    mined = mine(np.zeros(4), points, [0, 0, 0, 0], settings, ids=[30, 10, 40, 20], num_classes=1)
    assert mined.ids.tolist() == [10, 20]


def test_the_first_prototype_of_a_class_is_its_best_sample():
    spaces, labels = _spaces()
    log_r = topology_robustness([(z, weight) for z, weight, _ in spaces]).numpy()
    firsts = mine_prototypes(spaces, labels).table()[:, 0].tolist()
    assert firsts == [int(np.where(labels == k, log_r, -np.inf).argmax()) for k in range(3)]


@pytest.mark.parametrize("quality", QUALITY_RULES)
def test_biases_matter_to_probabilities_and_logits_only(quality):
    spaces, labels = _spaces()
    biased = [(z, weight, 9 * bias) for z, weight, bias in spaces]
    pairs = [(z, weight) for z, weight, _ in spaces]
    options = {"quality": quality, "per_class": 5}
    same = mine_prototypes(biased, labels, **options) == mine_prototypes(pairs, labels, **options)
    assert same == (quality in ("topology", "none"))


@pytest.mark.parametrize(
    "options",
    [
        {"topology": "rms", "temperature": 2},
        {"temperature": np.float32(0.25)},
        {"landmarks": 20, "precision": "fast", "topology": "literal"},
    ],
)
def test_the_options_of_the_robustness_reach_it(options):
    spaces, labels = _spaces()
    mined = mine_prototypes(spaces, labels, seed=3, **options)
    drawn_by = {"seed": stream(3, "landmarks")}
    log_r = topology_robustness([(z, weight) for z, weight, _ in spaces], **(options | drawn_by))
    assert torch.equal(mined.log_r, log_r[mined.ids])
    assert mined != mine_prototypes(spaces, labels, seed=3)


def test_random_diversity_differs_between_seeds_and_classes():
    spaces, labels = _spaces(samples=300)
    draws = [
        mine_prototypes(spaces, labels, quality="none", epsilon=0, diversity="random", seed=seed)
        for seed in (0, 0, 1)
    ]
    assert draws[0] == draws[1]
    assert draws[0].ids.tolist() != draws[2].ids.tolist()
    places = [
        [np.flatnonzero(labels == k).tolist().index(i) for i in row] for k, row in enumerate(draws[0].table())
    ]
    assert places[0] != places[1]


def test_tensors_of_any_kind_give_the_same():
    spaces, labels = _spaces()
    single = [tuple(part.astype(np.float32) for part in space) for space in spaces]
    expected = mine_prototypes(single, labels)
    tensors = [tuple(torch.from_numpy(part).requires_grad_() for part in space) for space in single]
    assert mine_prototypes(tensors, torch.from_numpy(labels).int()) == expected
    for part in (part for space in single for part in space):
        part.setflags(write=False)
    assert mine_prototypes(single, labels.tolist()) == expected


def test_names_go_into_the_set(tmp_path):
    spaces, labels = _spaces()
    mined = mine_prototypes(
        spaces, labels, class_names=["a", "b", "c"], files=[f"{i}.png" for i in range(60)]
    )
    mined.save(tmp_path / "prototypes")
    again = PrototypeSet.load(tmp_path / "prototypes")
    assert again == mined
    assert again.entries()[-1]["class"] == "c"


def test_report_hears_of_all_pairs():
    spaces, labels = _spaces()
    heard = []
    mine_prototypes(spaces, labels, report=heard.append)
    assert sum(heard) == 60 * 60


# -- degenerate data


def test_classes_give_what_they_have():
    spaces, labels = _spaces(samples=40, classes=4)
    labels[labels == 3] = 0
    labels[np.flatnonzero(labels == 1)[1:]] = 0
    mined = mine_prototypes(spaces, labels, per_class=25)
    counts = np.bincount(labels, minlength=4)
    assert mined.mask.sum(dim=1).tolist() == np.minimum(counts, 25).tolist()
    assert counts[1] == 1
    assert counts[3] == 0
    assert mined.gap[mined.labels == 1].tolist() == [0.0]


@pytest.mark.parametrize("diversity", DIVERSITY_RULES)
def test_identical_spaces_are_said_and_filtered_by_id(diversity):
    spaces, labels = _spaces()
    with pytest.warns(UserWarning, match="same topology"):
        mined = mine_prototypes([spaces[0], spaces[0]], labels, diversity=diversity, per_class=3)
    assert mined.r.tolist() == [1.0] * 9
    if diversity in ("gap", "kcenter", "none"):
        assert mined.table()[:, 0].tolist() == [int(np.flatnonzero(labels == k)[0]) for k in range(3)]


@pytest.mark.filterwarnings("ignore:two spaces have the same topology")
@pytest.mark.parametrize("case", ["duplicates", "all equal", "huge", "tiny", "flat head"])
def test_never_nan(case):
    spaces, labels = _spaces(samples=30)
    if case == "duplicates":
        spaces = [(z[np.arange(30) // 2], weight, bias) for z, weight, bias in spaces]
    elif case == "all equal":
        spaces = [(np.ones_like(z), weight, bias) for z, weight, bias in spaces]
    elif case == "flat head":
        spaces = [(z, np.ones_like(weight), bias) for z, weight, bias in spaces]
    else:
        factor = 1e20 if case == "huge" else 1e-20
        spaces = [((z * factor).astype(np.float32), weight, bias) for z, weight, bias in spaces]
    for quality, diversity in EACH_RULE:
        mined = mine_prototypes(spaces, labels, quality=quality, diversity=diversity, per_class=4, passes=4)
        assert mined.mask.sum(dim=1).tolist() == [4, 4, 4], (quality, diversity)
        assert mined.gap.isfinite().all(), (quality, diversity)
        assert not mined.log_r.isnan().any(), (quality, diversity)


# -- bad input


def _with(part, row, value):
    def change(spaces, labels):
        array = spaces[1][part].copy()
        array[row] = value
        return [spaces[0], (*spaces[1][:part], array, *spaces[1][part + 1 :])], labels

    return change


def _labels(change):
    def apply(spaces, labels):
        return spaces, change(labels)

    return apply


BAD_DATA = {
    "NaN": (_with(0, 17, math.nan), "space 1, embeddings: sample 17 has NaN or infinite"),
    "infinite": (_with(0, 3, -math.inf), "space 1, embeddings: sample 3 has NaN or infinite"),
    "NaN head": (_with(1, 0, math.nan), "space 1: the head has NaN"),
    "NaN bias": (_with(2, 0, math.nan), "space 1: the head has NaN"),
    "label above": (
        _labels(lambda y: np.where(np.arange(60) == 5, 3, y)),
        "sample 5: label 3 is outside the head",
    ),
    "label below": (_labels(lambda y: np.where(np.arange(60) == 9, -1, y)), "sample 9: label -1 is outside"),
    "fewer labels": (_labels(lambda y: y[:-1]), "labels: 59 rows for 60 samples"),
    "text labels": (_labels(lambda y: y.astype(str)), "labels: expected a vector of integers"),
    "samples": (
        lambda s, y: ([s[0], (s[1][0][1:], *s[1][1:])], y),
        "space 1: 59 samples, but space 0 has 60",
    ),
    "classes": (lambda s, y: ([s[0], (s[1][0], s[1][1][1:])], y), "space 1: 2 classes, but space 0 has 3"),
    "channels": (
        lambda s, y: ([s[0], (s[1][0][:, 1:], *s[1][1:])], y),
        "have 7 channels and class weights 8",
    ),
    "biases": (lambda s, y: ([s[0], (*s[1][:2], s[1][2][1:])], y), "space 1: 2 biases for 3 classes"),
    "a vector": (lambda s, y: ([(s[0][0][0], s[0][1])], y), "space 0, embeddings: expected a matrix"),
    "no channels": (
        lambda s, y: ([(s[0][0][:, :0], s[0][1])], y),
        r"a matrix with columns, got shape \(60, 0\)",
    ),
    "no samples": (lambda s, y: ([(s[0][0][:0], s[0][1])], y[:0]), "space 0: no samples"),
    "complex": (lambda s, y: ([(s[0][0] * 1j, s[0][1])], y), "space 0, embeddings: expected real numbers"),
}


@pytest.mark.parametrize(("change", "message"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_bad_data_is_named(change, message):
    spaces, labels = change(*_spaces())
    with pytest.raises(DataError, match=message) as caught:
        mine_prototypes(spaces, labels, quality="probability")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_class": 0}, "per_class = 0: must be 1 or more"),
        ({"epsilon": 1.5}, r"epsilon=1\.5"),
        ({"quality": "topologie"}, "unknown quality 'topologie': did you mean 'topology'"),
        ({"quality": "mcdropout"}, "did you mean 'mc-dropout'"),
        ({"diversity": "k-means"}, "unknown diversity 'k-means': did you mean 'kmeans'"),
        ({"topology": "unite"}, "unknown topology 'unite': did you mean 'unit'"),
        ({"topology": "unite", "quality": "none"}, "unknown topology 'unite': did you mean 'unit'"),
        ({"precision": "exakt"}, "precision = 'exakt': must be exact or fast"),
        ({"landmarks": 1}, "landmarks = 1: must be 0, or 2 or more"),
        ({"landmarks": 2.5}, r"landmarks=2\.5: use a whole number"),
        ({"temperature": 0}, "temperature=0: use 'median' or a number"),
        ({"temperature": "mean", "quality": "none"}, "temperature='mean': use 'median' or a number"),
        ({"quality": "mc-dropout", "passes": 1}, "passes=1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        mine_prototypes(*_spaces(), **options)


@pytest.mark.parametrize("quality", ["topology", "ensemble"])
def test_one_space_is_too_few_to_compare(quality):
    spaces, labels = _spaces()
    with pytest.raises(UsageError, match="two spaces or more"):
        mine_prototypes(spaces[:1], labels, quality=quality)
    with pytest.raises(UsageError, match="spaces: none given"):
        mine_prototypes([], labels, quality=quality)


def test_a_head_of_one_class_is_refused():
    spaces, labels = _spaces()
    one = [(z, weight[:1], bias[:1]) for z, weight, bias in spaces]
    with pytest.raises(UsageError, match="two classes or more"):
        mine_prototypes(one, np.zeros_like(labels), quality="probability")


def test_a_space_is_a_pair_or_a_triple():
    spaces, labels = _spaces()
    with pytest.raises(UsageError, match="space 0: expected"):
        mine_prototypes([spaces[0][:1]], labels, quality="none")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 1, 1], "ids: 1 occurs twice"),
        ([0, -1, 1], "sample 1 has a negative one"),
        ([0, 1], "ids: 2 rows for 3 samples"),
        ([0.5, 1.0, 2.0], "ids: expected a vector of integers"),
    ],
)
def test_bad_ids_are_named(ids, message):
    with pytest.raises(DataError, match=message):
        mine(np.zeros(3), np.zeros((3, 1)), [0, 0, 0], MiningConfig(), ids=ids, num_classes=1)


def test_bad_quality_points_and_files_are_named():
    zeros = np.zeros((3, 1))
    with pytest.raises(DataError, match="quality: nan for sample 2"):
        mine([0.0, 0.0, math.nan], zeros, [0, 0, 0], MiningConfig(), num_classes=1)
    with pytest.raises(DataError, match="points: sample 0 has NaN or infinite"):
        mine(np.zeros(3), zeros + math.inf, [0, 0, 0], MiningConfig(), num_classes=1)
    with pytest.raises(DataError, match="files: 2 names given, 3 needed"):
        mine(np.zeros(3), zeros, [0, 0, 0], MiningConfig(), num_classes=1, files=["a", "b"])
    with pytest.raises(UsageError, match="num_classes=0"):
        mine([], zeros[:0], [], MiningConfig(), num_classes=0)


@pytest.mark.parametrize("count", [2, 61])
def test_names_are_counted_before_the_work(count):
    names = [str(i) for i in range(count)]
    for option, needed in (("files", 60), ("class_names", 3)):
        with pytest.raises(DataError, match=f"{option}: {count} names given, {needed} needed"):
            mine_prototypes(*_spaces(), report=pytest.fail, **{option: names})


def test_logits_that_overflow_are_named():
    spaces, labels = _spaces()
    spaces[0][0][4] = 1e300
    with pytest.raises(DataError, match="space 0: the logits of sample 4 overflow"):
        mine_prototypes(spaces, labels, ids=np.arange(60)[::-1])
