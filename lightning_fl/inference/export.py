"""A finished run's model as a folder for the Hugging Face Hub: weights, settings and a card written from the record.

The folder is a run to the commands that take one (``lightning-fl predict FOLDER new.csv``). Nothing is sent anywhere:
``hf upload USER/NAME FOLDER`` is for whoever has looked through it.
"""

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import markdown, markdown_code
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.inference.models import choose_models
from lightning_fl.inference.personalization import load_model_checkpoint
from lightning_fl.inference.trained_run import TrainedRun
from lightning_fl.version import __version__

__all__ = ["export_run", "model_card"]

#: Settings of the trainer that say where and how it was run, not what.
_OF_THE_MACHINE = ("default_root_dir", "logger", "devices", "num_nodes", "enable_progress_bar", "processes_per_device")
#: What the Hub calls the task, by the data module.
_TASKS = {
    **dict.fromkeys(("MoleculeNet", "MoleculeCSV"), "graph-ml"),
    **dict.fromkeys(("ImageData", "ImageFolders", "ImageDomains"), "image-classification"),
}


def export_run(run: TrainedRun, folder: Path, *, model: str | None = None) -> list[str]:
    """Write a run's model into a new folder; nothing, or all of it.

    ``models/NAME.ckpt`` is the run's own file, ``model.safetensors`` the same weights where safetensors is installed,
    ``config.yaml`` the recipe without what is the machine's, ``summary.json`` the record, ``README.md`` the card.

    Args:
        run: a finished run.
        folder: that is made, or empty.
        model: which of its models, as ``--model`` of ``lightning-fl predict``; default the shared one.

    Returns:
        The files, by their names in the folder.

    Raises:
        ConfigurationError: the folder holds something or cannot be written, or the model is none or several.
        CheckpointError: the model's file is damaged.
    """
    chosen = choose_models(run, model)
    if len(chosen) > 1:
        raise ConfigurationError(f"--model {model}: an export is of one model, not of {len(chosen)}: name one.")
    ((name, path),) = chosen.items()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is there already and not empty: name a new folder with --to-folder.")
    weights = load_model_checkpoint(path)["state_dict"]
    files = {
        "README.md": model_card(run, name),
        "config.yaml": f"# lightning-fl {__version__}\n{dump_yaml(_recipe(run.recipe))}",
        "summary.json": json.dumps({**_without_places(run.summary), "num_models": 1}, indent=2) + "\n",
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            made = Path(scratch) / "export"
            (made / "models").mkdir(parents=True)
            for file, text in files.items():
                (made / file).write_text(text, encoding="utf-8")
            # A run has a shared model; a client's that is exported alone stands for it.
            shutil.copyfile(path, made / "models" / "shared_0.ckpt")
            if importlib.util.find_spec("safetensors") is not None:
                from safetensors.torch import save_file

                whole = {key: value.detach().clone().contiguous() for key, value in weights.items()}
                save_file(whole, made / "model.safetensors", metadata={"format": "pt"})
            if folder.exists():
                folder.rmdir()
            made.rename(folder)
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be written: {error}. Name another folder with --to-folder."
        ) from error
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe without what is the machine's."""
    kept = {key: value for key, value in recipe.items() if key not in ("config", "ckpt_path")}
    trainer = {key: value for key, value in (recipe.get("trainer") or {}).items() if key not in _OF_THE_MACHINE}
    found = _without_places({**kept, "trainer": trainer})
    assert isinstance(found, dict)
    return found


