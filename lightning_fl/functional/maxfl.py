"""The mathematics of MaxFL.

Cho, Jhunjhunwala, Li, Smith, Joshi: Maximizing Global Model Appeal in Federated Learning, TMLR 2024
(https://arxiv.org/abs/2205.14840).
"""

import math
from collections.abc import Sequence

__all__ = ["appeal_step", "appeal_weight"]


def appeal_weight(loss: float, threshold: float) -> float:
    """``σ(z) (1 - σ(z))`` of ``z = F_i - ρ_i``: large for a client whose loss is near its threshold.

    Args:
        loss: F_i, the shared model's.
        threshold: ρ_i, the client's own model's.

    Example:
        >>> appeal_weight(1.0, 1.0)
        0.25
    """
    small = math.exp(-abs(loss - threshold))
    return small / (1 + small) ** 2


def appeal_step(
    weights: Sequence[float], server_rate: float, eps: float, num_samples: Sequence[float] | None = None
) -> float:
    """``η_g Σq / (Σq + ε)``: length of the server's step towards the average.

    Args:
        weights: q of each client.
        server_rate: η_g.
        eps: ε, above 0.
        num_samples: of each client, to weight them; only their ratio to the mean matters, so ε keeps its meaning.

    Example:
        >>> appeal_step([0.25, 0.25], server_rate=1.0, eps=0.5)
        0.5
        >>> appeal_step([0.25, 0.25], server_rate=1.0, eps=0.5, num_samples=[30, 10])
        0.5
    """
    if num_samples is not None:
        mean = math.fsum(num_samples) / len(num_samples)
        weights = [weight * count / mean for weight, count in zip(weights, num_samples, strict=True)]
    total = math.fsum(weights)
    return server_rate * total / (total + eps)
