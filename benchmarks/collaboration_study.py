"""Collaboration against training alone and training together: FedCollab's and DPFL's Table 1, HCCT's three tasks.

Runs every arm of a task over seeds as ``lightning-fl fit`` on the shipped recipe, with the callbacks of the arm, and
prints a Markdown table: accuracy on the clients' test data of the models after the last round (for DPFL, of the models
of each client's best round by validation), mean and standard deviation over seeds, the share of clients that gain over
(IPR) or lose against (harmed) their own local training, the standard deviation of the gains (RSD), and paired
differences with 95 % t-intervals over seeds. What is finished is not run again::

    LIGHTNING_FL_DATA=DATA uv run python benchmarks/collaboration_study.py label_shift --seeds 0 1 2 3 4 --workers 2
    ... collaboration_study.py hcct_fmnist --seeds 100 101 --tune tradeoff 0.3 1 3 10 30   # by validation accuracy
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd
import yaml

from lightning_fl.study.intervals import paired_interval

LOCAL = {"class_path": "LocalTraining"}
FINETUNE = {"class_path": "FineTuning", "init_args": {"epochs": 2}}
BEST: dict[str, Any] = {"class_path": "BestClientModels", "init_args": {"monitor": "val/acc"}}
BEST_OWN: dict[str, Any] = {"class_path": "BestClientModels"}
BEST_OWN["init_args"] = {"monitor": "val/acc", "before_averaging": True}
#: DPFL's arms: the budget is B_c as a share of the clients; fine-tuning takes twice a round's epochs.
DPFL: dict[str, list[Any]] = {
    "local": [LOCAL, BEST],
    "fedavg": [BEST],
    "finetune": [BEST, {"class_path": "FineTuning"}],
    "dpfl": [{"budget": None}, BEST_OWN],
    "dpfl_0.2": [{"budget": 0.2}, BEST_OWN],
    "dpfl_0.1": [{"budget": 0.1}, BEST_OWN],
    "dpfl_0.05": [{"budget": 0.05}, BEST_OWN],
}
#: Arms of DPFL's tasks that go on from the last round of another arm, in which they do not differ from it.
GOES_ON_FROM = {"finetune": "fedavg"}
#: Task: its recipe and its arms; ``None`` stands for the callback that decides the collaboration in the recipe, a dict
#: without ``class_path`` for that callback with these settings changed.
TASKS: dict[str, tuple[str, dict[str, list[Any]]]] = {
    "label_shift": (
        "fedcollab_label_shift",
        {
            "local": [LOCAL],
            "fedavg": [],
            "finetune": [FINETUNE],
            "fedcollab": [None],
            "fedcollab+finetune": [None, FINETUNE],
        },
    ),
    "feature_shift": ("fedcollab_feature_shift", {"local": [LOCAL], "fedavg": [], "fedcollab": [None]}),
    "concept_shift": ("fedcollab_concept_shift", {"local": [LOCAL], "fedavg": [], "fedcollab": [None]}),
    "hcct_digit_domains": ("hcct_digit_domains", {"local": [LOCAL], "fedavg": [], "hcct": [None]}),
    "hcct_fmnist": ("hcct_fmnist", {"local": [LOCAL], "fedavg": [], "hcct": [None]}),
    "hcct_cifar10": ("hcct_cifar10", {"local": [LOCAL], "fedavg": [], "hcct": [None]}),
    "dpfl_cifar10_dir": ("dpfl_cifar10_dir", DPFL),
    "dpfl_cifar10_patho": ("dpfl_cifar10_patho", DPFL),
}

_LOCKS: defaultdict[Path, Lock] = defaultdict(Lock)


def run(task: str, arm: str, seed: int, changes: dict[str, Any], arguments: argparse.Namespace) -> Path:
    """One fit; the folder of its run. Finished ones are not run again."""
    variant = "".join(f",{name}={value}" for name, value in changes.items())
    root = Path(arguments.out) / task / f"{arm}{variant}" / f"seed_{seed}"
    words: list[str] = []
    if TASKS[task][1] is DPFL and arm in GOES_ON_FROM:
        words = ["--ckpt_path", str(run(task, GOES_ON_FROM[arm], seed, {}, arguments) / "checkpoints" / "last.ckpt")]
    with _LOCKS[root]:  # an arm may be asked for twice, by itself and by the one that goes on from it
        return _finished(root) or _fit(task, arm, seed, changes, arguments, root, words)


def _finished(root: Path) -> Path | None:
    done = sorted(root.glob("version_*/summary.json"))
    return done[-1].parent if done else None


def _fit(
    task: str,
    arm: str,
    seed: int,
    changes: dict[str, Any],
    arguments: argparse.Namespace,
    root: Path,
    further: Sequence[str],
) -> Path:
    recipe, arms = TASKS[task]
    path = Path(__file__).parents[1] / "recipes" / f"{recipe}.yaml"
    decider = yaml.safe_load(path.read_text())["trainer"]["callbacks"][0]
    decider["init_args"] |= changes
    callbacks = [_callback(given, decider) for given in arms[arm]]
    trainer = {"callbacks": callbacks, "default_root_dir": str(root)}
    trainer["enable_checkpointing"] = arms is DPFL and arm in GOES_ON_FROM.values()
    validate = bool(arguments.tune) or any(callback["class_path"] == "BestClientModels" for callback in callbacks)
    trainer |= {"enable_progress_bar": False, "check_val_every_n_rounds": int(validate)}
    trainer |= {"max_rounds": arguments.rounds} if arguments.rounds else {}
    root.mkdir(parents=True, exist_ok=True)
    override = root / "override.yaml"
    override.write_text(yaml.safe_dump({"trainer": trainer}))
    words = [sys.executable, "-m", "lightning_fl", "fit", "--config", str(path), "--config", str(override)]
    words += ["--seed_everything", str(seed), "--data.source", "real", *arguments.set, *further]
    result = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if result.returncode:
        raise SystemExit(f"{' '.join(words)}\n{result.stderr[-3000:]}")
    finished = _finished(root)
    assert finished is not None
    return finished


def _callback(given: dict[str, Any] | None, decider: dict[str, Any]) -> dict[str, Any]:
    """An arm's callback: one of its own, or the recipe's with some settings changed."""
    if given is not None and "class_path" in given:
        return given
    return {**decider, "init_args": decider["init_args"] | (given or {})}


def accuracies(folder: Path) -> dict[str, float]:
    """Client -> test accuracy in percent."""
    clients = json.loads((folder / "summary.json").read_text())["metrics"]["test"]["acc"]["clients"]
    return {name: 100 * value for name, value in clients.items()}


def validation_accuracy(folder: Path) -> float:
    """Mean over clients and the last quarter of the rounds, in percent."""
    curve = pd.read_csv(folder / "metrics.csv")["val/acc"].dropna()
    return 100 * float(curve.iloc[-max(1, len(curve) // 4) :].mean())


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % t-interval."""
    found = paired_interval(values)
    return f"{found.mean:+.2f}" + ("" if found.n < 2 else f" [{found.low:+.2f}, {found.high:+.2f}]")


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    return f"{statistics.fmean(values):.2f} ({statistics.stdev(values) if len(values) > 1 else 0:.2f})"


