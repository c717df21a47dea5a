import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal._engine.loop import Training, TrainingSet, train_together
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal.baselines.confusing_samples import embed_apart
from pmal.config import EncoderConfig, Resources, RunConfig, build
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.classifiers import make_learner, rehearse, untrained
from pmal.ensemble.heads import HeadConfig
from pmal.errors import UsageError
from tests.baselines import toy
from tests.reference import points as reference

CPU = torch.device("cpu")


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 4), st.integers(1, 4))
def test_is_the_transcription(seed, B, K, D):
    torch.manual_seed(seed)
    head = toy.head_of("arpl+cs", K, D, temperature=1.5, weight=0.3, margin=0.8)
    z, labels = torch.randn(B, D, dtype=torch.float64), torch.randint(0, K, (B,))
    points, radius = head.points[:, 0].tolist(), head.radius.item()
    logits, loss = reference.arpl(z.tolist(), points, radius, labels.tolist(), 1.5, 0.3, 0.8)
    torch.testing.assert_close(head(z), torch.tensor(logits, dtype=torch.float64))
    assert head.known_loss(z, labels, 0.0).item() == pytest.approx(loss, rel=1e-9)
    assert head.confusion(z).item() == pytest.approx(reference.confusion(z.tolist(), points), rel=1e-9)


def test_cross_entropy_drives_from_the_own_point_and_the_margin_holds_back():
    z = torch.tensor([[-2.0]], dtype=torch.float64, requires_grad=True)
    for weight, direction in ((0.0, 1), (100.0, -1)):
        head = toy.head_of("arpl", K=2, D=1, weight=weight)
        with torch.no_grad():
            head.points.copy_(torch.tensor([[[1.0]], [[-1.0]]]))
            head.radius.fill_(4.0)
        z.grad = None
        head.loss(toy.Plain, z, torch.tensor([0]), 0.0, None).backward()
        assert math.copysign(1, z.grad.item()) == direction  # the point is on the right
    assert head.radius.grad < 0  # and gives room


def test_within_the_radius_nothing_holds_back():
    head = toy.head_of("arpl", K=2, D=1, weight=1.0, margin=1.0)
    with torch.no_grad():
        head.points.zero_()
        head.radius.fill_(5.1)
    head.loss(toy.Plain, torch.tensor([[2.0]]).double(), torch.tensor([0]), 0.0, None).backward()
    assert head.radius.grad == 0


def test_rejects_what_is_between_the_classes():
    accuracy, auroc = toy.measure(toy.learn("arpl"), [0.0, 0.0])
    assert accuracy > 0.99
    assert auroc > 0.95


