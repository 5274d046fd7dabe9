"""Federating a module in three lines."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from lightning.fabric.utilities.imports import _IS_INTERACTIVE
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import Dataset

from lightning_fl.arguments import IN_NOTEBOOKS
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.data.partition import IID, Partitioner
from lightning_fl.data.partitioned import Partitioned
from lightning_fl.data.silos import Silos
from lightning_fl.errors import ConfigurationError
from lightning_fl.lightning_types import AnyDataModule, is_overridden
from lightning_fl.strategies.fork_launcher import ForkLauncher, forks_end_here
from lightning_fl.trainer import FederatedTrainer

__all__ = ["federate"]


def federate(
    module: LightningModule,
    data: FederatedDataModule | LightningDataModule | Dataset | Sequence[LightningDataModule],
    *,
    num_clients: int | None = None,
    partitioner: Partitioner | None = None,
    ckpt_path: str | None = None,
    **trainer_arguments: Any,
) -> FederatedTrainer:
    """Train a module across clients and test the best round's model on every client's test data.

    Args:
        module: any LightningModule, unchanged, or what ``torch.compile`` made of one.
        data: one data module per silo; or one data module or data set, cut into clients; or federated data.
        num_clients: how many clients to cut the data into, evenly at random; or give a ``partitioner``.
        partitioner: how to cut the data into clients.
        ckpt_path: go on from a checkpoint: "last", "best", or a file.
        **trainer_arguments: arguments of :class:`FederatedTrainer`. In a notebook ``devices=2`` forks a second process
            for the time of the call.

    Returns:
        The trainer: ``trainer.metrics["test"]`` has every client's result, ``trainer.log_dir`` the run's folder.

    Raises:
        ConfigurationError: it is not clear how the data make clients.

    Example::

        import lightning_fl

        trainer = lightning_fl.federate(MyModule(), [HospitalA(), HospitalB()], max_rounds=50)
    """
    federated = _federated_data(data, num_clients, partitioner)
    trainer, ending = _trainer(**trainer_arguments)
    with ending:
        trainer.fit(module, federated, ckpt_path=ckpt_path)
        if trainer.interrupted_by is None and is_overridden("test_step", trainer.module):
            trainer.test(module, federated, ckpt_path=trainer.trained_checkpoint)
    return trainer


def _trainer(*, devices: int | str | list[int] = "auto", **arguments: Any) -> tuple[FederatedTrainer, Any]:
    """The trainer, and what ends its processes: those that are forked in a notebook end with the call."""
    if not (_IS_INTERACTIVE and isinstance(devices, int) and devices > 1):
        return FederatedTrainer(devices=devices, **arguments), nullcontext()
    trainer = FederatedTrainer(devices=1, **arguments)
    strategy = trainer.strategy
    if not strategy.can_fork:
        raise ConfigurationError(f"devices={devices}: {IN_NOTEBOOKS}")
    strategy.fork_processes(devices)
    assert isinstance(strategy.launcher, ForkLauncher)
    return trainer, forks_end_here(lambda: trainer.is_global_zero, strategy.launcher)


def _federated_data(data: Any, num_clients: int | None, partitioner: Partitioner | None) -> FederatedDataModule:
    separate = isinstance(data, FederatedDataModule | list | tuple)
    if separate and (num_clients is not None or partitioner is not None):
        raise ConfigurationError("the data have their clients already: leave out num_clients and partitioner.")
    if isinstance(data, FederatedDataModule):
        return data
    if isinstance(data, list | tuple) and data and all(isinstance(item, AnyDataModule) for item in data):
        return Silos(list(data))
    if not isinstance(data, AnyDataModule) and not hasattr(data, "__getitem__"):
        raise ConfigurationError(
            f"data is a {type(data).__name__}: give one LightningDataModule per silo as a list, or one"
            " LightningDataModule or data set with num_clients."
        )
    if (num_clients is None) == (partitioner is None):
        raise ConfigurationError(
            "say how the data are cut into clients: give either num_clients (evenly at random) or a partitioner"
            " (lightning_fl.data.Dirichlet, Scaffold, GroupBy, ...)."
        )
    if partitioner is None:
        assert num_clients is not None
        partitioner = IID(num_clients=num_clients)
    return Partitioned(data, partitioner)
