"""What every stage needs of its surroundings and what never changes a result."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pmal._runtime.devices import choose_device
from pmal._runtime.progress import Display, Silent
from pmal.config import Resources


def _forget(**event: Any) -> None:
    pass


@dataclass(frozen=True)
class Session:
    """Device, display and log of the work at hand."""

    device: torch.device
    resources: Resources
    display: Display
    log: Callable[..., None] = _forget

    def logging_to(self, log: Callable[..., None]) -> "Session":
        return dataclasses.replace(self, log=log)


def open_session(resources: Resources | None = None, display: Display | None = None) -> Session:
    resources = resources or Resources()
    return Session(choose_device(resources.device), resources, display or Silent())
