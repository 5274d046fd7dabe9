"""Settings of recipes, rows of a comparison, and whether the rows are comparable.

A row has runs of the same recipe with different seeds. Its label is the algorithm and the settings that distinguish it
from other rows of that algorithm.

Comparable runs have the same data, clients, partition and split. With the same seed they must agree in everything
recorded about the data. Between seeds, what depends on the seed (partition, split, statistics of training samples) may
differ, provided that the seeds of partition and split differ by as much as those of the runs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_fl.recipe.file import flat_settings
from lightning_fl.study.finished_run import ONLY_SHOW, FinishedRun

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
#: Recorded fields that do not identify the data.
_DESCRIPTIVE = frozenset({"title", "licence", "citation", "note", "verified", "duplicates"})
#: Fields that depend on the seed of partition and split.
_FROM_SEED = frozenset({"client_sizes", "num_samples", "shares_of_a"})
#: Parts of fields that are computed from training samples and so depend on it as well.
_STATISTICS = frozenset({"mean", "std"})
_MAX_LENGTH = 40

#: A field and its values in two runs.
_Difference = tuple[str, Any, Any]


def recipe_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """:func:`~lightning_fl.recipe.file.flat_settings` that can change a result, as JSON."""
    return {
        path: json.dumps(value, ensure_ascii=False, default=str)
        for path, value in flat_settings(config, without=ONLY_SHOW)
        if path not in _WITHOUT_EFFECT
    }


def group_runs(runs: Sequence[tuple[str | None, FinishedRun]]) -> dict[str, list[FinishedRun]]:
    """Group runs, each with its label or ``None``: those with the same label, or that differ in the seed only.

    A run without label and ``config.yaml`` (started from Python) is a row of its own, since its settings are unknown.
    Returns label -> runs ordered by seed; rows in the order of their first runs.
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
            texts = []
            for value, rows in labels.items():
                more = f"{rows[0]} and {len(rows) - 1} more rows"
                texts.append(f"{value} ({', '.join(rows) if len(rows) <= _MAX_SETTINGS else more})")
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


def _value_text(text: str) -> str:
    value = json.loads(text)
    return value if isinstance(value, str) else text.replace(" ", "")


def same_data(run: FinishedRun, other: FinishedRun) -> bool:
    """Whether two runs had the same data, clients, partition and split."""
    return not any(_data_differences(run, other, between_seeds=False))


def find_mismatches(groups: Mapping[str, Sequence[FinishedRun]]) -> list[str]:
    """Describe the differences that make runs incomparable, one per line.

    Besides data and clients, these are interrupted runs, different recipes in one row, and a row without a seed of the
    first row if partition and split depend on the seed.
    """
    found: dict[tuple[str, str, str, str], list[str]] = {}
    lines = []
    first_row = {run.seed for runs in list(groups.values())[:1] for run in runs}
    first: FinishedRun | None = None
    first_of_seed: dict[int, FinishedRun] = {}
    for label, runs in groups.items():
        meets = any(run.seed in first_row for run in runs)
        for run in runs:
            first = first or run
            same_seed = first_of_seed.setdefault(run.seed, run)
            like = first if same_seed is run else same_seed
            differences = list(_data_differences(like, run, between_seeds=meets and like.seed != run.seed))
            pairs = [(like, difference) for difference in differences]
            pairs += [(runs[0], difference) for difference in _recipe_differences(runs[0], run, label)]
            for other, (field, ours, theirs) in pairs:
                found.setdefault((str(other.folder), field, *_shorten(ours, theirs)), []).append(str(run.folder))
            if run.interrupted:
                lines.append(f"{run.folder} was interrupted after round {run.rounds}")
    for (folder, field, ours, theirs), others in found.items():
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        lines.append(f"{field} is {ours} in {folder}, {theirs} in {others[0]}{more}")
    return lines


def _data_differences(run: FinishedRun, other: FinishedRun, *, between_seeds: bool) -> Iterator[_Difference]:
    follow = _following_seed(run, other) if between_seeds else set()
    for field in dict.fromkeys([*run.data, *other.data]):
        ours, theirs = run.data.get(field), other.data.get(field)
        if follow:
            ours, theirs = _without_statistics(ours), _without_statistics(theirs)
        if ours != theirs and field not in _DESCRIPTIVE | follow:
            yield f"data.{field}", ours, theirs
    if run.data_source != other.data_source and run.data.get("source") == other.data.get("source"):
        yield "data_source", run.data_source, other.data_source
    if run.client_names != other.client_names and run.data.get("client_names") == other.data.get("client_names"):
        yield "client_names", run.client_names, other.client_names


def _following_seed(run: FinishedRun, other: FinishedRun) -> set[str]:
    """Fields that may differ because the seeds of partition and split follow those of the runs."""
    fields = [field for field in run.data if field.endswith("seed") and isinstance(run.data[field], int)]
    follow = {field for field in fields if other.data.get(field) == run.data[field] + (other.seed - run.seed)}
    return follow | _FROM_SEED if follow else set()


def _without_statistics(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {key: item for key, item in value.items() if key not in _STATISTICS}


def _recipe_differences(run: FinishedRun, other: FinishedRun, label: str) -> Iterator[_Difference]:
    """Differences within a row, which would make its mean one of several algorithms."""
    if run.algorithm != other.algorithm:
        yield f"algorithm of row {label!r}", run.algorithm, other.algorithm
    settings, others = recipe_settings(run.recipe), recipe_settings(other.recipe)
    for name in dict.fromkeys([*settings, *others]):
        if settings.get(name) != others.get(name):
            ours, theirs = (json.loads(found.get(name, "null")) for found in (settings, others))
            yield f"{name} of row {label!r}", ours, theirs


def _shorten(ours: object, theirs: object) -> tuple[str, str]:
    """Both values, shortened to the part where they differ."""
    texts = [json.dumps(value, ensure_ascii=False, default=str) for value in (ours, theirs)]
    if max(map(len, texts)) <= _MAX_LENGTH:
        return texts[0], texts[1]
    alike = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = max(alike - 10, 0) if alike > _MAX_LENGTH - 10 else 0
    end = start + _MAX_LENGTH
    first, second = (f"{'...' if start else ''}{text[start:end]}{'...' if len(text) > end else ''}" for text in texts)
    return first, second
