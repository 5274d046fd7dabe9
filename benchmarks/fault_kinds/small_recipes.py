"""Recipes that end within a second or two, and the data that they read."""

import random
from pathlib import Path
from typing import Any

import yaml

__all__ = ["RECIPES", "recipe", "write_data", "write_recipe"]

_MOLECULES = [
    *("CCO", "CCCO", "CCN", "CCCCO", "CC(=O)O", "c1ccccc1", "c1ccccc1O", "CCOC", "CNC", "CCCl", "CCBr"),
    *("CC(C)O", "OCCO", "NCCO", "c1ccncc1", "c1ccoc1", "CC#N", "CCS", "C1CCCCC1", "CC(C)C", "CCOCC", "O=C=O"),
]


def write_data(folder: Path) -> None:
    """``a.csv``: molecules of three laboratories; ``t.csv``: a table of three groups."""
    draws = random.Random(0)
    rows = [
        f"{smiles},{len(smiles) / 4 + draws.gauss(0, 0.1):.3f},lab{i % 3}" for i, smiles in enumerate(_MOLECULES * 2)
    ]
    (folder / "a.csv").write_text("smiles,y,lab\n" + "\n".join(rows) + "\n")
    rows = [f"{draws.gauss(i % 2, 1):.3f},{draws.gauss(0, 1):.3f},{'ab'[i % 2]},c{i % 2},g{i % 3}" for i in range(60)]
    (folder / "t.csv").write_text("x1,x2,colour,label,group\n" + "\n".join(rows) + "\n")


def _callback(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": name, "init_args": arguments} if arguments else {"class_path": name}


def _digits(callbacks: list[Any], rounds: int, clients: int, **trainer: Any) -> dict[str, Any]:
    """On scikit-learn's digits, which need no file."""
    return {
        "seed_everything": 0,
        "trainer": {
            "strategy": "fedavg",
            "callbacks": [*callbacks, _callback("ModelCheckpoint", every_n_rounds=3)],
            "max_rounds": rounds,
            "local_epochs": 1,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "default_root_dir": "runs",
            **trainer,
        },
        "model": {
            "class_path": "ClassificationModel",
            "init_args": {
                "network": "mlp",
                "in_shape": [1, 8, 8],
                "num_classes": 10,
                "hidden_sizes": [16],
                "learning_rate": 0.05,
            },
        },
        "data": {
            "class_path": "ImageData",
            "init_args": {
                "name": "digits",
                "source": "real",
                "partitioner": {"class_path": "Dirichlet", "init_args": {"num_clients": clients, "alpha": 1.0}},
                "split": [0.6, 0.2, 0.2],
                "batch_size": 32,
            },
        },
    }


def _molecules(callbacks: list[Any], rounds: int, **trainer: Any) -> dict[str, Any]:
    """On the molecules of ``a.csv``."""
    result = _digits(callbacks, rounds, 3, **trainer)
    result["model"] = {
        "class_path": "MoleculeModel",
        "init_args": {"hidden_dim": 8, "num_layers": 2, "learning_rate": 0.01},
    }
    result["data"] = {
        "class_path": "MoleculeCSV",
        "init_args": {"path": "a.csv", "target_columns": ["y"], "group_column": "lab", "batch_size": 4},
    }
    return result


def _table(callbacks: list[Any], rounds: int) -> dict[str, Any]:
    """On the rows of ``t.csv``."""
    result = _digits(callbacks, rounds, 3)
    result["model"]["init_args"] |= {"in_shape": [4], "num_classes": 2, "hidden_sizes": [8]}
    result["data"] = {
        "class_path": "TableData",
        "init_args": {
            "path": "t.csv",
            "target": "label",
            "drop": ["group"],
            "partitioner": {"class_path": "GroupBy", "init_args": {"column": "group"}},
            "split": [0.6, 0.2, 0.2],
            "batch_size": 8,
        },
    }
    return result


def _coalitions() -> dict[str, Any]:
    callbacks = [
        _callback("HCCT", relative_trade_off=0.3, every_n_rounds=2),
        *map(_callback, ("LocalReference", "CoalitionFigure", "GainFigure", "LearningCurves")),
    ]
    return _digits(callbacks, 10, 4)


def _tiers() -> dict[str, Any]:
    bidding = _callback("TierBidding", num_tiers=2, num_best=2, threshold=0.3, monitor="val/acc", num_samples=16)
    callbacks = [bidding, _callback("ShapleyRewards", num_samples=16), _callback("TierFigures")]
    return _digits(callbacks, 10, 5)


RECIPES = {
    "fedavg": lambda: _digits([], 12, 4),
    "drflm": lambda: _molecules(
        [
            _callback("DROClientSampling", step_size=0.05),
            _callback("LocalMixup", alpha=0.2, layer="readout"),
            *map(_callback, ("CollaborationFigure", "ParityFigure", "SamplingWeightsFigure")),
        ],
        14,
        local_epochs=None,
        local_steps=3,
    ),
    "coalitions": _coalitions,
    "tiers": _tiers,
    "stacked": lambda: _digits([_callback("UniformSampling", cohort_size=5)], 12, 7, stacked_clients=3),
    "steps": lambda: _digits([], 10, 3, log_every_n_steps=1, check_val_every_n_rounds=2),
    "table": lambda: _table([_callback("FineTuning", steps=2)], 6),
}


def recipe(name: str) -> dict[str, Any]:
    """A recipe as YAML reads it."""
    return RECIPES[name]()


def write_recipe(content: Any, path: Path) -> None:
    """Write it in the order that it has."""
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