def _without_places(value: Any) -> Any:
    """The same with files named by their names alone, wherever on this machine they lie."""
    if isinstance(value, Mapping):
        return {key: _without_places(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_places(item) for item in value]
    if isinstance(value, str) and len(Path(value).parts) > 2 and Path(value).is_absolute():
        return Path(value).name
    return value


def model_card(run: TrainedRun, model: str) -> str:
    """The card: what the model is, what it reaches at each client, how it was trained, how to load it.

    Args:
        run: the run.
        model: ``shared_K`` or a client's name.
    """
    summary, recipe = run.summary, run.recipe
    data = summary["data"]
    class_path = str(recipe["model"]["class_path"])
    dataset = str(data.get("title") or data.get("name") or _short(recipe["data"]))
    title = f"{_short(recipe['model'])} on {dataset}"
    parts = [
        f"---\n{dump_yaml(_metadata(run, dataset, title))}---\n",
        f"# {markdown(title)}\n",
        _about(run, model),
        "## Results\n",
        _results(summary, model),
        "## Data\n",
        _bullets(_data_lines(data, summary)),
        "## Training\n",
        _bullets(_training_lines(run)),
        "<details><summary>The recipe</summary>\n",
        f"{markdown_code(dump_yaml(_recipe(recipe)), 'yaml')}\n</details>\n",
        "## How to use\n",
        _usage(class_path),
    ]
    return "\n".join(parts)


def _metadata(run: TrainedRun, dataset: str, title: str) -> dict[str, Any]:
    """The header of the card, in the Hub's words."""
    summary = run.summary
    task = _TASKS.get(_short(run.recipe["data"]))
    tags = ["federated-learning", "lightning", "pytorch", str(summary["strategy"]).lower()]
    found: dict[str, Any] = {"library_name": "lightning-fl", "tags": tags}
    metrics = summary.get("metrics", {}).get("test", {})
    if task:
        found["pipeline_tag"] = task
    if task and metrics:
        results = [
            {"type": name, "value": record["mean"], "name": f"{name}, mean of the clients"}
            for name, record in metrics.items()
            if record["mean"] is not None and not name.startswith("local/")  # of models that clients trained alone
        ]
        source = {"type": str(summary["data"].get("name", "own")), "name": dataset, "split": "test"}
        found["model-index"] = [
            {"name": title, "results": [{"task": {"type": task}, "dataset": source, "metrics": results}]}
        ]
    return found


def _about(run: TrainedRun, model: str) -> str:
    summary = run.summary
    whose = "the shared model" if model.startswith("shared_") else f"the model of the client {_cell(model)}"
    lines = [
        f"This is {whose} of a federated run: {summary['num_clients']} clients trained it together by"
        f" {markdown(summary['strategy'])} in {summary['rounds']} rounds, without their data leaving them, with"
        f" lightning-fl {summary['versions']['lightning-fl']}."
    ]
    if summary["data_source"] == "stand-in":
        lines.append(f"\n**{STAND_IN_LABEL}** The numbers below say nothing of measured data.")
    if summary.get("interrupted"):
        lines.append("\nThe run was interrupted before its last round.")
    return "\n".join(lines) + "\n"


def _results(summary: Mapping[str, Any], model: str) -> str:
    """A table of the last metrics: a row for each client, then their mean and the worst."""
    metrics = summary.get("metrics", {})
    split = next((split for split in ("test", "val", "train") if metrics.get(split)), None)
    if split is None:
        return "Nothing was evaluated.\n"
    records = metrics[split]
    words = {"test": "test", "val": "validation", "train": "training"}
    said = f"On each client's own {words[split]} data, with {markdown(summary['evaluated'])}. "
    said += "; ".join(
        f"{markdown(name)}: {'higher' if of['higher_is_better'] else 'lower'} is better" for name, of in records.items()
    )
    names = summary["client_names"]
    if not model.startswith("shared_"):
        names = [name for name in names if name == model]
    rows = [[_cell(name), *(_cell(of["clients"].get(name)) for of in records.values())] for name in names]
    if len(names) > 1:
        rows += [[f"**{part}**", *(_cell(of[part]) for of in records.values())] for part in ("mean", "worst")]
    return f"{said}.\n\n{_table(['client', *records], rows)}"


def _data_lines(data: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    sizes = data.get("client_sizes", {})
    totals = ", ".join(f"{sum(of)} {split}" for split, of in sizes.items() if of)
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


def _training_lines(run: TrainedRun) -> dict[str, Any]:
    trainer, summary = run.recipe.get("trainer") or {}, run.summary
    exchanged = summary.get("communication", {}).get("bytes_sent")
    shown = [name for name in summary.get("callbacks", []) if name not in ("SaveConfig", "ProgressDisplay")]
    return {
        "Strategy": summary["strategy"],
        "Callbacks": ", ".join(shown) or None,
        "Rounds": f"{summary['rounds']}, best {summary['best_round']}"
        if summary.get("best_round")
        else summary["rounds"],
        "Local work per round": f"{trainer['local_steps']} steps"
        if trainer.get("local_steps")
        else f"{trainer.get('local_epochs') or 1} epoch(s)",
        "Seed": summary["seed"],
        "Sent by all clients": None if exchanged is None else f"{exchanged / 1e6:.3g} MB",
        "Versions": ", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
    }


def _usage(class_path: str) -> str:
    module, _, name = class_path.rpartition(".")
    return f"""```bash
pip install lightning-fl
hf download USER/NAME --local-dir model
lightning-fl predict model new.csv --out predicted.csv   # new samples of the kind it was trained on
```

```python
from {module} import {name}

model = {name}.load_from_checkpoint("model/models/shared_0.ckpt", map_location="cpu").eval()
```

Where there is a `model.safetensors`, it holds the same weights, for `model.load_state_dict`.
"""


def _short(part: Mapping[str, Any]) -> str:
    return str(part["class_path"]).rpartition(".")[2]


def _bullets(lines: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: {_cell(value)}" for name, value in lines.items() if value is not None) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[_cell(name) for name in header], ["---", *(["---:"] * (len(header) - 1))]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *rows]) + "\n"


def _cell(value: Any) -> str:
    """A value in a table or a line of Markdown."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else markdown(value)
