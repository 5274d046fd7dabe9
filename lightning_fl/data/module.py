"""Contract between the engine and federated data of any source."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Literal

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import Dataset

from lightning_fl.core.client_names import default_names
from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.escaping import printable
from lightning_fl.core.seeding import run_seed
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.data.digest import data_digest
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
#: Common names of the splits, in lower case.
SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}

#: The splits that a stage opens.
_OPENED: dict[str, tuple[Split, ...]] = {"fit": ("train", "val"), "validate": ("val",)}

#: Hooks of a data module that act on a batch.
BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


@checked_fields
class FederatedDataModule(LightningDataModule, ABC):
    """Data of several clients, each opened only on the rank that hosts it.

    A subclass defines the number of clients and returns, for one client and one split, a dataset (batched, packed and
    shuffled by the engine), or a ``DataLoader`` or any other iterable of batches (used unchanged), or a list, tuple or
    dict of them (combined as in Lightning: in training at once, else one after another). Lightning's hooks keep their
    meaning: ``prepare_data`` runs in one process per machine (download, convert, cache), ``setup`` in every process.
    A subclass is a dataclass of its options, too, or has a constructor that calls this one.

    Args:
        batch_size: samples in a local training step.
        eval_batch_size: samples in an evaluation step; ``None`` for four times ``batch_size``.
        shuffle: reshuffle the client's training samples every round.
        drop_last: leave out a last training batch that is not full (never the only one).
    """

    #: Whether client i belongs to rank ``i % world_size``, so that no other rank opens its data.
    pinned = False
    #: Origin of the data: "measured", "stand-in", or the user's own text. Shown with every figure.
    source = "user"

    batch_size: Count = 32
    eval_batch_size: Count | None = None
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        LightningDataModule.__init__(self)
        self.eval_batch_size = self.eval_batch_size or 4 * self.batch_size

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Escape control characters in names, which come from data: they could act on a terminal."""
        super().__init_subclass__(**kwargs)
        for method in ("client_names", "client_groups"):
            if method in cls.__dict__:
                setattr(cls, method, _escape_names(cls.__dict__[method]))

    @property
    @abstractmethod
    def num_clients(self) -> int:
        """Number of clients N; known after ``prepare_data`` and ``setup`` at the latest."""

    @abstractmethod
    def client_data(self, client: int, split: Split) -> Any:
        """The data of one client (``0..N-1``) in one split, or ``None``. Called by the hosting rank only.

        A ``torch.utils.data.Subset`` of one data set that all clients share costs no memory per client.
        """

    def loader_options(self, split: Split) -> dict[str, Any]:
        """Batch size, order and last batch of loaders over a client's data set."""
        training = split == "train"
        return {
            "batch_size": self.batch_size if training else self.eval_batch_size,
            "shuffle": training and self.shuffle,
            "drop_last": training and self.drop_last,
        }

    def see_trainer(self, trainer: Any) -> None:
        """Set ``self.trainer``, here and in the data modules that clients' data come from."""
        self.trainer = trainer

    def seed_of(self, given: int | None) -> int:
        """A given seed, or else the run's: the trainer's, and before it is known what ``seed_everything`` set."""
        if given is not None:
            return given
        federated = getattr(self.trainer, "federated", None)
        return run_seed() if federated is None else federated.seed

    def client_datamodule(self, client: int | None, stage: str) -> LightningDataModule:
        """The data module that a hosted client's module sees, set up for "fit" or "test"; this one by default."""
        return self

    def client_names(self) -> list[str]:
        """A short name of each client, for tables and figures."""
        return list(default_names(self.num_clients))

    def client_groups(self) -> list[str] | None:
        """The group of each client, such as the domain of its images; ``None`` if unknown."""
        return None

    def client_sizes(self) -> Sequence[int] | None:
        """Training samples per client if known without opening a silo, else ``None``; they balance the ranks."""
        return None

    def num_samples(self, split: Split) -> list[int]:
        """Number of every client's samples in a split; opens all clients' data, for use in one process."""
        return [_count(self.client_data(client, split)) for client in range(self.num_clients)]

    def given_samples(self, client: int) -> int | None:
        """Training samples that a client counts for in the averages if the user set them, else ``None``."""
        return None

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        """Digests of a hosted client's data by split; a checkpoint stores them to detect other data.

        By default for the splits that the stage ("fit", "validate", "test" or "predict") opens.
        """
        return self._digests(client, _OPENED.get(stage, ("test",)))

    def _digests(self, client: int, splits: Sequence[Split] = SPLITS) -> dict[Split, str]:
        parts = {split: self.client_data(client, split) for split in splits}
        return {split: data_digest(part) for split, part in parts.items() if part is not None}

    def pool_training(self, pooled: bool) -> None:
        """Give the first client the training samples of all (centralised training), or undo that."""
        if pooled:
            raise ConfigurationError(f"{type(self).__name__} cannot be pooled: leave PooledTraining out.")

    def held_rows(self, client: int) -> Mapping[Split, Sequence[int]] | None:
        """Numbers of a client's samples in the source, by split; ``None`` if they have none.

        Called by the hosting rank if data are pinned, else by any rank.
        """
        return None

    def held_source(self) -> Mapping[str, Any]:
        """Source of the numbers of :meth:`held_rows`: ``numbering``, ``files`` with their sums, ``parts``."""
        return {}

    def transfer_hooks(self, client: int) -> LightningDataModule:
        """The data module with the batch hooks (such as ``on_after_batch_transfer``) of a client."""
        return self

    def newcomer_data(self, path: str, record: Mapping[str, Any]) -> Dataset:
        """Read the samples of a new client from its file, preprocessed like the run's data.

        The run's data are not opened: means, deviations and classes come from ``record``, the run's :meth:`describe`
        read back from JSON. Called on a module that is not set up, to evaluate the run's models. ``ConfigurationError``
        if the class does not support this, ``DataError`` if the file is missing or damaged, or does not fit the run.
        """
        name, other = type(self).__name__, "lightning_fl.inference.personalization.personalize"
        raise ConfigurationError(f"{name} cannot read a new client's file: define newcomer_data, or call {other}.")

    def unlabelled_data(self, source: NewSamples, record: Mapping[str, Any], reading: Reading) -> Iterator[Unlabelled]:
        """Read new samples without targets, preprocessed like the run's data, for ``lightning-fl predict RUN FILE``.

        As in :meth:`newcomer_data`, the run's data are not opened. Yields chunks in the order of the rows.
        """
        raise ConfigurationError(f"{type(self).__name__} cannot read new samples: define unlabelled_data in it.")

    def describe(self) -> Mapping[str, Any]:
        """The run's record of the data: plain numbers, strings, lists and dicts."""
        return {"source": self.source, "num_clients": self.num_clients}


def _escape_names(method: Callable[[Any], list[str] | None]) -> Callable[[Any], list[str] | None]:
    @wraps(method)
    def names(self: Any) -> list[str] | None:
        found = method(self)
        harmless = found is None or "".join(map(str, found)).isprintable()
        return found if harmless else [printable(name) for name in found or ()]

    return names


def known_clients(datamodule: FederatedDataModule) -> int | None:
    """N if it is known before the data are read, else ``None``."""
    try:
        return datamodule.num_clients
    except Exception:  # the contract only promises it after setup
        return None


def _count(data: Any) -> int:
    if data is None:
        return 0
    parts = data.flattened if isinstance(data, CombinedLoader) else [data]
    lengths = [sized_len(part if isinstance(part, Dataset) else getattr(part, "dataset", part)) for part in parts]
    if None in lengths:
        raise DataError(f"a {type(data).__name__} has no length: only a run counts its samples.")
    return sum(length or 0 for length in lengths)
