"""Everything around a run: processes, data, module, checkpoint; and putting back what was there before."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

from lightning_fl.callbacks.callback import method_of
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.core.client_names import check_distinct
from lightning_fl.core.errors import CheckpointError, DataError, LostPeerError
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.core.seeding import generator, shuffled
from lightning_fl.core.system_errors import breaks_device
from lightning_fl.data.module import FederatedDataModule, known_clients
from lightning_fl.data.split_file import split_file_text
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.batches.from_loaders import LoaderBatches
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.interrupt import signals_of_a_run
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.compilation import CompiledSteps
from lightning_fl.engine.turn.lazy_layers import materialize_lazy_layers
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.module_callbacks import module_callbacks
from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.engine.turn.surroundings import Surroundings
from lightning_fl.engine.weights.flat import FlatModule, Weights
from lightning_fl.files.generated_modules import remove_generated_files
from lightning_fl.files.user_file import near
from lightning_fl.runtime.checkpoint import load_checkpoint, load_state, resolve_checkpoint, with_client_files
from lightning_fl.runtime.run_log import versions
from lightning_fl.runtime.surface import TrainerSurface
from lightning_fl.trainer.arguments import check_arguments
from lightning_fl.trainer.fingerprint import check_same, data_of, identity_of, layout_of, settings_of
from lightning_fl.trainer.resume import check_fits, find_differences, warn_if_finished, warn_of_differences

__all__ = ["Run"]


_STAGES = {
    "fit": (TrainerFn.FITTING, RunningStage.TRAINING),
    "validate": (TrainerFn.VALIDATING, RunningStage.VALIDATING),
    "test": (TrainerFn.TESTING, RunningStage.TESTING),
    "predict": (TrainerFn.PREDICTING, RunningStage.PREDICTING),
}


_HOST = torch.device("cpu")


@dataclass(frozen=True)
class _Algorithms:
    """Which of several algorithms torch takes: by default those that it would take now.

    ``benchmark``: cuDNN times its algorithms and takes the fastest, in another process maybe another one.
    """

    deterministic: bool = field(default_factory=torch.are_deterministic_algorithms_enabled)
    warn_only: bool = field(default_factory=torch.is_deterministic_algorithms_warn_only_enabled)
    benchmark: bool = field(default_factory=lambda: torch.backends.cudnn.benchmark)

    def choose(self) -> None:
        """Let torch take these."""
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.backends.cudnn.benchmark = self.benchmark


class Run:
    """A fit or an evaluation of a trainer's, from its set-up to its end.

    Args:
        trainer: whose.
        stage: "fit", "validate", "test" or "predict".
        module: the user's module, or what ``torch.compile`` made of one.
        datamodule: the data.
        ckpt_path: "last", "best", a file, or ``None``.
    """

    def __init__(self, trainer: TrainerSurface, stage: str, module: Any, datamodule: Any, ckpt_path: Any) -> None:
        self._trainer = trainer
        self._stage = stage
        self._steps = CompiledSteps(module, trainer.compile)
        self._arguments = (self._steps.module, datamodule)
        self._ckpt_path = ckpt_path
        self._began = False

    def __enter__(self) -> None:
        gpu = self._trainer.fabric.device.type == "cuda" or torch.cuda.is_initialized()
        self._rng = _collect_rng_states(include_cuda=gpu)  # no run on CPUs opens a GPU
        self._algorithms = _Algorithms()
        _limit_processes(self._trainer, self._arguments[1])
        remove_generated_files()
        with ExitStack() as signals:
            self._trainer.launch()
            signals.enter_context(self._trainer.strategy.hidden_group())
            signals.enter_context(signals_of_a_run())  # whose thread must not be there when others are forked
            try:
                self._begin()
                self._began = True
            except BaseException as error:
                self._trainer.strategy.fail(error)
                raise
            self._signals = signals.pop_all()

    def _begin(self) -> None:
        trainer, stage = self._trainer, self._stage
        trainer.strategy.begin_work()
        if trainer.processes.several:
            check_same(trainer.strategy, settings_of(trainer, stage, self._arguments[0], self._ckpt_path), "recipe")
        # A resumed run may have found nothing better than the run it goes on from.
        resumed = [] if trainer.ckpt_path is None else [Path(trainer.ckpt_path).parent.parent]
        before = [trainer.run_log.directory] if trainer.run_log.started else []
        # Before there is a folder of this run's own: one that is refused leaves none.
        path = resolve_checkpoint(self._ckpt_path, trainer.fabric, trainer.run_log.root, [*before, *resumed])
        state = None if path is None else load_state(near(path), trainer.fabric)
        trainer.run_log.start(trainer.fabric, fits=stage == "fit")
        goes_on = (
            stage != "fit"
            and trainer.is_set_up
            and trainer.module is self._arguments[0]
            and bool(trainer.federation.models)
        )
        trainer.begin(trainer.federation.for_evaluation() if goes_on else Federation())
        if trainer.deterministic:
            _Algorithms(deterministic=True, warn_only=False, benchmark=False).choose()
        try:
            around = _set_up(trainer, stage, self._steps, self._arguments[1], state or {})
            trainer.resumes_fit = stage == "fit" and state is not None
            if stage == "fit" or state is not None:
                _record_identity(trainer, stage)
            if stage == "fit":
                trainer.call("on_fit_start")
                _write_splits(trainer)
            if state is not None:
                assert path is not None
                self._restore(state, path)
                trainer.ckpt_path = around.ckpt_path = os.fspath(path)
                if trainer.resumes_fit:
                    trainer.run_log.replay(path, trainer.federation.current_round, state.get("record"))
        except BaseException as error:
            self._clean_up(error)
            raise

    def _restore(self, state: dict[str, Any], path: Path) -> None:
        """Go on from a checkpoint that fits, and say what is not as it was."""
        trainer, evaluates = self._trainer, self._stage != "fit"
        shown = near(path)
        check_fits(trainer, state, shown)
        names = trainer.strategy.rank_names
        state = with_client_files(state, path, trainer.processes, trainer.client_names, names)
        trainer.differs = find_differences(trainer, state, evaluates=evaluates)
        said = trainer.run_log.summary.get("differs_from_checkpoint", {})  # by the fit before this evaluation
        warn_of_differences(shown, {name: values for name, values in trainer.differs.items() if name not in said})
        try:
            trainer.load_state_dict(state, weights_only=evaluates)
        except CheckpointError as error:
            raise CheckpointError(f"{shown}: {error}") from error
        if not evaluates:
            rank_zero_info(f"goes on after round {trainer.federation.current_round} of {shown}")
            warn_if_finished(trainer, shown)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with self._signals:
            self._clean_up(error)

    def _clean_up(self, error: BaseException | None) -> None:
        try:
            self._end(error)
        except BaseException as late:
            if error is not None and breaks_device(late):  # a GPU that is lost says so again; the first error counts
                return
            self._trainer.strategy.fail(late)
            raise

    def _end(self, error: BaseException | None) -> None:
        trainer = self._trainer
        trainer.strategy.end_work()
        self._steps.end()
        if error is not None:
            if isinstance(error, LostPeerError) and trainer.round.fitting:
                error.args = (f"{error} {_resume_hint(trainer)}",)
            trainer.strategy.fail(error)  # first of all: the others wait
            trainer.call("on_exception", error)
            if trainer.is_set_up:
                _call_module_callbacks(trainer.module, "on_exception", error)
                trainer.datamodule.on_exception(error)
        if hasattr(trainer, "loop"):
            trainer.loop.optimization.end_run()
        if error is None and trainer.num_clients:
            trainer.loop.flat.load(trainer.client_model(0))
        self._leave_device(error)
        if trainer.is_set_up:
            trainer.datamodule.teardown(self._stage)
            _call_module_callbacks(trainer.module, "teardown", self._stage)
            trainer.module.teardown(self._stage)
        try:
            self._end_record(error)
        finally:
            trainer.call("teardown", self._stage)
            trainer.round.fitting = False
            self._algorithms.choose()
            _set_rng_states(self._rng)

    def _leave_device(self, error: BaseException | None) -> None:
        """The module and the models on the host, as Lightning leaves a module; a GPU's memory is for others now."""
        trainer, device = self._trainer, self._trainer.fabric.device
        if device.type == "cpu" or not trainer.is_set_up:
            return
        try:
            if hasattr(trainer, "loop") and trainer.loop.module is trainer.module:
                trainer.loop.flat.to(_HOST)
            trainer.module.to(_HOST)
            trainer.federation.to_(_HOST)
        except RuntimeError:
            if error is None:  # after some errors a GPU gives nothing back; that error is what counts
                raise
        trainer.batch_factory.release()

    def _end_record(self, error: BaseException | None) -> None:
        trainer = self._trainer
        if error is None and trainer.is_global_zero:
            about, fitted = _about(trainer, self._stage), self._stage == "fit"
            trainer.run_log.finish(None, about, trainer.federation, trainer.client_names, fitted=fitted)
        elif self._began:
            trainer.run_log.finish(error)
        else:
            trainer.run_log.discard()


