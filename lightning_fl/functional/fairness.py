"""The mathematics of fair averages.

- FedFA: Huang, Li, Wang, Du, Zhang: Fairness and Accuracy in Federated Learning, 2020
  (https://arxiv.org/abs/2012.10069).
- MaxFL: Cho, Jhunjhunwala, Li, Smith, Joshi: Maximizing Global Model Appeal in Federated Learning, TMLR 2024
  (https://arxiv.org/abs/2205.14840).
- q-FedAvg: Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020
  (https://arxiv.org/abs/1905.10497), algorithm 2.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

#: The least share in FedFA: that of a client whose accuracy is 0.
_LEAST = 1e-6
#: Added to a loss in q-FedAvg, so that one of zero has a power.
_TINY = 1e-10


def accuracy_weights(accuracies: Tensor) -> Tensor:
    """``I_i = -log2(acc_i / Σ_j acc_j)``, over their sum, float64, [n]: more for clients whose accuracy is low."""
    return _information(_shares(accuracies).clamp(min=_LEAST))


def participation_weights(counts: Tensor) -> Tensor:
    """``I'_i = -log2(1 - n_i / Σ_j n_j)``, over their sum, [n]: more for clients that have taken part often.

    ``counts`` are the rounds in which each took part, this one among them, float64, shape [n].
    """
    return _information((1 - _shares(counts)).clamp(min=_LEAST))


def _shares(values: Tensor) -> Tensor:
    total = values.sum()
    return values / total if total > 0 else torch.full_like(values, 1 / len(values))


def _information(shares: Tensor) -> Tensor:
    return _shares(-shares.log2())


def appeal_weight(loss: float, threshold: float) -> float:
    """``σ(z) (1 - σ(z))`` of ``z = F_i - ρ_i``, ``loss`` minus ``threshold`` (its own model's loss): large near 0."""
    small = math.exp(-abs(loss - threshold))
    return small / (1 + small) ** 2


def appeal_step(weights: Sequence[float], server_rate: float, eps: float) -> float:
    """``η_g Σq / (Σq + ε)``: length of the server's step towards the average, of ``server_rate`` η_g and ε > 0."""
    total = math.fsum(weights)
    return server_rate * total / (total + eps)


def loss_weight(loss: float, largest: float, q: float) -> float:
    """``(F_i / max_j F_j)^q`` of ``loss`` F_i: a client's weight over that of the worst, so that none is too large."""
    return float(((loss + _TINY) / (largest + _TINY)) ** q)


def fair_bound(loss: float, q: float, lipschitz: float, squared_length: float) -> float:
    """``h_i / F_i^q = q ‖L (x - y_i)‖² / F_i + L`` of the step ``s = Σ L F_i^q / Σ h_i``, with L ``lipschitz``.

    ``squared_length`` is ``‖x - y_i‖²``.
    """
    return q / (loss + _TINY) * lipschitz**2 * squared_length + lipschitz
