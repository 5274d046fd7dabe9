"""Classes of samples; real targets are put into bins."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.data.module import Split
from lightning_fl.data.targets import dataset_targets


def read_classes(
    datasets: Mapping[Split, Dataset], *, num_bins: int, target: int | None = None, remedy: str = ""
) -> dict[Split, Tensor]:
    """Read the class of every sample of every split; real targets are put into bins, the same for all splits.

    Args:
        datasets: split -> data set.
        num_bins: bins between quantiles for real targets.
        target: the column of several targets [n, T] to use.
        remedy: advice for the error if there are several and none is chosen; by default, to choose one.

    Returns:
        Classes, integers, shape [n] each.
    """
    targets = [_target_column(dataset, target, remedy) for dataset in datasets.values()]
    together = torch.cat(targets)
    if together.is_floating_point():
        together = bin_targets(together, num_bins)
    return dict(zip(datasets, together.split([len(part) for part in targets]), strict=True))


def bin_targets(values: Tensor, num_bins: int) -> Tensor:
    """Turn real targets [n] into labels: bins between quantiles, about equally full.

    Equal targets share a bin, so there may be fewer than ``num_bins``. Missing targets (NaN) get their own bin, the
    last.

    Returns:
        Labels ``0, 1, ...`` without gaps, ascending with the target, int64, shape [n].
    """
    missing = values.isnan()
    present = values[~missing].double().numpy(force=True)
    labels = torch.full(values.shape, num_bins, dtype=torch.long)
    if len(present):
        edges = np.quantile(present, np.arange(1, num_bins) / num_bins)
        labels[~missing.cpu()] = torch.from_numpy(np.searchsorted(edges, present, side="right"))
    return torch.unique(labels, return_inverse=True)[1]


def check_labels(labels: Tensor) -> Tensor:
    """Return labels [n] as int64 on the CPU; refuse labels that are not classes ``0, 1, ...``, or none at all."""
    if labels.is_complex() or len(labels) == 0:
        raise DataError(
            f"labels of shape {list(labels.shape)} and type {labels.dtype}: must be one integer class per sample, [n]."
        )
    if int(labels.min()) < 0:
        raise DataError(f"labels have a minimum of {int(labels.min())}: number the classes from 0.")
    return labels.cpu().long()


def _target_column(dataset: Dataset, target: int | None, remedy: str) -> Tensor:
    """One target per sample, shape [n]."""
    targets = dataset_targets(dataset)
    columns = targets.flatten(1) if targets.ndim > 1 else targets[:, None]
    if target is None and columns.shape[1] != 1:
        remedy = remedy or f"choose one of the {columns.shape[1]} columns with target=0..{columns.shape[1] - 1}"
        raise DataError(
            f"the targets have shape {list(targets.shape)}, so there is no single class per sample: {remedy}."
        )
    column = target or 0
    if not 0 <= column < columns.shape[1]:
        raise DataError(f"target={column}: the targets have the columns 0..{columns.shape[1] - 1}.")
    return columns[:, column]