def _call_module_callbacks(module: LightningModule, hook: str, *args: Any) -> None:
    """Call a hook of the callbacks that a module brings, where the module has none or is called by itself."""
    shim = module._trainer
    if isinstance(shim, ModuleTrainer):
        for callback in shim.watching.get(hook, ()):
            getattr(callback, hook)(shim, module, *args)


def _set_up(
    trainer: TrainerSurface,
    stage: str,
    steps: CompiledSteps,
    datamodule: FederatedDataModule,
    state: Mapping[str, Any],
) -> Surroundings:
    """Make the engine's parts for a module and data, in the order in which Lightning calls their hooks.

    ``state`` is that of the checkpoint that the run goes on from, whose module may have got parts in
    ``on_train_start``; empty where there is none.
    """
    settings, federation, fabric, processes = trainer.settings, trainer.federation, trainer.fabric, trainer.processes
    factory = BatchFactory(datamodule, fabric.device, settings.channels_last, trainer.hooks)
    trainer.batch_factory = factory
    module: LightningModule = steps.module
    check_arguments(module, datamodule, stage)
    steps.check(fabric.device)
    trainer.module, trainer.datamodule = module, datamodule
    trainer.call("setup", stage)
    around = Surroundings(
        federated=trainer,
        datamodule=datamodule,
        loggers=trainer.loggers,
        log_dir=os.fspath(trainer.run_log.directory),
        callbacks=trainer.callbacks,
        checkpoint_callback=trainer.callback(ModelCheckpoint),
        profiler=trainer.profiler,
        target_statistics=trainer.target_statistics,
        descriptor_statistics=trainer.descriptor_statistics,
        target_summaries=trainer.target_summaries,
        checkpoint_hyper_parameters=state.get("hyper_parameters", {}),
    )
    shim = ModuleTrainer(module, fabric, settings, federation, processes, around)
    shim.set_stage(*_STAGES[stage])
    datamodule.see_trainer(shim)
    shim.watching = module_callbacks(module)
    if fabric.local_rank == 0:
        datamodule.prepare_data()
        shim.call_hook("prepare_data")
    if processes.several:
        trainer.strategy.wait_for_all()
    datamodule.setup(stage)
    trainer.client_names = datamodule.client_names()
    check_distinct(trainer.client_names)
    processes.pinned = datamodule.pinned
    if processes.several:
        check_same(trainer.strategy, data_of(datamodule), "data set")
    processes.client_ranks = trainer.strategy.place_clients(
        datamodule.num_clients, datamodule.client_sizes(), pinned=datamodule.pinned, block=settings.stacked_clients
    )
    processes.panel = _panel(processes, settings)
    _warn_of_idle_ranks(processes, settings.stacked_clients)
    shim.call_hook("setup", stage)
    shim.call_hook("configure_model")
    remove_generated_files()
    if stage == "fit":
        federation.num_samples = _exchange_sizes(trainer, factory, processes)
    module.to(fabric.device)
    fabric._precision.convert_module(module)
    shim.set_stage(*_STAGES["fit"])  # shapes come from a training step
    materialize_lazy_layers(shim, factory, datamodule, processes, settings)
    shim.set_stage(*_STAGES[stage])
    if stage == "fit":
        shim.call_hook("on_fit_start")
    flat = FlatModule(module, state.get("layout", []))
    if stage != "fit" and flat.missing():
        rank_zero_warn(
            f"the checkpoint has {', '.join(map(repr, flat.missing()))}, made in on_train_start of its run, which the"
            f" module has not in {stage}: they are left out. Make them in __init__ or configure_model."
        )
    if processes.several:
        check_same(trainer.strategy, layout_of(flat.weights, module), "model")
    _agree_on(trainer, flat.weights)
    federation.begin(flat, processes.num_clients)
    steps.begin()
    trainer.loop = LocalLoop(
        shim,
        flat,
        datamodule,
        factory,
        settings=settings,
        federation=federation,
        round=trainer.round,
        processes=processes,
        hooks=trainer.hooks,
        learner=trainer.strategy,
    )
    if stage == "fit":
        trainer.loop.open_validation_data()
    return around


