"""Export of a run's model for the Hugging Face Hub: weights, settings and a model card.

The folder can be used like a run (``lightning-fl predict FOLDER new.csv``). Nothing is uploaded; that is what
``hf upload USER/NAME FOLDER`` does.
"""

import importlib.util
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import markdown_code, markdown_environment
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.inference.models import choose_models
from lightning_fl.inference.trained_run import TrainedRun
from lightning_fl.recipe.file import class_name
from lightning_fl.runtime.calibration_file import read_calibration, write_calibration
from lightning_fl.runtime.model_file import load_model_checkpoint
from lightning_fl.study.finished_run import ONLY_SHOW
from lightning_fl.version import __version__

#: Trainer settings that depend on the machine.
_MACHINE_SETTINGS = frozenset(
    {"default_root_dir", "logger", "devices", "num_nodes", "enable_progress_bar", "processes_per_device"}
)
#: Data module -> task name on the Hub.
_TASKS = {
    **dict.fromkeys(("MoleculeNet", "MoleculeCSV"), "graph-ml"),
    **dict.fromkeys(("ImageData", "ImageFolders", "ImageDomains"), "image-classification"),
}


def export_run(run: TrainedRun, folder: Path, *, model: str | None = None) -> list[str]:
    """Write a run's model into a new folder, atomically.

    ``models/shared_0.ckpt`` is the model's file, ``model.safetensors`` the same weights (if safetensors is installed),
    ``config.yaml`` the recipe without machine settings, ``summary.json`` the record, ``README.md`` the card. ``model``
    is that of ``lightning-fl predict --model``. Returns the names of the files.

    Raises:
        ConfigurationError: the folder is not empty or cannot be written, or ``model`` does not select one model.
        CheckpointError: the model's file is damaged.
    """
    chosen = choose_models(run, model)
    if len(chosen) > 1:
        raise ConfigurationError(f"--model {model} selects {len(chosen)} models: choose one.")
    ((name, path),) = chosen.items()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is not empty: choose a new folder with --to-folder.")
    weights = load_model_checkpoint(path)["state_dict"]
    original = run.summary.get("exported", name)
    summary = _strip_folders(run.summary) | {"num_models": 1, "exported": original}
    data, named = run.summary["data"], ("classes", "columns", "encoding", "target", "target_names")  # are no paths
    summary["data"] |= {key: data[key] for key in named if key in data}
    texts = {
        "README.md": model_card(run, original),
        "config.yaml": f"# lightning-fl {__version__}\n{dump_yaml(_recipe(run.recipe))}",
        "summary.json": json.dumps(summary, indent=2) + "\n",
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            made = Path(scratch) / "export"
            (made / "models").mkdir(parents=True)
            for file, text in texts.items():
                (made / file).write_text(text, encoding="utf-8")
            # A run needs a shared model, so a client's model takes its place.
            shutil.copyfile(path, made / "models" / "shared_0.ckpt")
            known = path.stem if path.parent.name == "models" else name
            if known in (calibrations := read_calibration(run.folder) or {}):
                write_calibration(made, {"shared_0": calibrations[known]})
            if importlib.util.find_spec("safetensors") is not None:
                from safetensors.torch import save_file

                whole = {key: value.detach().clone().contiguous() for key, value in weights.items()}
                save_file(whole, made / "model.safetensors", metadata={"format": "pt"})
            if folder.exists():
                folder.rmdir()
            made.rename(folder)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error}; choose another --to-folder.") from error
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in recipe.items() if key not in ("config", "ckpt_path")}
    trainer = {key: value for key, value in (recipe.get("trainer") or {}).items() if key not in _MACHINE_SETTINGS}
    return {key: _strip_folders(value) for key, value in {**kept, "trainer": trainer}.items()}


def _strip_folders(value: Any) -> Any:
    """Nested values with absolute paths reduced to file names."""
    if isinstance(value, Mapping):
        return {key: _strip_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strip_folders(item) for item in value]
    if isinstance(value, str) and len(Path(value).parts) > 2 and Path(value).is_absolute():
        return Path(value).name
    return value


