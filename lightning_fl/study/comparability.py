"""Check that finished runs are comparable: same data, clients, partition and split.

Runs with the same seed must agree in everything recorded about the data. Between seeds, what depends on the seed
(partition, split, statistics of training samples) may differ, provided that the seeds of partition and split differ by
as much as those of the runs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.recipe_settings import recipe_settings

#: Recorded fields that do not identify the data.
_DESCRIPTIVE = frozenset({"title", "licence", "citation", "note", "verified", "duplicates"})
#: Fields that depend on the seed of partition and split.
_FROM_SEED = frozenset({"client_sizes", "num_samples", "shares_of_a"})
#: Parts of fields that are computed from training samples and so depend on it as well.
_STATISTICS = frozenset({"mean", "std"})
_MAX_LENGTH = 40

#: A field and its values in two runs.
_Difference = tuple[str, Any, Any]


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
                key = (str(other.folder), field, *_shorten(ours, theirs))
                found.setdefault(key, []).append(str(run.folder))
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
    apart = other.seed - run.seed
    follow = {field for field in fields if other.data.get(field) == run.data[field] + apart}
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
