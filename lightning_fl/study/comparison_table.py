"""Comparison of finished runs as a data frame: one row per group of runs and metric. ``render.py`` formats it.

A group consists of runs of one recipe with different seeds. Its statistics are means over seeds, each with the sample
standard deviation over seeds (divided by n - 1).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.core.metrics import gains, summarize_gains
from lightning_fl.study.finished_run import FinishedRun, RunMetric, number_or_nan
from lightning_fl.study.intervals import paired_interval
from lightning_fl.study.recipe_settings import same_data

#: Label -> its runs, with different seeds.
Groups = Mapping[str, Sequence[FinishedRun]]
#: Columns of a group's statistics, each with its standard deviation over seeds in ``NAME_seed_std``.
STATISTICS = (
    *("mean", "worst", "std", "best", "gain", "ipr", "rsd", "harmed"),
    *("megabytes_sent", "megabytes_received", "rounds", "seconds"),
)


def default_comparison_metric(groups: Groups, split: str = "test") -> str:
    """First metric that all runs have, preferably not a loss; a ConfigurationError without one."""
    runs = [run for group in groups.values() for run in group]
    named = [[name for name in run.metric_names(split) if not name.startswith("local/")] for run in runs]
    common = [name for name in named[0] if all(name in names for names in named)] if named else []
    if not common:
        found = dict.fromkeys(f"{run.folder} has {listed(of) or 'none'}" for run, of in zip(runs, named, strict=True))
        others = [other for other in ("test", "val", "train") if all(other in run.splits() for run in runs)]
        hint = f" All have metrics of {' and '.join(others)}: choose with --split." if others and runs else ""
        raise ConfigurationError(f"no {split} metric in common: {listed(found) or 'there are no runs'}.{hint}")
    return next((name for name in common if "loss" not in name), common[0])


def comparison_table(
    groups: Groups,
    metrics: Sequence[str] = (),
    split: str = "test",
    *,
    reference: Sequence[FinishedRun] | None = None,
    baseline: str | None = None,
) -> pd.DataFrame:
    """Compute the groups' statistics, one row per metric and group.

    Args:
        groups: label -> its runs, with different seeds.
        metrics: names without the split; empty for :func:`default_comparison_metric`.
        reference: runs over which clients' gains are computed, paired by data or seed; their own gains are missing.
            ``None`` for each run's gains over its local training, if recorded.
        baseline: label of the group that is subtracted from the others, seed by seed.

    Returns:
        ``metric``, ``label``, ``split``, ``higher_is_better`` (None if unknown), ``source`` of the data,
        ``num_seeds``, ``seeds`` ("0, 1, 2"), ``num_clients`` (with a value; the minimum over seeds), ``gain_over``
        (reference of the gains, or ""), ``baseline``; the :data:`STATISTICS`, each with ``_seed_std``: ``mean``,
        ``worst``, ``std`` (population) and ``best`` over clients; mean ``gain``, shares ``ipr`` and ``harmed``, and
        standard deviation ``rsd`` of the gains (:func:`lightning_fl.core.metrics.summarize_gains`); MB (10^6 bytes)
        sent and received by all clients, rounds, and wall time of the training. With a baseline also
        ``mean_difference`` and ``worst_difference``, group minus baseline, each with the bounds ``_low`` and ``_high``
        of its 95 % interval (:func:`~lightning_fl.study.intervals.paired_interval`), and ``difference_num_seeds``.
        Unknown and non-finite values are NaN.

    Raises:
        ConfigurationError: unknown metric or baseline, a group without runs or with a repeated seed, or a reference
            without a matching run.
    """
    _check_groups(groups)
    if baseline is not None and baseline not in groups:
        raise ConfigurationError(f"baseline={baseline!r} is not a row. The rows are {listed(groups)}.")
    names = list(dict.fromkeys(metrics)) or [default_comparison_metric(groups, split)]
    rows = []
    for name in names:
        figures = {
            label: {run.seed: _figures(run, name, split, reference) for run in runs} for label, runs in groups.items()
        }
        for label, runs in groups.items():
            row = _about(label, runs, name, split) | {"gain_over": _gain_over(groups, label, name, split, reference)}
            for statistic in STATISTICS:
                values = np.array([of_run[statistic] for of_run in figures[label].values()])
                # A failed seed makes the mean NaN: the others alone would flatter the row.
                row[statistic] = float(values.mean())
                row[f"{statistic}_seed_std"] = float(values.std(ddof=1)) if len(values) > 1 else math.nan
            if baseline is not None:
                row["baseline"], base = baseline, {} if label == baseline else figures[baseline]
                pairs = [(of_run, base[seed]) for seed, of_run in figures[label].items() if seed in base]
                for part in ("mean", "worst"):
                    found = paired_interval([own[part] - other[part] for own, other in pairs])
                    row |= {"difference_num_seeds": found.n, f"{part}_difference": found.mean}
                    row |= {f"{part}_difference_low": found.low, f"{part}_difference_high": found.high}
            rows.append(row)
    return pd.DataFrame(rows)


def client_comparison(
    groups: Groups, metrics: Sequence[str] = (), split: str = "test", *, reference: Sequence[FinishedRun] | None = None
) -> pd.DataFrame:
    """Collect every client's value: one row per metric, run and client. Arguments as in :func:`comparison_table`.

    Returns:
        ``metric``, ``label``, ``seed``, ``split``, ``higher_is_better``, ``source``, ``run`` (its folder), ``client``,
        ``value`` and ``gain`` (NaN without a reference).
    """
    _check_groups(groups)
    rows = []
    for name in list(dict.fromkeys(metrics)) or [default_comparison_metric(groups, split)]:
        for label, runs in groups.items():
            for run in runs:
                metric = run.metric(name, split)
                found = _client_gains(run, metric, split, reference)
                about = {
                    "metric": name,
                    "label": label,
                    "seed": run.seed,
                    "split": split,
                    "higher_is_better": metric.direction,
                    "source": run.data_source,
                    "run": str(run.folder),
                }
                rows += [
                    about | {"client": client, "value": value, "gain": found.get(client, math.nan)}
                    for client, value in metric.clients.items()
                ]
    return pd.DataFrame(rows)


def _client_gains(
    run: FinishedRun, metric: RunMetric, split: str, reference: Sequence[FinishedRun] | None
) -> dict[str, float]:
    """Client -> gain, positive for better; none without a reference and for the reference itself."""
    if reference is None:
        return run.gains(metric.name, split) or {}
    if any(run.folder == other.folder for other in reference):
        return {}
    alike = [other for other in reference if same_data(run, other)]
    same_seed = [other for other in reference if other.seed == run.seed]
    if not (chosen := [other for other in same_seed if other in alike] or alike or same_seed):
        seeds = f"its seed {run.seed}, only seeds {', '.join(str(other.seed) for other in reference)}"
        raise ConfigurationError(f"the reference has no run on the data of {run.folder} and none with {seeds}.")
    other = chosen[0].metric(metric.name, split)
    if metric.percentiles or other.percentiles:  # not every client is known
        return {}
    return gains(metric.clients, other.clients, metric.higher_is_better)


def _check_groups(groups: Groups) -> None:
    if not groups:
        raise ConfigurationError("there are no runs to compare: name at least one.")
    for label, runs in groups.items():
        if not runs:
            raise ConfigurationError(f"the row {label!r} has no runs: remove it.")
        of_seed: dict[int, FinishedRun] = {}
        for run in runs:
            if (other := of_seed.setdefault(run.seed, run)) is not run:
                both = f"{other.folder} and {run.folder} are both {label!r} with seed {run.seed}"
                raise ConfigurationError(f"{both}: use LABEL=RUN.")


def _about(label: str, runs: Sequence[FinishedRun], name: str, split: str) -> dict[str, object]:
    found = [run.metric(name, split) for run in runs]
    directions = {metric.direction for metric in found}
    return {
        "metric": name,
        "label": label,
        "split": split,
        "higher_is_better": directions.pop() if len(directions) == 1 else None,
        "source": ", ".join(dict.fromkeys(run.data_source for run in runs)),
        "num_seeds": len(runs),
        "seeds": ", ".join(str(seed) for seed in sorted(run.seed for run in runs)),
        "num_clients": min(metric.num_clients for metric in found),
    }


def _gain_over(groups: Groups, label: str, name: str, split: str, reference: Sequence[FinishedRun] | None) -> str:
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
    metric = run.metric(name, split)
    # Without gains, all parts of the summary are NaN.
    gain = dict(enumerate(_client_gains(run, metric, split, reference).values()))
    summary = summarize_gains(gain, dict.fromkeys(gain, 0.0), higher_is_better=True)
    return {
        **{part: getattr(metric, part) for part in ("mean", "worst", "std", "best")},
        **{"gain" if part == "mean" else part: getattr(summary, part) for part in ("mean", "ipr", "rsd", "harmed")},
        "megabytes_sent": run.megabytes("sent"),
        "megabytes_received": run.megabytes("received"),
        "rounds": number_or_nan(run.rounds),
        "seconds": number_or_nan(run.seconds),
    }
