"""Base class of partitioners, how they read the keys of a data set, and repeated draws."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import torch
from annotated_types import Gt, doc
from torch import Tensor
from torch.utils.data import Dataset, Subset

from lightning_fl.core.errors import DataError
from lightning_fl.data.module import Split

T = TypeVar("T")

#: The parameter alpha of a symmetric Dirichlet distribution.
Concentration = Annotated[float, Gt(0), doc("0.1: very uneven, 100: nearly equal")]

_MAX_DRAWS = 1000


class ClientParts(Sequence[Tensor]):
    """Ascending indices of every client: views of ``indices``, int64 [n], in the order of ``sizes``, int64 [N]."""

    def __init__(self, indices: Tensor, sizes: Tensor) -> None:
        self.indices, self.sizes = indices, sizes
        self._counts, self._ends = sizes.numpy(), sizes.cumsum(0).numpy()  # torch takes far longer to read one number

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> "ClientParts":
        """The parts of a list with a tensor per client."""
        if isinstance(parts, ClientParts):
            return parts
        return cls(torch.cat(list(parts)), torch.tensor(list(map(len, parts)), dtype=torch.long))

    @classmethod
    def by_owner(cls, owners: Tensor, num_clients: int) -> "ClientParts":
        """The parts from the client of every sample, int64 [n]; ``num_clients`` leaves a sample unused."""
        sizes = torch.bincount(owners, minlength=num_clients + 1)[:num_clients]
        return cls(owners.argsort(stable=True)[: int(sizes.sum())], sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: Any) -> Any:
        end = self._ends[client]
        return self.indices[end - self._counts[client] : end]


class Scheme:
    """Base class of records whose fields are options: checked by their annotations, and written to the record."""

    def __post_init__(self) -> None:
        """Check options that depend on each other."""

    def describe(self) -> dict[str, Any]:
        options = {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "names"}
        return {"name": type(self).__name__} | options


class Partitioner(Scheme, ABC):
    """Divides the samples of a data set among clients.

    A custom partitioner needs only :meth:`__call__`, and ``num_clients`` if it is known beforehand.
    """

    #: Number of clients N; ``None`` where it depends on the data.
    num_clients: int | None = None
    #: Whether the partitioner also fixes every client's splits, so that nothing is drawn or left out afterwards.
    exact: bool = False
    #: Names of the clients where the partition gives them; set by a call.
    names: list[str] | None = None

    @abstractmethod
    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Ascending sample indices of every client: int64, disjoint, covering the data set unless stated otherwise."""

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> Mapping[Split, Sequence[Tensor]]:
        """Divide separate data sets for training, validation and test so that a client's parts belong together.

        By default each is partitioned separately with the same seed. The training data come first.
        """
        parts = {}
        for split, dataset in datasets.items():
            with name_split(split):
                parts[split] = self(dataset, seed)
        return parts

    def partition_clients(
        self, datasets: Mapping[Split, Dataset], fractions: Sequence[float], seed: int
    ) -> Mapping[Split, Sequence[Tensor]]:
        """Every client's ascending samples of each split that the partitioner decides on; data modules call this.

        By default :meth:`partition_splits`, and data modules cut other splits from every client's training samples. A
        partitioner may also give such splits, in the shares ``fractions``, as other indices of the training data.
        """
        return self.partition_splits(datasets, seed)

    @property
    def repeated_seed(self) -> int | None:
        """``split_seed`` of the run that it repeats; ``None`` for the data module's."""
        return None

    def check_record(self, record: Mapping[str, Any]) -> None:
        """Refuse data that the partitioner does not fit, by their record, before it partitions them."""


class JointPartitioner(Partitioner):
    """Partitioner that divides all splits together in :meth:`partition_splits`."""

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        return list(self.partition_splits({"train": dataset}, seed)["train"])

    @abstractmethod
    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> Mapping[Split, Sequence[Tensor]]:
        """Divide separate data sets for training, validation and test; see :class:`Partitioner`."""


@contextmanager
def name_split(split: Split) -> Iterator[None]:
    """Name the split in errors about its data."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{split} data: {error}") from error


def read_column(dataset: Dataset, name: str, reader: str) -> Sequence[Any]:
    """Read a column with ``dataset.column(name)``, one value per sample; ``reader`` is named in errors."""
    problem = f"has no method column(name) that returns the {name!r} of every sample: {reader} needs one"
    return _read_keys(dataset, lambda base: base.column(name) if hasattr(base, "column") else None, problem)


def read_smiles(dataset: Dataset, reader: str) -> Sequence[str]:
    """Read the SMILES of every molecule from ``dataset.smiles``; ``reader`` is named in errors."""
    problem = f"has no attribute smiles with the SMILES of every sample: {reader} needs molecules"
    return _read_keys(dataset, lambda base: getattr(base, "smiles", None), problem)


def sample_rows(dataset: Any) -> Sequence[int] | None:
    """Row numbers of the samples in their source, as in a spreadsheet; ``None`` if the data set has none."""
    base, indices = innermost(dataset)
    rows = getattr(base, "rows", None)
    if not isinstance(rows, Sequence) or len(rows) != len(base):
        return None
    return rows if indices is None else [rows[index] for index in indices]


def row_numbers(dataset: Any, indices: Tensor) -> Sequence[int]:
    """Row numbers of some samples, or the indices themselves if the data set has no rows."""
    rows = sample_rows(dataset)
    return indices.tolist() if rows is None else [rows[index] for index in indices.tolist()]


def innermost(dataset: Any) -> tuple[Any, Sequence[int] | None]:
    """The data set below all ``Subset`` objects, and the samples' indices in it; ``None`` for all of them."""
    indices: Sequence[int] | None = None
    while type(dataset) is Subset:
        indices = dataset.indices if indices is None else [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    return dataset, indices


def _read_keys(dataset: Any, read: Callable[[Any], Sequence[Any] | None], problem: str) -> Sequence[Any]:
    """One entry per sample: ``read`` returns the innermost data set's; ``problem`` is the message without any."""
    base, indices = innermost(dataset)
    found = read(base)
    if found is None:
        raise DataError(f"{type(base).__name__} {problem}.")
    if len(found) != (count := len(base)):
        raise DataError(f"{type(base).__name__} has {count} samples but {len(found)} keys: give one per sample.")
    return found if indices is None else [found[index] for index in indices]


def draw_until_enough(
    draw: Callable[[], tuple[T, int]], num_samples: int, num_clients: int, alpha: float, min_samples: int
) -> T:
    """Repeat a draw until every client has ``min_samples`` of the ``num_samples`` samples, a thousand times at most.

    A draw returns a result, and the number of samples of the smallest client in it; ``alpha`` is its concentration.
    """
    if num_clients * min_samples > num_samples:
        what = f"{num_samples} samples for {num_clients} clients with at least {min_samples} each"
        raise DataError(f"{what}: use at most {num_samples // min_samples} clients, or lower min_samples.")
    smallest = -1
    for _ in range(_MAX_DRAWS):
        result, fewest = draw()
        if fewest >= min_samples:
            return result
        smallest = max(smallest, fewest)
    what = f"none of {_MAX_DRAWS} draws with alpha={alpha} gave each of {num_clients} clients min_samples={min_samples}"
    raise DataError(f"{what} samples (at best, one client had {smallest}): raise alpha, or lower num_clients.")
