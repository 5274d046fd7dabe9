"""Survival: the partial likelihood of proportional hazards, and the concordance of scores with times."""

from typing import Literal

import torch
from torch import Tensor

#: Samples compared with all others at a time.
_ROWS = 1024


def cox_loss(scores: Tensor, times: Tensor, events: Tensor, ties: Literal["breslow", "efron"] = "breslow") -> Tensor:
    """The negative partial log-likelihood of proportional hazards over the number of events; 0 without events.

    Cox, Regression models and life tables, JRSS B 1972; ties as Breslow (1974) or Efron (1977). A time t with d events
    adds ``sum_D s_i - d log sum_R exp(s_j)``, with R the samples at risk (time of at least t) and D those with the
    event; for ties as Efron ``sum_D s_i - sum_{l<d} log(sum_R exp(s_j) - l/d sum_D exp(s_i))``.

    Args:
        scores: log hazards, [B].
        times: to the event or the end of the observation, [B].
        events: 1 if the event was observed, 0 if censored, [B].
    """
    seen = events > 0
    if not bool(seen.any()):
        return (scores * 0).sum()
    order = torch.argsort(times, descending=True, stable=True)
    scores, times, seen = scores[order], times[order], seen[order]
    at_risk = torch.logcumsumexp(scores, 0)  # of those with at least as long a time, ties in any order
    _, place, counts = torch.unique_consecutive(times, return_inverse=True, return_counts=True)
    at_risk = at_risk[counts.cumsum(0) - 1][place]  # the last of a time has all of its ties
    if ties == "breslow":
        return -(scores - at_risk)[seen].mean()
    deaths = torch.zeros(len(counts), dtype=scores.dtype, device=scores.device)
    deaths.index_add_(0, place, seen.to(scores.dtype))
    of_event = scores.masked_fill(~seen, -torch.inf)
    tied = torch.zeros_like(deaths).index_add(0, place, (of_event - at_risk).exp())[place]
    earlier = seen.to(scores.dtype).cumsum(0) - seen.to(scores.dtype)
    firsts = counts.cumsum(0) - counts
    before = earlier - earlier[firsts][place]  # events of the same time that come earlier in the order
    share = before / deaths[place].clamp_min(1)
    remaining = at_risk + torch.log1p(-share * tied)
    return -(scores - remaining)[seen].mean()


def concordance_index(scores: Tensor, times: Tensor, events: Tensor) -> float:
    """The share of comparable pairs with the higher score for the earlier event (Harrell et al. 1982); NaN without any.

    A pair is comparable if the shorter time ends with the event, or if of two equal times exactly one does. Equal
    scores count half. Scores, times and events (1 or 0) are [n].
    """
    seen = events > 0
    right, pairs = 0.0, 0
    for rows in torch.nonzero(seen).reshape(-1).split(_ROWS):
        mine = times[rows].unsqueeze(1)
        comparable = (mine < times) | ((mine == times) & ~seen)
        difference = scores[rows].unsqueeze(1) - scores
        right += float(((difference > 0) & comparable).sum()) + 0.5 * float(((difference == 0) & comparable).sum())
        pairs += int(comparable.sum())
    return right / pairs if pairs and not scores.isnan().any() else float("nan")