def _record_identity(trainer: TrainerSurface, stage: str) -> None:
    """Note what decides the result, for checkpoints; of data that belong to their ranks, on these alone."""
    trainer.identity = identity_of(trainer, trainer.module, trainer.datamodule)
    own = {client: trainer.datamodule.data_digests(client, stage) for client in trainer.processes.panel}
    trainer.data_digests = own if trainer.processes.private else trainer.processes.exchange(own)


def _write_splits(trainer: TrainerSurface) -> None:
    """Leave in the run's folder who holds which samples; of data that belong to their ranks, each rank its own."""
    data = trainer.datamodule
    if trainer.processes.private:
        for client in trainer.hosted_clients:
            if (text := split_file_text(data, [client])) is not None:
                trainer.run_log.write(f"splits.client-{client}.json", text, of_every_rank=True)
    elif trainer.is_global_zero and (text := split_file_text(data, range(data.num_clients))) is not None:
        trainer.run_log.write("splits.json", text)


def _panel(processes: Processes, settings: Settings) -> list[int]:
    """The hosted ones of the clients that a fit validates: all, or of too many a sample of the run."""
    most, clients = settings.limit_val_clients, processes.num_clients
    if most is None or clients <= most:
        return processes.hosted
    drawn = shuffled(range(clients), generator(settings.seed, "validated clients"), most)
    return [client for client in sorted(drawn) if processes.hosts(client)]


