import functools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pmal._engine import steps
from pmal._engine.optimizers import WeightAverage, make_optimizer, set_rate
from pmal._engine.steps import EagerStep, GraphStep, compiled
from pmal._runtime.processes.ranks import ALONE, RankGroup
from pmal.config import TrainingConfig
from pmal.data.feeding.augmentation import augment
from pmal.encoders import create_encoder


def make_step(model, guard=lambda loss: None, **settings):
    config = TrainingConfig(learning_rate=0.1, weight_decay=0.0, **settings)
    average = WeightAverage(model, 0.5)
    step = EagerStep(
        lambda x, y: cross_entropy(model(x), y), make_optimizer(model, config), average, "float32", guard
    )
    return step, average


def batches(count):
    random = torch.Generator().manual_seed(0)
    return [
        (torch.randn(6, 3, generator=random), torch.randint(0, 2, (6,), generator=random))
        for _ in range(count)
    ]


def test_a_step_is_one_of_gradient_descent_and_gives_the_loss_before_it():
    model = nn.Linear(3, 2)
    step, average = make_step(model, momentum=0.0)
    for x, y in batches(3):
        expected = cross_entropy(model(x), y)
        slopes = torch.autograd.grad(expected, list(model.parameters()))
        moved = [p.detach() - 0.1 * g for p, g in zip(model.parameters(), slopes, strict=True)]
        loss = step(x, y)
        assert loss == expected.detach()
        assert not loss.requires_grad
        torch.testing.assert_close([p.detach() for p in model.parameters()], moved)
    assert average.updates == 3


def test_the_guard_stops_a_step_before_the_weights_change():
    def refuse(loss):
        raise ValueError("bad loss")

    model = nn.Linear(3, 2)
    step, average = make_step(model, refuse)
    before = model.weight.detach().clone()
    with pytest.raises(ValueError, match="bad loss"):
        step(*batches(1)[0])
    assert torch.equal(model.weight, before)
    assert average.updates == 0


def test_a_snapshot_puts_all_back_that_steps_change():
    """Weights, statistics, momentum, average and random numbers: the next steps are the first ones again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    step, average = make_step(model)
    restore = steps._snapshot(model, step, torch.device("cpu"))
    before = [t.clone() for t in (*model.state_dict().values(), *average.state)]
    results = []
    for _ in range(2):
        losses = [step(x, y) for x, y in batches(3)]
        results.append([*losses, *(t.clone() for t in (*model.state_dict().values(), *average.state))])
        restore()
        for tensor, old in zip((*model.state_dict().values(), *average.state), before, strict=True):
            assert torch.equal(tensor, old)
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_captured_step_does_what_the_eager_one_does(optimizer):
    """The same batches in float32, dropout and augmentation included: the same weights, but for rounding."""
    device = torch.device("cuda")
    rate = 0.01 if optimizer == "sgd" else 1e-4
    config = TrainingConfig(optimizer=optimizer, learning_rate=rate, ema=0.9)
    images = torch.randint(0, 256, (12, 64, 3, 32, 32), dtype=torch.uint8, device=device)
    labels = torch.randint(0, 6, (12, 64), device=device)
    mean, std = torch.full((2, 3), 0.5, device=device)
    results = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(create_encoder("oscri"), nn.Linear(128, 6)).to(device)

        def objective(x, y, model=model):
            return cross_entropy(model(augment(x, "strong", mean, std, True)), y)

        average = WeightAverage(model, 0.9)
        chosen = make_optimizer(model, config)
        step = EagerStep(objective, chosen, average, "float32", lambda loss: None)
        if captured:
            eager, step = step, GraphStep(step, model, images[0], labels[0])
            assert step.seconds(eager, model) > 0, "and everything is as before"
        losses = []
        for i, (x, y) in enumerate(zip(images, labels, strict=True)):
            set_rate(chosen, rate * (i + 1) / 12)
            losses.append(float(step(x, y)))
        results.append((losses, [t.clone() for t in average.tensors]))
    (eager, eager_weights), (graph, graph_weights) = results
    # Sums on a GPU are taken in changing order; Adam's division blows the difference up step by step.
    assert graph[:3] == pytest.approx(eager[:3], rel=1e-3)
    assert graph == pytest.approx(eager, rel=0.03)
    for a, b in zip(eager_weights, graph_weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.01)


@pytest.mark.slow
@pytest.mark.skipif(not steps._KNOWS_LIMIT, reason="a torch that cannot be told")
def test_every_network_of_a_process_is_compiled(monkeypatch):
    """A benchmark trains one after another, with other heads and numbers of classes."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def make(classes):
        layer = nn.Linear(4, classes)
        return lambda x, y: cross_entropy(layer(x), y)

    monkeypatch.setattr(steps, "find_spec", lambda name: True)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    for classes in range(2, 13):
        compiled(make(classes))(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
    assert len(graphs) == 11


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_compiled_step_does_what_the_eager_one_does():
    """Without dropout and augmentation, whose random numbers come in another order: the same losses."""
    device = torch.device("cuda")
    images = torch.randint(0, 256, (12, 64, 3, 32, 32), dtype=torch.uint8, device=device)
    labels = torch.randint(0, 6, (12, 64), device=device)
    mean, std = torch.full((2, 3), 0.5, device=device)
    losses = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(create_encoder("small"), nn.Linear(128, 6)).to(device)

        def objective(x, y, model=model):
            return cross_entropy(model(augment(x, "none", mean, std, True)), y)

        chosen = make_optimizer(model, TrainingConfig(learning_rate=0.01))
        step = EagerStep(objective, chosen, None, "float32", lambda loss: None)
        if compile_it:
            fused = EagerStep(compiled(objective), chosen, None, "float32", lambda loss: None)
            step = GraphStep(fused, model, images[0], labels[0])
        losses.append([float(step(x, y)) for x, y in zip(images, labels, strict=True)])
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


@pytest.fixture
def nccl_group():
    """One process that talks to itself as several do: by NCCL on the GPU, by gloo on the CPU."""
    import torch.distributed as dist

    words = {"store": dist.HashStore(), "rank": 0, "world_size": 1, "device_id": torch.device("cuda", 0)}
    dist.init_process_group("cpu:gloo,cuda:nccl", **words)
    yield RankGroup(0, 1)
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_is_captured_with_its_exchanges(nccl_group):
    """Gradients averaged by NCCL, and embeddings gathered with their gradient, as replayed kernels."""
    device = torch.device("cuda", 0)
    images = torch.randint(0, 256, (6, 64, 3, 32, 32), dtype=torch.uint8, device=device)
    labels = torch.randint(0, 6, (6, 64), device=device)
    losses = []
    for ranks in (ALONE, nccl_group):
        torch.manual_seed(0)
        encoder, last = create_encoder("small").to(device), nn.Linear(128, 6).to(device)
        model = nn.Sequential(encoder, last)

        def objective(x, y, ranks=ranks, encoder=encoder, last=last):
            return cross_entropy(last(ranks.gather_alike(encoder(x / 255)).flatten(0, 1)), y)

        chosen = make_optimizer(model, TrainingConfig(learning_rate=0.01))
        eager = EagerStep(objective, chosen, None, "float32", lambda loss: None, ranks)
        step = GraphStep(eager, model, images[0], labels[0])
        assert step.seconds(eager, model) > 0
        losses.append([float(step(x, y)) for x, y in zip(images, labels, strict=True)])
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
