"""The engine's parts put together by hand, without a trainer."""

from types import SimpleNamespace
from typing import Any

from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from lightning_fl import FederatedDataModule
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.federation import Federation, Round
from lightning_fl.engine.hooks import Hooks
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.module_trainer import make_module_trainer
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.strategies import FedAvg

#: What a module's trainer asks of a federated trainer.
NO_TRAINER = SimpleNamespace(loggers=[], callbacks=[], lightning_callbacks=[], profiler=None, should_stop=False)


def make_loop(
    module: LightningModule,
    data: FederatedDataModule,
    *,
    federation: Federation | None = None,
    hooks: Hooks | None = None,
    learner: Learner | None = None,
    **settings: Any,
) -> LocalLoop:
    """The loop of a fit with one process."""
    fabric = Fabric(strategy=FedAvg(), accelerator="cpu", devices=1)
    told, state, now = Settings(**settings), federation or Federation(), Round(fitting=True)
    processes = Processes(fabric.strategy, fabric.device)  # type: ignore[arg-type]
    processes.client_ranks = [0] * data.num_clients
    factory = BatchFactory(data, fabric.device, hooks=hooks)
    found = [factory.batches(client, "train") for client in range(data.num_clients)]
    state.num_samples = [batches.num_samples for batches in found if batches is not None]
    shim = make_module_trainer(module, fabric, factory, told, state, processes, federated=NO_TRAINER)
    flat = FlatModule(module)
    state.begin(flat, data.num_clients)
    return LocalLoop(
        shim,
        flat,
        data,
        factory,
        settings=told,
        federation=state,
        round=now,
        processes=processes,
        hooks=hooks or Hooks(),
        learner=learner or Learner(),
    )
