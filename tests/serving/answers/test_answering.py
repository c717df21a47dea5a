"""Files found, read and answered: the good ones whatever the others are."""

import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from pmal.config import EncoderConfig
from pmal.data.decoding.decode import decode, encode_png, fit_to
from pmal.data.decoding.fitting import ImageShape
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.errors import DataError, UsageError
from pmal.rejection.model import Answers, Rule
from pmal.serving.answers import image_files
from pmal.serving.answers.answer_rows import unicode_name
from pmal.serving.answers.answering import (
    answer_files,
    change_rule,
    check_takes_images,
    describe_answers,
    find_model,
    model_header,
    takes_embeddings,
    with_rule,
)
from pmal.serving.answers.image_files import BadFile, find_files, read_images
from tests.serving.tiny_model import CLASSES, SESSION, SIZE, make_model, pictures_of


def write_image(path, number=0, shape=(20, 16, 3)):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)))
    return str(path)


def test_folders_are_searched_like_a_data_set_and_files_stay_in_their_order(tmp_path):
    first = write_image(tmp_path / "z.png")
    inside = [write_image(tmp_path / "photos" / name) for name in ("a/2.png", "a/10.png", "b.png")]
    write_image(tmp_path / "photos" / ".hidden.png")
    write_image(tmp_path / "photos" / ".thumbs" / "1.png")
    (tmp_path / "photos" / "Thumbs.db").touch()
    (tmp_path / "photos" / "loop").symlink_to(tmp_path / "photos")
    files, bad = find_files([first, str(tmp_path / "photos"), first])
    assert files == [first, *sorted(inside), first]
    assert bad == []


def test_what_is_no_file_and_no_folder_of_files_is_told_with_its_reason(tmp_path):
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    good = write_image(tmp_path / "good.png")
    paths = [str(tmp_path / name) for name in ("gone", "empty", "pipe", "link")]
    files, bad = find_files([paths[0], "", good, *paths[1:]])
    assert files == [good]
    assert [b.name for b in bad] == [paths[0], "", *paths[1:]]
    reasons = [b.reason for b in bad]
    assert reasons[0] == reasons[1] == reasons[4] == "No such file or directory"
    assert reasons[2:4] == ["no images in this folder", "neither a file nor a folder"]


def test_blocks_are_bounded_and_hold_what_the_decoder_gives(tmp_path, monkeypatch):
    files = [write_image(tmp_path / f"{i}.png", i, (10 + i, 14, 1 if i % 2 else 3)) for i in range(7)]
    Path(files[3]).write_bytes(b"no image")
    Path(files[4]).unlink()
    monkeypatch.setattr(image_files, "BLOCK_BYTES", 3 * SIZE**2 * 3 + 1)
    done = []
    blocks = list(read_images(files, ImageShape(SIZE, 3), done.append))
    assert [len(block.files) + len(block.bad) for block in blocks] == [3, 3, 1]
    assert [file for block in blocks for file in block.files] == [files[i] for i in (0, 1, 2, 5, 6)]
    assert [bad.name for block in blocks for bad in block.bad] == files[3:5]
    assert "not a JPEG" in blocks[1].bad[0].reason
    assert "cannot be read" in blocks[1].bad[1].reason
    assert sum(done) == 7
    for block in blocks:
        for file, image in zip(block.files, block.images, strict=True):
            expected = fit_to(decode(Path(file).read_bytes()), SIZE, 3)
            np.testing.assert_array_equal(image.transpose(1, 2, 0), expected)


def test_an_image_smaller_than_no_block_is_still_read(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "BLOCK_BYTES", 1)
    assert len(list(read_images([write_image(tmp_path / "a.png")] * 2, ImageShape(SIZE, 1)))) == 2


def test_answers_say_class_score_threshold_and_the_strongest_prototypes():
    model = make_model()
    answers = model.answer(torch.cat([pictures_of(kind, 10) for kind in range(4)]))
    assert set(answers.labels.tolist()) == {-1, 0, 1, 2}
    found = describe_answers(model, answers, [f"{b}.png" for b in range(40)])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for b, entry in enumerate(found):
        nearest = int(answers.nearest[b])
        assert entry["image"] == f"{b}.png"
        assert entry["known"] == (float(answers.score[b]) <= float(model.limits()[nearest]))
        assert entry["class"] == (CLASSES[nearest] if entry["known"] else "unknown")
        assert entry["nearest"] == CLASSES[nearest]
        assert entry["score"] == float(answers.score[b])
        assert entry["threshold"] == float(model.limits()[nearest])
        assert entry["probability"] == float(answers.probabilities[b].max())
        assert_strongest_prototypes(model, answers.z[b], nearest, entry["prototypes"])


