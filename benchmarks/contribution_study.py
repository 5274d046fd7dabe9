"""First-order Shapley values against exact ones, and whether the client with wrong labels is found.

For every seed the shipped recipe is run with first-order and with exact values, which change nothing of the training:
Spearman's correlation of the two over the 8 clients in every round, and the rank of the corrupted client by cumulated
values. Prints Markdown; what is finished is not run again::

    LIGHTNING_FL_DATA=DATA uv run python benchmarks/contribution_study.py digits --seeds 0 1 2 --workers 2
"""

import argparse
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import yaml
from scipy.stats import spearmanr

RECIPES = {"digits": "shapley_digits", "esol": "shapley_esol"}
ARMS = {
    "first order": {"method": "first_order", "num_samples": None},
    "exact": {"method": "exact", "num_samples": None},
    "exact, not normalised": {"method": "exact", "num_samples": None, "normalized": False},
}


def run(task: str, arm: str, clean: bool, seed: int, arguments: argparse.Namespace) -> pd.DataFrame:
    """One fit: psi, a row per round and a column per client."""
    root = Path(arguments.out) / task / (arm.replace(" ", "_") + ("_clean" if clean else "")) / f"seed_{seed}"
    found = sorted(root.glob("version_*/contributions.csv"))
    if not found:
        path = Path(__file__).parents[1] / "recipes" / f"{RECIPES[task]}.yaml"
        noise, shapley = yaml.safe_load(path.read_text())["trainer"]["callbacks"][:2]
        shapley["init_args"] |= ARMS[arm]
        trainer = {"callbacks": [shapley] if clean else [noise, shapley], "enable_progress_bar": False}
        trainer |= {"default_root_dir": str(root), "check_val_every_n_rounds": 0, "enable_checkpointing": False}
        root.mkdir(parents=True, exist_ok=True)
        override = root / "override.yaml"
        override.write_text(yaml.safe_dump({"trainer": trainer}))
        words = [sys.executable, "-m", "lightning_fl", "fit", "--config", str(path), "--config", str(override)]
        words += ["--seed_everything", str(seed), "--data.source", "real"]
        result = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if result.returncode:
            raise SystemExit(f"{' '.join(words)}\n{result.stderr[-3000:]}")
        found = sorted(root.glob("version_*/contributions.csv"))
    return pd.read_csv(found[-1]).pivot(index="round", columns="client", values="psi")


def main() -> None:
    """Run what is not there yet and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=RECIPES)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--workers", type=int, default=2, help="fits at once")
    parser.add_argument("--out", default="runs/contribution_study")
    arguments = parser.parse_args()
    recipe = yaml.safe_load((Path(__file__).parents[1] / "recipes" / f"{RECIPES[arguments.task]}.yaml").read_text())
    [corrupted] = recipe["trainer"]["callbacks"][0]["init_args"]["clients"]
    keys = [(arm, clean, seed) for clean in (False, True) for arm in ARMS for seed in arguments.seeds]
    with ThreadPoolExecutor(arguments.workers) as pool:
        futures = {key: pool.submit(run, arguments.task, *key, arguments) for key in keys}
        values = {key: future.result() for key, future in futures.items()}

    print(f"{arguments.task}, seeds {arguments.seeds}; Spearman's correlation with first-order values\n")
    print("| clients | exact values | median round: mean over seeds | lowest and highest seed | lowest round |")
    print("|---|---|---|---|---|")
    for clean in (False, True):
        for arm in list(ARMS)[1:]:
            by_round = []
            for seed in arguments.seeds:
                first, exact = values["first order", clean, seed], values[arm, clean, seed]
                by_round.append([float(spearmanr(first.loc[r], exact.loc[r]).statistic) for r in first.index])
            medians = [statistics.median(rounds) for rounds in by_round]
            lowest = min(min(rounds) for rounds in by_round)
            print(
                f"| {'all clean' if clean else 'one corrupted'} | {arm.partition(', ')[2] or 'normalised'} |"
                f" {statistics.fmean(medians):.3f} | {min(medians):.3f}, {max(medians):.3f} | {lowest:.3f} |"
            )
    print(
        "\n| values | corrupted client last by cumulated value | last in so many rounds (median seed) |\n|---|---|---|"
    )
    for arm in ARMS:
        tables = [values[arm, False, seed] for seed in arguments.seeds]
        name = f"client_{corrupted}"
        last = sum(table.sum().idxmin() == name for table in tables)
        rounds = statistics.median((table.idxmin(axis=1) == name).mean() for table in tables)
        print(f"| {arm} | {last} of {len(tables)} seeds | {100 * rounds:.0f} % of the rounds |")


if __name__ == "__main__":
    main()
