"""A class less: trained or added, and what stays as it was."""

import pytest
import torch

from pmal.errors import UsageError
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.new_class import add_class
from pmal.rejection.open_world.removal import remove_class
from tests.rejection.open_world.spaces import CLASSES, PER_CLASS, cloud, make_model


@pytest.mark.parametrize("folds", [0, 10])
@pytest.mark.parametrize("name", CLASSES)
def test_a_trained_class_is_unknown_afterwards(name, folds, tmp_path):
    model = make_model(classes=3, held_out=60, folds=folds)
    k = CLASSES.index(name)
    smaller, effect = remove_class(model, name)
    left = tuple(other for other in CLASSES if other != name)
    assert smaller.class_names == smaller.classifier.spec.class_names == left
    assert (effect.trained, effect.prototypes) == (True, PER_CLASS)
    assert effect.neighbors == pytest.approx(30, abs=3)
    assert effect.held_out == pytest.approx(40, abs=3)
    assert [len(part) for part in (smaller.gallery, smaller.pictures)] == [2, 2 * PER_CLASS]
    z_ND = cloud(k, 60, 77)
    assert (smaller.answer_embedded(z_ND, smaller.logits(z_ND)).labels == -1).double().mean() > 0.8
    for other in left:
        z_ND = cloud(CLASSES.index(other), 60, 78)
        answers = smaller.answer_embedded(z_ND, smaller.logits(z_ND))
        assert (answers.labels == left.index(other)).double().mean() > 0.7
    save_model(tmp_path / "model", smaller)
    assert load_model(tmp_path / "model", torch.device("cpu")).class_names == left


def test_adding_and_removing_a_class_gives_the_prototypes_before():
    model = make_model("distance")
    z_ND = cloud(3, 25, 4, spread=0.1)
    wider, _ = add_class(model, "dog", z_ND, z_ND[:, :, None, None], [str(i) for i in range(25)])
    back, effect = remove_class(wider, "dog")
    assert not effect.trained
    assert back.class_names == model.class_names
    for part in ("prototypes_KTD", "mask_KT", "training_ND"):
        assert torch.equal(getattr(back.reference, part), getattr(model.reference, part))
    assert back.gallery == model.gallery
    assert torch.equal(back.pictures, model.pictures)
    torch.testing.assert_close(back.limits(), model.limits())


def test_what_cannot_be_removed_is_refused():
    with pytest.raises(UsageError, match="unknown class 'bea': did you mean 'bee'"):
        remove_class(make_model(), "bea")
    with pytest.raises(UsageError, match="one of two that were trained"):
        remove_class(make_model(), "bee")