def _exchange_sizes(trainer: TrainerSurface, factory: BatchFactory, processes: Processes) -> list[int]:
    """Every client's number of training samples, its weight in the averages.

    Clients that the fit does not validate are opened only where the data module does not say their number.
    """
    sizes: dict[int, int] = {}
    settings, data = trainer.settings, trainer.datamodule
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
            # A stream without a length may be endless: it is read as far as a turn goes.
            steps, length = settings.local_steps, batches.epoch_length()
            bound = length if steps is None or length else steps * settings.accumulate_grad_batches
            rank_zero_info(
                f"{data.client_names()[client]}: the training data do not tell their number of samples and are read"
                f" {'once' if bound is None else f'as far as {bound} batches'} to count them; Silos(num_samples=...)"
                f" spares this{'' if bound else ', and trainer.local_steps is needed if they have no end'}."
            )
            cast(LoaderBatches, batches).count((settings.seed, "number of samples", client), bound)
        if not batches.num_samples:
            raise DataError(
                f"client {client} ({data.client_names()[client]}) has no training samples: its loader gives no batches."
            )
        sizes[client] = batches.num_samples if given is None else given
    return list(processes.exchange(sizes).values())


def _warn_of_idle_ranks(processes: Processes, block: int) -> None:
    world_size = processes.transport.world_size
    idle = world_size - len(set(processes.client_ranks))
    if idle > 0:
        rank_zero_warn(
            f"{idle} of {world_size} processes host no client: there are {processes.num_clients} clients"
            f"{f', {block} of which stay together' if block > 1 else ''}."
            " Lower trainer.devices."
        )


