"""Effective length of a client's SGD: the weights with which its gradients entered its update."""

from collections.abc import Sequence
from math import fsum

from torch.optim import SGD, Optimizer

from lightning_fl.core.errors import ConfigurationError


def accumulated_steps(num_steps: int, momentum: float) -> float:
    """The sum a of the weights with which the gradients of all steps entered; without momentum, the number of steps.

    Wang et al. 2020, FedNova (https://arxiv.org/abs/2007.07481), section 4.1: with a momentum buffer that starts at
    zero, ``a = [n - p (1 - p^n) / (1 - p)] / (1 - p)`` for n steps with momentum p.
    """
    if not momentum:
        return float(num_steps)
    return (num_steps - momentum * (1 - momentum**num_steps) / (1 - momentum)) / (1 - momentum)


def distance(rates: Sequence[float], momentum: float) -> float:
    """The same sum with each weight times its step's learning rate."""
    if len(set(rates)) <= 1:
        return sum(rates[:1]) * accumulated_steps(len(rates), momentum)
    return fsum(rate * (1 - momentum**step) / (1 - momentum) for step, rate in enumerate(rates, start=1))


def plain_sgd(optimizers: Sequence[Optimizer], who: str) -> float:
    """The momentum of a client's SGD optimiser; others are refused with ``who``, the strategy."""
    groups = [group for one in optimizers for group in one.param_groups]
    bare = [getattr(one, "optimizer", one) for one in optimizers]  # out of Lightning's wrappers
    if len(bare) != 1 or not isinstance(bare[0], SGD):
        names = " and ".join(type(one).__name__ for one in bare)
        remedy = "use torch.optim.SGD (optimizer: sgd of this package's models), or another strategy"
        raise ConfigurationError(f"{who} needs a single SGD optimiser, not {names}: {remedy}.")
    found = {(float(group["lr"]), float(group["momentum"])) for group in groups}
    special = any(group[name] for group in groups for name in ("nesterov", "dampening", "maximize"))
    if len(found) > 1 or special or groups[0]["momentum"] >= 1:
        needed = "SGD with one learning rate, one momentum below 1, and no dampening, nesterov or maximize"
        raise ConfigurationError(f"{who} needs {needed}.")
    return found.pop()[1]
