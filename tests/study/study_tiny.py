"""A small study whose runs are written by hand."""

import json
from pathlib import Path

import yaml

from lightning_fl.study.cells import make_cells
from lightning_fl.study.study_file import load_study

TINY = {
    "title": "A tiny study",
    "metric": "acc",
    "seeds": [0, 1, 2],
    "arms": {"a": "r.yaml", "b": {"recipe": "r.yaml", "overrides": {"trainer": {"max_rounds": 2}, "x.y": [1, "z"]}}},
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
