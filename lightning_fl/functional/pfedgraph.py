"""pFedGraph's mathematics: the weights of clients' averages, and the pull of clients towards each other.

Ye, Ni, Wu, Chen, Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023,
https://proceedings.mlr.press/v202/ye23b.html. Differs from the authors' code: that hands the problem of
:func:`collaboration_weights` to a solver of quadratic programmes.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from lightning_fl.core.validation import Positive, checked
from lightning_fl.functional.drflm import project_simplex
from lightning_fl.functional.gram import cosine_similarities, sample_counts


@checked
def thresholded_cosines(gram: Tensor, threshold: Annotated[float, Ge(-1), Le(1)] = 0.9) -> Tensor:
    """Cosines of clients' updates from one start, by their Gram matrix [N, N]; those above a threshold are 1."""
    cosines = cosine_similarities(gram)
    return torch.where(cosines > threshold, torch.ones_like(cosines), cosines)


@checked
def collaboration_weights(cosines: Tensor, num_samples: Sequence[int] | Tensor, alpha: Positive) -> Tensor:
    """Row i: weights of all models in client i's next model, ``Π(p + C_i / (2α))``, with p the samples' shares.

    That minimises ``-Σ_j a_j C_ij + α |a - p|²`` over the simplex, on which Π projects. A client's own weight is at
    least its share p_i, as no cosine exceeds its own.

    Args:
        cosines: C, shape [N, N], from :func:`thresholded_cosines`.
        num_samples: m, positive, length N.
        alpha: weight of the samples' shares against similarity: towards 0 clients stay alone unless another one has a
            cosine of 1; large values give all clients the average by samples.

    Returns:
        A, float64, shape [N, N], rows sum to 1.

    Example:
        >>> collaboration_weights(torch.tensor([[1.0, 0.6], [0.6, 1.0]]), [10, 30], 0.8)
        tensor([[0.3750, 0.6250],
                [0.1250, 0.8750]], dtype=torch.float64)
    """
    counts = torch.from_numpy(sample_counts(num_samples, len(cosines)))
    targets = counts / counts.sum() + cosines.double() / (2 * alpha)
    return torch.stack([project_simplex(row) for row in targets])


def centre_terms(row: Sequence[float], norms: Sequence[float]) -> list[tuple[int, float]]:
    """j and ``A_ij / |w_j|`` of the terms of ``z_i = Σ_j A_ij w_j / |w_j|``; a model of zeros has a factor of 0."""
    terms = zip(row, norms, strict=True)
    return [(j, weight / norm if norm else 0.0) for j, (weight, norm) in enumerate(terms) if weight > 0]


def placed_rows(rows: Tensor, clients: Sequence[int], num_clients: int) -> Tensor:
    """Place the rows [n, n] of some clients in the matrix of all clients, float64; the others stay alone."""
    matrix = torch.eye(num_clients, dtype=torch.float64)
    for client, row in zip(clients, rows, strict=True):
        matrix[client, client] = 0.0
        matrix[client, list(clients)] = row
    return matrix


def mean_cosine(cosines: Tensor) -> float:
    """Mean over pairs of different clients of cosines [N, N] with 1 on the diagonal; 1 for a single client."""
    others = len(cosines) * (len(cosines) - 1)
    return float((cosines.sum() - len(cosines)) / others) if others else 1.0


def pull_terms(product: float, squared_norm: float) -> tuple[float, float]:
    """a and b of the gradient ``a z + b w`` by w of ``z·w / |w|``; 0 and 0 where w is 0.

    That is ``Σ_j A_ij cos(w, w_j)`` for ``z = Σ_j A_ij w_j / |w_j|``. ``product`` is z·w, ``squared_norm`` ``|w|²``.
    """
    if not squared_norm > 0:
        return 0.0, 0.0
    norm = squared_norm**0.5
    return 1 / norm, -product / norm**3
