import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.baselines import conosr
from pmal.baselines.sphor import orthogonal_prototypes, spherical_loss
from pmal.config import EncoderConfig, RunConfig, build
from pmal.ensemble.classifier import ClassifierSpec
from pmal.ensemble.classifiers import make_learner, untrained
from pmal.ensemble.heads import HeadConfig
from tests.baselines import toy
from tests.reference import newer as reference
from tests.reference.points import cross_entropy

DOUBLE = torch.float64


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(2, 4), st.integers(1, 4))
def test_both_losses_are_the_transcriptions(seed, N, K, P):
    torch.manual_seed(seed)
    projected, prototypes = torch.randn(N, P, dtype=DOUBLE), torch.randn(K, P, dtype=DOUBLE)
    targets = torch.rand(N, K, dtype=DOUBLE) + 0.01
    contrast = conosr.soft_contrastive_loss(projected, targets, 0.3).item()
    assert contrast == pytest.approx(reference.conosr(projected.tolist(), targets.tolist(), 0.3), rel=1e-9)
    sphere = spherical_loss(projected, prototypes, targets, 0.3).item()
    wanted = reference.sphor(projected.tolist(), prototypes.tolist(), targets.tolist(), 0.3)
    assert sphere == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("method", ["conosr", "sphor"])
def test_a_step_is_of_two_views_their_mixtures_and_a_classifier_beside(method, monkeypatch):
    """The whole loss written out, and whom it reaches: the classifier does not teach the encoder."""
    torch.manual_seed(0)
    share, smoothing = 0.3, 0.15
    monkeypatch.setattr(torch, "rand", lambda *size, device=None: torch.tensor(share, dtype=DOUBLE))
    head = toy.head_of(method, K=3, D=4, temperature=0.4, smoothing=smoothing)
    labels = [2, 0, 0]
    views = [torch.randn(3, 4, dtype=DOUBLE) for _ in range(2)]
    z = torch.cat(views).requires_grad_()
    loss = head.loss(toy.Plain, z, torch.tensor(labels), 0.0, None)

    targets = reference.soft_targets(labels, 3, smoothing)
    mixtures = [reference.mixed(view.tolist(), share) for view in views]
    every = [*views[0].tolist(), *views[1].tolist(), *mixtures[0], *mixtures[1]]
    soft = targets * 2 + reference.mixed(targets, share) * 2
    projected = head.projection(torch.tensor(every, dtype=DOUBLE)).tolist()
    if method == "conosr":
        learned = reference.conosr(projected, soft, 0.4)
    else:
        learned = reference.sphor(projected, head.prototypes.tolist(), soft, 0.4)
    known = cross_entropy(head(z).tolist(), labels * 2)
    assert loss.item() == pytest.approx(learned + known, rel=1e-6)  # targets are made in float32

    loss.backward()
    whole = z.grad.clone()
    assert all(weight.grad.abs().sum() > 0 for weight in head.parameters())
    z.grad = None
    with torch.no_grad():
        for weight in head.classifier.parameters():
            weight.mul_(5)
    head.loss(toy.Plain, z, torch.tensor(labels), 0.0, None).backward()
    torch.testing.assert_close(z.grad, whole)


def test_prototypes_are_orthogonal_units():
    torch.manual_seed(0)
    found = orthogonal_prototypes(5, 7)
    torch.testing.assert_close(found @ found.T, torch.eye(5))
    head = toy.head_of("sphor", K=40, D=3)  # more classes than the width of 32
    assert head.prototypes.shape == (40, 40)


def test_a_head_of_two_views_gets_two_of_every_image(monkeypatch):
    config = build(RunConfig, {"method": "conosr", "data": {"augmentation": "standard"}})
    spec = ClassifierSpec(EncoderConfig("small"), ("a", "b"), 16, 1, HeadConfig("conosr"))
    model = untrained(spec, torch.zeros(1), torch.ones(1), seed=0)
    seen = []
    monkeypatch.setattr(model.head, "loss", lambda model, views, *_: seen.append(views))
    _, objective = make_learner(model, config, flip=False, seed=0)
    objective(torch.randint(0, 256, (4, 1, 16, 16), dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    [views] = seen
    assert len(views) == 8
    assert not torch.equal(views[:4], views[4:])


@pytest.mark.parametrize(("method", "least"), [("conosr", 0.65), ("sphor", 0.9)])
def test_rejects_what_is_between_the_classes(method, least):
    """In the plane itself, where a contrastive loss has no room to part the classes further."""
    accuracy, auroc = toy.measure(toy.learn(method, views=2), [0.0, 0.0])
    assert accuracy > 0.95
    assert auroc > least
