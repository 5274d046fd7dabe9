"""``splits.json`` of a run: the rows that every client trained, validated and tested on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_fl.core.errors import DataError
from lightning_fl.data.module import SPLITS, FederatedDataModule, Split

_FORMAT = 1


@dataclass(frozen=True)
class SplitFile:
    """Content of ``splits.json``: for every client, the numbers of its samples in each split.

    They are row numbers as in a spreadsheet (``by_rows``) or sample numbers from 0. ``sums`` are SHA-256 sums of the
    data files, ``parts`` the part of the data that each split's samples belong to.
    """

    place: Path
    by_rows: bool
    sums: frozenset[str]
    parts: Mapping[Split, Split]
    names: list[str]
    clients: list[dict[Split, list[int]]]


def split_file_text(data: FederatedDataModule, clients: Sequence[int]) -> str | None:
    """JSON text with the splits of some clients, a line for each split; ``None`` if the data have no numbers."""
    names, lines = data.client_names(), []
    for client in clients:
        rows = data.held_rows(client)
        if rows is None:
            return None
        parts = ",\n".join(f'   "{split}": {json.dumps(list(rows[split]))}' for split in SPLITS)
        lines.append(f'  {{"name": {json.dumps(names[client])},\n{parts}}}')
    about = json.dumps({"format": _FORMAT, **data.held_source()}, indent=1)
    return about[:-2] + ',\n "clients": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def read_split_file(path: Path) -> SplitFile:
    """Read and check ``splits.json``, with ``DataError`` if that is not possible."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}. Give the splits.json of a run.") from error
    try:
        if content["format"] != _FORMAT:
            raise DataError(
                f"{path} has format {content['format']!r}, this version reads {_FORMAT}: use the version that wrote it."
            )
        clients = [{split: _numbers(entry[split]) for split in SPLITS} for entry in content["clients"]]
        parts: dict[Split, Split] = {split: content["parts"][split] for split in SPLITS}
        if not clients or not set(parts.values()) <= set(SPLITS):
            raise ValueError("no clients, or no parts")
        return SplitFile(
            place=path,
            by_rows={"rows": True, "samples from 0": False}[content["numbering"]],
            sums=sums_of(content["files"]),
            parts=parts,
            names=[str(entry["name"]) for entry in content["clients"]],
            clients=clients,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is not the splits.json of a run, or is damaged ({error}): check the file.") from error


def sums_of(files: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The known SHA-256 sums of files."""
    found = [file.get("sha256") for file in files]
    every = [list(entry.values()) if isinstance(entry, Mapping) else [entry] for entry in found]
    return frozenset(entry for some in every for entry in some if isinstance(entry, str))


def _numbers(values: object) -> list[int]:
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError("must be numbers of samples")
    if len(set(values)) < len(values):
        raise ValueError("a sample is twice in one part")
    return values
