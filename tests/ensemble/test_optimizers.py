import math

import pytest
import torch
from torch import nn

from pmal.config import TrainingConfig
from pmal.ensemble.optimizers import WeightAverage, learning_rate, make_optimizer
from pmal.errors import UsageError


def test_cosine_starts_at_the_peak_and_ends_near_zero():
    config = TrainingConfig(epochs=20, learning_rate=0.4, warmup_epochs=2)
    rates = [learning_rate(step, 10, config) for step in range(200)]
    assert rates[19] == max(rates) == 0.4
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[20 + 90] == pytest.approx(0.4 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert 0 < rates[-1] < 1e-3


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