def model_card(run: TrainedRun, model: str) -> str:
    """Write the model card: results of each client, data, training and use of the model ``shared_K`` or of a client."""
    from markupsafe import Markup

    summary, recipe = run.summary, run.recipe
    data, shared = summary["data"], model.startswith("shared_")
    is_final = not re.fullmatch(r"shared_\d+_round_\d+", model)  # a snapshot was not evaluated
    metrics = summary.get("metrics", {})
    its_own = is_final and shared and summary["evaluated"] == "the shared model"  # not fine-tuned, not a coalition's
    split = next((split for split in ("test", "val", "train") if metrics.get(split)), "")
    dataset = str(data.get("title") or data.get("name") or class_name(recipe["data"]))
    title = f"{class_name(recipe['model'])} on {dataset}"
    module, _, name = str(recipe["model"]["class_path"]).rpartition(".")
    text = files("lightning_fl.inference").joinpath("model_card.md.j2").read_text(encoding="utf-8")
    return (
        markdown_environment()
        .from_string(text)
        .render(
            header=Markup(dump_yaml(_metadata(run, dataset, title, metrics if its_own else {}))),
            title=title,
            model=model,
            shared=shared,
            summary={"interrupted": False, **summary},
            stand_in=Markup(STAND_IN_LABEL),
            split={"test": "test", "val": "validation", "train": "training"}.get(split),
            records=metrics.get(split) if is_final else None,
            clients=[client for client in summary["client_names"] if shared or client == model],
            data_facts=_data_facts(data, summary),
            training_facts=_training_facts(run),
            recipe=Markup(markdown_code(dump_yaml(_recipe(recipe)), "yaml")),
            module=Markup(module),
            **{"class": Markup(name)},
        )
    )


def _metadata(run: TrainedRun, dataset: str, title: str, evaluated: Mapping[str, Any]) -> dict[str, Any]:
    summary = run.summary
    task = _TASKS.get(class_name(run.recipe["data"]))
    tags = ["federated-learning", "lightning", "pytorch", str(summary["strategy"]).lower()]
    found: dict[str, Any] = {"library_name": "lightning-fl", "tags": tags}
    metrics = evaluated.get("test", {})
    if task:
        found["pipeline_tag"] = task
    if task and metrics:
        results = [
            {"type": name, "value": record["mean"], "name": f"{name}, mean of the clients"}
            for name, record in metrics.items()
            if record["mean"] is not None and not name.startswith("local/")
        ]
        source = {"type": str(summary["data"].get("name", "own")), "name": dataset, "split": "test"}
        result = {"task": {"type": task}, "dataset": source, "metrics": results}
        found["model-index"] = [{"name": title, "results": [result]}]
    return found


def _data_facts(data: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    totals = ", ".join(f"{sum(of)} {split}" for split, of in data.get("client_sizes", {}).items() if of)
    partitioner = data.get("partitioner")
    return {
        "Data": data.get("title") or data.get("name"),
        "Source": summary["data_source"],
        "Licence of the data": data.get("licence"),
        "Reference": data.get("citation"),
        "Clients": summary["num_clients"],
        "Samples": totals or None,
        "Divided by": partitioner.get("name") if isinstance(partitioner, dict) else partitioner,
    }


def _training_facts(run: TrainedRun) -> dict[str, Any]:
    trainer, summary = run.recipe.get("trainer") or {}, run.summary
    exchanged = summary.get("communication", {}).get("bytes_sent")
    shown = [name for name in summary.get("callbacks", []) if name not in ONLY_SHOW]
    rounds, best, steps = summary["rounds"], summary.get("best_round"), trainer.get("local_steps")
    return {
        "Strategy": summary["strategy"],
        "Callbacks": ", ".join(shown) or None,
        "Rounds": f"{rounds}, best {best}" if best else rounds,
        "Local work per round": f"{steps} steps" if steps else f"{trainer.get('local_epochs') or 1} epoch(s)",
        "Seed": summary["seed"],
        "Sent by all clients": None if exchanged is None else f"{exchanged / 1e6:.3g} MB",
        "Versions": ", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
    }
