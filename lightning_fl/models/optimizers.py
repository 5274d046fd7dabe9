"""Optimisers of the package's models."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import nn

from lightning_fl.core.errors import ConfigurationError

__all__ = ["OptimizerName", "ProperFraction", "check_optimizer", "make_optimizer"]

OptimizerName = Literal["sgd", "adam"]
#: Momentum, or probability of dropout.
ProperFraction = Annotated[float, Interval(ge=0, lt=1)]


def check_optimizer(optimizer: OptimizerName, momentum: float) -> None:
    """Refuse momentum for an optimiser that has its own.

    Raises:
        ConfigurationError: it does.
    """
    if optimizer == "adam" and momentum:
        raise ConfigurationError(f"momentum={momentum}: optimizer='adam' has its own; omit it, or use 'sgd'.")


def make_optimizer(parameters: Iterable[nn.Parameter], hparams: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Make the optimiser described by ``optimizer``, ``learning_rate``, ``momentum`` and ``weight_decay``."""
    rate, decay = hparams["learning_rate"], hparams["weight_decay"]
    if hparams["optimizer"] == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=rate, momentum=hparams["momentum"], weight_decay=decay)
