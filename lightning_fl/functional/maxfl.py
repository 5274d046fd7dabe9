"""The mathematics of MaxFL.

Cho, Jhunjhunwala, Li, Smith, Joshi: Maximizing Global Model Appeal in Federated Learning, TMLR 2024
(https://arxiv.org/abs/2205.14840).
"""

import math
from collections.abc import Sequence


def appeal_weight(loss: float, threshold: float) -> float:
    """``σ(z) (1 - σ(z))`` of ``z = F_i - ρ_i``, ``loss`` minus ``threshold`` (its own model's loss): large near 0."""
    small = math.exp(-abs(loss - threshold))
    return small / (1 + small) ** 2


def appeal_step(
    weights: Sequence[float], server_rate: float, eps: float, num_samples: Sequence[float] | None = None
) -> float:
    """``η_g Σq / (Σq + ε)``: length of the server's step towards the average, of ``server_rate`` η_g and ε > 0.

    Only the ratio of ``num_samples``, which weight the q of each client, to their mean matters, so ε keeps its meaning.
    """
    if num_samples is not None:
        mean = math.fsum(num_samples) / len(num_samples)
        weights = [weight * count / mean for weight, count in zip(weights, num_samples, strict=True)]
    total = math.fsum(weights)
    return server_rate * total / (total + eps)