def assert_strongest_prototypes(model, z_D, k, shown):
    """Against the formula of the attention, in float64: softmax of z . p / sqrt(D)."""
    table_TD = model.reference.prototypes_KTD[k][: len(model.gallery[k])].double()
    share_T = (table_TD @ z_D.double() / math.sqrt(len(z_D))).softmax(dim=0).numpy()
    order = np.argsort(-share_T)[:3]
    assert [entry["file"] for entry in shown] == [f"{CLASSES[k]}/{t}.png" for t in order]
    assert [entry["id"] for entry in shown] == [10 * k + t for t in order]
    np.testing.assert_allclose([entry["weight"] for entry in shown], share_T[order], rtol=1e-9)


@pytest.mark.parametrize(("top", "counts"), [(0, [0, 0, 0]), (1, [1, 1, 1]), (9, [4, 2, 3])])
def test_as_many_prototypes_as_asked_for_and_no_more_than_the_class_has(top, counts):
    model = make_model()
    found = describe_answers(model, answers_for(model, [0, 1, 2]), list("abc"), top)
    assert [len(entry["prototypes"]) for entry in found] == counts
    with pytest.raises(UsageError, match="top is -1: ask for 0 or more"):
        describe_answers(model, answers_for(model, [0]), ["a"], -1)


def answers_for(model, classes, score=0.5, probability=0.25, z=1.0):
    nearest_B = torch.tensor(classes)
    score_B = torch.full((len(classes),), score, dtype=torch.float64)
    z_BD = torch.full((len(classes), model.classifier.head.in_features), z)
    probabilities_BK = torch.full((len(classes), 3), probability, dtype=torch.float64)
    limits_B = torch.full_like(score_B, math.inf)
    far_B = torch.full_like(limits_B, -math.inf)
    far = far_B, torch.full_like(far_B, math.inf), torch.full_like(far_B, 0.5)
    return Answers(nearest_B, nearest_B, score_B, limits_B, probabilities_BK, z_BD, *far)


def test_numbers_that_json_does_not_have_become_text():
    model, nan = make_model(), math.nan
    [entry] = describe_answers(model, answers_for(model, [0], math.inf, nan, nan), ["a"])
    assert (entry["score"], entry["threshold"], entry["probability"]) == ("inf", "inf", "nan")
    assert {p["weight"] for p in entry["prototypes"]} == {"nan"}
    json.dumps(entry, allow_nan=False)


def test_an_added_class_has_no_probability():
    model = dataclasses.replace(make_model(), class_names=(*CLASSES, "new"))
    model = dataclasses.replace(model, gallery=(*model.gallery, ()))
    reference = model.reference
    wide = dataclasses.replace(
        reference,
        prototypes_KTD=torch.cat([reference.prototypes_KTD, reference.prototypes_KTD[:1]]),
        mask_KT=torch.cat([reference.mask_KT, torch.zeros_like(reference.mask_KT[:1])]),
    )
    found = describe_answers(
        dataclasses.replace(model, reference=wide), answers_for(model, [2, 3]), ["a", "b"]
    )
    assert [entry["probability"] for entry in found] == [0.25, None]
    assert found[1]["class"] == "new"
    assert found[1]["prototypes"] == []


def test_a_plain_classifier_has_no_prototypes_to_show():
    model = make_model(Rule("logit"), prototypes=False)
    found = describe_answers(model, answers_for(model, [1]), ["a"])
    assert found[0]["prototypes"] == []


def test_bad_files_do_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "BLOCK_IMAGES", 2)
    files = [write_image(tmp_path / f"{i}.png", i) for i in range(6)]
    Path(files[0]).write_bytes(b"")
    for i in (2, 3):
        Path(files[i]).write_bytes(Path(files[i]).read_bytes()[:60])
    errors = [BadFile("before", "gone")]
    blocks = list(answer_files(make_model(), files, errors, SESSION))
    assert [[entry["image"] for entry in block] for block in blocks] == [[files[1]], [files[4], files[5]]]
    assert [bad.name for bad in errors] == ["before", files[0], files[2], files[3]]


def test_the_answer_does_not_depend_on_the_other_images(tmp_path):
    files = [write_image(tmp_path / f"{i}.png", i) for i in range(5)]
    model = make_model()
    [together] = answer_files(model, files, [], SESSION)
    alone = [entry for file in files for [entry] in answer_files(model, [file], [], SESSION)]
    assert [entry["class"] for entry in together] == [entry["class"] for entry in alone]
    scores = [[entry["score"] for entry in found] for found in (together, alone)]
    np.testing.assert_allclose(*scores, rtol=1e-4)


STORED = Rule("distance", 0.9, True)
FIXED = Rule("distance", 0.9, False, 0.4)


