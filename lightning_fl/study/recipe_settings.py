"""Settings of recipes, and rows of a comparison: runs of the same recipe with different seeds.

A row's label is the algorithm and the settings that distinguish it from other rows of that algorithm.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_fl.recipe.file import flat_settings
from lightning_fl.study.finished_run import ONLY_SHOW, FinishedRun

__all__ = ["group_runs", "recipe_differences", "recipe_lines", "recipe_settings"]

#: Keys that change no result, the seed, and an empty list of callbacks.
_WITHOUT_EFFECT = frozenset(
    {
        *("seed_everything", "ckpt_path", "config", "trainer.seed", "trainer.default_root_dir", "trainer.logger"),
        *("trainer.enable_progress_bar", "trainer.log_per_client", "trainer.log_every_n_steps", "trainer.devices"),
        *("trainer.num_nodes", "trainer.num_threads", "trainer.callbacks", "trainer.profile"),
        "trainer.processes_per_device",
    }
)
#: Differing settings in a label; more only if needed to distinguish rows.
_MAX_SETTINGS = 3


def recipe_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """:func:`~lightning_fl.recipe.file.flat_settings` that can change a result, as JSON."""
    return {
        path: json.dumps(value, ensure_ascii=False, default=str)
        for path, value in flat_settings(config, without=ONLY_SHOW)
        if path not in _WITHOUT_EFFECT
    }


def group_runs(runs: Sequence[tuple[str | None, FinishedRun]]) -> dict[str, list[FinishedRun]]:
    """Group runs that differ in the seed only.

    Args:
        runs: each with its label, or ``None``. Runs with the same label form a row. A run without label and
            ``config.yaml`` (started from Python) is a row of its own, since its settings are unknown.

    Returns:
        Label -> runs ordered by seed; rows in the order of their first runs.
    """
    rows: dict[str, list[FinishedRun]] = {}
    for label, run in runs:
        settings = json.dumps(recipe_settings(run.recipe), sort_keys=True)
        own = "\0".join([run.algorithm, settings if run.recipe else str(run.folder)])
        rows.setdefault(own if label is None else label, []).append(run)
    labels = {key: key for key in rows if "\0" not in key}
    for algorithm in dict.fromkeys(found[0].algorithm for key, found in rows.items() if key not in labels):
        found = {key: rows[key] for key in rows if key.startswith(f"{algorithm}\0")}
        settings_of = _distinguishing(recipe_differences(found)) if len(found) > 1 else {}
        for key, of_row in found.items():
            text = " ".join([algorithm, *settings_of.get(key, [])])
            labels[key] = f"{text} ({of_row[0].folder})" if text in labels.values() else text
    return {labels[key]: sorted(found, key=lambda run: run.seed) for key, found in rows.items()}


def recipe_lines(groups: Mapping[str, Sequence[FinishedRun]]) -> list[str]:
    """Lines on settings that differ and no label has: "trainer.max_rounds: 5 (FedAvg, FedProx), 10 (FedCollab)"."""
    lines = []
    for name, values in recipe_differences(groups).items():
        labels: dict[str, list[str]] = {}
        for label, value in values.items():
            if value is not None:
                labels.setdefault(_value_text(value), []).append(label)
        short = name.rpartition(".")[2]
        in_labels = all(f"{short}={value}" in label.split() for value, found in labels.items() for label in found)
        if len(labels) > 1 and not in_labels:
            texts = [f"{value} ({_short_list(of_value)})" for value, of_value in labels.items()]
            lines.append(f"{name}: {', '.join(texts)}")
    return lines


def recipe_differences(groups: Mapping[str, Sequence[FinishedRun]]) -> dict[str, dict[str, str | None]]:
    """Settings in which the recipes of rows differ: setting -> label -> value as JSON, ``None`` if not set.

    Rows without a recipe are left out.
    """
    settings = {label: recipe_settings(runs[0].recipe) for label, runs in groups.items() if runs[0].recipe}
    names = dict.fromkeys(name for of_row in settings.values() for name in of_row)
    table = {name: {label: of_row.get(name) for label, of_row in settings.items()} for name in names}
    return {name: values for name, values in table.items() if len(set(values.values())) > 1}


def _distinguishing(differences: Mapping[str, Mapping[str, str | None]]) -> dict[str, list[str]]:
    """Row -> ``name=value`` of a few settings that distinguish the rows."""
    last = [name.rpartition(".")[2] for name in differences]
    settings: dict[str, list[str]] = {}
    chosen: dict[str, tuple[str | None, ...]] = {}
    for count, (name, values) in enumerate(differences.items()):
        extended = {row: (*chosen.get(row, ()), value) for row, value in values.items()}
        if count >= _MAX_SETTINGS and len(set(extended.values())) == len(set(chosen.values())):
            continue
        chosen = extended
        short = name.rpartition(".")[2] if last.count(name.rpartition(".")[2]) == 1 else name
        for row, value in values.items():
            if value is not None:
                settings.setdefault(row, []).append(f"{short}={_value_text(value)}")
    return settings


def _short_list(labels: Sequence[str]) -> str:
    if len(labels) <= _MAX_SETTINGS:
        return ", ".join(labels)
    return f"{labels[0]} and {len(labels) - 1} more rows"


def _value_text(text: str) -> str:
    value = json.loads(text)
    return value if isinstance(value, str) else text.replace(" ", "")
