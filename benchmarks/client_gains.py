"""What each client gains in each arm of a study, with 95 % t intervals over seeds: two tables in Markdown.

The first has every arm: its mean over clients and its worst client (mean and standard deviation over seeds), and the
difference of the mean from each reference arm, paired by seed; bold where decided by Holm over the column. The second
has a client's value in the first reference arm, and what the others differ from it by; bold where an interval, taken
alone, excludes zero. From the folders of a study, which may hold different seeds and arms, or from values kept before.

    uv run python benchmarks/client_gains.py --metric rmse runs/biogen_adme/full --keep docs/results/clients/x.csv
    uv run python benchmarks/client_gains.py --metric rmse docs/results/clients/biogen_adme.csv
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.intervals import Interval, holm, paired_interval


def read_folder(folder: Path, metric: str) -> Iterator[dict[str, object]]:
    """A row for each finished cell and client of a study without axes."""
    for record in sorted(folder.glob("cells/*/cell.json")):
        versions = [FinishedRun.read(path.parent) for path in sorted(record.parent.glob("version_*/summary.json"))]
        ended = [run for run in versions if not run.interrupted and "test" in run.splits()]
        if ended:
            arm, run = json.loads(record.read_text())["arm"], ended[-1]
            for client, value in run.metric(metric).clients.items():
                yield {"arm": arm, "seed": run.seed, "client": client, "value": value}


def differences(values: pd.DataFrame, arm: str, reference: str) -> Interval:
    """Interval of arm minus reference over the seeds that both have; ``values`` has a column for each arm [seeds]."""
    return paired_interval((values[arm] - values[reference]).dropna().tolist())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text


def arms_table(values: pd.DataFrame, references: Sequence[str], digits: int, lower: bool) -> str:
    """Arms in the order of ``values``."""
    over = values.groupby(["seed", "arm"]).value
    mean, worst = over.mean().unstack(), (over.max() if lower else over.min()).unstack()
    arms = list(dict.fromkeys(values.arm))
    columns = []
    for reference in references:
        found = {arm: differences(mean, arm, reference) for arm in arms if arm != reference}
        decided = dict(zip(found, [p < 0.05 for p in holm([one.p_value for one in found.values()])], strict=True))
        texts = {arm: bold(f"{one:+.{digits}f}", decided[arm]) for arm, one in found.items()}
        columns.append([texts.get(arm, "") for arm in arms])
    rows = []
    for place, arm in enumerate(arms):
        both = [f"{of[arm].mean():.{digits}f} ({of[arm].std():.{digits}f})" for of in (mean, worst)]
        rows.append([arm, *both, str(mean[arm].count()), *(column[place] for column in columns)])
    return table(["arm", "mean", "worst", "seeds", *(f"minus {one}, mean" for one in references)], rows)


def clients_table(values: pd.DataFrame, arms: Sequence[str], reference: str, digits: int) -> str:
    rows = []
    for client, own in values.groupby("client", sort=False):
        wide = own.pivot(index="seed", columns="arm", values="value")
        found = [differences(wide, arm, reference) for arm in arms if arm != reference]
        texts = [bold(f"{one:+.{digits}f}", one.low * one.high > 0) for one in found]
        rows.append([str(client), f"{wide[reference].mean():.{digits}f}", *texts])
    return table(["client", reference, *(arm for arm in arms if arm != reference)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("found", nargs="+", type=Path, help="folders of a study, or files of kept values")
    parser.add_argument("--metric", required=True)
    parser.add_argument("--references", nargs="+", default=["local", "pooled"])
    parser.add_argument("--arms", nargs="+", help="and their order; default: all, as found")
    parser.add_argument("--percent", action="store_true", help="in points, for shares; higher is then better")
    parser.add_argument("--digits", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="write the values there")
    chosen = parser.parse_args()
    parts = [
        pd.read_csv(path) if path.is_file() else pd.DataFrame(read_folder(path, chosen.metric)) for path in chosen.found
    ]
    values = pd.concat(parts, ignore_index=True)
    if chosen.keep:
        chosen.keep.parent.mkdir(parents=True, exist_ok=True)
        values.to_csv(chosen.keep, index=False, float_format="%.7g")
    arms = chosen.arms or list(dict.fromkeys(values.arm))
    if missing := [one for one in (*chosen.references, *arms) if one not in arms or one not in set(values.arm)]:
        parser.error(f"no values of {', '.join(missing)}")
    values = values[values.arm.isin(arms)].sort_values("arm", key=lambda names: names.map(arms.index), kind="stable")
    values["value"] *= 100 if chosen.percent else 1
    print(arms_table(values, chosen.references, chosen.digits, not chosen.percent))
    print()
    print(clients_table(values, arms, chosen.references[0], chosen.digits))


if __name__ == "__main__":
    main()
