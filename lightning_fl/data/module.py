"""The data contract: what the engine asks of federated data, whatever its source."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, Literal

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.escaping import printable
from lightning_fl.core.validation import check_counts
from lightning_fl.data.digest import data_digest
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled

__all__ = ["BATCH_HOOKS", "SPLITS", "SPLIT_NAMES", "FederatedDataModule", "Split", "default_names", "known_clients"]

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
#: What people call them, in small letters.
SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}

#: The splits that a stage opens.
_OPENED: dict[str, tuple[Split, ...]] = {"fit": ("train", "val"), "validate": ("val",)}

#: Hooks of a data module that act on a batch.
BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class FederatedDataModule(LightningDataModule, ABC):
    """Data of several clients, each opened only on the rank that hosts it.

    A subclass says how many clients there are and returns, for one client and one split, a dataset (batched, packed
    and shuffled by the engine), or a ``DataLoader`` or any other iterable of batches (used as it is), or a list, tuple
    or dict of them (combined as Lightning does: in training at once, else one after another). Lightning's hooks keep
    their meaning: ``prepare_data`` runs in one process per machine (download, convert, cache), ``setup`` in every
    process.

    Args:
        batch_size: samples in a local training step.
        eval_batch_size: samples in an evaluation step; ``None`` for four times ``batch_size``: nothing is kept for a
            backward pass, and small models spend less time between operations.
        shuffle: a fresh order of the client's training samples every round.
        drop_last: leave out a last training batch that is not full (never the only one).
    """

    #: Client i belongs to rank ``i % world_size``: one silo per rank, whose data no other rank opens.
    pinned: bool = False
    #: Where the data came from: "measured", "stand-in", or the user's own words. Shown with every figure.
    source: str = "user"

    def __init__(
        self, *, batch_size: int = 32, eval_batch_size: int | None = None, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        super().__init__()
        check_counts(self, batch_size=batch_size, eval_batch_size=eval_batch_size)
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size or 4 * batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Names come from data, of others maybe: nothing in them acts on a terminal, whoever shows them."""
        super().__init_subclass__(**kwargs)
        for method in ("client_names", "client_groups"):
            if method in cls.__dict__:
                setattr(cls, method, _printable_names(cls.__dict__[method]))

    @property
    @abstractmethod
    def num_clients(self) -> int:
        """Number of clients N. Known after ``prepare_data`` and ``setup`` at the latest."""

    @abstractmethod
    def client_data(self, client: int, split: Split) -> Any:
        """The data of one client (``0..N-1``) in one split; ``None`` where it has none.

        Called by the hosting rank only.
        A ``torch.utils.data.Subset`` of one dataset that all clients share costs no memory per client: the shared
        dataset is packed once.
        """

    def see_trainer(self, trainer: Any) -> None:
        """Make the trainer known as ``self.trainer``, also to the data modules that clients' data come from.

        Args:
            trainer: what modules see as ``self.trainer``.
        """
        self.trainer = trainer

    def client_datamodule(self, client: int | None, stage: str) -> LightningDataModule:
        """The data module that a client's data come from, as the client's module sees it; this one, unless it has own.

        Args:
            client: a hosted client; ``None`` where this rank hosts none.
            stage: "fit" or "test": what it is made ready for.
        """
        return self

    def client_names(self) -> list[str]:
        """A short name for each client, for tables and pictures."""
        return list(default_names(self.num_clients))

    def client_groups(self) -> list[str] | None:
        """What each client is known to belong to, such as the domain of its images; ``None`` where that is unknown."""
        return None

    def client_sizes(self) -> Sequence[int] | None:
        """Training samples per client where known without opening a silo, else ``None``.

        By these ranks are balanced, and clients that a fit does not validate weighed until they first take part.
        """
        return None

    def num_samples(self, split: Split) -> list[int]:
        """Samples of every client in a split. Opens the data of every client: for use in one process.

        Raises:
            DataError: a client's data have no length.
        """
        return [_count(self.client_data(client, split)) for client in range(self.num_clients)]

    def given_samples(self, client: int) -> int | None:
        """Training samples that a client counts for in the averages, where that is given; ``None``: they are counted.

        Of data without a length, which are then not read for it.
        """
        return None

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        """What a hosted client's data are, in a few characters: a checkpoint keeps it, to know other data.

        Here of the splits that the stage opens; a class whose splits are all in memory gives all of them.

        Args:
            client: a hosted client.
            stage: "fit", "validate", "test" or "predict".

        Returns:
            Split -> what :func:`~lightning_fl.data.digest.data_digest` says, for the splits that the client has.
        """
        return self._digests(client, _OPENED.get(stage, ("test",)))

    def _digests(self, client: int, splits: Sequence[Split] = SPLITS) -> dict[Split, str]:
        parts = {split: self.client_data(client, split) for split in splits}
        return {split: data_digest(part) for split, part in parts.items() if part is not None}

    def pool_training(self, pooled: bool) -> None:
        """Give the first client the training samples of all, the reference of training in one place; or no longer.

        Args:
            pooled: whether it has them.

        Raises:
            ConfigurationError: clients' data cannot be put together.
        """
        if pooled:
            raise ConfigurationError(
                f"{type(self).__name__} opens each client's data by themselves, so nobody can train on all of them:"
                " leave PooledTraining out, or take one data set that a partitioner shares out."
            )

    def held_rows(self, client: int) -> Mapping[Split, Sequence[int]] | None:
        """A client's samples in each split by their numbers in the source; ``None`` where they have none.

        Called by the hosting rank where data belong to their ranks, else by any.
        """
        return None

    def held_source(self) -> Mapping[str, Any]:
        """What the numbers of :meth:`held_rows` are of: ``numbering``, ``files`` with their sums, ``parts``."""
        return {}

    def transfer_hooks(self, client: int) -> LightningDataModule:
        """The data module whose hooks (``on_after_batch_transfer`` and the like) a client's batches go through."""
        return self

    def newcomer_data(self, path: str, record: Mapping[str, Any]) -> Dataset:
        """The samples of a client that was not in a run, from a file of its own, as the run's clients saw theirs.

        The run's data are not opened: what is to be known of them, such as means, deviations and classes, stands in its
        record. Called on a module that is not set up, for an evaluation of the run's models.

        Args:
            path: the client's file.
            record: what :meth:`describe` said in the run, read back from JSON.

        Raises:
            ConfigurationError: the class cannot read such a file, or the record is too old.
            DataError: the file is missing or damaged, or does not fit the run.
        """
        raise ConfigurationError(
            f"{type(self).__name__} reads no file of a new client: define newcomer_data(path, record) in it, or call"
            " lightning_fl.inference.personalization.personalize with a data set."
        )

    def unlabelled_data(self, source: NewSamples, record: Mapping[str, Any], reading: Reading) -> Iterator[Unlabelled]:
        """New samples without targets, as the run's clients saw theirs; what ``lightning-fl predict RUN FILE`` reads.

        As in :meth:`newcomer_data` the run's data are not opened, and the module is not set up.

        Args:
            source: where they come from.
            record: what :meth:`describe` said in the run, read back from JSON.
            reading: how they are read.

        Yields:
            Chunks, in the order of the rows; all rows, those of which no sample can be made with the reason.

        Raises:
            ConfigurationError: the class cannot read such a source, or the record is too old.
            DataError: the source is missing or damaged, or does not fit the run.
        """
        raise ConfigurationError(
            f"{type(self).__name__} reads no new samples: define unlabelled_data(source, record, reading) in it."
        )

    def describe(self) -> Mapping[str, Any]:
        """What the run's record says of the data: plain numbers, strings, lists and dicts."""
        return {"source": self.source, "num_clients": self.num_clients}


def _printable_names(method: Callable[[Any], list[str] | None]) -> Callable[[Any], list[str] | None]:
    @wraps(method)
    def names(self: Any) -> list[str] | None:
        found = method(self)
        harmless = found is None or "".join(map(str, found)).isprintable()
        return found if harmless else [printable(name) for name in found or ()]

    return names


@lru_cache(maxsize=4)
def default_names(num_clients: int) -> tuple[str, ...]:
    """The names of clients that have none of their own."""
    width = len(str(num_clients - 1))
    return tuple(f"client_{client:0{width}d}" for client in range(num_clients))


def known_clients(datamodule: FederatedDataModule) -> int | None:
    """N, where it is known before the data are read."""
    try:
        return datamodule.num_clients
    except Exception:  # the contract: known after setup at the latest, and whatever happens before
        return None


def _count(data: Any) -> int:
    if data is None:
        return 0
    parts = data.flattened if isinstance(data, CombinedLoader) else [data]
    lengths = [sized_len(part if isinstance(part, Dataset) else getattr(part, "dataset", part)) for part in parts]
    if None in lengths:
        raise DataError(
            f"a {type(data).__name__} tells no number of samples: a run counts them, in trainer.num_samples."
        )
    return sum(length or 0 for length in lengths)
