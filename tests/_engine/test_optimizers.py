import math

import pytest
import torch
from torch import nn

from pmal._engine.optimizers import OwnAdam, WeightAverage, learning_rate, make_optimizer, set_rate
from pmal.config import TrainingConfig
from pmal.errors import UsageError


def test_cosine_starts_at_the_peak_and_ends_near_zero():
    config = TrainingConfig(epochs=20, learning_rate=0.4, warmup_epochs=2)
    rates = [learning_rate(step, 10, config) for step in range(200)]
    assert rates[19] == max(rates) == 0.4
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[20 + 90] == pytest.approx(0.4 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert 0 < rates[-1] < 1e-3


def test_a_cosine_that_starts_again_is_torch_s():
    config = TrainingConfig(epochs=6, learning_rate=0.4, warmup_epochs=0, restarts=2)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    theirs = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2 * 10)
    for step in range(60):
        assert learning_rate(step, 10, config) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_steps_drop_by_ten():
    config = TrainingConfig(
        epochs=600, learning_rate=0.01, schedule="steps", step_epochs=120, warmup_epochs=0
    )
    rates = [learning_rate(epoch * 3, 3, config) for epoch in (0, 119, 120, 240, 599)]
    assert rates == pytest.approx([0.01, 0.01, 0.001, 0.0001, 0.000001])


def test_unknown_names():
    with pytest.raises(UsageError, match="did you mean 'cosine'"):
        learning_rate(0, 1, TrainingConfig(schedule="cosin", warmup_epochs=0))
    with pytest.raises(UsageError, match="did you mean 'adam'"):
        make_optimizer(nn.Linear(1, 1), TrainingConfig(optimizer="adamw"))


def test_sgd_is_nesterov_with_l2():
    """One step against the update written out: g = grad + wd w; buf = g; w -= lr (g + momentum buf)."""
    layer = nn.Linear(3, 1, bias=False).double()
    before = layer.weight.detach().clone()
    config = TrainingConfig(learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    optimizer = make_optimizer(layer, config)
    x = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    layer(x).sum().backward()
    optimizer.step()
    g = x + 0.01 * before
    torch.testing.assert_close(layer.weight, before - 0.1 * (g + 0.9 * g))


def test_adam_has_the_momentum_and_l2_of_the_recipe():
    ours, plain = (nn.Linear(3, 1, bias=False).double() for _ in range(2))
    plain.load_state_dict(ours.state_dict())
    config = TrainingConfig(optimizer="adam", learning_rate=0.1, momentum=0.7, weight_decay=0.01)
    optimizers = [
        make_optimizer(ours, config),
        torch.optim.Adam(plain.parameters(), lr=0.1, betas=(0.7, 0.999), weight_decay=0.01),
    ]
    for x in torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0)).double():
        for layer, optimizer in zip((ours, plain), optimizers, strict=True):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, plain.weight)


def test_average_is_the_exponential_mean_of_weights_and_statistics():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = WeightAverage(model, decay=0.2)
    expected, mean = model[0].weight.detach().clone(), 0.0
    for decay, value in ((2 / 11, 1.0), (0.2, 5.0)):  # (1 + t) / (10 + t) first, then the decay asked for
        with torch.no_grad():
            model[0].weight.fill_(value)
            model[1].running_mean.fill_(value)
        average.update()
        expected = decay * expected + (1 - decay) * value
        mean = decay * mean + (1 - decay) * value
    average.copy_to_model()
    torch.testing.assert_close(model[0].weight.detach(), expected)
    torch.testing.assert_close(model[1].running_mean, torch.full((2,), mean))


def test_a_short_training_is_not_all_warm_up():
    config = TrainingConfig(epochs=3, learning_rate=0.1, warmup_epochs=5)
    rates = [learning_rate(step, 10, config) for step in range(30)]
    assert rates.index(max(rates)) == 5
    assert rates[-1] < 0.01


class Beside(OwnAdam):
    """A part that is trained by its own Adam."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)


def two_parts():
    torch.manual_seed(0)
    network = nn.ModuleList([nn.Linear(2, 1), Beside()])
    return network, make_optimizer(network, TrainingConfig(learning_rate=0.1, weight_decay=0.01))


def take_steps(network, optimizer, steps):
    for step in steps:
        set_rate(optimizer, 0.1 / (step + 1))
        x = torch.randn(4, 2, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad(set_to_none=True)
        (network[0](x).square().mean() + network[1].layer(x).square().mean()).backward()
        optimizer.step()


def test_a_part_may_have_its_own_adam():
    """The same as the recipe's optimizer and an Adam of constant rate, each by itself."""
    network, joint = two_parts()
    apart, _ = two_parts()
    sgd = make_optimizer(apart[0], TrainingConfig(learning_rate=0.1, weight_decay=0.01))
    adam = torch.optim.Adam(apart[1].parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    for step in range(5):
        take_steps(network, joint, [step])
        set_rate(sgd, 0.1 / (step + 1))
        x = torch.randn(4, 2, generator=torch.Generator().manual_seed(step))
        for part, optimizer in ((apart[0], sgd), (apart[1].layer, adam)):
            optimizer.zero_grad()
            part(x).square().mean().backward()
            optimizer.step()
    for a, b in zip(network.parameters(), apart.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_joint_optimizer_goes_on_from_its_saved_state():
    whole, optimizer = two_parts()
    take_steps(whole, optimizer, range(6))
    first, optimizer = two_parts()
    take_steps(first, optimizer, range(3))
    again, other = two_parts()
    again.load_state_dict(first.state_dict())
    other.load_state_dict({**other.state_dict(), "state": optimizer.state_dict()["state"]})
    assert len(other.state_dict()["state"]) == 4
    take_steps(again, other, range(3, 6))
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
