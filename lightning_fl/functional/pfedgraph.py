"""pFedGraph's mathematics: whose models a client averages its own with, and the pull towards them.

Ye, Ni, Wu, Chen, Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023,
https://proceedings.mlr.press/v202/ye23b.html.

========================  ==========================================  ======
paper                     here                                        shape
========================  ==========================================  ======
cos(Δθ_i, Δθ_j)           :func:`thresholded_cosines`, C              [N, N]
p                         shares of ``num_samples``                   [N]
W_i, collaboration        :func:`collaboration_weights`, rows of A    [N, N]
========================  ==========================================  ======

A row solves ``min_a -Σ_j a_j C_ij + α |a - p|²`` over the simplex, which is ``α |a - (p + C_i / (2α))|²`` and a
constant: the projection of ``p + C_i / (2α)`` on the simplex.

Differs from the authors' code: it hands the same problem to a solver of quadratic programmes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.functional.drflm import project_simplex
from lightning_fl.functional.gram import check_counts, cosine_similarities
from lightning_fl.options import check_numbers

__all__ = ["collaboration_weights", "pull_terms", "thresholded_cosines"]


def thresholded_cosines(gram: Tensor, threshold: float = 0.9) -> Tensor:
    """Cosines of what clients learned, those above a threshold set to 1.

    Args:
        gram: inner products of all updates from one common start, shape [N, N].
        threshold: from -1 to 1.

    Returns:
        float64, shape [N, N], symmetric, 1 on the diagonal.

    Raises:
        ConfigurationError: the matrix is not one of inner products, or the threshold is out of range.
    """
    check_numbers("", at_least=-1, at_most=1, threshold=threshold)
    cosines = cosine_similarities(gram)
    return torch.where(cosines > threshold, torch.ones_like(cosines), cosines)


def collaboration_weights(cosines: Tensor, num_samples: Sequence[int] | Tensor, alpha: float) -> Tensor:
    """Row i: how much of each client's model goes into client i's next one, ``Π(p + C_i / (2α))``.

    A client's own weight is at least its share p_i, as no cosine exceeds its own.

    Args:
        cosines: C, shape [N, N], from :func:`thresholded_cosines`.
        num_samples: m, positive, length N.
        alpha: weight of the samples' shares against similarity, positive: towards 0 clients stay alone, where nobody
            is as similar to them as they are themselves; large, all get the average by samples.

    Returns:
        A, float64, shape [N, N], rows sum to 1.

    Raises:
        ConfigurationError: a shape does not fit or a value is out of range.

    Example:
        >>> collaboration_weights(torch.tensor([[1.0, 0.6], [0.6, 1.0]]), [10, 30], 0.8)
        tensor([[0.3750, 0.6250],
                [0.1250, 0.8750]], dtype=torch.float64)
    """
    check_numbers("", above=0, alpha=alpha)
    counts = torch.from_numpy(check_counts(num_samples, len(cosines)))
    targets = counts / counts.sum() + cosines.double() / (2 * alpha)
    return torch.stack([project_simplex(row) for row in targets])


def pull_terms(product: float, squared_norm: float) -> tuple[float, float]:
    """The gradient of ``z·w / |w|``, which is ``Σ_j A_ij cos(w, w_j)`` for ``z = Σ_j A_ij w_j / |w_j|``, by w.

    Args:
        product: z·w.
        squared_norm: ``|w|²``.

    Returns:
        a and b of the gradient ``a z + b w``; 0 and 0 where w is 0.
    """
    if not squared_norm > 0:
        return 0.0, 0.0
    norm = squared_norm**0.5
    return 1 / norm, -product / norm**3