@pytest.mark.parametrize(
    ("rule", "change", "expected"),
    [
        (STORED, {}, STORED),
        (STORED, {"accept": 0.5}, Rule("distance", 0.5, True)),
        (STORED, {"per_class": False}, Rule("distance", 0.9, False)),
        (STORED, {"score": "logit"}, Rule("logit", 0.9, True)),
        (STORED, {"threshold": 0.0}, Rule("distance", 0.9, False, 0.0)),
        (STORED, {"threshold": math.inf, "score": "logit"}, Rule("logit", 0.9, False, math.inf)),
        (FIXED, {}, FIXED),
        (FIXED, {"per_class": False}, FIXED),
        (FIXED, {"score": "distance"}, FIXED),
        (FIXED, {"per_class": True}, Rule("distance", 0.9, True)),
        (FIXED, {"accept": 0.8}, Rule("distance", 0.8, False)),
        (FIXED, {"score": "logit"}, Rule("logit", 0.9, False)),
        (FIXED, {"threshold": 0.5, "per_class": False}, Rule("distance", 0.9, False, 0.5)),
    ],
)
def test_a_changed_rule_keeps_the_rest_but_no_threshold_of_another_meaning(rule, change, expected):
    asked = {"score": None, "accept": None, "per_class": None, "threshold": None} | change
    assert change_rule(rule, **asked) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 0.5, "accept": 0.9}, "leave out accept"),
        ({"threshold": 0.5, "per_class": True}, "per-class"),
        ({"threshold": math.nan}, "pass a number"),
        ({"accept": 1.5}, "above 0 and below 1"),
        ({"accept": math.nan}, "above 0 and below 1"),
        ({"score": "distanse"}, "did you mean 'distance'?"),
        ({"score": "distanse", "threshold": 1.0}, "did you mean 'distance'?"),
    ],
)
def test_a_rule_that_cannot_decide_is_refused(change, message):
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        with_rule(make_model(), **change)


def test_without_calibration_only_a_threshold_helps():
    model = make_model(calibrated=False)
    for change in ({}, {"accept": 0.9}, {"score": "logit"}):
        with pytest.raises(UsageError, match="threshold"):
            with_rule(model, **change)
    assert with_rule(model, threshold=0.3).limits().tolist() == [0.3] * 3
    stored = make_model(Rule("distance", threshold=0.3), calibrated=False)
    assert with_rule(stored).limits().tolist() == [0.3] * 3
    with pytest.raises(UsageError, match="threshold"):
        with_rule(stored, accept=0.9)


def test_a_softmax_model_names_the_scores_that_it_has():
    with pytest.raises(UsageError, match=r"Valid: probability, logit, energy$"):
        with_rule(make_model(Rule("logit"), prototypes=False), score="distance")


def test_the_note_says_what_the_threshold_is_worth():
    model = make_model()
    guaranteed, note = model.guarantee()
    assert guaranteed
    assert note.startswith("accepts at least 95 % of known images on average; with 60 held-out images, ")
    assert note.endswith("this threshold accepts 89.9 to 98.6 % (90 % range)")
    assert "needs 99 known samples, not 60" in with_rule(model, accept=0.99).guarantee()[1]
    assert "was set" in with_rule(model, threshold=0.1).guarantee()[1]
    assert "at least 95 % of the known images" in with_rule(model, per_class=True).guarantee()[1]
    few = dataclasses.replace(model.calibration, predictions=torch.tensor([0] * 45 + [1] * 15))
    model = dataclasses.replace(model, calibration=few)
    assert "no guarantee for 2 of 3 classes" in with_rule(model, per_class=True).guarantee()[1]


def test_the_description_of_a_model_is_json_and_leaves_out_what_does_not_count():
    about = model_header(with_rule(make_model(), per_class=True), Path("run/model"))
    assert (about["folder"], about["classes"], about["score"]) == ("run/model", 3, "distance")
    assert (about["accept"], about["per_class"]) == (0.95, True)
    about = model_header(with_rule(make_model(), threshold=math.inf), Path("m"))
    assert (about["accept"], about["per_class"]) == (None, False)
    about = model_header(make_model(Rule("distance", per_class=True, threshold=0.1)), Path("m"))
    assert (about["accept"], about["per_class"]) == (None, False)
    json.dumps(about, allow_nan=False)


def test_a_run_leads_to_its_model_and_a_model_to_itself(tmp_path):
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "config.toml").touch()
    (tmp_path / "run" / "model" / "model.json").touch()
    assert find_model(tmp_path / "run") == tmp_path / "run" / "model"
    assert find_model(tmp_path / "run" / "model") == tmp_path / "run" / "model"


def test_what_is_no_run_is_told(tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "half" / "config.toml").touch()
    for name, message in {
        "half": "run `pmal fit` again",
        "gone": "no such folder",
        "photos": "neither a run folder nor a model",
        "half/config.toml": "not a folder",
    }.items():
        with pytest.raises(DataError, match=message):
            find_model(tmp_path / name)


def test_a_model_of_embeddings_is_refused_where_only_images_will_do():
    check_takes_images(make_model())
    assert not takes_embeddings(make_model())
    spec = ClassifierSpec(EncoderConfig("precomputed"), CLASSES, 1, 5)
    model = dataclasses.replace(make_model(), classifier=Classifier(spec))
    assert takes_embeddings(model)
    with pytest.raises(UsageError, match="takes embeddings, not images"):
        check_takes_images(model)


def test_names_are_kept_unless_their_bytes_are_no_text():
    assert unicode_name("größe\n1,2.png") == "größe\n1,2.png"
    unicode_name(os.fsdecode(b"a\xff.png")).encode()
