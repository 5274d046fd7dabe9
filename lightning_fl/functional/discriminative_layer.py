"""The most discriminative layer for HCCT-E of arXiv:2401.13236, equation 19."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.functional.gram import float64_columns, sample_counts

__all__ = ["most_discriminative_layer"]


def most_discriminative_layer(
    updates_by_layer: Mapping[str, Tensor], num_samples: Sequence[int] | Tensor | None = None
) -> str:
    """Find the layer with the largest relative variance Σ_n ‖g_n − ḡ‖² / ‖ḡ‖² of the clients' updates (equation 19).

    It is 0 where all updates are equal, and infinite where they differ but cancel in the mean. Of equal layers the
    first is taken.

    Args:
        updates_by_layer: update of every client in each layer, floating, shape [N, P_l].
        num_samples: counts m (positive, length N) that weight the mean ḡ, as FedAvg does; ``None`` for the plain mean.
            The sum over clients is unweighted in both cases.

    Returns:
        Name of the layer.
    """
    if not updates_by_layer:
        raise ConfigurationError("updates_by_layer is empty: give at least one layer [N, P_l].")
    num_clients = next(iter(updates_by_layer.values())).shape[:1]
    scores: dict[str, float] = {}
    for name, updates in updates_by_layer.items():
        if updates.shape[:1] != num_clients:
            raise ConfigurationError(
                f"layer {name!r} has shape {list(updates.shape)}: give one row per client, as in the first layer."
            )
        shares = torch.ones(updates.shape[:1], dtype=torch.float64)
        if num_samples is not None:
            shares = torch.from_numpy(sample_counts(num_samples, len(updates)))
        shares = (shares / shares.sum()).to(updates.device)
        deviation = total = torch.zeros((), dtype=torch.float64, device=updates.device)
        for columns in float64_columns(updates):
            mean = shares @ columns
            total = total + mean.square().sum()
            deviation = deviation + (columns - mean).square_().sum()
        if not torch.isfinite(deviation):
            raise DataError(
                f"layer {name!r} has an update that is not finite: drop the client from the round or lower its learning"
                " rate."
            )
        scores[name] = float(deviation / total) if deviation > 0 else 0.0  # infinite for a mean of zero
    return max(scores, key=scores.__getitem__)
