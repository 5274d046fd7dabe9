"""Federating a module in three lines."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.core.lightning_types import AnyDataModule, is_overridden
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.data.partition import IID, Partitioner
from lightning_fl.data.partitioned import Partitioned
from lightning_fl.data.silos import Silos, are_silos, is_splits
from lightning_fl.strategies.fork_launcher import ForkLauncher, end_forks_on_exit
from lightning_fl.trainer.arguments import _IS_INTERACTIVE, IN_NOTEBOOKS
from lightning_fl.trainer.report import print_report
from lightning_fl.trainer.trainer import FederatedTrainer


def federate(
    module: LightningModule,
    data: FederatedDataModule | LightningDataModule | Dataset | Sequence[Any] | Mapping[str, Any],
    *,
    num_clients: int | None = None,
    partitioner: Partitioner | None = None,
    batch_size: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_samples: Sequence[int] | Mapping[str, int] | None = None,
    ckpt_path: str | None = None,
    **trainer_arguments: Any,
) -> FederatedTrainer:
    """Train a module across clients and test the best round's model on every client's test data.

    Args:
        module: any LightningModule, unchanged, or what ``torch.compile`` made of one.
        data: a list with one data module, loader or data set per silo, or a dict of them by name (all that
            :class:`.Silos` takes); or one data module or data set, cut into clients; or federated data.
        num_clients: how many clients to cut the data into, evenly at random; or give a ``partitioner``.
        partitioner: how to cut the data into clients.
        batch_size: samples in a local training step; ``None`` for each loader's own, or 32 for a data set.
        collate_fn: makes a batch of a list of samples, for data sets.
        num_samples: what each silo counts for in the averages; ``None`` for its number of training samples.
        ckpt_path: resume from a checkpoint: "last", "best", or a file.
        **trainer_arguments: arguments of :class:`FederatedTrainer`. In a notebook ``devices=2`` forks a second process
            for the time of the call.

    Returns:
        The trainer: ``trainer.metrics["test"]`` has every client's result, ``trainer.log_dir`` the run's folder.

    Raises:
        ConfigurationError: it is not clear how the data make clients.

    Example::

        import lightning_fl

        trainer = lightning_fl.federate(MyModule(), [HospitalA(), HospitalB()], max_rounds=50)
        trainer = lightning_fl.federate(MyModule(), {"north": loader, "south": another}, max_rounds=50)
    """
    known = signature(FederatedTrainer).parameters
    for name in trainer_arguments:
        if name not in known:
            raise ConfigurationError(f"federate has no argument {name!r}{did_you_mean(name, known)}.")
    batching = {"batch_size": batch_size, "collate_fn": collate_fn}
    federated = _federated_data(data, num_clients, partitioner, batching, num_samples)
    trainer, ending = _trainer(**trainer_arguments)
    with ending:
        trainer.fit(module, federated, ckpt_path=ckpt_path)
        if is_overridden("test_step", trainer.module):
            trainer.test(module, federated, ckpt_path=trainer.trained_checkpoint)
    # In a notebook the trainer shows its tables itself, as a cell's value.
    if trainer_arguments.get("enable_progress_bar", True) and not _IS_INTERACTIVE:
        print_report(trainer)
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
    return trainer, end_forks_on_exit(strategy.launcher, strategy.disconnect)


def _federated_data(
    data: Any, num_clients: int | None, partitioner: Partitioner | None, batching: dict[str, Any], num_samples: Any
) -> FederatedDataModule:
    cut = num_clients is not None or partitioner is not None
    silos = _are_silos(data, cut)
    if cut and (silos or isinstance(data, FederatedDataModule)):
        raise ConfigurationError("the data have their clients already: leave out num_clients and partitioner.")
    if isinstance(data, FederatedDataModule):
        if given := [name for name, value in {**batching, "num_samples": num_samples}.items() if value is not None]:
            raise ConfigurationError(f"data is a {type(data).__name__}: give {', '.join(given)} to it.")
        return data
    if isinstance(data, list | tuple) and (kinds := [one for one in data if isinstance(one, type)]):
        raise ConfigurationError(f"data has the class {kinds[0].__name__}: give an instance, {kinds[0].__name__}().")
    if silos:
        return Silos(data, num_samples=num_samples, **batching)
    is_empty = isinstance(data, list | tuple) and not data
    if is_empty or isinstance(data, str) or not (isinstance(data, AnyDataModule) or hasattr(data, "__getitem__")):
        wanted = "one LightningDataModule, loader or data set per silo in a list, or one of them with num_clients"
        raise ConfigurationError(f"data is a {type(data).__name__}: give {wanted}.")
    if num_samples is not None:
        raise ConfigurationError("num_samples is for silos: clients that are cut from one data set are counted.")
    if num_clients is not None and partitioner is None:
        partitioner = IID(num_clients=num_clients)
    elif num_clients is not None or partitioner is None:
        what = "say how the data are cut into clients: give num_clients (evenly at random) or a partitioner"
        raise ConfigurationError(f"{what}, such as lightning_fl.data.Dirichlet.")
    return Partitioned(data, partitioner, **batching)


def _are_silos(data: Any, cut: bool) -> bool:
    """Whether the data have an entry per silo, rather than samples that are cut into clients."""
    if isinstance(data, Mapping):
        if is_splits(data):
            splits = ", ".join(data)
            raise ConfigurationError(f"data is a dict of {splits}, which are splits: give a dict of silos by name.")
        return True
    if not isinstance(data, list | tuple) or not data:
        return False
    are_samples = cut and all(isinstance(part, list) for part in data)
    return not are_samples and are_silos(data)
