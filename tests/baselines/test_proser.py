"""PROSER: its loss, its mixtures, and clusters with something between them."""

import functools

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pmal import OpenSetClassifier, auroc, pipeline
from pmal._engine.optimizers import make_optimizer
from pmal._engine.steps import EagerStep, GraphStep, compiled
from pmal._runtime.session import open_session
from pmal._runtime.tensors import load_tensors
from pmal.baselines.proser import PlaceholderHead, draw_shares, mix_neighbors, placeholder_loss
from pmal.config import EncoderConfig, Resources, RunConfig, TrainingConfig, build, merge, read_recipe
from pmal.encoders import list_encoders
from pmal.ensemble.classifier import Classifier, ClassifierSpec, with_head
from pmal.ensemble.heads import HeadConfig, HeadShape, create_head
from pmal.errors import UsageError
from tests.reference import proser as reference

CENTERS = np.array([[6.0, 0.0], [-3.0, 5.0], [-3.0, -5.0]])
IMAGES = [name for name in list_encoders() if name not in ("mlp", "precomputed")]


def clusters(count, seed=0):
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), count)
    return CENTERS[labels] + random.normal(0, 0.7, (len(labels), 2)), labels


def network(encoder="small", **options):
    torch.manual_seed(0)
    head = HeadConfig("proser", options)
    return Classifier(ClassifierSpec(EncoderConfig(name=encoder), ("a", "b", "c"), 16, 3, head))


def batch(size=6):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, 3, 16, 16, generator=generator), torch.arange(size) % 3


@pytest.mark.parametrize("pairs", [[True, False, True, True], [False] * 4])
@pytest.mark.parametrize(("beta", "gamma"), [(1.0, 0.01), (0.3, 2.0)])
def test_the_loss_is_that_of_the_equations(pairs, beta, gamma):
    generator = torch.Generator().manual_seed(0)
    logits, mixed = 3 * torch.randn(2, 4, 6, generator=generator)
    labels = torch.tensor([0, 4, 2, 2])
    found = placeholder_loss(logits, mixed, labels, torch.tensor(pairs), beta, gamma)
    rows = (logits.double().tolist(), mixed.double().tolist(), labels.tolist())
    assert float(found) == pytest.approx(reference.loss(*rows, pairs, beta, gamma), rel=1e-5)


def test_only_the_labels_of_known_images_are_smoothed():
    """The placeholder as the second choice, or the first for a mixture, is meant as it is said."""
    generator = torch.Generator().manual_seed(0)
    logits, mixed = 3 * torch.randn(2, 4, 6, generator=generator)
    words = (logits, mixed, torch.tensor([0, 4, 2, 2]), torch.ones(4, dtype=torch.bool))
    smooth, hard = (cross_entropy(logits, words[2], label_smoothing=s) for s in (0.2, 0.0))
    found = placeholder_loss(*words, smoothing=0.2) - placeholder_loss(*words)
    torch.testing.assert_close(found, smooth - hard)


def test_the_head_puts_the_largest_placeholder_beside_the_known_logits():
    """The whole loss from the network's weights, with mixtures of known shares."""
    model = network(placeholders=4, gamma=0.7, beta=0.4).eval()
    images, labels = batch()
    labels[1] = labels[0]
    torch.manual_seed(7)
    found = model.head.loss(model, images, labels, 0.0, None)
    torch.manual_seed(7)
    shares = draw_shares(6, 1, labels.device)
    layers = list(model.encoder.body)
    hidden = images
    for layer in layers[:6]:  # two of the four convolutions, with their norms and activations
        hidden = layer(hidden)
    following = hidden[[1, 2, 3, 4, 5, 0]]
    weight = shares[:, None, None, None]
    mixed = weight * hidden + (1 - weight) * following
    for layer in layers[6:]:
        hidden, mixed = layer(hidden), layer(mixed)
    rows = [
        [
            reference.with_placeholder(known, guesses)
            for known, guesses in zip(
                model.head(z).tolist(), model.head.placeholders(z).tolist(), strict=True
            )
        ]
        for z in (hidden.mean(dim=(2, 3)), mixed.mean(dim=(2, 3)))
    ]
    pairs = [labels[i] != labels[(i + 1) % 6] for i in range(6)]
    assert pairs.count(False) == 1
    expected = reference.loss(*rows, labels.tolist(), pairs, 0.4, 0.7)
    assert found.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("alpha", [1, 2, 4])
def test_shares_are_drawn_from_the_beta_distribution(alpha):
    torch.manual_seed(0)
    shares = draw_shares(100_000, alpha, torch.device("cpu"))
    expected = torch.distributions.Beta(alpha, alpha)
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(shares.var()) == pytest.approx(float(expected.variance), rel=0.02)


def test_mixtures_are_of_neighbors_and_those_of_one_class_do_not_count():
    hidden, labels = torch.randn(4, 3, 2, 2), torch.tensor([0, 0, 1, 2])
    mixed, counts = mix_neighbors(hidden, labels, torch.tensor([1.0, 0.0, 0.25, 0.5]))
    assert counts.tolist() == [False, True, True, True]
    expected = [hidden[0], hidden[2], 0.25 * hidden[2] + 0.75 * hidden[3], (hidden[3] + hidden[0]) / 2]
    torch.testing.assert_close(mixed, torch.stack(expected))
    channels_last = hidden.to(memory_format=torch.channels_last)
    mixed, _ = mix_neighbors(channels_last, labels, torch.full((4,), 0.5))
    assert mixed.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", IMAGES)
