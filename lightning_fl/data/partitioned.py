"""Data module that partitions one data set, or an ordinary ``LightningDataModule``, among simulated clients."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.lightning_types import AnyDataModule, is_overridden
from lightning_fl.core.validation import Count, checked
from lightning_fl.data import loaders
from lightning_fl.data.module import BATCH_HOOKS, SPLITS, Split
from lightning_fl.data.partition import Partitioner
from lightning_fl.data.partition.partitioner import innermost
from lightning_fl.data.shared import OpenedData, SharedDataModule
from lightning_fl.data.silos import Silo


class Partitioned(SharedDataModule):
    """Clients made from one data set by a partitioner; each client's samples are then divided inside the client.

    A data module's validation and test data are partitioned along with its training data; a missing split is cut from
    each client's training samples. Clients hold ``Subset`` objects of the shared data sets, so data are in memory once.
    If the data module's loader has a custom collation or workers, clients get such a loader.

    Args:
        data: a data module, or a data set with a length (such as a list of samples).
        partitioner: divides the samples among clients.
        batch_size: samples in a local training step; ``None`` for the training loader's value, or 32 for a data set.
        eval_batch_size: samples in an evaluation step; ``None`` for the loader's value, or four times ``batch_size``.
        shuffle: reshuffle every round; ``None`` for the training loader's setting, or true.
        drop_last: leave out a last training batch that is not full; ``None`` for the loader's setting, or false.
        collate_fn: makes a batch of a list of samples, where torch's and PyG's collation cannot.
        **kwargs: arguments of :class:`~lightning_fl.data.shared.SharedDataModule`.
    """

    @checked
    def __init__(
        self,
        data: AnyDataModule | Dataset,
        partitioner: Partitioner,
        *,
        batch_size: Count | None = None,
        eval_batch_size: Count | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            partitioner=partitioner,
            batch_size=32 if batch_size is None else batch_size,
            eval_batch_size=eval_batch_size,
            shuffle=True if shuffle is None else shuffle,
            drop_last=bool(drop_last),
            **kwargs,
        )
        if isinstance(data, IterableDataset):
            remedy = "give a data set with a length, or one data module per client with Silos"
            raise ConfigurationError(f"data is a {type(data).__name__}, which cannot be divided: {remedy}.")
        self.data = data
        self._silo = Silo("data", data)
        module = self._silo.module
        if collate_fn is not None and module is not None:
            raise ConfigurationError(f"collate_fn is for a data set, not for a {type(data).__name__}: omit it.")
        self._collate = collate_fn
        self._given = batch_size, eval_batch_size, shuffle, drop_last
        self._loaders: dict[Split, DataLoader] = {}  # the data module's loaders, for their settings
        self._kept: dict[tuple[int, Split], Subset | DataLoader] = {}
        self._torn = False  # whether the data module must be set up again
        for hook in BATCH_HOOKS if module is not None else ():
            if is_overridden(hook, module):
                setattr(self, hook, getattr(module, hook))

    def prepare_data(self) -> None:
        self._silo.call("prepare_data")

    def _open(self, *, allow_download: bool) -> OpenedData:
        """Open all splits, for every stage, so that training and test samples never overlap."""
        datasets: dict[Split, Dataset] = {}
        # One seed for both stages and later runs, so that a random split drawn in each is the same.
        seed = self.partition_seed if self._indices is None else self._seed
        for split in SPLITS:
            if self._silo.has(split):
                self._silo.call("setup", "test" if split == "test" else "fit", seed=(seed, "setup"))
            part = self._silo.part(split)
            if loaders.is_dataset(part):
                datasets[split] = part
            elif (loader := loaders.divisible_loader(part, split)) is not None:
                datasets[split] = self._samples_of(loader, split)
        if "train" not in datasets:
            raise ConfigurationError(f"{type(self.data).__name__} has no train_dataloader: clients need training data.")
        source = getattr(self.data, "source", None)
        return OpenedData(datasets, source if isinstance(source, str) else self.source, {})

    def _samples_of(self, loader: DataLoader, split: Split) -> Dataset:
        batch_size, eval_batch_size, shuffle, drop_last = self._given
        training = split == "train"
        dataset = loaders.sampled_dataset(
            loader,
            split,
            replace_order=training and shuffle is not None,
            replace_batches=(batch_size if training else eval_batch_size) is not None,
        )
        if training:
            self.batch_size = batch_size or loader.batch_size or self.batch_size
            self.eval_batch_size = eval_batch_size or 4 * self.batch_size
            self.shuffle = loaders.is_shuffled(loader) if shuffle is None else shuffle
            self.drop_last = loader.drop_last if drop_last is None else drop_last
        elif eval_batch_size is None:
            self.eval_batch_size = loader.batch_size or self.batch_size
        self._loaders[split] = loader
        return dataset

    def client_data(self, client: int, split: Split) -> Subset | DataLoader | None:
        indices = self._samples(client, split)
        if len(indices) == 0:
            return None
        if (client, split) not in self._kept:
            part = self._part_of(split)
            base, below = innermost(self._held[part])  # several splits share one object
            places = indices.tolist() if below is None else [int(below[index]) for index in indices.tolist()]
            subset, loader = Subset(base, places), self._loaders.get(part)
            options = self.loader_options(split)
            if self._collate is not None:
                self._kept[client, split] = loaders.make_loader(subset, collate_fn=self._collate, **options)
            elif loader is None or loaders.has_plain_batches(loader):
                self._kept[client, split] = subset
            else:
                self._kept[client, split] = loaders.loader_like(loader, subset, **options)
        return self._kept[client, split]

    def pool_training(self, pooled: bool) -> None:
        super().pool_training(pooled)
        self._kept.pop((0, "train"), None)

    def see_trainer(self, trainer: Any) -> None:
        super().see_trainer(trainer)
        if self._silo.module is not None:
            self._silo.module.trainer = trainer

    def client_datamodule(self, client: int | None, stage: str) -> LightningDataModule:
        return self._silo.module or self

    def setup(self, stage: str | None = None) -> None:
        if self._torn and self._indices is not None:
            self._torn, self._opened, self._kept = False, None, {}
            before, self._held = self._held, dict(self._load(allow_download=False).datasets)
            if [*map(len, before.values())] != [*map(len, self._held.values())]:  # type: ignore[arg-type]
                what = f"setup of {type(self._silo.module).__name__} gave other numbers of samples than before"
                raise DataError(f"{what}: make a new Partitioned.")
        super().setup(stage)

    def teardown(self, stage: str | None = None) -> None:
        self._silo.teardown(stage)
        self._torn = self._silo.module is not None
