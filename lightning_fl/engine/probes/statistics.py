"""Statistics of the training targets over all clients, from sums alone."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_fl.data.targets import batch_targets
from lightning_fl.errors import ConfigurationError

if TYPE_CHECKING:
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["target_statistics"]


def target_statistics(trainer: "FederatedTrainer") -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of the training targets, each of shape [T], float64.

    Two exchanges of sums (counts and totals, then squared deviations from the common mean), added in the order of
    clients, so that the result is the same on any number of processes. Missing targets (NaN) are left out.

    Raises:
        ConfigurationError: a target has no value at any client.
    """
    targets = {client: _targets(trainer, client) for client in trainer.hosted_clients}
    first = trainer.strategy.exchange(
        {client: ((~y.isnan()).sum(0).double(), y.nansum(0)) for client, y in targets.items()}
    )
    count = torch.stack([count for count, _ in first.values()]).sum(0)
    if not (count > 0).all():
        missing = (count == 0).nonzero().flatten().tolist()
        raise ConfigurationError(f"target column(s) {missing} have no value in any client's training data: drop them.")
    mean = torch.stack([total for _, total in first.values()]).sum(0) / count
    second = trainer.strategy.exchange({client: ((y - mean) ** 2).nansum(0) for client, y in targets.items()})
    variance = torch.stack(list(second.values())).sum(0) / count
    return mean, variance.sqrt()


def _targets(trainer: "FederatedTrainer", client: int) -> Tensor:
    """A hosted client's training targets, shape [n, T], float64 on the CPU."""
    batches = trainer.client_batches(client, "train")
    assert batches is not None
    try:
        targets = batches.targets
    except ConfigurationError:  # a DataLoader's: read it once
        path = (trainer.seed, "target_statistics", client)
        targets = torch.cat([batch_targets(batch) for batch, _ in batches.once(path)])
    return targets.detach().double().cpu().reshape(len(targets), -1)
