"""Set-up of a run: makes the engine's parts from a module and data."""

import os
from collections.abc import Mapping
from typing import Any, cast

from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from lightning.pytorch import LightningModule

from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.core.client_names import check_distinct, recorded_names
from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.batches.from_loaders import LoaderBatches
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.settings import AUTOMATIC
from lightning_fl.engine.turn.compilation import CompiledSteps
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.module_trainer import STAGES, ModuleTrainer, make_module_trainer
from lightning_fl.engine.turn.trial_step import TrialSteps
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.files.generated_modules import remove_generated_files
from lightning_fl.runtime.surface import TrainerSurface
from lightning_fl.trainer.arguments import check_arguments
from lightning_fl.trainer.identity import check_same, data_of, layout_of


def set_up(
    trainer: TrainerSurface, stage: str, steps: CompiledSteps, datamodule: FederatedDataModule, state: Mapping[str, Any]
) -> ModuleTrainer:
    """Make the engine's parts for a module and data, in the order in which Lightning calls their hooks.

    ``state`` is the checkpoint to resume from, which tells the weights that were added in ``on_train_start``.
    """
    settings, federation, fabric, processes = trainer.settings, trainer.federation, trainer.fabric, trainer.processes
    trainer.batch_factory = factory = BatchFactory(datamodule, fabric.device, trainer.hooks)
    module: LightningModule = steps.module
    check_arguments(module, datamodule, stage)
    steps.check(fabric.device)
    trainer.module, trainer.datamodule = module, datamodule
    trainer.call("setup", stage)
    own = make_module_trainer(
        *(module, fabric, factory, settings, federation, processes),
        federated=trainer,
        stage=stage,
        log_dir=os.fspath(trainer.run_log.directory),
        checkpoint_callback=trainer.callback(ModelCheckpoint),
        checkpoint_hyper_parameters=state.get("hyper_parameters", {}),
    )
    datamodule.see_trainer(own)
    if fabric.local_rank == 0:
        datamodule.prepare_data()
        own.call_hook("prepare_data")
    if processes.several:
        trainer.strategy.wait_for_all()
    datamodule.setup(stage)
    trainer.client_names = names = datamodule.client_names()
    check_distinct(names)
    if not federation.models:
        federation.of_clients = names
    elif not state and names != federation.of_clients:  # an evaluation after a fit; a checkpoint has checks of its own
        what = f"the models are of the clients {listed(federation.of_clients)}, the data of {listed(names)}"
        raise ConfigurationError(f"{what}: give those clients in their order, or another module to evaluate.")
    processes.pinned = datamodule.pinned
    trainer.recorded_names = trainer.client_names if processes.private else recorded_names(trainer.client_names)
    if processes.several:
        check_same(trainer.strategy, data_of(datamodule), "data set")
    processes.client_ranks = trainer.strategy.place_clients(
        datamodule.num_clients, datamodule.client_sizes(), pinned=datamodule.pinned, block=settings.stacked_clients
    )
    processes.panel = processes.sample(settings.limit_val_clients, settings.seed)
    if (idle := fabric.world_size - len(set(processes.client_ranks))) > 0:
        blocks = f", {settings.stacked_clients} of which stay together" if settings.stacked_clients > 1 else ""
        clients = f"there are {processes.num_clients} clients{blocks}"
        rank_zero_warn(f"{idle} of {fabric.world_size} processes host no client: {clients}. Lower trainer.devices.")
    own.call_hook("setup", stage)
    own.call_hook("configure_model")
    remove_generated_files()
    if stage == "fit":
        federation.num_samples = _exchange_sizes(trainer, factory, processes)
    module.to(fabric.device)
    fabric.strategy.precision.convert_module(module)
    own.set_stage(*STAGES["fit"])  # shapes come from a training step
    trial = TrialSteps(own, factory, processes, settings)
    trial.materialize_lazy_layers()
    chosen: dict[str, Any] = {name: getattr(settings, name) is True for name in AUTOMATIC}
    if stage == "fit":
        chosen |= trial.automatic_settings(state)
        chosen["optimizer_state"] = _optimizer_state(trainer, state)
    own.set_stage(*STAGES[stage])
    if stage == "fit":
        trainer.load_lightning_callbacks(own, state)
        own.call_hook("on_fit_start")
    flat = FlatModule(module, state.get("layout", []))
    if stage != "fit" and flat.missing():
        what = f"the checkpoint has {', '.join(map(repr, flat.missing()))}, made in on_train_start"
        rank_zero_warn(f"{what}: left out in {stage}. Make them in __init__ or configure_model.")
    if processes.several:
        check_same(trainer.strategy, layout_of(flat.weights, module), "model")
        for vector in flat.weights.vectors.values():  # rank zero's: a module may have another seed elsewhere
            trainer.strategy.broadcast_bytes_(vector, 0)
    federation.begin(flat, processes.num_clients)
    steps.begin()
    trainer.loop = LocalLoop(
        own,
        flat,
        datamodule,
        factory,
        settings=settings,
        federation=federation,
        round=trainer.round,
        processes=processes,
        hooks=trainer.hooks,
        learner=trainer.strategy,
        **chosen,
    )
    if stage == "fit":
        trainer.loop.evaluator.open_validation_data()
    return own


def _optimizer_state(trainer: TrainerSurface, state: Mapping[str, Any]) -> str:
    """What ``optimizer_state`` is, or "auto" becomes: in a resumed run what it was before."""
    if (given := trainer.settings.optimizer_state) != "auto":
        return given
    if state:
        return (state["recipe"] or {}).get("trainer.optimizer_state", "fresh").strip("'")
    if trainer.settings.stacked_clients > 1:
        rank_zero_info("trainer.optimizer_state=auto: fresh, because clients are stacked")
        return "fresh"
    choosers = trainer.hooks.of("select_collaboration")
    own = any("model_per_client" in getattr(chooser.listener, "traits", ()) for chooser in choosers)
    return "keep" if own else "average"


def _exchange_sizes(trainer: TrainerSurface, factory: BatchFactory, processes: Processes) -> list[int]:
    """Every client's number of training samples, its weight in the averages.

    Clients that the fit does not validate are only opened if the data module does not know their number.
    """
    sizes: dict[int, int] = {}
    settings, data, names = trainer.settings, trainer.datamodule, trainer.client_names
    opened, told = set(processes.panel), data.client_sizes() or []
    for client in processes.hosted:
        given = data.given_samples(client)
        if client not in opened and told and told[client]:
            sizes[client] = told[client] if given is None else given
            continue
        batches = factory.batches(client, "train")
        assert batches is not None
        if not batches.num_samples and given is not None:
            batches.num_samples = given
        if not batches.num_samples:
            # A stream without a length may be endless, so only the batches of one turn are read.
            steps, length = settings.local_steps, batches.epoch_length()
            bound = length if steps is None or length else steps * settings.accumulate_grad_batches
            rank_zero_info(
                f"{names[client]}: the length of the training data is unknown; {'all' if bound is None else bound}"
                " batches are read to count samples. Silos(num_samples=...) avoids this"
                f"{'' if bound else '; trainer.local_steps is needed if the data never end'}."
            )
            cast(LoaderBatches, batches).count((settings.seed, "number of samples", client), bound)
        if not batches.num_samples:
            raise DataError(f"client {client} ({names[client]}) has no training samples: its loader gives no batches.")
        sizes[client] = batches.num_samples if given is None else given
    return list(processes.exchange(sizes).values())
