"""The optimisers that the package's models are trained with, from their hyper-parameters."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import nn

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_numbers

__all__ = ["OptimizerName", "check_optimizer", "make_optimizer"]

OptimizerName = Literal["sgd", "adam"]


def check_optimizer(owner: object, optimizer: str, learning_rate: float, momentum: float, weight_decay: float) -> None:
    """Refuse settings that make no optimiser.

    Raises:
        ConfigurationError: one is unknown, out of range, or not the optimiser's.
    """
    if optimizer not in get_args(OptimizerName):
        raise ConfigurationError(
            f"optimizer={optimizer!r}: give one of {', '.join(map(repr, get_args(OptimizerName)))}."
        )
    check_numbers(owner, momentum=momentum, at_least=0, below=1)
    check_numbers(owner, learning_rate=learning_rate, above=0)
    check_numbers(owner, weight_decay=weight_decay, at_least=0)
    if optimizer == "adam" and momentum:
        raise ConfigurationError(f"momentum={momentum}: optimizer='adam' has its own; leave it out or give 'sgd'.")


def make_optimizer(parameters: Iterable[nn.Parameter], hparams: Mapping[str, Any]) -> torch.optim.Optimizer:
    """The optimiser that ``optimizer``, ``learning_rate``, ``momentum`` and ``weight_decay`` describe."""
    rate, decay = hparams["learning_rate"], hparams["weight_decay"]
    if hparams["optimizer"] == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=rate, momentum=hparams["momentum"], weight_decay=decay)
