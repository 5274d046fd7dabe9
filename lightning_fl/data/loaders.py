"""User loaders: find them in a data module, check them, and rebuild them over a part of their data."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.combined_loader import _SUPPORTED_MODES
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
)

from lightning_fl.core.errors import ConfigurationError, DataError, FederatedError
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.data.graphs import is_graph, is_graph_collater
from lightning_fl.data.module import Split

#: One ``DataLoader``, or any other iterables of batches in Lightning's wrapper.
Loader = DataLoader | CombinedLoader


def is_loader(value: object) -> bool:
    """Whether a value yields ready batches, as opposed to samples (:func:`is_dataset`)."""
    sample = isinstance(value, torch.Tensor | Mapping | str | bytes) or is_graph(value)
    return isinstance(value, Iterable) and not sample and not is_dataset(value)


def is_dataset(value: object) -> bool:
    """Whether a value is a data set: torch's, or an object with a length and samples by number, such as a list."""
    if isinstance(value, DataLoader | CombinedLoader | torch.Tensor | Mapping | str | bytes) or is_graph(value):
        return False
    if isinstance(value, Dataset):  # but not webdataset's ``WebLoader``, a pipeline that starts with a loader
        pipeline = getattr(value, "pipeline", None) if isinstance(value, IterableDataset) else None
        return not (isinstance(pipeline, list) and pipeline and isinstance(pipeline[0], DataLoader))
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


def holds_several(value: object) -> bool:
    """Whether a list, tuple or mapping contains loaders or data sets, not samples."""
    parts = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else []
    return bool(parts) and all(isinstance(part, Dataset) or is_loader(part) or holds_several(part) for part in parts)


def combined(loaders: Any, split: Split) -> CombinedLoader:
    """Combine loaders as in Lightning: in training all at once, restarting short ones; else one after another."""
    return CombinedLoader(loaders, "max_size_cycle" if split == "train" else "sequential")


def combined_size(loader: CombinedLoader, sizes: list[Any]) -> float:
    """Batches or samples in one pass over combined loaders of these sizes; ``None`` is an unknown size."""
    known: list[Any] = [float("inf") if size is None else size for size in sizes]
    return _SUPPORTED_MODES[loader._mode]["fn"](known)


def find_loader(datamodule: LightningDataModule, split: Split) -> Loader | None:
    """The data module's loader of a split, or ``None``. Call its ``setup`` before."""
    hook = f"{split}_dataloader"
    if not is_overridden(hook, datamodule):
        return None
    return as_loader(getattr(datamodule, hook)(), split, f"{type(datamodule).__name__}.{hook}() returned")


def as_loader(given: Any, split: Split, source: str) -> Loader | None:
    """Convert a data module's return value to a loader as Lightning does: a list has several loaders."""
    if isinstance(given, DataLoader):
        return given
    if given is None or (isinstance(given, list | tuple | dict) and not given):
        return None
    if type(given).__name__ == "CombinedLoader" and not isinstance(given, CombinedLoader):  # pytorch_lightning's
        given = CombinedLoader(given.iterables, given._mode)
    loader = given if isinstance(given, CombinedLoader) else combined(given, split)
    if not loader.flattened:
        return None
    if split == "train" and loader._mode == "sequential":
        remedy = "training needs min_size, max_size or max_size_cycle"
        raise ConfigurationError(f"{source} a CombinedLoader in mode 'sequential': {remedy}.")
    for part in loader.flattened:
        _check_iterable(part, source if part is given else f"{source} a {type(given).__name__} with")
    return loader


def _check_iterable(loader: Any, source: str) -> None:
    iterable = isinstance(loader, Iterable) or (hasattr(loader, "__getitem__") and hasattr(loader, "__len__"))
    if isinstance(loader, torch.Tensor | str | bytes) or not iterable:
        raise ConfigurationError(f"{source} a {type(loader).__name__}, which yields no batches: give a DataLoader.")
    # A restartable object may be its own iterator; Python's built-in iterators cannot restart.
    if isinstance(loader, Iterator) and type(loader).__module__ in ("builtins", "itertools"):
        once = f"a {type(loader).__name__}, which can be read only once, but a client reads its data every round"
        raise ConfigurationError(f"{source} {once}: give an object with a restarting __iter__, such as a DataLoader.")