def table(found: dict[str, dict[int, dict[str, float]]]) -> str:
    """The arms side by side; gains are over the local arm of the same seed."""
    lines = ["| arm | accuracy % | worst client | IPR % | harmed % | RSD |", "|---|---|---|---|---|---|"]
    for arm, of_seed in found.items():
        means = [statistics.fmean(clients.values()) for clients in of_seed.values()]
        row = [spread(means), spread([min(clients.values()) for clients in of_seed.values()])]
        if arm == "local" or "local" not in found:
            row += ["", "", ""]
        else:
            gains = [[v - found["local"][s][name] for name, v in clients.items()] for s, clients in of_seed.items()]
            row.append(spread([100 * statistics.fmean(gain > 0 for gain in of) for of in gains]))
            row.append(spread([100 * statistics.fmean(gain < 0 for gain in of) for of in gains]))
            row.append(spread([statistics.pstdev(of) for of in gains]))
        lines.append(f"| {arm} | {' | '.join(row)} |")
    lines += ["", "| paired difference of accuracy | points [95 % interval] |", "|---|---|"]
    last = next((arm for arm in ("fedcollab", "dpfl") if arm in found), list(found)[-1])
    for arm in found:
        if arm != last:
            pairs = [
                statistics.fmean(found[last][seed].values()) - statistics.fmean(found[arm][seed].values())
                for seed in found[arm]
            ]
            lines.append(f"| {last} - {arm} | {interval(pairs)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is not there yet and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", help="some of the arms only")
    parser.add_argument("--rounds", type=int, help="instead of the recipe's")
    parser.add_argument("--workers", type=int, default=2, help="fits at once")
    parser.add_argument("--out", default="runs/collaboration_study")
    parser.add_argument(
        "--tune", nargs="+", metavar=("NAME", "VALUE"), help="try values of a setting on validation data"
    )
    parser.add_argument("--set", nargs=argparse.REMAINDER, default=[], help="further words for lightning-fl fit")
    arguments = parser.parse_args()
    arms = arguments.arms or list(TASKS[arguments.task][1])
    variants: list[dict[str, Any]] = [{}]
    if arguments.tune:
        variants = [{arguments.tune[0]: float(value)} for value in arguments.tune[1:]]
        arms = arguments.arms or [arm for arm, callbacks in TASKS[arguments.task][1].items() if callbacks == [None]]
    with ThreadPoolExecutor(arguments.workers) as pool:
        started = {
            (arm, seed, index): pool.submit(run, arguments.task, arm, seed, changes, arguments)
            for seed in arguments.seeds
            for index, changes in enumerate(variants)
            for arm in arms
        }
        folders = {key: future.result() for key, future in started.items()}
    if arguments.tune:
        for index, changes in enumerate(variants):
            for arm in arms:
                values = [validation_accuracy(folders[arm, seed, index]) for seed in arguments.seeds]
                print(f"{arm} {changes}: validation accuracy {spread(values)}")
        return
    found = {arm: {seed: accuracies(folders[arm, seed, 0]) for seed in arguments.seeds} for arm in arms}
    print(f"{arguments.task}, seeds {arguments.seeds}, {arguments.rounds or 'all'} rounds\n")
    print(table(found))
    for arm in arms:
        for seed in arguments.seeds:
            record = json.loads((folders[arm, seed, 0] / "summary.json").read_text())
            if "fedcollab" in record:
                names = [
                    ",".join(name.removeprefix("client_") for name in c) for c in record["fedcollab"]["coalitions"]
                ]
                print(f"{arm}, seed {seed}: coalitions {' | '.join(names)}")


if __name__ == "__main__":
    main()
