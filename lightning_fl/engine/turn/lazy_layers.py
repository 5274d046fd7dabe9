"""Shapes of lazy layers (``nn.LazyLinear``), found before training with a client's first batch."""

import copy
from itertools import chain

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, is_lazy

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import seed_default_generators
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.batches.transfer import BatchTransfer
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.engine.turn.services import takes_batch_index


def materialize_lazy_layers(
    trainer: ModuleTrainer, factory: BatchFactory, processes: Processes, settings: Settings
) -> None:
    """Run ``training_step`` on a copy of a module with lazy parameters, and give the module their shapes.

    The copy is in eval mode and has no gradients. Initial values are drawn from the run's seed; rank zero's are used.
    """
    module = trainer.lightning_module
    if not _lazy(module):
        return
    problem, shapes = "", {}
    try:
        shapes = _shapes(trainer, factory, processes, settings)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".rstrip(".")
    found = processes.of_ranks((problem, shapes))
    names = ", ".join(map(repr, _lazy(module) or shapes))
    for rank, (text, of_rank) in enumerate(found):
        if text or of_rank != found[0][1]:
            reason = text or f"the shapes are {of_rank} on process {rank} and {found[0][1]} on process 0"
            raise ConfigurationError(
                f"parameters {names} have no shape yet (lazy layers), and a first batch does not determine it:"
                f" {reason}. Run one batch through the module before fit."
            )


def _lazy(module: LightningModule) -> dict[str, Tensor]:
    return {name: one for name, one in chain(module.named_parameters(), module.named_buffers()) if is_lazy(one)}


def _shapes(
    trainer: ModuleTrainer, factory: BatchFactory, processes: Processes, settings: Settings
) -> dict[str, list[int]]:
    module = trainer.lightning_module
    if not processes.hosted:
        raise ConfigurationError("this process hosts no client: lower trainer.devices")
    if not module.automatic_optimization:
        raise ConfigurationError("the module optimises manually, so its step cannot be tried")
    client = processes.hosted[0]
    seed_default_generators(settings.seed, "lazy layers")
    batches = factory.batches(client, "train")
    if batches is None:
        raise ConfigurationError(f"client {client} has no training data")
    batch, size = next(iter(batches.once((settings.seed, 0, client, "lazy layers"))))
    lazy = [one for one in module.buffers() if is_lazy(one)]  # torch cannot copy these
    copies = {id(one): UninitializedBuffer(device=one.device, dtype=one.dtype) for one in lazy}  # type: ignore[call-arg]
    twin = copy.deepcopy(module, copies).eval()
    twin.trainer = trainer
    precision = trainer.precision_plugin.plugin
    move = BatchTransfer(twin, factory.data, processes.device, precision, channels_last=settings.channels_last)
    trainer.begin_turn(client, 0)
    trainer.collector.begin_step(batch, size)
    with torch.no_grad(), precision.forward_context():
        arguments = (move(batch, batches.on_device, client), 0)
        trainer.call_of(twin, "training_step", *arguments[: 1 + takes_batch_index(module, "training_step")])
    trainer.collector.begin()
    trainer.end_turn()
    made = dict(chain(twin.named_parameters(), twin.named_buffers()))
    for name, tensor in _lazy(module).items():
        if is_lazy(made[name]):
            raise ConfigurationError(f"training_step does not use {name!r}")
        tensor.materialize(made[name].shape, made[name].device, made[name].dtype)  # type: ignore[attr-defined]
        tensor.data.copy_(made[name])
    return {name: list(made[name].shape) for name in sorted(made)}
