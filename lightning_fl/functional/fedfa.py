"""The mathematics of FedFA.

Huang, Li, Wang, Du, Zhang: Fairness and Accuracy in Federated Learning, 2020 (https://arxiv.org/abs/2012.10069).
"""

import torch
from torch import Tensor

#: The least share: that of a client whose accuracy is 0.
_LEAST = 1e-6


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