def _agree_on(trainer: TrainerSurface, weights: Weights) -> None:
    """Rank zero's initial weights on every rank: a module may have been made with another seed there."""
    if trainer.processes.several:
        for vector in weights.vectors.values():
            trainer.strategy.broadcast_bytes_(vector, 0)


def _resume_hint(trainer: TrainerSurface) -> str:
    """What is to be done after another rank was lost."""
    checkpoint = trainer.callback(ModelCheckpoint)
    path = near(trainer.log_dir) / "checkpoints" / "last.ckpt"
    written = None if checkpoint is None else _round_of(path, checkpoint.last_round, trainer.processes.private)
    if written is None:
        if trainer.resumes_fit:
            assert trainer.ckpt_path is not None
            path = near(trainer.ckpt_path)
            return f"To go on from where this run did, start all ranks again with --ckpt_path {path}."
        return "No checkpoint of this run is there to go on from: begin anew."
    return f"To go on from round {written}, start all ranks again with --ckpt_path {path}."


def _round_of(path: Path, known: int | None, private: bool) -> int | None:
    """The round of a checkpoint: what its file says, or where rank zero's folder is not seen here, what is known.

    Clients that keep their states have files of their own in a folder of this rank's.
    """
    try:
        return int(load_checkpoint(path)["round"])
    except CheckpointError:
        return None if path.parent.is_dir() and not private else known


def _limit_processes(trainer: TrainerSurface, datamodule: Any) -> None:
    """Start no more processes than there are clients, where their number is known before the data are read."""
    clients = known_clients(datamodule) if isinstance(datamodule, FederatedDataModule) else None
    if clients:
        trainer.strategy.limit_processes(-(-clients // trainer.stacked_clients), f"there are {clients} clients")


def _predicts(trainer: TrainerSurface) -> str | None:
    """What ``lightning-fl predict`` can do with the run: "new samples", only its own "test data", or nothing."""
    if not is_overridden("predict_step", trainer.module) and not is_overridden("forward", trainer.module):
        return None
    reads = type(trainer.datamodule).unlabelled_data is not FederatedDataModule.unlabelled_data
    return "new samples" if reads else "test data"


def _about(trainer: TrainerSurface, stage: str) -> dict[str, Any]:
    """What the summary says of a run besides its metrics."""
    source, names = trainer.datamodule.source, trainer.client_names
    title = trainer.run_log.summary.get("title", f"{type(trainer.module).__name__} on {source} data")
    about = {
        "title": title,
        "data_source": source,
        "data": dict(trainer.datamodule.describe()),
        "method": method_of(type(trainer.strategy).__name__, trainer.callbacks),
        "strategy": type(trainer.strategy).__name__,
        "evaluated": trainer.evaluated_model,
        "predicts": _predicts(trainer),
        "callbacks": [type(callback).__name__ for callback in trainer.callbacks],
        "seed": trainer.seed,
        "num_clients": trainer.num_clients,
        "client_names": names,
        "num_processes": trainer.fabric.world_size,
        "device": str(trainer.fabric.device),
        "versions": versions(),
    }
    if trainer.differs:
        before = trainer.run_log.summary.get("differs_from_checkpoint", {})
        about["differs_from_checkpoint"] = {**before, **trainer.differs}
    if stage != "fit":
        return about
    checkpoint = trainer.callback(ModelCheckpoint)
    about |= {
        "rounds": trainer.federation.current_round,
        "wall_time_seconds": round(trainer.federation.wall_time_seconds, 3),
        "communication": trainer.federation.communication.summary(names),
        "interrupted": trainer.federation.interrupted_by is not None,
        "resumed_from": trainer.ckpt_path,
    }
    if checkpoint is not None:
        about |= {"best_round": checkpoint.best_round, "best_value": checkpoint.best_value}
    return about
