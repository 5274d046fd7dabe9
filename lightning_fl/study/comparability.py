"""Whether finished runs may stand in one table: the same data, the same clients, the same partition and split.

Every difference is told in a line; whether it is an error is for others to say. Runs of one seed must agree in all that
the record says of the data. Between seeds, what follows from the seed (partition and split, and statistics of training
samples) may differ, but only where the seeds of partition and split differ exactly as those of the runs do.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.recipe_settings import recipe_settings

__all__ = ["find_differences", "same_data"]

#: What a record says of the data that does not tell which they are.
_DESCRIPTIVE = frozenset({"title", "licence", "citation", "note", "verified", "duplicates"})
#: What follows from the seed of partition and split.
_FROM_SEED = frozenset({"client_sizes", "num_samples", "shares_of_a"})
#: Within a field, what is computed from training samples and so follows from it too.
_STATISTICS = frozenset({"mean", "std"})
_LONGEST = 40

#: A field, and its values in two runs.
_Difference = tuple[str, Any, Any]


def same_data(run: FinishedRun, other: FinishedRun) -> bool:
    """Whether two runs had the same data, clients, partition and split."""
    return not any(_data_differences(run, other, between_seeds=False))


def find_differences(groups: Mapping[str, Sequence[FinishedRun]]) -> list[str]:
    """In what the runs differ so that their figures do not compare, one line each; empty where they do compare.

    Besides data and clients: a run that was interrupted, runs of different recipes in one row, and a row none of whose
    seeds the first row has, where partition and split follow from the seed.

    Args:
        groups: label of a row -> its runs.
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
    if run.clients != other.clients and run.data.get("client_names") == other.data.get("client_names"):
        yield "client_names", run.clients, other.clients


def _following_seed(run: FinishedRun, other: FinishedRun) -> set[str]:
    """The fields that may differ because the seeds of partition and split follow those of the runs."""
    fields = [field for field in run.data if field.endswith("seed") and isinstance(run.data[field], int)]
    apart = other.seed - run.seed
    follow = {field for field in fields if other.data.get(field) == run.data[field] + apart}
    return follow | _FROM_SEED if follow else set()


def _without_statistics(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {key: item for key, item in value.items() if key not in _STATISTICS}


def _recipe_differences(run: FinishedRun, other: FinishedRun, label: str) -> Iterator[_Difference]:
    """Of runs that a user put into one row: it would be a mean over different algorithms."""
    if run.algorithm != other.algorithm:
        yield f"algorithm of row {label!r}", run.algorithm, other.algorithm
    settings, others = recipe_settings(run.config), recipe_settings(other.config)
    for name in dict.fromkeys([*settings, *others]):
        if settings.get(name) != others.get(name):
            ours, theirs = (json.loads(found.get(name, "null")) for found in (settings, others))
            yield f"{name} of row {label!r}", ours, theirs


def _shorten(ours: object, theirs: object) -> tuple[str, str]:
    """Both values in few characters, from where they begin to differ if their beginnings are alike."""
    texts = [json.dumps(value, ensure_ascii=False, default=str) for value in (ours, theirs)]
    if max(map(len, texts)) <= _LONGEST:
        return texts[0], texts[1]
    alike = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = max(alike - 10, 0) if alike > _LONGEST - 10 else 0
    short = [
        ("..." if start else "") + text[start : start + _LONGEST] + ("..." if len(text) > start + _LONGEST else "")
        for text in texts
    ]
    return short[0], short[1]
