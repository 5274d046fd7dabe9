"""First-order Shapley values against exact ones, and whether the client with wrong labels is found.

For every seed and learning rate the shipped recipe is run with its first-order values; beside them the exact ones of
the same rounds are worked out, which change nothing of the training: Spearman's correlation of the two over the 8
clients in every round, and the rank of the corrupted client by cumulated values. Prints Markdown; what is finished is
not run again::

    LIGHTNING_FL_DATA=DATA uv run python benchmarks/contribution_study.py digits --learning-rates 0.1 0.01 --workers 2
"""

import argparse
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from scipy.stats import spearmanr

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback
from lightning_fl.engine.probes.valuation import ModelValuation
from lightning_fl.engine.turn.gradients import HeldOutLoss
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.shapley import shapley_exact

RECIPES = {"digits": "shapley_digits", "esol": "shapley_esol"}
FIRST = "first order"
EXACT = ("exact", "exact, not normalised")


class ExactValues(Callback):
    """All coalitions of every round, on all validation samples, into ``exact.csv``."""

    def __init__(self) -> None:
        self.kept: dict[int, Weights] = {}
        self.rows: list[tuple[str, int, str, float]] = []

    def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
        self.kept[client] = trainer.client_weights().clone()

    def on_aggregate_end(self, trainer: FederatedTrainer) -> None:
        assert trainer.datamodule is not None
        starts, shares = trainer.round.starts, trainer.round.shares
        names = trainer.datamodule.client_names()
        loss = HeldOutLoss(trainer.loop, "val", None, "exact values")
        valuation = ModelValuation(trainer.loop, loss, starts[0], trainer.models[0], shares[0], self.kept)
        for arm in EXACT:
            values = shapley_exact(valuation.coalition_value(arm == "exact"), len(valuation.shares)).tolist()
            self.rows += [
                (arm, trainer.current_round + 1, names[client], value)
                for client, value in zip(valuation.shares, values, strict=True)
            ]

    def on_fit_end(self, trainer: FederatedTrainer) -> None:
        table = pd.DataFrame(self.rows, columns=["arm", "round", "client", "psi"])
        table.to_csv(Path(trainer.log_dir) / "exact.csv", index=False)


def run(task: str, rate: float, clean: bool, seed: int, arguments: argparse.Namespace) -> dict[str, pd.DataFrame]:
    """One fit: psi of every arm, a row per round and a column per client."""
    kind = "clean" if clean else "corrupted_training" if arguments.clean_validation else "corrupted"
    root = Path(arguments.out) / task / f"rate_{rate:g}" / kind / f"seed_{seed}"
    found = sorted(root.glob("version_*/contributions.csv"))
    if not found:
        path = Path(__file__).parents[1] / "recipes" / f"{RECIPES[task]}.yaml"
        noise, shapley = yaml.safe_load(path.read_text())["trainer"]["callbacks"][:2]
        shapley["init_args"] |= {"num_samples": None}
        if arguments.clean_validation:
            noise["init_args"]["splits"] = ["train"]
        exact = {"class_path": "contribution_study.ExactValues"}  # before the values whose file says that all is done
        callbacks = [*([] if clean else [noise]), *([] if arguments.only_rank else [exact]), shapley]
        trainer: dict[str, Any] = {"callbacks": callbacks, "enable_progress_bar": False, "enable_checkpointing": False}
        trainer |= {"default_root_dir": str(root), "check_val_every_n_rounds": 0}
        root.mkdir(parents=True, exist_ok=True)
        override = root / "override.yaml"
        override.write_text(yaml.safe_dump({"trainer": trainer}))
        words = [sys.executable, "-m", "lightning_fl", "fit", "--config", str(path), "--config", str(override)]
        words += ["--seed_everything", str(seed), "--data.source", "real", "--model.learning_rate", str(rate)]
        paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        result = subprocess.run(words, capture_output=True, text=True, env=environment)
        if result.returncode:
            raise SystemExit(f"{' '.join(words)}\n{result.stderr[-3000:]}")
        found = sorted(root.glob("version_*/contributions.csv"))
    tables = {FIRST: pd.read_csv(found[-1])}
    if not arguments.only_rank:
        exact = pd.read_csv(found[-1].parent / "exact.csv")
        tables |= {arm: exact[exact["arm"] == arm] for arm in EXACT}
    return {arm: table.pivot(index="round", columns="client", values="psi") for arm, table in tables.items()}


def main() -> None:
    """Run what is not there yet and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=RECIPES)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--learning-rates", type=float, nargs="+", help="instead of the recipe's")
    parser.add_argument("--kinds", nargs="+", choices=["corrupted", "clean"], default=["corrupted", "clean"])
    parser.add_argument("--clean-validation", action="store_true", help="wrong labels in training samples only")
    parser.add_argument("--only-rank", action="store_true", help="no exact values: only the corrupted client's rank")
    parser.add_argument("--workers", type=int, default=2, help="fits at once")
    parser.add_argument("--out", default="runs/contribution_study")
    arguments = parser.parse_args()
    recipe = yaml.safe_load((Path(__file__).parents[1] / "recipes" / f"{RECIPES[arguments.task]}.yaml").read_text())
    [corrupted] = recipe["trainer"]["callbacks"][0]["init_args"]["clients"]
    rates = arguments.learning_rates or [recipe["model"]["init_args"]["learning_rate"]]
    kinds = (False,) if arguments.only_rank else tuple(kind == "clean" for kind in arguments.kinds)
    keys = [(rate, clean, seed) for clean in kinds for rate in rates for seed in arguments.seeds]
    with ThreadPoolExecutor(arguments.workers) as pool:
        futures = {key: pool.submit(run, arguments.task, *key, arguments) for key in keys}
        values = {key: future.result() for key, future in futures.items()}

    print(f"{arguments.task}, seeds {arguments.seeds}\n")
    if not arguments.only_rank:
        print("Spearman's correlation of exact with first-order values:\n")
        print("| clients | learning rate | exact values | median round: mean over seeds | seeds | lowest round |")
        print("|---|---|---|---|---|---|")
    for clean in () if arguments.only_rank else kinds:
        for rate in rates:
            for arm in EXACT:
                by_round = []
                for seed in arguments.seeds:
                    first, exact = values[rate, clean, seed][FIRST], values[rate, clean, seed][arm]
                    by_round.append([float(spearmanr(first.loc[r], exact.loc[r]).statistic) for r in first.index])
                medians = [statistics.median(rounds) for rounds in by_round]
                lowest = min(min(rounds) for rounds in by_round)
                print(
                    f"| {'all clean' if clean else 'one corrupted'} | {rate:g} |"
                    f" {arm.partition(', ')[2] or 'normalised'} | {statistics.fmean(medians):.3f} |"
                    f" {min(medians):.3f} to {max(medians):.3f} | {lowest:.3f} |"
                )
    print("\n| values | learning rate | corrupted client last by cumulated value | last in rounds (median seed) |")
    print("|---|---|---|---|")
    for arm in values[rates[0], False, arguments.seeds[0]] if False in kinds else ():
        for rate in rates:
            tables = [values[rate, False, seed][arm] for seed in arguments.seeds]
            name = tables[0].columns[corrupted]
            last = sum(table.sum().idxmin() == name for table in tables)
            rounds = statistics.median((table.idxmin(axis=1) == name).mean() for table in tables)
            print(f"| {arm} | {rate:g} | {last} of {len(tables)} seeds | {100 * rounds:.0f} % |")


if __name__ == "__main__":
    main()