def test_confusion_is_least_where_all_points_are_equally_far():
    head = toy.head_of("arpl+cs", K=4, D=2)
    with torch.no_grad():
        head.points[:, 0] = toy.CENTERS.double()
    z = torch.tensor([[0.0, 0.0], [1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    assert head.confusion(z[:1]).item() == pytest.approx(1 / 4)
    confusion = head.confusion(z[1:])
    assert 1 / 4 < confusion.item() < 1
    confusion.backward()
    assert (z.grad[1] * torch.tensor([1.0, 0.5])).sum() > 0  # downhill is towards the middle


SPEC = ClassifierSpec(EncoderConfig("small"), ("a", "b"), 12, 1, HeadConfig("arpl+cs", {"width": 4}))
CONFIG = build(
    RunConfig,
    {
        "method": "arpl+cs",
        "data": {"augmentation": "none"},
        "training": {"epochs": 2, "batch_size": 8, "learning_rate": 0.05, "precision": "float32"},
    },
)


def learner():
    model = untrained(SPEC, torch.tensor([0.4]), torch.tensor([0.3]), seed=3)
    network, objective = make_learner(model, CONFIG, flip=False, seed=3)
    return model, network.train(), objective


def images(count=26):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 12, 12), dtype=torch.uint8, generator=generator)
    return pixels, (pixels.float().mean(dim=(1, 2, 3)) > 127).long()


def test_one_backward_pass_gives_every_part_the_gradient_of_its_own_loss():
    """Against the losses taken one by one, each with all other networks fixed."""
    model, network, objective = learner()
    parts, head = network[1], model.head
    x, labels = images(8)
    views = (x / 255.0 - 0.4) / 0.3

    def gradients(loss, of):
        return torch.autograd.grad(loss, list(of.parameters()), retain_graph=True)

    torch.manual_seed(5)
    objective(x, labels).backward()
    found = [[p.grad for p in part.parameters()] for part in (parts.generator, parts.discriminator, model)]

    torch.manual_seed(5)
    fakes = parts.generate(8, model.mean, model.std)
    softplus = torch.nn.functional.softplus
    to_please = softplus(-parts.discriminator(fakes)).mean()
    to_judge = softplus(-parts.discriminator(views)).mean() + softplus(parts.discriminator(fakes)).mean()
    confusion = head.beta * head.confusion(embed_apart(model.encoder, fakes))
    known = head.known_loss(model.encoder(views), labels, 0.0)
    expected = [
        gradients(to_please + confusion, parts.generator),
        gradients(to_judge, parts.discriminator),
        gradients(known + confusion, model),
    ]
    for one, two in zip(found, expected, strict=True):
        assert any(g.abs().max() > 0 for g in one)
        for a, b in zip(one, two, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_generated_images_leave_no_trace_in_the_running_statistics():
    x, labels = images(8)
    model, _, objective = learner()
    objective(x, labels)
    plain = untrained(SPEC, torch.tensor([0.4]), torch.tensor([0.3]), seed=3).train()
    plain.encoder((x / 255.0 - 0.4) / 0.3)
    for (name, a), b in zip(model.encoder.named_buffers(), plain.encoder.buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


class Killed(BaseException):
    """Stands for a process that is gone."""


def run(folder, die_at=None, checkpoint_seconds=1e9):
    _, network, objective = learner()
    steps = 0

    def watched(x, y):
        nonlocal steps
        if steps == die_at:
            raise Killed
        steps += 1
        return objective(x, y)

    x, labels = images()
    data = TrainingSet(ResidentImages(x, CPU), labels, np.arange(len(x)))
    session = Session(CPU, Resources(checkpoint_seconds=checkpoint_seconds), Silent())
    training = Training("net", network, watched, 5, folder)
    train_together("net", [training], data, CONFIG.training, session)
    return network.state_dict()


@pytest.mark.parametrize("step", [1, 4])
def test_killed_it_ends_with_the_same_bits(tmp_path, step):
    whole = run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "killed", die_at=step, checkpoint_seconds=0)
    again = run(tmp_path / "killed")
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    start = learner()[1].state_dict()
    assert all(any((whole[n] != start[n]).any() for n in whole if part in n) for part in ("1.gen", "1.disc"))


def test_what_training_alone_needs_is_not_in_the_model():
    assert not [name for name in Classifier(SPEC).state_dict() if "generator" in name or "discrim" in name]


def test_vectors_cannot_be_generated():
    spec = ClassifierSpec(EncoderConfig("precomputed"), ("a", "b"), 1, 5, HeadConfig("arpl+cs"))
    with pytest.raises(UsageError, match=r"arpl\+cs generates images of 8 px or more, not of 1: choose arpl"):
        rehearse(spec, CONFIG)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_does_what_the_eager_one_does():
    from pmal._engine.optimizers import make_optimizer, set_rate
    from pmal._engine.steps import EagerStep, GraphStep

    device = torch.device("cuda")
    x, labels = (t.to(device) for t in images(64))
    results = []
    for captured in (False, True):
        model = untrained(SPEC, torch.tensor([0.4]), torch.tensor([0.3]), seed=3).to(device)
        network, objective = make_learner(model, CONFIG, flip=False, seed=3)
        network.train()
        torch.manual_seed(0)
        optimizer = make_optimizer(network, CONFIG.training)
        step = EagerStep(objective, optimizer, None, "float32", lambda loss: None)
        if captured:
            step = GraphStep(step, network, x, labels)
        losses = []
        for i in range(6):
            set_rate(optimizer, 0.01 * (i + 1))
            losses.append(float(step(x, labels)))
        results.append(losses)
    assert results[1] == pytest.approx(results[0], rel=1e-2)
