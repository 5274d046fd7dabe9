"""Statistics of training targets and descriptors over all clients, computed from sums only."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.module import Split
from lightning_fl.data.targets import batch_targets
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.processes import Processes


def target_statistics(factory: BatchFactory, processes: Processes, seed: int) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of the training targets, without NaN, each of shape [T], float64.

    Every rank must call it. Ranks exchange sums twice (counts and totals, then squared deviations from the common
    mean), added in the order of clients, so that the result is the same on any number of processes.
    """
    count, mean, std = _pooled({client: _targets(factory, client, seed) for client in processes.hosted}, processes)
    if not (count > 0).all():
        missing = (count == 0).nonzero().flatten().tolist()
        raise ConfigurationError(f"target column(s) {missing} have no value in any training data: remove them.")
    return mean, std


def descriptor_statistics(factory: BatchFactory, processes: Processes, seed: int) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of molecules' ``descriptors`` [G, F], each of shape [F]."""
    found = {}
    for client in processes.hosted:
        batches = factory.batches(client, "train")
        assert batches is not None
        found[client] = batches.attribute("descriptors", (seed, "descriptor_statistics", client)).double().cpu()
    return _pooled(found, processes)[1:]


def client_statistics(factory: BatchFactory, client: int, seed: int) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of a hosted client's training targets, each [T]; NaN without values."""
    targets = _targets(factory, client, seed)
    mean = targets.nanmean(0)
    return mean, (targets - mean).square().nanmean(0).sqrt()


def _pooled(values: Mapping[int, Tensor], processes: Processes) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and deviation over all clients, each [T], from hosted clients' values [n, T]."""
    first = processes.exchange({client: ((~y.isnan()).sum(0).double(), y.nansum(0)) for client, y in values.items()})
    count = torch.stack([count for count, _ in first.values()]).sum(0)
    mean = torch.stack([total for _, total in first.values()]).sum(0) / count
    second = processes.exchange({client: ((y - mean) ** 2).nansum(0) for client, y in values.items()})
    return count, mean, (torch.stack(list(second.values())).sum(0) / count).sqrt()


def target_summaries(
    factory: BatchFactory, processes: Processes, seed: int, summarize: Callable[[Tensor], Tensor], split: Split
) -> Tensor:
    """Summaries of every client's targets, in the order of clients, [N, ...]; every rank must call it.

    Args:
        summarize: maps a client's targets [n, T], NaN if missing, to a tensor of one shape for all clients. Only these
            counts, sums and ranges leave a client.
    """
    own = {client: summarize(_targets(factory, client, seed, split)) for client in processes.hosted}
    found = processes.exchange(own)
    shapes = {summary.shape: client for client, summary in found.items()}
    if len(shapes) > 1:
        (one, first), (two, second) = list(shapes.items())[:2]
        which = "training" if split == "train" else split
        what = f"{which} targets of different shapes (summaries {list(two)} and {list(one)})"
        raise ConfigurationError(f"clients {second} and {first} have {what}: use the same target columns for all.")
    return torch.stack(list(found.values()))


def _targets(factory: BatchFactory, client: int, seed: int, split: Split = "train") -> Tensor:
    """A hosted client's targets, shape [n, T], float64 on the CPU."""
    batches = factory.batches(client, split)
    if batches is None:  # never of training data
        return _targets(factory, client, seed)[:0]
    try:
        targets = batches.targets
    except ConfigurationError:  # a DataLoader's: read it once
        targets = torch.cat([batch_targets(batch) for batch, _ in batches.once((seed, "target_statistics", client))])
    return targets.detach().double().cpu().reshape(len(targets), -1)
