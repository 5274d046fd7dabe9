"""Data that are separate already: one ordinary ``LightningDataModule`` per client."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader, IterableDataset

from lightning_fl.data.loaders import find_loader, is_shuffled, loader_like, sampled_dataset
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.data.partitioned import BATCH_HOOKS
from lightning_fl.errors import ConfigurationError, DataError
from lightning_fl.lightning_types import AnyDataModule, is_overridden
from lightning_fl.seeding import run_seed, seed_default_generators

__all__ = ["Silos"]


class Silos(FederatedDataModule):
    """Clients with data modules of their own, each opened only in the process that hosts the client.

    ``prepare_data`` and ``setup`` of a silo are called when its data are first asked for, in the process that asks;
    its test data are opened only when they are asked for. A client without a loader for a split has no such data.

    Args:
        datamodules: one data module per client.
        names: the clients' names; ``None`` for numbers.
        batch_size: samples in a local training step; ``None`` for each loader's own.
        eval_batch_size: samples in an evaluation step; ``None`` for each loader's own.
        shuffle: a fresh order every round; ``None`` for what each training loader does.
        drop_last: leave out a last training batch that is not full; ``None`` for what each training loader does.

    Raises:
        ConfigurationError: if there is no data module, one occurs twice, or the names do not fit.
    """

    #: Client i lives in process ``i % world_size``, whatever its size.
    pinned: bool = True

    def __init__(
        self,
        datamodules: list[AnyDataModule],
        names: list[str] | None = None,
        *,
        batch_size: int | None = None,
        eval_batch_size: int | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
    ) -> None:
        super().__init__(
            batch_size=32 if batch_size is None else batch_size,
            eval_batch_size=eval_batch_size,
            shuffle=True if shuffle is None else shuffle,
            drop_last=bool(drop_last),
        )
        if not datamodules:
            raise ConfigurationError("datamodules=[]: give one data module per client.")
        if len({id(datamodule) for datamodule in datamodules}) < len(datamodules):
            raise ConfigurationError("datamodules has one object twice: make a data module for each client.")
        for datamodule in datamodules:
            _check_silo(datamodule)
        if names is not None and (len(names) != len(datamodules) or len(set(names)) < len(names)):
            raise ConfigurationError(
                f"names={names} for {len(datamodules)} data modules: give one name for each, all different."
            )
        self.datamodules = list(datamodules)
        self.names = names
        self._given: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last}
        self._batch_sizes: dict[str, int | None] = {
            "train": batch_size,
            "val": eval_batch_size or batch_size,
            "test": eval_batch_size or batch_size,
        }
        self._stages: set[tuple[int, str]] = set()
        self._loaders: dict[tuple[int, Split], DataLoader | None] = {}

    @property
    def num_clients(self) -> int:
        """Number of data modules."""
        return len(self.datamodules)

    def client_names(self) -> list[str]:
        """The names given, else numbers."""
        return list(self.names or super().client_names())

    def open(self, client: int, stage: str = "fit") -> LightningDataModule:
        """The client's data module, made ready: ``prepare_data`` and ``setup(stage)``, each called once.

        Random splits that a data module draws in ``setup`` depend on the run's seed and the client only, and are the
        same for every stage.
        """
        datamodule = self.datamodules[client]
        if (client, "prepare") not in self._stages:
            datamodule.prepare_data()
            self._stages.add((client, "prepare"))
        if (client, stage) not in self._stages:
            with isolate_rng(include_cuda=False):
                seed_default_generators(run_seed(), "silo", client)
                datamodule.setup(stage)
            self._stages.add((client, stage))
        return datamodule

    def see_trainer(self, trainer: Any) -> None:
        """Make the trainer known to every silo's data module."""
        super().see_trainer(trainer)
        for datamodule in self.datamodules:
            datamodule.trainer = trainer

    def client_datamodule(self, client: int | None, stage: str) -> LightningDataModule:
        """The client's own, made ready; without a client the first as it is."""
        return self.datamodules[0] if client is None else self.open(client, stage)

    def client_data(self, client: int, split: Split) -> DataLoader | None:
        """The client's own loader, made once and kept."""
        key = (client, split)
        if key not in self._loaders:
            if is_overridden(f"{split}_dataloader", self.datamodules[client]):
                datamodule = self.open(client, "test" if split == "test" else "fit")
                self._loaders[key] = self._settle(find_loader(datamodule, split), client, split)
            else:
                self._loaders[key] = None
        return self._loaders[key]

    def _settle(self, loader: DataLoader | None, client: int, split: Split) -> DataLoader | None:
        """The loader with the batch size and order that were given; the loader itself where nothing was."""
        training = split == "train"
        batch_size = self._batch_sizes[split]
        shuffle, drop_last = (self._given["shuffle"], self._given["drop_last"]) if training else (None, None)
        if loader is None or (batch_size is None and shuffle is None and drop_last is None):
            return loader
        if isinstance(loader.dataset, IterableDataset):
            raise ConfigurationError(
                f"{self.client_names()[client]}: the {split} loader reads a {type(loader.dataset).__name__}, which"
                " makes its batches itself: leave out batch_size, eval_batch_size, shuffle and drop_last."
            )
        try:
            dataset = sampled_dataset(
                loader, split, replace_order=shuffle is not None, replace_batches=batch_size is not None
            )
        except (ConfigurationError, DataError) as error:
            raise type(error)(f"{self.client_names()[client]}: {error}") from error
        return loader_like(
            loader,
            dataset,
            batch_size=batch_size or loader.batch_size or 1,
            shuffle=is_shuffled(loader) and training if shuffle is None else shuffle,
            drop_last=loader.drop_last if drop_last is None else drop_last,
        )

    def describe(self) -> Mapping[str, Any]:
        """Source and the clients' names; nothing is opened."""
        return {**super().describe(), "clients": self.client_names()}

    def teardown(self, stage: str | None = None) -> None:
        """Of every data module that was opened."""
        for client in sorted({client for client, _ in self._stages}):
            self.datamodules[client].teardown(stage)  # type: ignore[arg-type]


def _check_silo(datamodule: LightningDataModule) -> None:
    """Refuse what cannot be one client's data."""
    name = type(datamodule).__name__
    if isinstance(datamodule, FederatedDataModule):
        raise ConfigurationError(f"{name} has clients of its own: give ordinary data modules, one per client.")
    hooks = [hook for hook in BATCH_HOOKS if is_overridden(hook, datamodule)]
    if hooks:
        raise ConfigurationError(
            f"{name} overrides {', '.join(hooks)}, which differ from silo to silo and are not called: change batches in"
            " the data set's transform, the loader's collate_fn or the LightningModule's hooks."
        )
