"""Conformal intervals: ranks worked out by hand, coverage by simulation."""

import math

import torch

from lightning_fl.functional.conformal import conformal_quantile, conformal_scores, pooled_quantile, score_counts


def test_the_rank_of_the_quantile() -> None:
    scores = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0])
    assert conformal_quantile(scores, 0.7) == 7  # ceil(0.7 * 10)
    assert conformal_quantile(scores, 0.9) == 9
    assert conformal_quantile(scores, 0.91) == math.inf  # nine scores cannot promise more than 9 / 10
    assert conformal_quantile(scores[:0], 0.5) == math.inf
    assert conformal_quantile(scores[:1], 0.5) == 5


def test_scores_leave_missing_targets_out_and_are_scaled() -> None:
    target = torch.tensor([1.0, math.nan, 3.0, 4.0])
    prediction = torch.tensor([2.0, 0.0, math.nan, 4.0])
    assert conformal_scores(prediction, target).tolist() == [1, math.inf, 0]
    scale = torch.tensor([2.0, 1.0, 1.0, 0.0])
    assert conformal_scores(prediction, target, scale).tolist() == [0.5, math.inf, 0]


def test_counts_round_up_by_at_most_one_step() -> None:
    scores = torch.rand(500, generator=torch.Generator().manual_seed(0)) * 10
    for level in (0.5, 0.8, 0.9, 0.95):
        exact, found = conformal_quantile(scores, level), pooled_quantile([score_counts(scores)], level)
        assert exact <= found <= exact * 2 ** (1 / 32) * (1 + 1e-12)


def test_counts_of_clients_add_up_with_one_more_rank_for_each() -> None:
    # 2^0 .. 2^9 are steps of the grid. K = 2: ceil(0.5 * 12) = 6th; K = 1: ceil(0.5 * 11) = 6th; 0.75: 9th and 9th.
    scores = 2.0 ** torch.arange(10)
    one, two = score_counts(scores[::2]), score_counts(scores[1::2])
    assert pooled_quantile([one, two], 0.5) == 2.0**5
    assert pooled_quantile([one, two, {}], 0.5) == 2.0**5  # who has none does not count
    assert pooled_quantile([one, two], 0.85) == math.inf  # ceil(0.85 * 12) = 11
    assert pooled_quantile([score_counts(scores)], 0.85) == 2.0**9  # ceil(0.85 * 11) = 10
    assert pooled_quantile([], 0.5) == math.inf


def test_scores_of_zero_and_without_end() -> None:
    counts = score_counts(torch.tensor([0.0, 0.0, math.inf]))
    assert sum(counts.values()) == 3
    assert pooled_quantile([counts], 0.5) == 2.0**-64
    assert pooled_quantile([counts], 0.75) == math.inf


def test_coverage_of_one_client_is_what_is_promised() -> None:
    generator, level, n, trials = torch.Generator().manual_seed(1), 0.9, 39, 4000
    errors = torch.randn(trials, n + 1, generator=generator, dtype=torch.float64).abs()
    hits = [float(row[-1]) <= conformal_quantile(row[:-1], level) for row in errors]
    # n + 1 = 40 divides by 10: the coverage is 0.9 exactly; 4 standard errors of 4000 trials are 0.019
    assert abs(sum(hits) / trials - level) < 0.019


def test_coverage_over_clients_that_differ() -> None:
    """Lu et al.'s mixture: a new sample from client k with probability (n_k + 1) / (N + K)."""
    generator, level, trials = torch.Generator().manual_seed(2), 0.8, 3000
    sizes, scales = (60, 20, 5), torch.tensor([1.0, 3.0, 10.0], dtype=torch.float64)
    chances = torch.tensor([n + 1.0 for n in sizes])
    hits = 0
    for _ in range(trials):
        errors = [
            torch.randn(n, generator=generator, dtype=torch.float64).abs() * scale
            for n, scale in zip(sizes, scales, strict=True)
        ]
        client = int(torch.multinomial(chances, 1, generator=generator))
        new = float(torch.randn((), generator=generator, dtype=torch.float64).abs() * scales[client])
        hits += new <= pooled_quantile([score_counts(of_client) for of_client in errors], level)
    error = 4 * math.sqrt(level * (1 - level) / trials)
    # K / (N + K) = 0.034 more than the level at most, and a step of the grid
    assert level - error <= hits / trials <= level + 0.034 + 0.01 + error