def divisible_loader(given: Loader | None, split: Split) -> DataLoader | None:
    """The single ``DataLoader`` of a split, with samples that can be divided among clients; refuses several."""
    if not isinstance(given, CombinedLoader):
        return given
    parts = given.iterables
    if isinstance(parts, list | tuple) and len(parts) == 1 and isinstance(parts[0], DataLoader):
        return parts[0]
    kind = type(parts).__name__ + (f" of {len(parts)}" if isinstance(parts, list | tuple | dict) else "")
    remedy = "use one DataLoader (over a ConcatDataset), or Silos"
    raise ConfigurationError(f"the {split} loader is a {kind}, which cannot be divided among clients: {remedy}.")


def is_shuffled(loader: DataLoader) -> bool:
    """Whether the loader visits its samples in random order."""
    return isinstance(loader.sampler, RandomSampler | SubsetRandomSampler)


def has_plain_order(loader: DataLoader) -> bool:
    """Whether the loader visits each sample of its data set once, in order or shuffled, by torch's own sampler."""
    sampler = loader.sampler
    shuffled = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    return shuffled or type(sampler) is SequentialSampler


def has_plain_batches(loader: DataLoader) -> bool:
    """Whether the loader uses torch's or PyG's default collation, without worker processes."""
    collate = loader.collate_fn
    plain_graphs = is_graph_collater(collate) and not collate.follow_batch and not collate.exclude_keys
    return (collate is default_collate or plain_graphs) and loader.num_workers == 0


def sampled_dataset(
    loader: DataLoader, split: Split, *, replace_order: bool = False, replace_batches: bool = False
) -> Dataset:
    """The samples that a loader visits, as a map-style data set that can be divided.

    Refused are streams, custom loader classes, a custom sampler unless the user sets the order (``replace_order``), and
    a custom batch sampler unless the user sets the batch size (``replace_batches``).
    """
    where = f"the {split} loader"
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ConfigurationError(f"{where} reads a {type(dataset).__name__}, which cannot be divided: use Silos.")
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ConfigurationError(f"{where} is a {type(loader).__name__} with its own __iter__: use Silos.")
    if not replace_batches and (loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler):
        name, kind = "batch_size" if split == "train" else "eval_batch_size", type(loader.batch_sampler).__name__
        raise ConfigurationError(f"{where} has a custom {kind}, which cannot be divided: set {name} instead.")
    if len(dataset) == 0:  # type: ignore[arg-type]
        raise DataError(f"{where} has no samples.")
    sampler = loader.sampler
    if type(sampler) is SubsetRandomSampler:
        return Subset(dataset, [int(index) for index in sampler.indices])
    if not has_plain_order(loader) and not replace_order:
        remedy = "set shuffle to replace it" if split == "train" else "use a Subset without a sampler"
        raise ConfigurationError(f"{where} has a custom {type(sampler).__name__}, which cannot be divided: {remedy}.")
    return dataset


def collate(samples: list[Any]) -> Any:
    """Collate samples that are or contain graphs as PyG does, others as torch does."""
    first = samples[0]
    parts = first.values() if isinstance(first, Mapping) else first if isinstance(first, tuple | list) else (first,)
    if any(is_graph(part) for part in parts):
        from torch_geometric.loader.dataloader import Collater

        return Collater(samples)(samples)
    return default_collate(samples)


def make_loader(
    dataset: Any, *, batch_size: int, shuffle: bool, drop_last: bool, collate_fn: Callable[..., Any], **options: Any
) -> DataLoader:
    """A loader over a data set with its own generator; streams are not shuffled, the only batch is never left out."""
    length = None if isinstance(dataset, IterableDataset) else len(dataset)
    known = length if length is not None else sized_len(dataset)
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle and bool(length),
        drop_last=drop_last and (known is None or known > batch_size),
        collate_fn=collate_fn,
        generator=torch.Generator(),
        **options,
    )


def loader_like(loader: DataLoader, dataset: Dataset, **options: Any) -> DataLoader:
    """Rebuild a loader over other data, with its collation, workers and memory settings; see :func:`make_loader`."""
    return make_loader(
        dataset,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        in_order=loader.in_order,
        **options,
    )


def every_other_sample(data: Any, first: int) -> Any:
    """Half of a data set or an evaluation loader, from sample ``first`` (0 or 1) on; all of what cannot be divided."""
    loader = data if isinstance(data, DataLoader) else None
    try:
        samples: Any = data if loader is None else sampled_dataset(loader, "val")
    except FederatedError:  # such as a stream
        return data
    if isinstance(samples, IterableDataset) or holds_several(samples) or not is_dataset(samples) or len(samples) < 2:
        return data
    half = Subset(samples, range(first, len(samples), 2))
    if loader is None:
        return half
    return loader_like(loader, half, batch_size=loader.batch_size, shuffle=False, drop_last=loader.drop_last)
