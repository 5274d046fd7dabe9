"""PI-FL's tables 2 to 5: what each tier serves, and what its clients get of it; soft averaging, FedSoft and FedAvg.

Runs every arm of a task over mixtures and seeds as ``lightning-fl fit`` on the shipped recipe, each with the same
number of turns in a round, and prints Markdown: accuracy of every shared model on test images of either distribution,
and of the clients' personal models on their own test images, mean and standard deviation over seeds, and PI-FL's
differences from the other arms, paired by seed, with 95 % t-intervals. What is finished is not run again::

    LIGHTNING_FL_DATA=DATA uv run python benchmarks/tier_study.py cifar10 --mixtures 10:90 30:70 --seeds 0 1 2
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.utils.data import DataLoader

from lightning_fl.study.intervals import paired_interval

RECIPES = {name: f"pifl_{name}" for name in ("digits", "cifar10", "fmnist", "synthetic")}
ARMS = ("pifl", "no incentive", "soft averaging", "fedsoft", "fedavg")


def callbacks(recipe: dict[str, Any], arm: str) -> list[dict[str, Any]]:
    """The recipe's, with what the arm changes; nothing is drawn."""
    tiers, rewards = recipe["trainer"]["callbacks"][:2]
    settings = tiers["init_args"]
    if arm == "no incentive":
        tiers = {**tiers, "init_args": {**settings, "policy": {"class_path": "RandomBidding"}}}
    if arm in ("pifl", "no incentive"):
        return [tiers, rewards]
    turns_of_tier = settings["num_best"] + settings["num_random"]
    if arm == "fedsoft":  # lambda is its authors', for CIFAR-10 and for synthetic data
        lam = 1.0 if recipe["data"]["class_path"] == "SyntheticMixture" else 0.01
        kept = {"num_models": settings["num_tiers"], "num_samples": settings["num_samples"], "lam": lam}
        return [{"class_path": "FedSoft", "init_args": {**kept, "clients_per_model": turns_of_tier}}]
    turns = settings["num_tiers"] * turns_of_tier
    sampling = {"class_path": "UniformSampling", "init_args": {"cohort_size": turns}}
    if arm == "fedavg":
        return [sampling]
    kept = {"num_models": settings["num_tiers"], "num_samples": settings["num_samples"], "every_n_rounds": 5}
    kept |= {"split": settings["bid_split"], "personal_split": settings["personal_split"]}
    return [sampling, {"class_path": "SoftAveraging", "init_args": kept}]


