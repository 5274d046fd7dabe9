"""A small study whose runs are written by hand."""

import json
import math
import statistics
from pathlib import Path

import yaml

from lightning_fl.study.cells import make_cells
from lightning_fl.study.results import StudyResults
from lightning_fl.study.study_file import load_study

TINY = {
    "title": "A tiny study",
    "metric": "acc",
    "seeds": [0, 1, 2],
    "arms": {"a": "r.yaml", "b": {"recipe": "r.yaml", "overrides": {"trainer.max_rounds": 2, "x.y": [1, "z"]}}},
    "grid": {"data": {"left": {}, "right": {"data.name": "other"}}},
}


def write_study(folder: Path, **changes):
    (folder / "r.yaml").write_text("trainer: {max_rounds: 9}\n")
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}, sort_keys=False))
    return load_study(path)


def tiny_cells(folder: Path, **changes):
    study = write_study(folder, **changes)
    return study, make_cells(study, folder / "out")


def finish(cell, mean, *, source="measured", seconds=10.0, version=0, gains=None, **changes):
    """Lay down what a run leaves: metrics of two clients around a mean."""
    cell.prepare()
    clients = {"one": mean - 0.1, "two": mean + 0.1}
    metric = {"mean": mean, "worst": mean - 0.1, "best": mean + 0.1, "std": 0.1, "clients": clients}
    summary = {
        "seed": cell.seed,
        "data_source": source,
        "data": {"source": source},
        "strategy": "FedAvg",
        "callbacks": [],
        "num_clients": 2,
        "client_names": list(clients),
        "rounds": 9,
        "wall_time_seconds": seconds,
        "interrupted": False,
        "metrics": {"test": {"acc": {**metric, "higher_is_better": True}}},
        **({} if gains is None else {"gains_over_local_training": {"test": {"acc": gains}}}),
        **changes,
    }
    run = cell.folder / f"version_{version}"
    run.mkdir()
    (run / "summary.json").write_text(json.dumps(summary))
    return run


CLAIMS = ["mean(b) > mean(a)", "ipr(b, data=left) >= 75 %"]
GAINS = {"mean": 0.2, "worst": 0.0, "rsd": 0.05, "ipr": 0.75, "harmed": 0.25, "clients": dict.fromkeys("wxyz", 0.2)}


def results_of(folder: Path, *, environment=None, **changes) -> StudyResults:
    """Arm a: 0.5, 0.52, 0.54 everywhere; b: more on the left, stand-in and one seed failed on the right."""
    study, cells = tiny_cells(folder, **{"claims": CLAIMS, **changes})
    for cell in cells:
        mean = 0.5 + 0.02 * cell.seed + (0.1 + 0.001 * cell.seed if cell.arm == "b" else 0.0)
        if cell.name == "b, data=right, seed 2":
            cell.prepare()
            cell.record_start(False, "abc")
            cell.log.write_text("error: <b>it broke</b> & fell\n")
            cell.record_end(3.0, 2)
            continue
        source = "stand-in" if cell.name.startswith("b, data=right") else "measured"
        run = finish(cell, mean, source=source, gains=GAINS if cell.arm == "b" else None)
        curve = "\n".join(f"{step},{mean - 0.1 / step}" for step in range(1, 10))
        (run / "metrics.csv").write_text(f"step,val/acc\n{curve}\n")
        cell.record_start(False, "abc")
    return StudyResults.of(study, cells, folder / "out", environment or {"lightning-fl": "1", "cores": 2})


def record(values, higher):
    """A metric as ``summary.json`` has it; values that are not finite are null."""
    numbers = list(values.values())
    finite = all(map(math.isfinite, numbers))
    worst, best = (min, max) if higher else (max, min)
    return {
        "mean": statistics.fmean(numbers) if finite else None,
        "worst": worst(numbers) if finite else None,
        "best": best(numbers) if finite else None,
        "std": statistics.pstdev(numbers) if finite else None,
        "higher_is_better": higher,
        "clients": {client: value if math.isfinite(value) else None for client, value in values.items()},
    }
