"""What a partitioner is, and how it reads what it goes by: labels, keys, the number of samples."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from lightning_fl.core.errors import DataError
from lightning_fl.data.module import Split
from lightning_fl.data.partition.labels import bin_targets
from lightning_fl.data.targets import dataset_targets

__all__ = ["Partitioner", "class_labels", "faults_of", "read_column", "read_keys", "read_smiles", "sample_rows"]


class Partitioner(ABC):
    """Shares out the samples of a data set among clients.

    A partitioner of one's own needs :meth:`__call__` only, and ``num_clients`` where it is known beforehand.
    """

    #: Number of clients N; ``None`` where the data tell.
    num_clients: int | None = None
    #: The partition and its division are given as they are: nothing is drawn, divided or left out afterwards.
    exact: bool = False
    #: Names of the clients where the partition gives them; set by a call.
    names: list[str] | None = None

    @abstractmethod
    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Ascending sample indices of every client: int64, disjoint, covering the data set unless stated otherwise."""

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """Share out separate data sets for training, validation and test so that a client's parts belong together.

        By default each is partitioned for itself with the same seed; partitions by label or key override this, so that
        a client finds in its test data the classes and groups that it was trained on.

        Args:
            datasets: name of the split to data set, the training data first.
            seed: seed of the partition.

        Raises:
            DataError: if one of them cannot be partitioned; the message names it.
        """
        parts = {}
        for split, dataset in datasets.items():
            with faults_of(split):
                parts[split] = self(dataset, seed)
        return parts

    def partition_clients(
        self, datasets: Mapping[Split, Dataset], fractions: Sequence[float], seed: int
    ) -> dict[Split, list[Tensor]]:
        """What every client holds of each split, as far as the partitioner settles it: what data modules call.

        By default :meth:`partition_splits`: a split without data of its own is left to the data module, which cuts it
        from every client's training samples. A partitioner whose clients differ between their splits overrides this
        and gives such splits too, as indices of the training data that no other split holds.

        Args:
            datasets: name of the split to data set, the training data first.
            fractions: shares of train, val and test in a client's samples; of these, those of the splits that are cut
                from the training data are used in proportion.
            seed: seed of the partition.

        Returns:
            Name of the split to the ascending sample indices of every client; at least the splits in ``datasets``.
        """
        return self.partition_splits(datasets, seed)

    def check_record(self, record: Mapping[str, Any]) -> None:  # noqa: B027 - most fit any data
        """Refuse data that the partitioner is not for; called before it is asked to share them out.

        Args:
            record: what the data module says of where its data come from, such as ``file`` and ``sha256``.
        """

    def describe(self) -> dict[str, Any]:
        """Name and arguments, for the run's record."""
        return {"name": type(self).__name__} | {
            name: value for name, value in vars(self).items() if not name.startswith("_") and name != "names"
        }


def class_labels(
    datasets: Mapping[Split, Dataset], *, num_bins: int, target: int | None = None, mend: str = ""
) -> dict[Split, Tensor]:
    """The class of every sample of every split; real targets are put into bins that are the same for all splits.

    Args:
        datasets: name of the split to data set.
        num_bins: bins between quantiles, used where targets are floating.
        target: which of several targets [n, T] to go by.
        mend: what to do where there are several and none is chosen; by default, to choose one.

    Returns:
        Classes, integers, shape [n] each.

    Raises:
        DataError: if there are no targets, or several and none (or one that is not there) is chosen.
    """
    targets = [_column(dataset, target, mend) for dataset in datasets.values()]
    together = torch.cat(targets)
    if together.is_floating_point():
        together = bin_targets(together, num_bins)
    return dict(zip(datasets, together.split([len(part) for part in targets]), strict=True))


@contextmanager
def faults_of(split: Split) -> Iterator[None]:
    """Name the split in errors of its data."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{split} data: {error}") from error


def read_column(dataset: Dataset, name: str, reader: str) -> Sequence[Any]:
    """The values of a column, one per sample.

    Args:
        dataset: has a method ``column(name)``.
        name: of the column.
        reader: who needs it, for the message.
    """
    return read_keys(
        dataset,
        lambda base: base.column(name) if hasattr(base, "column") else None,
        f"has no method column(name) that returns the {name!r} of every sample: {reader} needs one",
    )


def read_smiles(dataset: Dataset, reader: str) -> Sequence[str]:
    """The SMILES of every molecule.

    Args:
        dataset: has an attribute ``smiles``.
        reader: who needs them, for the message.
    """
    return read_keys(
        dataset,
        lambda base: getattr(base, "smiles", None),
        f"has no attribute smiles with the SMILES of every sample: {reader} needs molecules",
    )


def sample_rows(dataset: Any) -> Sequence[int] | None:
    """The rows of the samples in their source, as a spreadsheet shows them, where the data set knows them."""
    if type(dataset) is Subset:
        below = sample_rows(dataset.dataset)
        return None if below is None else [below[index] for index in dataset.indices]
    rows = getattr(dataset, "rows", None)
    return rows if isinstance(rows, Sequence) and len(rows) == len(dataset) else None


def read_keys(dataset: Any, read: Callable[[Any], Sequence[Any] | None], problem: str) -> Sequence[Any]:
    """One entry per sample, read from the data set, or from the one below a ``Subset``.

    Args:
        dataset: the data set.
        read: gives the entries of a data set; ``None`` if it has none.
        problem: what to say then, after the name of the data set's class.
    """
    if type(dataset) is Subset:
        values = read_keys(dataset.dataset, read, problem)
        return [values[index] for index in dataset.indices]
    found = read(dataset)
    if found is None:
        raise DataError(f"{type(dataset).__name__} {problem}.")
    if len(found) != len(dataset):
        raise DataError(
            f"{type(dataset).__name__} has {len(dataset)} samples but {len(found)} keys to partition by: there must be"
            " one per sample."
        )
    return found


def _column(dataset: Dataset, target: int | None, mend: str) -> Tensor:
    """The targets to go by, shape [n]."""
    targets = dataset_targets(dataset)
    columns = targets.flatten(1) if targets.ndim > 1 else targets[:, None]
    if target is None and columns.shape[1] != 1:
        mend = mend or f"choose one of the {columns.shape[1]} columns with target=0..{columns.shape[1] - 1}"
        raise DataError(
            f"the targets have shape {list(targets.shape)}, which gives no single class per sample: {mend}."
        )
    column = target or 0
    if not 0 <= column < columns.shape[1]:
        raise DataError(f"target={column}: the targets have the columns 0..{columns.shape[1] - 1}.")
    return columns[:, column]
