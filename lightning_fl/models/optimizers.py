"""The optimisers that the package's models are trained with, from their hyper-parameters."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import nn

from lightning_fl.errors import ConfigurationError

__all__ = ["OptimizerName", "check_optimizer", "make_optimizer"]

OptimizerName = Literal["sgd", "adam"]


def check_optimizer(optimizer: str, learning_rate: float, momentum: float, weight_decay: float) -> None:
    """Refuse settings that make no optimiser.

    Raises:
        ConfigurationError: one is unknown, out of range, or not the optimiser's.
    """
    if optimizer not in get_args(OptimizerName):
        raise ConfigurationError(
            f"optimizer={optimizer!r}: give one of {', '.join(map(repr, get_args(OptimizerName)))}."
        )
    if not 0 <= momentum < 1:
        raise ConfigurationError(f"momentum={momentum}: give a number from 0 to below 1.")
    if not learning_rate > 0:
        raise ConfigurationError(f"learning_rate={learning_rate}: give a number above 0.")
    if not weight_decay >= 0:
        raise ConfigurationError(f"weight_decay={weight_decay}: give a number of at least 0.")
    if optimizer == "adam" and momentum:
        raise ConfigurationError(f"momentum={momentum}: optimizer='adam' has its own; leave it out or give 'sgd'.")


def make_optimizer(parameters: Iterable[nn.Parameter], hparams: Mapping[str, Any]) -> torch.optim.Optimizer:
    """The optimiser that ``optimizer``, ``learning_rate``, ``momentum`` and ``weight_decay`` describe."""
    rate, decay = hparams["learning_rate"], hparams["weight_decay"]
    if hparams["optimizer"] == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=rate, momentum=hparams["momentum"], weight_decay=decay)
