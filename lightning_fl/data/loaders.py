"""A user's ``DataLoader``: found in a data module, checked, and made anew over a part of its data."""

import torch
from lightning.pytorch import LightningDataModule
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

from lightning_fl.data.graphs import is_graph_collater
from lightning_fl.data.module import Split
from lightning_fl.errors import ConfigurationError, DataError
from lightning_fl.lightning_types import is_overridden

__all__ = ["find_loader", "has_plain_batches", "is_shuffled", "loader_like", "sampled_dataset"]


def find_loader(datamodule: LightningDataModule, split: Split) -> DataLoader | None:
    """The data module's own loader of a split; ``None`` where it has none. Call its ``setup`` before.

    Raises:
        ConfigurationError: if it returns several loaders or something else.
    """
    hook = f"{split}_dataloader"
    if not is_overridden(hook, datamodule):
        return None
    loader = getattr(datamodule, hook)()
    if isinstance(loader, list | tuple) and len(loader) <= 1:
        loader = loader[0] if loader else None
    if loader is None or isinstance(loader, DataLoader):
        return loader
    raise ConfigurationError(
        f"{type(datamodule).__name__}.{hook}() returned a {type(loader).__name__}"
        + (f" of {len(loader)}" if isinstance(loader, list | tuple | dict) else "")
        + ": a client has one DataLoader per split. Return one, over a ConcatDataset where there are several data sets."
    )


def is_shuffled(loader: DataLoader) -> bool:
    """Whether the loader draws its samples in random order."""
    return isinstance(loader.sampler, RandomSampler | SubsetRandomSampler)


def has_plain_batches(loader: DataLoader) -> bool:
    """Whether batches are what torch's or PyG's default collation makes of samples, without worker processes."""
    collate = loader.collate_fn
    plain_graphs = is_graph_collater(collate) and not collate.follow_batch and not collate.exclude_keys
    return (collate is default_collate or plain_graphs) and loader.num_workers == 0


def sampled_dataset(loader: DataLoader, split: Split, *, replace_order: bool, replace_batches: bool) -> Dataset:
    """The samples that a loader visits, as a map-style data set that can be divided.

    Args:
        loader: the loader of the whole data.
        split: its split, for errors.
        replace_order: the order is chosen by other means, so a sampler of the user's own may be left out.
        replace_batches: the batch size is chosen by other means, so a batch sampler may be left out.

    Raises:
        ConfigurationError: if the loader does something that its parts could not do: an iterable data set, a sampler
            or batch sampler or loader class of the user's own.
        DataError: if there are no samples.
    """
    where = f"the {split} loader"
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ConfigurationError(
            f"{where} reads a {type(dataset).__name__}, which cannot be divided among clients: give each client a data"
            " module of its own, with Silos."
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ConfigurationError(
            f"{where} is a {type(loader).__name__} with its own __iter__, which cannot be made anew for each client:"
            " return a plain DataLoader, or use Silos."
        )
    if not replace_batches and (loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler):
        name = "batch_size" if split == "train" else "eval_batch_size"
        raise ConfigurationError(
            f"{where} has a {type(loader.batch_sampler).__name__} of its own, which cannot be divided among clients:"
            f" give {name} to replace it."
        )
    if len(dataset) == 0:  # type: ignore[arg-type]
        raise DataError(f"{where} has no samples.")
    sampler = loader.sampler
    if type(sampler) is SubsetRandomSampler:
        return Subset(dataset, [int(index) for index in sampler.indices])
    plain = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    )
    if not plain and not replace_order:
        mend = "give shuffle to replace it" if split == "train" else "use a Subset and no sampler"
        raise ConfigurationError(
            f"{where} has a {type(sampler).__name__} of its own, which cannot be divided among clients: {mend}."
        )
    return dataset


def loader_like(loader: DataLoader, dataset: Dataset, *, batch_size: int, shuffle: bool, drop_last: bool) -> DataLoader:
    """A loader over other data with the collation, workers and memory settings of ``loader``.

    Its generator is its own, for the engine to seed. ``drop_last`` never leaves out the only batch.
    """
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last and len(dataset) > batch_size,  # type: ignore[arg-type]
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        in_order=loader.in_order,
        generator=torch.Generator(),
    )
