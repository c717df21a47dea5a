"""Optimizer, learning-rate schedule and weight averaging, by the names that recipes use."""

import math
from typing import Any

import torch
from torch import nn

from pmal.config import TrainingConfig
from pmal.errors import unknown_name

CONSTANT = "constant_rate"
"""Key of a parameter group that the schedule does not change."""


SHARE = "rate_share"
"""Key for a parameter group's rate, as a share of the schedule's rate."""


class RatesByDepth(nn.Module):
    """A network whose parts are trained at different rates."""

    def rate_groups(self) -> list[tuple[float, list[nn.Parameter]]]:
        """Return pairs: a share of the schedule's rate, and the parameters trained at it."""
        raise NotImplementedError


class OwnAdam(nn.Module):
    """A network trained by Adam at a constant rate, whatever the recipe's optimizer."""

    adam_rate: float = 2e-4
    adam_betas: tuple[float, float] = (0.5, 0.999)


class JointOptimizer(torch.optim.Optimizer):
    """Several optimizers as one. They share its groups and state, so only this one is saved and loaded."""

    def __init__(self, members: list[torch.optim.Optimizer]) -> None:
        self.members = members
        super().__init__([group for member in members for group in member.param_groups], {})
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for member in self.members:
            member.param_groups = [next(groups) for _ in member.param_groups]
            member.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for member in self.members:
            member.step()


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the recipe's optimizer, joined with one Adam for each `OwnAdam` part of the model."""
    own = [module for module in model.modules() if isinstance(module, OwnAdam)]
    elsewhere = {p for module in own for p in module.parameters()}
    shared = [p for p in model.parameters() if p.requires_grad and p not in elsewhere]
    shares = model.rate_groups() if isinstance(model, RatesByDepth) else [(1.0, shared)]
    recipe = _of_recipe(shares, config)
    return JointOptimizer([recipe, *map(_own_adam, own)]) if own else recipe


def _own_adam(module: OwnAdam) -> torch.optim.Optimizer:
    parameters = list(module.parameters())
    on_gpu = parameters[0].is_cuda
    group = {"params": parameters, CONSTANT: True}
    rate = torch.tensor(module.adam_rate, device=parameters[0].device) if on_gpu else module.adam_rate
    return torch.optim.Adam([group], lr=rate, betas=module.adam_betas, fused=True, capturable=on_gpu)


def _of_recipe(
    shares: list[tuple[float, list[nn.Parameter]]], config: TrainingConfig
) -> torch.optim.Optimizer:
    device = shares[0][1][0].device
    on_gpu = device.type == "cuda"
    # A rate stored on the GPU can change between two replays of a captured step. Each group has its own.
    rates = [config.learning_rate * share for share, _ in shares]
    parameters: list[dict[str, Any]] = [
        {"params": group, "lr": torch.tensor(rate, device=device) if on_gpu else rate, SHARE: share}
        for rate, (share, group) in zip(rates, shares, strict=True)
    ]
    decay = config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.learning_rate,
            momentum=config.momentum,
            nesterov=config.momentum > 0,
            weight_decay=decay,
            fused=True,
        )
    if config.optimizer == "adam":
        betas = (config.momentum, 0.999)
        return torch.optim.Adam(parameters, betas=betas, weight_decay=decay, fused=True, capturable=on_gpu)
    raise unknown_name("optimizer", config.optimizer, ["sgd", "adam"])


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group that the schedule controls."""
    for group in optimizer.param_groups:
        if group.get(CONSTANT):
            continue
        own = rate * group.get(SHARE, 1.0)
        if torch.is_tensor(group["lr"]):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def learning_rate(step: int, steps_per_epoch: int, config: TrainingConfig) -> float:
    """Return the rate of this step (from 0): linear warm-up, then the schedule.

    >>> config = TrainingConfig(epochs=10, learning_rate=0.1, warmup_epochs=2)
    >>> [round(learning_rate(epoch, 1, config), 3) for epoch in range(10)]
    [0.05, 0.1, 0.1, 0.096, 0.085, 0.069, 0.05, 0.031, 0.015, 0.004]
    >>> config = TrainingConfig(epochs=6, learning_rate=0.1, warmup_epochs=0, restarts=1)
    >>> [round(learning_rate(epoch, 1, config), 3) for epoch in range(6)]
    [0.1, 0.075, 0.025, 0.1, 0.075, 0.025]
    """
    total = config.epochs * steps_per_epoch
    warmup = min(round(config.warmup_epochs * steps_per_epoch), total // 5)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.schedule == "cosine":
        part = max(total - warmup, 1) / (config.restarts + 1)
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * ((step - warmup) % part) / part))
    if config.schedule == "steps":
        return config.learning_rate * 0.1 ** (step // (config.step_epochs * steps_per_epoch))
    raise unknown_name("schedule", config.schedule, ["cosine", "steps"])


class WeightAverage:
    """Exponential moving average of all floating-point weights and batch statistics of a model."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._live = [t for t in model.state_dict(keep_vars=True).values() if t.is_floating_point()]
        self.tensors = [t.detach().clone() for t in self._live]
        self.updates = torch.zeros((), device=self.tensors[0].device)

    @property
    def state(self) -> list[torch.Tensor]:
        """Return all tensors that change, for checkpoints."""
        return [self.updates, *self.tensors]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average toward the weights.

        The decay grows to its final value, so that the random initial weights are forgotten soon.
        """
        self.updates += 1
        decay = ((1 + self.updates) / (10 + self.updates)).clamp(max=self.decay)
        torch._foreach_mul_(self.tensors, decay)
        torch._foreach_add_(self.tensors, torch._foreach_mul([t.detach() for t in self._live], 1 - decay))

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Overwrite the model's weights with their average."""
        for live, average in zip(self._live, self.tensors, strict=True):
            live.copy_(average)
