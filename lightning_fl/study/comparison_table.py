"""Finished runs side by side as numbers: one row per group of runs and metric. Written as text by ``render.py``.

A group is what stands in one row: runs of one recipe with different seeds. Its figures are means over the seeds, each
with the sample standard deviation over seeds (divided by n - 1) beside it.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.core.metrics import GainSummary, direction_is_known, gains, summarize_gains
from lightning_fl.study.comparability import same_data
from lightning_fl.study.finished_run import FinishedRun, RunMetric
from lightning_fl.study.intervals import paired_interval

__all__ = ["STATISTICS", "client_table", "comparison_table", "leading_metric"]

#: The figures of a group: each is a column, with its standard deviation over seeds in ``NAME_seed_std``.
STATISTICS = (
    *("mean", "worst", "std", "best", "gain", "ipr", "rsd", "harmed"),
    *("megabytes_sent", "megabytes_received", "rounds", "seconds"),
)


def leading_metric(groups: Mapping[str, Sequence[FinishedRun]], split: str = "test") -> str:
    """The metric to compare by where none is named: the first that is no loss and that all runs have, else a loss.

    Raises:
        ConfigurationError: the runs have no metric of the split in common.
    """
    runs = [run for group in groups.values() for run in group]
    there = [[name for name in run.metric_names(split) if not name.startswith("local/")] for run in runs]
    common = [name for name in there[0] if all(name in names for names in there)] if there else []
    if not common:
        found = dict.fromkeys(f"{run.folder} has {listed(of) or 'none'}" for run, of in zip(runs, there, strict=True))
        others = [other for other in ("test", "val", "train") if all(other in run.splits() for run in runs)]
        mend = f" All have metrics of {' and '.join(others)}: choose with --split." if others and runs else ""
        raise ConfigurationError(
            f"the runs have no {split} metric in common: {listed(found) or 'there are no runs'}.{mend}"
        )
    return next((name for name in common if "loss" not in name), common[0])


def comparison_table(
    groups: Mapping[str, Sequence[FinishedRun]],
    metrics: Sequence[str] = (),
    split: str = "test",
    *,
    reference: Sequence[FinishedRun] | None = None,
    baseline: str | None = None,
) -> pd.DataFrame:
    """The groups' figures, one row per metric and group.

    Args:
        groups: label -> its runs, each of another seed.
        metrics: names without the split; empty for :func:`leading_metric`.
        split: "test", "val" or "train".
        reference: runs over which clients' gains are taken, those of a run over the reference's of the same seed (or
            of the same data); they have none themselves. ``None`` for each run's own gains over local training, where
            it has them.
        baseline: the label of the group that is subtracted from the others, seed by seed.

    Returns:
        ``metric``, ``label``, ``split``, ``higher_is_better`` (None where the direction is not known), ``source`` of
        the data, ``num_seeds``, ``seeds`` ("0, 1, 2"), ``num_clients`` (with a value, the least over seeds),
        ``gain_over`` (what gains are taken over, "" without), ``baseline``; the :data:`STATISTICS`, each with
        ``_seed_std``: ``mean``, ``worst``, ``std`` (the population's) and ``best`` over clients, the mean ``gain``,
        the shares ``ipr`` and ``harmed`` and the standard deviation ``rsd`` of the gains
        (:func:`lightning_fl.core.metrics.summarize_gains`), what all clients sent and received in MB (10^6 bytes),
        rounds, and the training's wall time. Against a baseline also ``mean_difference`` and
        ``worst_difference``, group less baseline, each with the ends ``_low`` and ``_high`` of its 95 % interval
        (:func:`~lightning_fl.study.intervals.paired_interval`), and ``difference_num_seeds``. NaN is what is
        not known or not finite.

    Raises:
        ConfigurationError: there is no such metric or baseline, a group has no run or a seed twice, or the reference
            lacks a seed.
    """
    check_groups(groups)
    if baseline is not None and baseline not in groups:
        raise ConfigurationError(f"baseline={baseline!r} is none of the rows. There are {listed(groups)}.")
    names = list(dict.fromkeys(metrics)) or [leading_metric(groups, split)]
    rows = []
    for name in names:
        figures = {
            label: {run.seed: _figures(run, name, split, reference) for run in runs} for label, runs in groups.items()
        }
        for label, runs in groups.items():
            row = _about(label, runs, name, split) | {"gain_over": _gain_over(groups, label, name, split, reference)}
            row |= _over_seeds(list(figures[label].values()))
            if baseline is not None:
                pairs = figures[label] if label != baseline else {}
                row |= {"baseline": baseline, **_differences(pairs, figures[baseline])}
            rows.append(row)
    return pd.DataFrame(rows)


def client_table(
    groups: Mapping[str, Sequence[FinishedRun]],
    metrics: Sequence[str] = (),
    split: str = "test",
    *,
    reference: Sequence[FinishedRun] | None = None,
) -> pd.DataFrame:
    """Every client's value in every run: one row per metric, run and client.

    Args:
        groups: as in :func:`comparison_table`, as are the others.
        metrics: names without the split.
        split: of the metrics.
        reference: runs over which gains are taken.

    Returns:
        ``metric``, ``label``, ``seed``, ``split``, ``higher_is_better``, ``source``, ``run`` (its folder), ``client``,
        ``value`` and ``gain`` (NaN without a reference).

    Raises:
        ConfigurationError: as :func:`comparison_table`.
    """
    check_groups(groups)
    rows = []
    for name in list(dict.fromkeys(metrics)) or [leading_metric(groups, split)]:
        for label, runs in groups.items():
            for run in runs:
                metric = run.metric(name, split)
                found = client_gains(run, metric, split, reference)
                about = {
                    "metric": name,
                    "label": label,
                    "seed": run.seed,
                    "split": split,
                    "higher_is_better": known_direction(metric),
                    "source": run.data_source,
                    "run": str(run.folder),
                }
                rows += [
                    about | {"client": client, "value": value, "gain": (found or {}).get(client, math.nan)}
                    for client, value in metric.clients.items()
                ]
    return pd.DataFrame(rows)


def known_direction(metric: RunMetric) -> bool | None:
    """Whether higher is better; ``None`` where the run only assumed lower, see ``direction_is_known``."""
    return metric.higher_is_better if direction_is_known(metric.name, metric.higher_is_better) else None


def client_gains(
    run: FinishedRun, metric: RunMetric, split: str, reference: Sequence[FinishedRun] | None
) -> dict[str, float] | None:
    """Client's name -> gain, positive for better; ``None`` without a reference, and of the reference itself."""
    if reference is None:
        return run.gains(metric.name, split)
    if any(run.folder == other.folder for other in reference):
        return None
    other = _reference_of(run, reference).metric(metric.name, split)
    numbers = {client: number for number, client in enumerate(metric.clients)}
    found = gains(
        {numbers[client]: value for client, value in metric.clients.items()},
        {numbers[client]: value for client, value in other.clients.items() if client in numbers},
        metric.higher_is_better,
    )
    return {client: found[number] for client, number in numbers.items() if number in found}


def check_groups(groups: Mapping[str, Sequence[FinishedRun]]) -> None:
    """Refuse a group without runs, or with two of one seed, which would count twice."""
    if not groups:
        raise ConfigurationError("there are no runs to compare: give at least one.")
    for label, runs in groups.items():
        if not runs:
            raise ConfigurationError(f"the row {label!r} has no runs: leave it out.")
        of_seed: dict[int, FinishedRun] = {}
        for run in runs:
            if (other := of_seed.setdefault(run.seed, run)) is not run:
                raise ConfigurationError(
                    f"{other.folder} and {run.folder} are both {label!r} with seed {run.seed}: leave one of them out,"
                    " or name them apart with LABEL=RUN."
                )


def _about(label: str, runs: Sequence[FinishedRun], name: str, split: str) -> dict[str, object]:
    found = [run.metric(name, split) for run in runs]
    directions = {known_direction(metric) for metric in found}
    return {
        "metric": name,
        "label": label,
        "split": split,
        "higher_is_better": directions.pop() if len(directions) == 1 else None,
        "source": ", ".join(dict.fromkeys(run.data_source for run in runs)),
        "num_seeds": len(runs),
        "seeds": ", ".join(str(seed) for seed in sorted(run.seed for run in runs)),
        "num_clients": min(sum(not math.isnan(value) for value in metric.clients.values()) for metric in found),
    }


def _gain_over(
    groups: Mapping[str, Sequence[FinishedRun]],
    label: str,
    name: str,
    split: str,
    reference: Sequence[FinishedRun] | None,
) -> str:
    if reference is None:
        own = all(run.gains(name, split) is not None for run in groups[label])
        return "each run's own local training" if own else ""
    folders = {run.folder for run in reference}
    rows = {row: {run.folder for run in runs} for row, runs in groups.items()}
    if rows[label] & folders:
        return ""
    row = next((row for row, of_row in rows.items() if of_row == folders), None)
    return row or ", ".join(dict.fromkeys(run.algorithm for run in reference))


def _figures(run: FinishedRun, name: str, split: str, reference: Sequence[FinishedRun] | None) -> dict[str, float]:
    """One run's :data:`STATISTICS`."""
    metric = run.metric(name, split)
    found = client_gains(run, metric, split, reference)
    gain = None if found is None else _gain_summary(found)
    return {
        "mean": metric.mean,
        "worst": metric.worst,
        "std": metric.std,
        "best": metric.best,
        "gain": math.nan if gain is None else gain.mean,
        "ipr": math.nan if gain is None else gain.ipr,
        "rsd": math.nan if gain is None else gain.rsd,
        "harmed": math.nan if gain is None else gain.harmed,
        "megabytes_sent": _megabytes(run.bytes_sent),
        "megabytes_received": _megabytes(run.bytes_received),
        "rounds": math.nan if run.rounds is None else float(run.rounds),
        "seconds": math.nan if run.seconds is None else float(run.seconds),
    }


def _gain_summary(found: Mapping[str, float]) -> GainSummary:
    numbered = dict(enumerate(found.values()))
    return summarize_gains(numbered, dict.fromkeys(numbered, 0.0), higher_is_better=True)


def _over_seeds(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    row = {}
    for name in STATISTICS:
        values = np.array([of_run[name] for of_run in figures])
        # A seed that failed is not left out: the others would flatter the row.
        row[name] = float(values.mean())
        row[f"{name}_seed_std"] = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return row


def _differences(
    figures: Mapping[int, Mapping[str, float]], baseline: Mapping[int, Mapping[str, float]]
) -> dict[str, float | int]:
    row: dict[str, float | int] = {}
    for name in ("mean", "worst"):
        pairs = [of_run[name] - baseline[seed][name] for seed, of_run in figures.items() if seed in baseline]
        interval = paired_interval(pairs)
        row["difference_num_seeds"] = interval.n
        row[f"{name}_difference"] = interval.mean
        row[f"{name}_difference_low"] = interval.low
        row[f"{name}_difference_high"] = interval.high
    return row


def _reference_of(run: FinishedRun, reference: Sequence[FinishedRun]) -> FinishedRun:
    """The reference's run that had the same data."""
    alike = [other for other in reference if same_data(run, other)]
    same_seed = [other for other in reference if other.seed == run.seed]
    if chosen := [other for other in same_seed if other in alike] or alike or same_seed:
        return chosen[0]
    raise ConfigurationError(
        f"the reference has no run with seed {run.seed}, as {run.folder} has, and none on the same data: it has the"
        f" seeds {', '.join(str(other.seed) for other in reference)}. Train it with the same seeds."
    )


def _megabytes(count: int | None) -> float:
    return math.nan if count is None else count / 1e6
