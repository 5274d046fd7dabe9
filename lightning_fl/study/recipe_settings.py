"""What recipes set, and which runs are one row of a comparison: the same recipe with different seeds.

Labels come from the recipes too: the algorithm, and what tells rows of one algorithm apart.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_fl.study.finished_run import WATCHING, FinishedRun

__all__ = ["group_runs", "recipe_differences", "recipe_lines", "recipe_settings"]

#: Keys that change no result: where the run goes and what is shown meanwhile; the seed; the list of callbacks where it
#: has no entries.
_WITHOUT_EFFECT = frozenset(
    {
        *("seed_everything", "ckpt_path", "config", "trainer.seed", "trainer.default_root_dir", "trainer.logger"),
        *("trainer.enable_progress_bar", "trainer.log_per_client", "trainer.log_every_n_steps", "trainer.devices"),
        *("trainer.num_nodes", "trainer.num_threads", "trainer.callbacks", "trainer.profile"),
        "trainer.processes_per_device",
    }
)
#: Differing settings named in a label; more only where it takes them to tell rows apart.
_MOST_WORDS = 3


def recipe_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a resolved recipe that can change a result, by their path, as JSON.

    ``init_args`` is left out of a path, a class stands under its owner's path, an entry of a list of classes under its
    class's name: ``model``, ``model.hidden_dim``, ``trainer.callbacks.LocalMixup.alpha``. A list of plain values is
    one setting. Callbacks that only watch a run are left out.

    Args:
        config: of :class:`~lightning_fl.study.finished_run.FinishedRun`; empty gives no settings.
    """
    found: dict[str, str] = {}
    _collect(config, "", found)
    return {path: text for path, text in found.items() if path not in _WITHOUT_EFFECT}


def group_runs(runs: Sequence[tuple[str | None, FinishedRun]]) -> dict[str, list[FinishedRun]]:
    """Runs as rows: those that differ in the seed only are one.

    Args:
        runs: each with its label, or ``None``. Runs of one label are one row. A run without label that has no
            ``config.yaml`` (it was started from Python) is a row of its own: whether it has another's settings is not
            known.

    Returns:
        Label -> runs ordered by seed; rows in the order of their first runs.
    """
    rows: dict[tuple[str, ...], list[FinishedRun]] = {}
    for label, run in runs:
        if label is not None:
            key: tuple[str, ...] = ("label", label)
        elif run.config:
            settings = recipe_settings(run.config)
            key = ("recipe", run.algorithm, json.dumps(settings, sort_keys=True))
        else:
            key = ("folder", str(run.folder))
        rows.setdefault(key, []).append(run)
    labels = _labels(rows)
    return {labels[key]: sorted(found, key=lambda run: run.seed) for key, found in rows.items()}


def recipe_lines(groups: Mapping[str, Sequence[FinishedRun]]) -> list[str]:
    """Settings that several rows have, with different values that their labels do not tell.

    Args:
        groups: label -> runs.

    Returns:
        A line per setting: "trainer.max_rounds: 5 (FedAvg, FedProx), 10 (FedCollab)".
    """
    lines = []
    for name, values in recipe_differences(groups).items():
        labels: dict[str, list[str]] = {}
        for label, value in values.items():
            if value is not None:
                labels.setdefault(_plain(value), []).append(label)
        short = name.rpartition(".")[2]
        told = all(f"{short}={value}" in label.split() for value, found in labels.items() for label in found)
        if len(labels) > 1 and not told:
            texts = [f"{value} ({_few(of_value)})" for value, of_value in labels.items()]
            lines.append(f"{name}: {', '.join(texts)}")
    return lines


def recipe_differences(groups: Mapping[str, Sequence[FinishedRun]]) -> dict[str, dict[str, str | None]]:
    """In what the rows' recipes differ: setting -> label -> value as JSON, ``None`` where it is not set.

    Rows whose runs have no recipe are left out.

    Args:
        groups: label -> runs.
    """
    settings = {label: recipe_settings(runs[0].config) for label, runs in groups.items() if runs[0].config}
    names = dict.fromkeys(name for of_row in settings.values() for name in of_row)
    table = {name: {label: of_row.get(name) for label, of_row in settings.items()} for name in names}
    return {name: values for name, values in table.items() if len(set(values.values())) > 1}


def _collect(value: object, path: str, found: dict[str, str]) -> None:
    if isinstance(value, Mapping):
        if isinstance(value.get("class_path"), str):
            found[path] = json.dumps(_class_name(value))
            value = {**(value.get("init_args") or {}), **(value.get("dict_kwargs") or {})}
        for key, item in value.items():
            _collect(item, f"{path}.{key}" if path else str(key), found)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        names: list[str] = []
        for number, item in enumerate(value):
            name = _class_name(item) if isinstance(item, Mapping) and "class_path" in item else str(number)
            if name.endswith(WATCHING):
                continue
            names.append(name)
            again = f"[{names.count(name)}]" if names.count(name) > 1 else ""
            _collect(item, f"{path}.{name}{again}", found)
    else:
        found[path] = json.dumps(value, ensure_ascii=False, default=str)


def _class_name(entry: Mapping[str, Any]) -> str:
    return str(entry["class_path"]).rpartition(".")[2]


def _labels(rows: Mapping[tuple[str, ...], Sequence[FinishedRun]]) -> dict[tuple[str, ...], str]:
    """A label for every row, all different."""
    labels = {key: key[1] for key in rows if key[0] == "label"}
    by_algorithm: dict[str, list[tuple[str, ...]]] = {}
    for key, runs in rows.items():
        if key[0] != "label":
            by_algorithm.setdefault(runs[0].algorithm, []).append(key)
    for algorithm, keys in by_algorithm.items():
        found = {"\0".join(key): rows[key] for key in keys}
        words = _words(recipe_differences(found)) if len(keys) > 1 else {}
        for key in keys:
            parts = [algorithm, *words.get("\0".join(key), [])]
            labels[key] = _unused(" ".join(parts), rows[key][0], set(labels.values()))
    return {key: labels[key] for key in rows}


def _words(differences: Mapping[str, Mapping[str, str | None]]) -> dict[str, list[str]]:
    """Row -> ``name=value`` of a few settings that tell the rows apart."""
    last = [name.rpartition(".")[2] for name in differences]
    words: dict[str, list[str]] = {}
    told: dict[str, tuple[str | None, ...]] = {}
    for count, (name, values) in enumerate(differences.items()):
        further = {row: (*told.get(row, ()), value) for row, value in values.items()}
        if count >= _MOST_WORDS and len(set(further.values())) == len(set(told.values())):
            continue
        told = further
        short = name.rpartition(".")[2] if last.count(name.rpartition(".")[2]) == 1 else name
        for row, value in values.items():
            if value is not None:
                words.setdefault(row, []).append(f"{short}={_plain(value)}")
    return words


def _few(labels: Sequence[str]) -> str:
    if len(labels) <= _MOST_WORDS:
        return ", ".join(labels)
    return f"{labels[0]} and {len(labels) - 1} more rows"


def _plain(text: str) -> str:
    value = json.loads(text)
    return value if isinstance(value, str) else text.replace(" ", "")


def _unused(label: str, run: FinishedRun, taken: set[str]) -> str:
    """The label, or where another row has it, the label with the run's folder."""
    if label not in taken:
        return label
    return f"{label} ({run.folder})"
