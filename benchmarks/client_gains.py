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

from lightning_fl.core.metrics import higher_is_better
from lightning_fl.runtime.table import Column, Value, label_column, markdown_table
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.intervals import Interval, holm, paired_interval


def read_folder(folder: Path, metric: str) -> Iterator[dict[str, object]]:
    """A row for each finished cell and client of a study without axes."""
    for record in sorted(folder.glob("cells/*/cell.json")):
        if (
            any(record.parent.glob("version_*/summary.json"))
            and not (run := FinishedRun.read(record.parent)).interrupted
        ):
            about = {"arm": json.loads(record.read_text())["arm"], "seed": run.seed}
            for client, value in run.metric(metric).clients.items():
                yield about | {"client": client, "value": value}


def differences(values: pd.DataFrame, arm: str, reference: str) -> Interval:
    """Interval of arm minus reference over the seeds that both have; ``values`` has a column for each arm [seeds]."""
    return paired_interval((values[arm] - values[reference]).dropna().tolist())


def arms_table(values: pd.DataFrame, arms: Sequence[str], references: Sequence[str], form: str, higher: bool) -> str:
    over = values.groupby(["seed", "arm"]).value
    mean, worst = over.mean().unstack(), (over.min() if higher else over.max()).unstack()
    columns = [label_column("arm", arms)]
    for name, of in {"mean": mean, "worst": worst}.items():
        columns.append(Column(name, [Value(f"{of[arm].mean():{form}} ({of[arm].std():{form}})") for arm in arms]))
    columns.append(Column("seeds", [Value(str(mean[arm].count())) for arm in arms]))
    for reference in references:
        found = [differences(mean, arm, reference) for arm in arms if arm != reference]
        decided = [p < 0.05 for p in holm([one.p_value for one in found])]
        texts = [Value(f"{one:+{form}}", best=bold) for one, bold in zip(found, decided, strict=True)]
        texts.insert(arms.index(reference), Value(""))
        columns.append(Column(f"minus {reference}, mean", texts))
    return markdown_table(columns)


def clients_table(values: pd.DataFrame, arms: Sequence[str], reference: str, form: str) -> str:
    of_clients = {
        str(name): own.pivot(index="seed", columns="arm", values="value") for name, own in values.groupby("client")
    }
    own = [Value(f"{wide[reference].mean():{form}}") for wide in of_clients.values()]
    columns = [label_column("client", list(of_clients)), Column(reference, own)]
    for arm in arms:
        if arm != reference:
            found = [differences(wide, arm, reference) for wide in of_clients.values()]
            columns.append(Column(arm, [Value(f"{one:+{form}}", best=one.low * one.high > 0) for one in found]))
    return markdown_table(columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("found", nargs="+", type=Path, help="folders of a study, or files of kept values")
    parser.add_argument("--metric", required=True)
    parser.add_argument("--references", nargs="+", default=["local", "pooled"])
    parser.add_argument("--arms", nargs="+", help="and their order; default: all, as found")
    parser.add_argument("--percent", action="store_true", help="shares in points")
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
    values["value"] *= 100 if chosen.percent else 1
    values, form = values[values.arm.isin(arms)], f".{chosen.digits}f"
    print(arms_table(values, arms, chosen.references, form, higher_is_better(chosen.metric)))
    print()
    print(clients_table(values, arms, chosen.references[0], form))


if __name__ == "__main__":
    main()
