"""Split-conformal intervals of one client, or of several clients that share only counts.

V. Vovk, A. Gammerman, G. Shafer: Algorithmic Learning in a Random World (2005); J. Lei, M. G'Sell, A. Rinaldo,
R. J. Tibshirani, L. Wasserman: Distribution-free predictive inference for regression (JASA 2018,
https://arxiv.org/abs/1604.04173), algorithm 2, and section 5.2 for scores divided by an estimate of the error;
C. Lu, Y. Yu, S. P. Karimireddy, M. I. Jordan, R. Raskar: Federated conformal predictors for distributed uncertainty
quantification (ICML 2023, https://arxiv.org/abs/2305.17564), theorem 4.3.

With ``n_k`` held-out scores at client k of K, ``N = sum n_k``, the interval ``prediction -+ q`` with q the
``ceil(level (N + K))``-th smallest score holds the truth of a new sample with probability at least ``level``, where the
sample comes from client k with probability ``(n_k + 1) / (N + K)`` and is exchangeable with that client's samples. For
one client this is the usual guarantee. It does not hold for each single client, nor for another kind of molecules.

Differs from the papers: scores are rounded up to a fixed grid with steps of 2.2 %, and clients share the numbers of
scores per step. A rounded score is a valid score, so the guarantee holds; an interval is at most 2.2 % wider.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from annotated_types import Gt, Lt, doc
from torch import Tensor

from lightning_fl.core.validation import checked

#: Steps of the grid in a doubling.
_STEPS = 32
#: Scores below 2^-64 count as 2^-64; those of 2^64 and more, or not finite, as infinite.
_END = 64 * _STEPS


def conformal_scores(prediction: Tensor, target: Tensor, uncertainty: Tensor | None = None) -> Tensor:
    """``|target - prediction| / uncertainty`` of the samples with a target, at most n scores.

    Infinite where the prediction is not finite, or the uncertainty is 0 and the prediction wrong.

    Args:
        prediction: [n], in the data's units.
        target: [n], NaN where a value is missing.
        uncertainty: [n], estimated errors in the same units, at least 0; ``None`` for 1.
    """
    present = ~target.isnan()
    scores = (target[present].double() - prediction[present].double()).abs()
    if uncertainty is not None:
        scores = torch.where(scores == 0, 0.0, scores / uncertainty[present].double())
    return scores.nan_to_num(nan=math.inf, posinf=math.inf)


def conformal_quantile(scores: Tensor, level: float) -> float:
    """The ``ceil(level (n + 1))``-th smallest of n scores; infinite if n is too small for the level in (0, 1)."""
    rank = _rank(level, len(scores) + 1)
    return float(scores.double().sort().values[rank - 1]) if rank <= len(scores) else math.inf


def score_counts(scores: Tensor) -> dict[int, int]:
    """Numbers of scores [n] of at least 0 per step of the grid: e -> number in (2^((e - 1) / 32), 2^(e / 32)]."""
    steps = (torch.log2(scores.double()) * _STEPS).ceil().nan_to_num(nan=_END, posinf=_END).clamp(-_END, _END)
    return dict(sorted(Counter(steps.long().tolist()).items()))


def pooled_quantile(counts: Sequence[Mapping[int, int]], level: float) -> float:
    """The ``ceil(level (N + K))``-th smallest of the N rounded scores of K clients; infinite if N is too small.

    ``counts`` are each client's :func:`score_counts`; K leaves out clients without scores.
    """
    total = sum(map(Counter, counts), Counter[int]())
    return quantile_of_counts(total, sum(1 for of_client in counts if sum(of_client.values())), level)


def quantile_of_counts(total: Mapping[int, int], num_clients: int, level: float) -> float:
    """:func:`pooled_quantile` of summed counts."""
    rank = _rank(level, sum(total.values()) + max(num_clients, 1))
    below = 0
    for step in sorted(total):
        below += total[step]
        if below >= rank:
            return math.inf if step >= _END else 2.0 ** (step / _STEPS)
    return math.inf


@checked
def _rank(level: Annotated[float, Gt(0), Lt(1), doc("such as 0.9")], number: int) -> int:
    return math.ceil(level * number - 1e-9)  # 0.7 * 10 is 7.000000000000001
