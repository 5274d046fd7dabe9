"""Kinds of data that one client may have: recognise and check them."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import AnyDataModule
from lightning_fl.data.graphs import is_graph
from lightning_fl.data.loaders import as_loader, holds_several, is_dataset, is_loader
from lightning_fl.data.module import SPLIT_NAMES, FederatedDataModule

__all__ = ["are_silos", "check_silo", "has_dataset", "is_splits"]


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


def has_dataset(silo: Any) -> bool:
    """Whether a client has a data set to be batched."""
    if isinstance(silo, AnyDataModule):
        return False
    if isinstance(silo, Mapping):
        return any(map(has_dataset, silo.values()))
    if holds_several(silo):
        return any(map(has_dataset, silo))
    return is_dataset(silo)


def check_silo(name: str, silo: Any) -> None:
    """Refuse anything that cannot be one client's data."""
    if isinstance(silo, FederatedDataModule):
        raise ConfigurationError(
            f"{name}: {type(silo).__name__} has clients itself: give ordinary data modules, one per client."
        )
    if isinstance(silo, AnyDataModule):
        return
    by_split = ", such as {'train': ..., 'val': ..., 'test': ...}"
    if isinstance(silo, Mapping):
        if not is_splits(silo):
            raise ConfigurationError(
                f"{name}: the data are a dict of {', '.join(map(str, silo)) or 'nothing'}: give a dict by"
                f" split{by_split}."
            )
        for split, data in silo.items():
            _check_data(f"{name}: the {split} data are", data)
    elif holds_several(silo):
        raise ConfigurationError(
            f"{name}: the data are a {type(silo).__name__} of {len(silo)} loaders or data sets: give a dict{by_split};"
            " a split may have a list of several."
        )
    else:
        _check_data(f"{name}: the data are", silo)


def _check_data(source: str, data: Any) -> None:
    """Refuse anything but a loader, a data set, or several of these."""
    if data is None or holds_several(data) or is_dataset(data):
        return
    if not is_loader(data):
        raise ConfigurationError(
            f"{source} a {type(data).__name__}: give a LightningDataModule, a DataLoader or another iterable of"
            " batches, or a data set."
        )
    as_loader(data, "train", source)
