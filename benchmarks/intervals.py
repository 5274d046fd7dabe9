"""Student's t intervals of studies against bootstrap intervals, and the seeds that a difference that matters needs.

From kept results, without running. For each claim with at least ``--least`` seeds: its t interval and the
bias-corrected and accelerated bootstrap interval (Efron, JASA 1987) of the same differences, both of 95 %; whether
their verdicts are the same and how wide the second is relative to the first. Then, with the deviation over these
seeds, how many would detect a difference of ``--matters`` with a probability of 80 %. At the end: how often both
intervals contain the true mean of normal differences.

    uv run python benchmarks/intervals.py optimizer_state federation_gains --matters 0.05
"""

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from scipy.stats import bootstrap

from lightning_fl.recipe.shipped import find_recipe
from lightning_fl.study import claims
from lightning_fl.study.claims import verdict_of
from lightning_fl.study.intervals import Interval, paired_interval, seeds_needed
from lightning_fl.study.results import StudyResults
from lightning_fl.study.study_file import load_study

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def differences_of(name: str) -> list[tuple[str, list[float]]]:
    """The differences over seeds behind each answer of a study in docs/results, with the claim and its place."""
    seen: list[list[float]] = []

    def keep(differences: Sequence[float]) -> Interval:
        seen.append(list(differences))
        return paired_interval(differences)

    with patch.object(claims, "paired_interval", keep):
        results = StudyResults.of_table(load_study(find_recipe(name, "study"), None), RESULTS / f"{name}.csv")
    names = [f"{one.claim} {claims.cell_name('', one.axes)}".strip() for one in results.answers]
    return list(zip(names, seen, strict=True))


def bootstrap_interval(differences: Sequence[float], resamples: int = 9999) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NaN where all differences are equal
        found = bootstrap(
            (np.array(differences),), np.mean, n_resamples=resamples, method="BCa", rng=np.random.default_rng(0)
        ).confidence_interval
    return float(found.low), float(found.high)


def coverage(num_seeds: int, trials: int) -> tuple[float, float]:
    """Share of the t intervals, and of the bootstrap intervals, that contain the mean of normal differences."""
    draws = np.random.default_rng(num_seeds).normal(size=(trials, num_seeds))
    by_t = [paired_interval(row.tolist()) for row in draws]
    by_bootstrap = [bootstrap_interval(row.tolist(), 999) for row in draws]
    return (
        float(np.mean([one.low <= 0 <= one.high for one in by_t])),
        float(np.mean([low <= 0 <= high for low, high in by_bootstrap])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", help="studies whose results are in docs/results")
    parser.add_argument("--matters", type=float, required=True, help="difference that matters, in the metric's unit")
    parser.add_argument("--least", type=int, default=5, help="fewest seeds of a claim")
    parser.add_argument("--trials", type=int, default=2000, help="of the coverage")
    arguments = parser.parse_args()
    for name in arguments.studies:
        pairs, ratios, needed = [], [], []
        for claim, differences in differences_of(name):
            interval = paired_interval(differences)
            if interval.n < arguments.least or not interval.deviation > 0:
                continue
            low, high = bootstrap_interval(differences)
            relation = next(sign for sign in ("<", ">") if sign in claim)
            verdicts = [verdict_of(one, relation) for one in (interval, replace(interval, low=low, high=high))]
            pairs.append(verdicts)
            ratios.append((high - low) / (interval.high - interval.low))
            needed.append(seeds_needed(replace(interval, mean=arguments.matters)) or 1000)
            print(
                f"{claim}: n={interval.n} t {interval} bootstrap [{low:+.4f}, {high:+.4f}] {verdicts[0]}/{verdicts[1]};"
                f" {arguments.matters:g} needs {needed[-1]} seeds"
            )
        same = sum(by_t == by_bootstrap for by_t, by_bootstrap in pairs)
        only = sum(by_t == "undecided" != by_bootstrap for by_t, by_bootstrap in pairs)
        print(
            f"{name}: {same} of {len(pairs)} verdicts are the same, {only} decided by the bootstrap alone; width,"
            f" bootstrap / t: median {np.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}; seeds that"
            f" {arguments.matters:g} needs: median {np.median(needed):g}, {min(needed)} to {max(needed)}\n"
        )
    for num_seeds in (3, 5, 10, 20):
        t, resampled = coverage(num_seeds, arguments.trials)
        print(f"{num_seeds} normal differences: t contains their mean in {t:.1%}, the bootstrap in {resampled:.1%}")


if __name__ == "__main__":
    main()
