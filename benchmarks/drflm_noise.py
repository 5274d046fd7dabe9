"""FedAvg, DRFA and DRFLM on scaffold splits with label noise: average and worst RMSE with standard errors.

    LIGHTNING_FL_DATA=... uv run python benchmarks/drflm_noise.py --out results.jsonl [--seeds 10] [--noise 0 0.5 1]

Every run is a shipped recipe with another seed (split, initial weights, batches and noise all follow it) and, where
asked for, ``LabelNoise`` on half of the clients. The best round by validation RMSE is tested. A line is written per
run, so that an interrupted study goes on where it stopped; the table is printed at the end.
"""

import argparse
import contextlib
import io
import json
import math
import statistics
import tempfile
from pathlib import Path

from lightning_fl.cli import main as lightning_fl


def run(algorithm: str, dataset: str, encoder: str, noise: float, seed: int, configs: list[str]) -> dict[str, float]:
    """Train one recipe and read its summary."""
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
        command = ["fit", "--config", f"{algorithm}_{dataset}", "--seed_everything", str(seed)]
        for config in configs:
            command += ["--config", config]
        command += ["--trainer.default_root_dir", root, "--trainer.logger", "false"]
        command += ["--trainer.enable_progress_bar", "false", "--model.encoder", encoder]
        if noise:
            command += ["--trainer.callbacks+=LabelNoise", f"--trainer.callbacks.std={noise}"]
        status = lightning_fl(command)
        if status:
            raise SystemExit(f"{' '.join(command)} failed with {status}")
        summary = json.loads((Path(root) / "version_0" / "summary.json").read_text())
    test, val = summary["metrics"]["test"]["rmse"], summary["metrics"]["val"]["rmse"]
    return {
        "mean": test["mean"],
        "worst": test["worst"],
        "std": test["std"],
        "last_val_mean": val["mean"],
        "best_val_mean": summary["best_value"],
        "best_round": summary["best_round"],
        "seconds": summary["wall_time_seconds"],
    }


def table(records: list[dict[str, object]]) -> str:
    """Mean and standard error over seeds, as Markdown."""
    lines = ["| noise | algorithm | average RMSE | worst RMSE | seeds |", "|---|---|---|---|---|"]
    groups: dict[tuple[object, object], list[dict[str, object]]] = {}
    for record in records:
        groups.setdefault((record["noise"], record["algorithm"]), []).append(record)
    for (noise, algorithm), rows in sorted(groups.items(), key=str):
        cells = []
        for key in ("mean", "worst"):
            values = [float(row[key]) for row in rows]  # type: ignore[arg-type]
            error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
            cells.append(f"{statistics.fmean(values):.3f} ± {error:.3f}")
        lines.append(f"| {noise} | {algorithm} | {cells[0]} | {cells[1]} | {len(rows)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines, continued if it exists")
    parser.add_argument("--dataset", default="esol")
    parser.add_argument("--encoder", default="gcn")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.5, 1.0], help="standard deviations")
    parser.add_argument("--config", action="append", default=[], help="files that override the recipe's settings")
    parser.add_argument("--algorithms", nargs="+", default=["fedavg", "drfa", "drflm"])
    arguments = parser.parse_args()
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    records = [json.loads(line) for line in lines]
    keys = ("dataset", "encoder", "algorithm", "noise", "seed")
    done = {tuple(record[key] for key in keys) for record in records}
    with arguments.out.open("a") as file:
        for seed in range(arguments.seeds):
            for noise in arguments.noise:
                for algorithm in arguments.algorithms:
                    setting = (arguments.dataset, arguments.encoder, algorithm, noise, seed)
                    if setting in done:
                        continue
                    result = run(algorithm, arguments.dataset, arguments.encoder, noise, seed, arguments.config)
                    records.append({**dict(zip(keys, setting, strict=True)), **result})
                    file.write(json.dumps(records[-1]) + "\n")
                    file.flush()
    print(table(records))


if __name__ == "__main__":
    main()
