"""Classes of samples, with real targets in bins, and parts with the classes in proportion."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.data.module import Split
from lightning_fl.data.partition.partitioner import ClientParts
from lightning_fl.data.sizes import apportion
from lightning_fl.data.targets import dataset_targets


def read_classes(
    datasets: Mapping[Split, Dataset], *, num_bins: int, target: int | None = None, remedy: str = ""
) -> dict[Split, Tensor]:
    """Read the class of every sample of every split, integers [n] each; real targets are put into common bins.

    ``target`` is the column of several targets [n, T] to use, ``remedy`` what to do where none is chosen.
    """
    targets = [_target_column(dataset, target, remedy) for dataset in datasets.values()]
    together = torch.cat(targets)
    if together.is_floating_point():
        together = bin_targets(together, num_bins)
    return dict(zip(datasets, together.split([len(part) for part in targets]), strict=True))


def bin_targets(values: Tensor, num_bins: int) -> Tensor:
    """Turn real targets [n] into labels ``0, 1, ...`` without gaps: bins between quantiles, about equally full.

    Equal targets share a bin, and up to ``num_bins`` different values, such as 0 and 1, have one each. Missing targets
    (NaN) get their own bin, the last.
    """
    missing = values.isnan()
    present = values[~missing].double().numpy(force=True)
    labels = torch.full(values.shape, num_bins, dtype=torch.long)
    if len(present):
        known = np.unique(present)
        edges = known[1:] if len(known) <= num_bins else np.quantile(present, np.arange(1, num_bins) / num_bins)
        labels[~missing.cpu()] = torch.from_numpy(np.searchsorted(edges, present, side="right"))
    return torch.unique(labels, return_inverse=True)[1]


def check_labels(labels: Tensor) -> Tensor:
    """Return labels [n] as int64 on the CPU; refuse labels that are not classes ``0, 1, ...``, or none at all."""
    if labels.is_complex() or len(labels) == 0:
        raise DataError(f"labels of shape {list(labels.shape)} and type {labels.dtype}: must be integer classes [n].")
    if int(labels.min()) < 0:
        raise DataError(f"labels have a minimum of {int(labels.min())}: number the classes from 0.")
    return labels.cpu().long()


def _target_column(dataset: Dataset, target: int | None, remedy: str) -> Tensor:
    """One target per sample, shape [n]."""
    targets = dataset_targets(dataset)
    columns = targets.flatten(1) if targets.ndim > 1 else targets[:, None]
    if target is None and columns.shape[1] != 1:
        remedy = remedy or f"choose one of the {columns.shape[1]} columns with target=0..{columns.shape[1] - 1}"
        raise DataError(f"the targets have shape {list(targets.shape)}, not one class per sample: {remedy}.")
    column = target or 0
    if not 0 <= column < columns.shape[1]:
        raise DataError(f"target={column}: the targets have the columns 0..{columns.shape[1] - 1}.")
    return columns[:, column]


def stratified_parts(labels: Tensor, sizes: Sequence[int], rng: Generator) -> list[Tensor]:
    """Divide samples at random into parts of given sizes, each with the classes in proportion.

    Each part in turn gets its share of the remaining samples of every class, by largest remainders. Ties are broken at
    random, so that small parts do not all favour the same class. Samples beyond the sum of the sizes stay unused.
    Returns the ascending positions of every part in ``labels`` [n].
    """
    check_classes(labels)
    if (need := sum(sizes)) > len(labels):
        raise DataError(f"parts of sizes={list(sizes)} need {need} of {len(labels)} samples: use smaller ones.")
    shuffled = torch.randperm(len(labels), generator=rng)
    # the samples class by class, each class in random order
    by_class = shuffled[torch.argsort(labels.cpu()[shuffled], stable=True)]
    members = list(by_class.split(torch.unique(labels.cpu(), return_counts=True)[1].tolist()))
    members = [members[k] for k in torch.randperm(len(members), generator=rng).tolist()]
    left = [len(of_class) for of_class in members]
    parts = []
    for size in sizes:
        taken = apportion(size, left) if size else [0] * len(left)
        chosen = [m[len(m) - rest : len(m) - rest + t] for m, rest, t in zip(members, left, taken, strict=True)]
        parts.append(torch.cat(chosen).sort().values if size else by_class[:0])
        left = [rest - t for rest, t in zip(left, taken, strict=True)]
    return parts


def random_parts(count: int, sizes: Sequence[int], rng: Generator, labels: Tensor | None = None) -> Sequence[Tensor]:
    """Divide ``count`` samples at random into ascending parts of given sizes; with labels [n], stratified."""
    if labels is not None:
        return stratified_parts(labels, sizes, rng)
    owners = torch.full((count,), len(sizes))
    drawn = torch.randperm(count, generator=rng)[: sum(sizes)]
    owners[drawn] = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return ClientParts.by_owner(owners, len(sizes))


def check_classes(labels: Tensor) -> None:
    """Refuse labels that are not one integer class per sample."""
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        given = f"targets of shape {list(labels.shape)} and type {labels.dtype}"
        raise DataError(f"stratified needs one integer class per sample, not {given}: leave it out.")
