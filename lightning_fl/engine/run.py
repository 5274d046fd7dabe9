"""Everything around a run: processes, data, module, checkpoint, and putting back what was there before."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

from lightning_fl.checkpoint import load_checkpoint, resolve_checkpoint
from lightning_fl.collaboration import Collaboration
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.engine.batches.client import BatchFactory
from lightning_fl.engine.settings import check_arguments
from lightning_fl.engine.state import class_path
from lightning_fl.engine.turn.compilation import CompiledSteps
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.module_trainer import ModuleTrainer, keep_metrics_local
from lightning_fl.engine.weights.flat import FlatModule, Weights
from lightning_fl.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["Run"]


_STAGES = {
    "fit": (TrainerFn.FITTING, RunningStage.TRAINING),
    "validate": (TrainerFn.VALIDATING, RunningStage.VALIDATING),
    "test": (TrainerFn.TESTING, RunningStage.TESTING),
    "predict": (TrainerFn.PREDICTING, RunningStage.PREDICTING),
}

#: What an evaluation of the module that was just fitted leaves as it is.
_KEPT_AFTER_FIT = (
    "metrics",
    "evaluated_samples",
    "gains",
    "num_samples",
    "wall_time_seconds",
    "interrupted_by",
    "models_are_final",
    "communication",
)
#: What it takes over instead of a checkpoint.
_TRAINED = ("models", "_collaboration", "current_round", "client_stores", "absent_clients")


class Run:
    """Everything around a run: processes, data, module, checkpoint; and putting back what was there before."""

    def __init__(self, trainer: "FederatedTrainer", stage: str, module: Any, datamodule: Any, ckpt_path: Any) -> None:
        self._trainer = trainer
        self._stage = stage
        self._steps = CompiledSteps(module, trainer.compile)
        self._arguments = (self._steps.module, datamodule)
        self._ckpt_path = ckpt_path

    def __enter__(self) -> None:
        trainer, stage = self._trainer, self._stage
        trainer.launch()
        trainer.run_log.start(trainer, stage)
        path = resolve_checkpoint(trainer, self._ckpt_path)
        state = None if path is None else load_checkpoint(path)
        goes_on = stage != "fit" and trainer.module is self._arguments[0] and bool(trainer.models)
        kept = {name: getattr(trainer, name) for name in _KEPT_AFTER_FIT} if goes_on else {}
        trained = {name: getattr(trainer, name) for name in _TRAINED} if goes_on else {}
        personal = trainer.personal.patterns if goes_on and trainer.personal is not None else []
        trainer._reset()
        vars(trainer).update(kept)
        self._rng = _collect_rng_states()
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        if trainer.deterministic:
            torch.use_deterministic_algorithms(True)
        try:
            _set_up(trainer, stage, self._steps, self._arguments[1])
            trainer.resumes_fit = stage == "fit" and state is not None
            if stage == "fit":
                trainer.call("on_fit_start")
            if state is not None:
                assert path is not None
                _check_fits(trainer, state, path)
                trainer.load_state_dict(state, weights_only=stage != "fit")
                trainer.ckpt_path = os.fspath(path)
                trainer.run_log.replay(trainer, path)
            elif trained:
                vars(trainer).update(trained)
                trainer.keep_local(personal)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        trainer = self._trainer
        self._steps.end()
        if error is not None:
            trainer.call("on_exception", error)
            if trainer.datamodule is not None:
                trainer.datamodule.on_exception(error)
        if trainer.datamodule is not None:
            trainer.datamodule.teardown(self._stage)
        if trainer.module is not None:
            trainer.module.teardown(self._stage)
            if error is None and trainer.num_clients:
                trainer.loop.flat.load(trainer.client_model(0))
        trainer.run_log.finish(trainer, self._stage, error)
        trainer.call("teardown", self._stage)
        trainer.fitting = False
        torch.use_deterministic_algorithms(self._deterministic)
        _set_rng_states(self._rng)


def _check_fits(trainer: "FederatedTrainer", state: dict[str, Any], path: Path) -> None:
    for what, own in (("module", class_path(trainer.module)), ("num_clients", trainer.num_clients)):
        if state[what] != own:
            raise CheckpointError(
                f"{path}: the checkpoint's {what} is {state[what]}, this run's is {own}: give the checkpoint of a run"
                " with the same recipe."
            )
    if state["seed"] != trainer.seed:
        rank_zero_warn(f"{path} was made with seed {state['seed']}; this run goes on with seed {trainer.seed}.")
    own_layout = {name: tuple(vector.shape) for name, vector in trainer.models[0].state_dict().items()}
    layout = {name: tuple(vector.shape) for name, vector in state["models"][0].items()}
    if layout != own_layout:
        raise CheckpointError(
            f"{path}: the checkpoint's weights have the layout {layout}, this module's have {own_layout}: give the"
            " checkpoint of a run with the same model."
        )


def _set_up(trainer: "FederatedTrainer", stage: str, steps: CompiledSteps, datamodule: FederatedDataModule) -> None:
    trainer.batch_factory = BatchFactory(datamodule, trainer.fabric.device, trainer.channels_last)
    module: LightningModule = steps.module
    check_arguments(module, datamodule)
    steps.check(trainer.fabric.device)
    trainer.call("setup", stage)
    datamodule.trainer = trainer  # type: ignore[assignment]
    shim = ModuleTrainer(trainer, module)
    shim.set_stage(*_STAGES[stage])
    trainer.module, trainer.datamodule = module, datamodule
    with trainer.fabric.rank_zero_first(local=True):
        if trainer.fabric.local_rank == 0:
            datamodule.prepare_data()
            shim.call_hook("prepare_data")
    datamodule.setup(stage)
    trainer.client_ranks = trainer.strategy.place_clients(
        datamodule.num_clients, datamodule.client_sizes(), pinned=datamodule.pinned, block=trainer.stacked_clients
    )
    _warn_of_idle_ranks(trainer)
    shim.call_hook("setup", stage)
    shim.call_hook("configure_model")
    if stage == "fit":
        trainer.num_samples = _exchange_sizes(trainer)
    keep_metrics_local(module)
    module.to(trainer.fabric.device)
    trainer.fabric._precision.convert_module(module)
    if stage == "fit":
        shim.call_hook("on_fit_start")
    trainer._collaboration = None
    flat = FlatModule(module)
    _agree_on(trainer, flat.weights)
    trainer.models = [flat.weights.clone()]
    trainer.communication.begin(trainer.models[0])
    steps.begin()
    trainer.loop = LocalLoop(trainer, module, shim, flat, trainer.batch_factory)
    trainer._collaboration = Collaboration.fedavg(trainer.num_samples or [1] * trainer.num_clients)


def _exchange_sizes(trainer: "FederatedTrainer") -> list[int]:
    sizes: dict[int, int] = {}
    for client in trainer.hosted_clients:
        batches = trainer.client_batches(client, "train")
        assert batches is not None
        if not batches.num_samples:
            raise ConfigurationError(
                f"client {client}'s training data have no length: define __len__ on its data set, since a"
                " client's weight in the average is its number of samples."
            )
        sizes[client] = batches.num_samples
    return list(trainer.strategy.exchange(sizes).values())


def _warn_of_idle_ranks(trainer: "FederatedTrainer") -> None:
    idle = trainer.fabric.world_size - len(set(trainer.client_ranks))
    if idle > 0:
        rank_zero_warn(
            f"{idle} of {trainer.fabric.world_size} processes host no client: there are {trainer.num_clients} clients"
            f"{f', {trainer.stacked_clients} of which stay together' if trainer.stacked_clients > 1 else ''}."
            " Lower trainer.devices."
        )


def _agree_on(trainer: "FederatedTrainer", weights: Weights) -> None:
    """Rank zero's initial weights on every rank: a module may have been made with another seed there."""
    if trainer.fabric.world_size > 1:
        for vector in weights.vectors.values():
            wide = vector.float() if vector.dtype == torch.bfloat16 else vector
            vector.copy_(trainer.fabric.broadcast(wide.cpu()))
