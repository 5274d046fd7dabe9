"""The partial likelihood and the concordance, against sums over all pairs and values worked out by hand."""

import itertools
import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from lightning_fl.functional.survival import concordance_index, cox_loss

TIES: list[Literal["breslow", "efron"]] = ["breslow", "efron"]


def summed(scores: Tensor, times: Tensor, events: Tensor, ties: str) -> float:
    """The loss from its formula, term by term."""
    total, count = 0.0, 0
    for time in sorted(set(times.tolist())):
        dead = [i for i in range(len(times)) if times[i] == time and events[i]]
        risk = math.fsum(math.exp(scores[j]) for j in range(len(times)) if times[j] >= time)
        tied = math.fsum(math.exp(scores[j]) for j in dead)
        for place, i in enumerate(dead):
            total += float(scores[i]) - math.log(risk - (place / len(dead) * tied if ties == "efron" else 0.0))
        count += len(dead)
    return -total / count


def drawn(seed: int, size: int = 25, last: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, generator=draws, dtype=torch.float64)
    return scores, torch.randint(1, last, (size,), generator=draws), torch.randint(0, 2, (size,), generator=draws)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_the_sum_of_its_formula(ties: Literal["breslow", "efron"], seed: int) -> None:
    scores, times, events = drawn(seed)
    assert float(cox_loss(scores, times, events, ties)) == pytest.approx(summed(scores, times, events, ties), rel=1e-12)


def test_two_deaths_at_one_time() -> None:
    """Breslow: twice log 3; Efron: log 3 and log 2."""
    scores, times, events = torch.zeros(3), torch.tensor([1.0, 1.0, 2.0]), torch.tensor([1, 1, 0])
    assert float(cox_loss(scores, times, events, "breslow")) == pytest.approx(math.log(3))
    assert float(cox_loss(scores, times, events, "efron")) == pytest.approx(math.log(6) / 2)


@pytest.mark.parametrize("ties", TIES)
def test_the_gradient_is_that_of_the_formula(ties: Literal["breslow", "efron"]) -> None:
    scores, times, events = drawn(3, size=12)
    torch.autograd.gradcheck(lambda s: cox_loss(s, times, events, ties), scores.requires_grad_())


def test_scores_far_apart_without_ties() -> None:
    """Of hazards whose ratio float32 does not hold, Efron's loss is Breslow's; here it is log(1 + e^-1) / 3."""
    scores = torch.tensor([0.0, -120.0, -121.0], requires_grad=True)
    for ties in TIES:
        loss = cox_loss(scores, torch.arange(3.0), torch.ones(3), ties)
        assert float(loss.detach()) == pytest.approx(math.log1p(math.exp(-1)) / 3, abs=1e-5)
        (gradient,) = torch.autograd.grad(loss, scores)
        assert gradient.tolist() == pytest.approx([0, -1 / (3 + 3 * math.e), 1 / (3 + 3 * math.e)], abs=1e-5)


def test_without_an_event_nothing_is_learned() -> None:
    scores = torch.randn(5, requires_grad=True)
    loss = cox_loss(scores, torch.arange(5), torch.zeros(5))
    loss.backward()
    assert float(loss) == 0
    assert scores.grad is not None
    assert not scores.grad.any()


def pairs(scores: Tensor, times: Tensor, events: Tensor) -> float:
    right, count = 0.0, 0
    for i, j in itertools.permutations(range(len(times)), 2):
        first = bool(events[i]) and (times[i] < times[j] or (times[i] == times[j] and not events[j]))
        if first:
            count += 1
            right += 1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0
    return right / count


@pytest.mark.parametrize("seed", range(4))
def test_the_concordance_is_that_of_all_pairs(seed: int) -> None:
    scores, times, events = drawn(seed, size=30, last=12)
    scores = (scores * 2).round()  # some are equal
    assert concordance_index(scores, times, events) == pytest.approx(pairs(scores, times, events), rel=1e-12)


def test_concordance_at_its_limits() -> None:
    times, events = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1, 1, 1, 0])
    assert concordance_index(-times, times, events) == 1
    assert concordance_index(times, times, events) == 0
    assert concordance_index(torch.zeros(4), times, events) == 0.5
    assert math.isnan(concordance_index(times, times, torch.zeros(4)))
    assert concordance_index(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 2.0]), torch.tensor([1, 0])) == 1
    assert math.isnan(concordance_index(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 2.0]), torch.tensor([1, 1])))
    assert math.isnan(concordance_index(torch.tensor([math.nan, 2.0, 1.0, 0.0]), times, events))
