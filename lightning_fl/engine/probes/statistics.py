"""Statistics of the training targets over all clients, from sums alone."""

import torch
from torch import Tensor

from lightning_fl.data.targets import batch_targets
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.processes import Processes
from lightning_fl.errors import ConfigurationError

__all__ = ["target_statistics"]


def target_statistics(factory: BatchFactory, processes: Processes, seed: int) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of the training targets, each of shape [T], float64.

    Two exchanges of sums (counts and totals, then squared deviations from the common mean), added in the order of
    clients, so that the result is the same on any number of processes. Missing targets (NaN) are left out.

    Args:
        factory: the clients' data.
        processes: who hosts whom. Called on every rank.
        seed: the run's, for data that come in an order of their own.

    Raises:
        ConfigurationError: a target has no value at any client.
    """
    targets = {client: _targets(factory, client, seed) for client in processes.hosted}
    first = processes.exchange({client: ((~y.isnan()).sum(0).double(), y.nansum(0)) for client, y in targets.items()})
    count = torch.stack([count for count, _ in first.values()]).sum(0)
    if not (count > 0).all():
        missing = (count == 0).nonzero().flatten().tolist()
        raise ConfigurationError(f"target column(s) {missing} have no value in any client's training data: drop them.")
    mean = torch.stack([total for _, total in first.values()]).sum(0) / count
    second = processes.exchange({client: ((y - mean) ** 2).nansum(0) for client, y in targets.items()})
    variance = torch.stack(list(second.values())).sum(0) / count
    return mean, variance.sqrt()


def _targets(factory: BatchFactory, client: int, seed: int) -> Tensor:
    """A hosted client's training targets, shape [n, T], float64 on the CPU."""
    batches = factory.batches(client, "train")
    assert batches is not None
    try:
        targets = batches.targets
    except ConfigurationError:  # a DataLoader's: read it once
        path = (seed, "target_statistics", client)
        targets = torch.cat([batch_targets(batch) for batch, _ in batches.once(path)])
    return targets.detach().double().cpu().reshape(len(targets), -1)
