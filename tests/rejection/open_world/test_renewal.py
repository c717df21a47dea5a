"""Corrected answers: what they change, and that the threshold keeps its promise."""

import math
from dataclasses import replace

import pytest
import torch

from pmal.errors import DataError, UsageError
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.open_world.renewal import MOST_PROTOTYPES, renew
from pmal.rejection.open_world.rescoring import rescored
from tests.rejection.open_world.spaces import FEATURES, PER_CLASS, cloud, corrected, make_model


def fair(seed, each=15):
    z_ND = torch.cat([cloud(0, each, seed), cloud(1, each, seed + 1)])
    return corrected(z_ND, [0] * each + [1] * each)


def test_the_promise_is_kept_after_two_updates():
    """On average over runs, as split-conformal thresholds promise; each run draws all samples anew."""
    shares = []
    for seed in range(12):
        model = make_model("combined", 0.9, seed=1000 + seed)
        for again in range(2):
            model, _ = renew(model, fair(7919 * (seed + 1) + 100 * again))
        z_ND = torch.cat([cloud(k, 100, 104729 * (seed + 1) + k) for k in range(2)])
        answers = model.answer_embedded(z_ND, model.logits(z_ND))
        shares.append(float((answers.labels >= 0).double().mean()))
    error = torch.tensor(shares).std() / math.sqrt(len(shares))
    assert sum(shares) / len(shares) > 0.9 - 3 * error
    assert model.guarantee()[0]


def test_samples_are_neighbors_or_held_out_and_never_both():
    model, given = make_model(), fair(3)
    renewed, effect = renew(model, given)
    assert (effect.known, effect.learned, effect.held_out, effect.unknown) == (30, 16, 14, 0)
    bank_ND, held_ND = renewed.reference.training_ND, renewed.calibration.z
    assert (len(bank_ND), len(held_ND)) == (60 + 16, 40 + 14)
    new_bank, new_held = bank_ND[60:], held_ND[40:]
    both = torch.cat([new_bank, new_held])
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, given.z.tolist()))
    assert len(renewed.calibration.predictions) == len(renewed.calibration.of("distance")) == 54
    assert renewed.calibration.labels[40:].bincount().tolist() == [7, 7]


def test_prototypes_pictures_and_gallery_stay_together(tmp_path):
    model = make_model()
    renewed, effect = renew(model, corrected(cloud(1, 7, 3), [1] * 7))
    assert effect.prototypes == 4
    assert renewed.reference.mask_KT.sum(dim=1).tolist() == [PER_CLASS, PER_CLASS + 4]
    assert torch.equal(renewed.reference.prototypes_KTD[:, :PER_CLASS], model.reference.prototypes_KTD)
    members, table = renewed.gallery[1][PER_CLASS:], renewed.reference.prototypes_KTD[1, PER_CLASS:]
    assert [member.file for member in members] == [
        f"new/{i}" for i in learned_places(7)[: len(members)]
    ] or all(member.file.startswith("new/") for member in members)
    assert torch.equal(renewed.pictures[-4:, :, 0, 0], table)
    save_model(tmp_path / "model", renewed)
    loaded = load_model(tmp_path / "model", torch.device("cpu"))
    z_ND = cloud(0, 9, 8)
    answers = [one.answer_embedded(z_ND, one.logits(z_ND)).score for one in (renewed, loaded)]
    assert torch.equal(*answers)


def learned_places(count):
    """Those of one class's samples that are learned from."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[::2].tolist()


def test_a_class_that_has_moved_is_accepted_again_and_training_is_advised():
    model = make_model(held_out=200)
    moved = cloud(0, 120, 5) + 1.5 * torch.eye(FEATURES)[3]
    renewed, effect = renew(model, corrected(moved, [0] * 120))
    assert effect.train_again
    assert "train again with them" in str(effect)
    assert effect.right_after > effect.right_before
    z_ND = cloud(0, 200, 6) + 1.5 * torch.eye(FEATURES)[3]
    before, after = (
        (one.answer_embedded(z_ND, one.logits(z_ND)).labels == 0).double().mean() for one in (model, renewed)
    )
    assert after > before
    _, same = renew(model, fair(3, 60))
    assert not same.train_again


def test_unknown_samples_move_nothing_and_are_counted():
    model = make_model()
    renewed, effect = renew(model, corrected(cloud(4, 10, 3), [-1] * 10))
    assert (effect.known, effect.unknown, effect.learned, effect.held_out) == (0, 10, 0, 0)
    assert effect.unknown_rejected_before == effect.unknown_rejected_after
    torch.testing.assert_close(renewed.limits(), model.limits())
    assert "rejected of 10 unknown ones" in str(effect)


def test_scores_of_samples_held_out_in_turn_stay():
    model = make_model(folds=10)
    renewed, _ = renew(model, fair(3))
    held = renewed.calibration
    assert torch.equal(held.of("neighbors")[:40], model.calibration.of("neighbors"))
    assert (len(held.predictions), len(held.z), held.folds) == (54, 40, 10)
    assert renewed.guarantee()[1].startswith("accepts about")


def test_rescored_by_the_same_model_nothing_changes():
    model = make_model()
    again = rescored(model, model.calibration)
    for name, values in model.calibration.scores.items():
        torch.testing.assert_close(again.of(name), values)


def test_a_class_has_only_so_many_prototypes():
    model = make_model("distance")
    for seed in range(12):
        model, _ = renew(model, corrected(cloud(0, 12, seed), [0] * 12))
    assert int(model.reference.mask_KT[0].sum()) == MOST_PROTOTYPES


def test_a_threshold_set_by_hand_stays_and_is_said():
    model = make_model()
    by_hand = replace(model, rule=replace(model.rule, threshold=1.25))
    renewed, effect = renew(by_hand, fair(3))
    assert renewed.rule.threshold == 1.25
    assert "(set by hand)" in str(effect)


def test_without_held_out_samples_the_new_ones_make_a_threshold():
    bare = replace(make_model("distance"), calibration=None)
    renewed, effect = renew(bare, fair(3, 40))
    assert effect.threshold_before is None
    assert len(renewed.calibration.predictions) == 40
    assert renewed.limits().isfinite().all()


def test_bad_input_is_refused():
    model = make_model()
    with pytest.raises(DataError, match="no corrected samples"):
        renew(model, corrected(torch.zeros(0, FEATURES), torch.zeros(0, dtype=torch.int64)))
    with pytest.raises(DataError, match="new/1: its embedding is not finite"):
        renew(model, corrected(torch.tensor([[0.0] * FEATURES, [torch.nan] * FEATURES]), [0, 1]))
    bare = replace(model, calibration=None, reference=None, gallery=(), pictures=None)
    with pytest.raises(UsageError, match="neither prototypes nor a threshold"):
        renew(bare, fair(3))
