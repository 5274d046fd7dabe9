"""Kinds of data that one client may have, recognised and converted to one form."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import AnyDataModule
from lightning_fl.data.graphs import is_graph
from lightning_fl.data.loaders import as_loader, holds_several, is_dataset, is_loader
from lightning_fl.data.module import SPLIT_NAMES, FederatedDataModule, Split

__all__ = ["are_silos", "as_silo", "is_splits"]


def is_splits(value: object) -> bool:
    """Whether a value is a dict of loaders or data sets by split, such as ``{"train": ..., "val": ...}``."""
    return isinstance(value, Mapping) and "train" in value and all(key in SPLIT_NAMES for key in value)


def are_silos(data: Sequence[Any]) -> bool:
    """Whether a list holds silos rather than samples.

    Raises:
        ConfigurationError: both are possible.
    """

    def is_silo(part: Any) -> bool:
        given = isinstance(part, AnyDataModule | Dataset) or is_loader(part)
        # Others with samples by number, such as those of Hugging Face; not arrays, which may be samples.
        own = is_dataset(part) and not isinstance(part, list | tuple) and not hasattr(part, "ndim")
        return given or own or (is_splits(part) and all(_holds_data(value) for value in part.values()))

    found = [is_silo(part) for part in data]
    if any(found) and not all(found):
        kinds = sorted({type(part).__name__ for part in data})
        raise ConfigurationError(
            f"data is a list of {', '.join(kinds)}: give one data module, loader or data set per silo, or only samples."
        )
    if found and not found[0] and all(isinstance(part, list) for part in data):
        inner = [sample for part in data for sample in part]
        if inner and all(is_graph(sample) or isinstance(sample, tuple | dict) for sample in inner):
            return True
        raise ConfigurationError(
            "data is a list of lists, either samples or silos: give samples as tuples, or silos by name, such as"
            " {'north': [...], 'south': [...]}."
        )
    return bool(found) and found[0]


def _holds_data(value: Any) -> bool:
    return is_loader(value) or is_dataset(value) or holds_several(value)


def as_silo(name: str, given: Any) -> AnyDataModule | dict[Split, Any]:
    """Convert one client's data to a data module, or a dict of loaders and data sets by split.

    A split's data are a data set, a loader, several of these in a list or dict, or ``None``.

    Args:
        name: name of the client, for messages.
        given: a data module, a loader, a data set, or a dict of the latter two by split.

    Raises:
        ConfigurationError: it is something else.
    """
    if isinstance(given, FederatedDataModule):
        raise ConfigurationError(
            f"{name}: {type(given).__name__} has clients itself: give ordinary data modules, one per client."
        )
    if isinstance(given, AnyDataModule):
        return given
    by_split = ", such as {'train': ..., 'val': ..., 'test': ...}"
    if isinstance(given, Mapping) and not is_splits(given):
        names = ", ".join(map(str, given)) or "nothing"
        raise ConfigurationError(f"{name}: the data are a dict of {names}: give a dict by split{by_split}.")
    if not isinstance(given, Mapping) and holds_several(given):
        raise ConfigurationError(
            f"{name}: the data are a {type(given).__name__} of {len(given)} loaders or data sets: give a"
            f" dict{by_split}; a split may have a list of several."
        )
    by_name = given if isinstance(given, Mapping) else {"train": given}
    return {SPLIT_NAMES[key]: _as_data(name, SPLIT_NAMES[key], data) for key, data in by_name.items()}


def _as_data(name: str, split: Split, data: Any) -> Any:
    if data is None or holds_several(data) or is_dataset(data):
        return data
    source = f"{name}: the {split} data are"
    if is_loader(data):
        return as_loader(data, split, source)
    raise ConfigurationError(
        f"{source} a {type(data).__name__}: give a LightningDataModule, a DataLoader or another iterable of batches,"
        " or a data set."
    )
