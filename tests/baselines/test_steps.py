"""Every method's training step can be captured as a CUDA graph: nothing in it waits for the device."""

import pytest
import torch

from pmal._engine.optimizers import make_optimizer
from pmal._engine.steps import EagerStep, GraphStep, compiled
from pmal.config import EncoderConfig, RunConfig, build
from pmal.ensemble.classifier import ClassifierSpec
from pmal.ensemble.classifiers import make_learner, untrained
from pmal.ensemble.heads import final_head, first_head
from pmal.methods import METHODS
from tests.support.waiting import Watch


def learner_of(method, device="cpu"):
    """Network, objective, images and labels of a method's last training."""
    settings = {"method": method, "encoder": {"name": "small"}, "data": {"augmentation": "strong"}}
    config = build(RunConfig, settings)
    head = final_head(config) if METHODS[method].second else first_head(config)
    spec = ClassifierSpec(EncoderConfig("small"), ("a", "b", "c"), 16, 3, head)
    model = untrained(spec, torch.full((3,), 0.5), torch.full((3,), 0.25), seed=0).to(device)
    network, objective = make_learner(model, config, flip=True, seed=0)
    images = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8).to(device)
    return network.train(), objective, images, (torch.arange(12) % 3).to(device), config


@pytest.mark.parametrize("method", sorted(METHODS))
def test_nothing_waits_for_the_device(method):
    _, objective, images, labels, _ = learner_of(method)
    objective(images, labels)
    with Watch() as watch:
        torch.autograd.backward(objective(images, labels))
    assert watch.waiting == []


def test_the_watch_sees_what_waits():
    x = torch.arange(4.0)
    for work in (lambda: x.sum().item(), lambda: x[x > 1], lambda: torch.tensor([1.0]), lambda: x.nonzero()):
        with Watch() as watch:
            work()
        assert watch.waiting


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    ("method", "fused"), [*((method, False) for method in sorted(METHODS)), ("arpl+cs", True), ("cgdl", True)]
)
def test_a_gpu_captures_it(method, fused):
    """Compiled as well, where a method has networks of its own for the compiler to stumble over."""
    network, objective, images, labels, config = learner_of(method, "cuda")
    optimizer = make_optimizer(network, config.training)
    learned = compiled(objective) if fused else objective
    step = GraphStep(EagerStep(learned, optimizer, None, "auto", lambda loss: None), network, images, labels)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    losses = [float(step(images, labels)) for _ in range(3)]
    assert all(map(torch.isfinite, map(torch.tensor, losses)))
    assert any(not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
