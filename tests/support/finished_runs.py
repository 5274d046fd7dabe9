"""Small runs for the commands that use a finished one, and files of new molecules."""

import shutil
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import yaml

from lightning_fl.cli import main

TRAINER = {
    "max_rounds": 2,
    "local_steps": 2,
    "logger": False,
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
}
SMALL = {"class_path": "MoleculeModel", "init_args": {"hidden_dim": 4, "num_layers": 1, "learning_rate": 0.1}}


def fit(model: Any, data: Any, callbacks: Sequence[str] = (), seed: int = 3, root: str = "runs") -> Path:
    """A run's folder, below the working directory."""
    recipe = {"seed_everything": seed, "trainer": TRAINER | {"default_root_dir": root}, "model": model, "data": data}
    recipe["trainer"]["callbacks"] = [{"class_path": name} for name in callbacks]
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["fit", "--config", "recipe.yaml"]) == 0
    return Path(root, "version_0")


def mlp(shape: list[int], num_classes: int) -> dict[str, Any]:
    arguments = {"network": "mlp", "hidden_sizes": [4], "num_classes": num_classes, "in_shape": shape}
    return {"class_path": "ClassificationModel", "init_args": arguments}


def iid(class_path: str, num_clients: int, **arguments: Any) -> dict[str, Any]:
    partitioner = {"class_path": "IID", "init_args": {"num_clients": num_clients}}
    return {"class_path": class_path, "init_args": arguments | {"partitioner": partitioner}}


def write_molecules(path: str, lengths: Sequence[int], header: str = "smiles,activity,lab") -> str:
    rows = [f"{'C' * length}{end},{0.3 * length:.2f},{end}" for length in lengths for end in "ONF"]
    Path(path).write_text("\n".join([header, *rows]) + "\n")
    return path


def molecule_run(kept: Path, folder: Path, *callbacks: str) -> Path:
    """Copy of a run on three clients' molecules, which is made once; its own data are deleted."""
    name = "_".join(["run", *callbacks])
    if not (kept / name).is_dir():
        with chdir(folder):
            data = {"path": write_molecules("run.csv", range(1, 9)), "target_columns": ["activity"]}
            found = fit(SMALL, {"class_path": "MoleculeCSV", "init_args": {**data, "group_column": "lab"}}, callbacks)
            shutil.copytree(found, kept / name)
            shutil.rmtree("runs")
            Path("run.csv").unlink()
    return shutil.copytree(kept / name, folder / "run")