def run(task: str, mixture: str, arm: str, seed: int, arguments: argparse.Namespace) -> Path:
    """One fit and the test of its shared models on either distribution; the folder of the run."""
    root = Path(arguments.out) / task / mixture.replace(":", "_") / arm.replace(" ", "_") / f"seed_{seed}"
    done = sorted(root.glob("version_*/distributions.json"))
    if done:
        return done[-1].parent
    path = Path(__file__).parents[1] / "recipes" / f"{RECIPES[task]}.yaml"
    recipe = yaml.safe_load(path.read_text())
    trainer: dict[str, Any] = {"callbacks": callbacks(recipe, arm), "enable_progress_bar": False, "devices": 1}
    trainer |= {"default_root_dir": str(root), "check_val_every_n_rounds": arguments.check_val_every_n_rounds}
    trainer |= {"max_rounds": arguments.rounds} if arguments.rounds else {}
    root.mkdir(parents=True, exist_ok=True)
    override = root / "override.yaml"
    override.write_text(yaml.safe_dump({"trainer": trainer}))
    words = [sys.executable, "-m", "lightning_fl", "fit", "--config", str(path), "--config", str(override)]
    words += ["--seed_everything", str(seed)]
    drawn = task == "synthetic"
    words += ["--data.mixture", mixture] if drawn else ["--data.partitioner.mixture", mixture, "--data.source", "real"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in (words, [sys.executable, __file__, task, "--judge", str(root)]):
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        if result.returncode:
            raise SystemExit(f"{' '.join(command)}\n{result.stderr[-3000:]}")
    return sorted(root.glob("version_*/distributions.json"))[-1].parent


def judge(task: str, root: Path) -> None:
    """Write the accuracy of each shared model of a run on test samples of D_A and D_B, [K][2].

    Images are the test images of the run's clients; synthetic samples are drawn anew.
    """
    from lightning.pytorch import seed_everything

    from lightning_fl.data import ImageData, Mixture, SyntheticMixture
    from lightning_fl.models import ClassificationModel

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    folder = sorted(root.glob("version_*"))[-1]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    seed_everything(config["seed_everything"], verbose=False)
    settings = config["data"]["init_args"]
    data: ImageData | SyntheticMixture
    if task == "synthetic":
        settings |= {"num_clients": 2, "mixture": "0:100", "test_samples": 1000, "invert_test": False}
        data = SyntheticMixture(**settings)  # the first client has all of D_A
    else:
        partition = settings.pop("partitioner")["init_args"]
        data = ImageData(**settings, partitioner=Mixture(**partition))
    data.prepare_data()
    data.setup("test")
    held: list[Any] = [data.client_data(client, "test") for client in range(data.num_clients)]
    of_clients = [tuple(next(iter(DataLoader(samples, batch_size=len(samples))))) for samples in held]
    parts = of_clients
    if task != "synthetic":
        x, y = map(torch.cat, zip(*of_clients, strict=True))
        in_a = torch.isin(y, torch.tensor(partition["classes_a"]))
        parts = [(x[in_a], y[in_a]), (x[~in_a], y[~in_a])]
    found = []
    for path in sorted((folder / "models").glob("shared_*.ckpt")):
        model = ClassificationModel.load_from_checkpoint(path, map_location="cpu").eval()
        with torch.inference_mode():
            found.append([accuracy(model, data, *part) for part in parts])
    (folder / "distributions.json").write_text(json.dumps(found))


def accuracy(model: torch.nn.Module, data: Any, x: torch.Tensor, y: torch.Tensor) -> float:
    """Share of samples whose class the model predicts; images pass the data module's batch hooks."""
    batches = zip(x.split(500), y.split(500), strict=True)
    ready = (data.transfer_hooks(0).on_after_batch_transfer(list(batch), 0) for batch in batches)
    return sum(int((model(images).argmax(1) == classes).sum()) for images, classes in ready) / len(y)


def serves(models: Sequence[Sequence[float]]) -> str:
    """Which distribution each model is best on."""
    return "".join("A" if of_a > of_b else "B" for of_a, of_b in models)


def separation(models: Sequence[Sequence[float]]) -> float:
    """How differently the models serve: half the largest difference of two in (accuracy on D_A - that on D_B), points.

    100 if one knows D_A only and another D_B only; 0 for one model, and where all serve the same.
    """
    leanings = [100 * (of_a - of_b) for of_a, of_b in models]
    return (max(leanings) - min(leanings)) / 2


def best_on(models: Sequence[Sequence[float]], side: int) -> float:
    """Accuracy of the best model on D_A (0) or D_B (1), in percent."""
    return 100 * max(model[side] for model in models)


def personal(folder: Path) -> float:
    """Mean accuracy of the clients' personal models on their own test images, in percent."""
    return 100 * float(json.loads((folder / "summary.json").read_text())["metrics"]["test"]["acc"]["mean"])


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % t-interval."""
    found = paired_interval(values)
    return f"{found.mean:+.2f}" + ("" if found.n < 2 else f" [{found.low:+.2f}, {found.high:+.2f}]")


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    return f"{statistics.fmean(values):.2f} ({statistics.stdev(values) if len(values) > 1 else 0:.2f})"


def main() -> None:
    """Run what is not there yet and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=RECIPES)
    parser.add_argument("--mixtures", nargs="+", default=["10:90", "30:70", "linear", "random"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, help="instead of the recipe's")
    parser.add_argument("--check-val-every-n-rounds", type=int, default=0, help="0 for the end only")
    parser.add_argument("--workers", type=int, default=2, help="fits at once")
    parser.add_argument("--out", default="runs/tier_study")
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.judge:
        judge(arguments.task, arguments.judge)
        return
    keys = [(m, arm, seed) for seed in arguments.seeds for m in arguments.mixtures for arm in arguments.arms]
    with ThreadPoolExecutor(arguments.workers) as pool:
        futures = {key: pool.submit(run, arguments.task, *key, arguments) for key in keys}
        folders = {key: future.result() for key, future in futures.items()}
    models = {key: json.loads((folder / "distributions.json").read_text()) for key, folder in folders.items()}
    own = {key: personal(folder) for key, folder in folders.items()}
    print(f"{arguments.task}, seeds {arguments.seeds}, {arguments.rounds or 'all'} rounds; accuracy in percent\n")
    print("| mixture | arm | best model on D_A | best model on D_B | models serve (by seed) | separation | personal |")
    print("|---|---|---|---|---|---|---|")
    for mixture in arguments.mixtures:
        for arm in arguments.arms:
            of_seeds = [models[mixture, arm, seed] for seed in arguments.seeds]
            best = [spread([best_on(of, side) for of in of_seeds]) for side in (0, 1)]
            personals = spread([own[mixture, arm, seed] for seed in arguments.seeds])
            apart = spread([separation(of) for of in of_seeds])
            served = ", ".join(serves(of) for of in of_seeds)
            print(f"| {mixture} | {arm} | {best[0]} | {best[1]} | {served} | {apart} | {personals} |")
    print("\n| mixture | pifl less | personal accuracy | best model on D_A | on D_B |\n|---|---|---|---|---|")
    for mixture in arguments.mixtures:
        for arm in arguments.arms:
            if arm != "pifl" and "pifl" in arguments.arms:
                pairs = [((mixture, "pifl", seed), (mixture, arm, seed)) for seed in arguments.seeds]
                found = [interval([own[one] - own[other] for one, other in pairs])]
                for side in (0, 1):
                    found.append(interval([best_on(models[a], side) - best_on(models[b], side) for a, b in pairs]))
                print(f"| {mixture} | {arm} | {' | '.join(found)} |")


if __name__ == "__main__":
    main()