def test_the_gradient_of_mixtures_reaches_every_weight_of_every_encoder(encoder):
    model = network(encoder).train()
    images, labels = batch()
    model.head.loss(model, images, labels, 0.1, None).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model(images).shape == (6, 3)


def test_a_batch_of_one_class_has_a_finite_loss():
    model = network(gamma=1.0)
    images, _ = batch()
    loss = model.head.loss(model, images, torch.zeros(6, dtype=torch.int64), 0.0, None)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
def test_it_is_one_graph_of_fixed_shapes():
    """What waits for the device, or takes a shape from the data, can be neither compiled nor captured."""
    model = network(alpha=2).train()
    images, labels = batch()
    fused = torch.compile(
        functools.partial(model.head.loss, model), backend="eager", fullgraph=True, dynamic=False
    )
    torch.manual_seed(0)
    found = fused(images, labels, 0.1, None)
    torch.manual_seed(0)
    torch.testing.assert_close(found, model.head.loss(model, images, labels, 0.1, None))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_is_captured(fused):
    model = network("oscri", placeholders=3, alpha=2).use_channels_last().cuda().train()
    images, labels = (tensor.cuda() for tensor in batch(32))

    def objective(x, y):
        return model.head.loss(model, x, y, 0.1, None)

    config = TrainingConfig(learning_rate=0.05)
    chosen = compiled(objective) if fused else objective
    step = EagerStep(chosen, make_optimizer(model, config), None, "bfloat16", lambda loss: None)
    captured = GraphStep(step, model, images, labels)
    losses = [captured(images, labels).item() for _ in range(30)]
    assert losses[-1] < losses[0]
    assert len(set(losses)) == 30  # the shares are drawn anew at every replay


def test_it_starts_from_the_softmax_classifier():
    plain = Classifier(ClassifierSpec(EncoderConfig(name="small"), ("a", "b", "c"), 16, 3))
    model = with_head(plain.eval(), HeadConfig("proser", {"placeholders": 2}))
    images, _ = batch()
    torch.testing.assert_close(model(images), plain(images))
    assert model.head.placeholders.weight.shape == (2, 128)


def test_the_score_is_the_placeholder_before_the_largest_known_logit():
    head = PlaceholderHead(HeadShape(2, 3, 2, 1), placeholders=2)
    z = torch.randn(5, 2)
    with torch.no_grad():
        logits, guesses = head(z), head.placeholders(z)
        found = head.unknown_scores(z, logits)["placeholder"]
    expected = [max(g) - max(v) for g, v in zip(guesses.tolist(), logits.tolist(), strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


@functools.cache
def fitted_clusters(gamma):
    options = {"method_options": {"gamma": gamma}, "training": {"learning_rate": 0.05}}
    return OpenSetClassifier(
        method="proser", encoder="precomputed", random_state=0, device="cpu", epochs=10, settings=options
    ).fit(*clusters(120))


@pytest.mark.slow
def test_what_lies_between_the_classes_is_unknown():
    fitted, (known, labels) = fitted_clusters(0.01), clusters(50, seed=1)
    between = np.random.default_rng(2).normal(0, 0.3, (60, 2))
    assert auroc(fitted.unknown_score(known), fitted.unknown_score(between)) > 0.99
    assert (fitted.predict(between) == -1).mean() > 0.9
    assert (fitted.predict(known) == labels).mean() > 0.85


@pytest.mark.slow
def test_mixtures_make_the_placeholder_the_first_choice_halfway_between_two_classes():
    halfway = (CENTERS + CENTERS[[1, 2, 0]]) / 2
    assert (fitted_clusters(1.0).unknown_score(halfway) > 0).all()
    assert not (fitted_clusters(0.0).unknown_score(halfway) > 0).all()


class Killed(BaseException):
    """Stands for a process that is gone."""


@pytest.mark.slow
def test_killed_in_the_second_training_it_ends_with_the_same_bits(tmp_path, monkeypatch):
    quick = {
        "method": "proser",
        "data": {"limit": 24, "held_out": 0.25},
        "training": {"epochs": 2, "batch_size": 32},
    }
    config = build(RunConfig, merge(read_recipe("sample"), quick))
    session = open_session(Resources(device="cpu", checkpoint_seconds=0))
    pipeline.fit(config, tmp_path / "whole", session)
    loss, calls = PlaceholderHead.loss, []

    def dies_at_the_fourth(self, *arguments):
        calls.append(1)
        if len(calls) == 5:  # the first is the rehearsal
            raise Killed
        return loss(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PlaceholderHead, "loss", dies_at_the_fourth)
        with pytest.raises(Killed):
            pipeline.fit(config, tmp_path / "killed", session)
    _, about = load_tensors(tmp_path / "killed" / "optimization" / "checkpoint")
    assert about["step"] == 3
    pipeline.fit(config, tmp_path / "killed", session)
    one, two = (load_tensors(tmp_path / run / "optimization" / "weights")[0] for run in ("whole", "killed"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_options_that_make_no_sense_are_refused():
    for option in ({"placeholders": 0}, {"alpha": 0.5}):
        with pytest.raises(UsageError, match=r"1 or more|expected int"):
            create_head(HeadConfig("proser", option), HeadShape(2, 3, 2, 1))
