"""Context of one fit, validate, test or predict: processes, data, module, checkpoint, and their end."""

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn

from lightning_fl.callbacks.callback import method_of
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.core.client_names import are_many
from lightning_fl.core.environment import package_versions
from lightning_fl.core.errors import CheckpointError, LostPeerError
from lightning_fl.core.lightning_private import collect_rng_states, set_rng_states
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.core.system_errors import breaks_device
from lightning_fl.data.module import FederatedDataModule, known_clients
from lightning_fl.data.partition.from_file import split_file_text
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.interrupt import signals_of_a_run
from lightning_fl.engine.turn.compilation import CompiledSteps
from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.files.generated_modules import remove_generated_files
from lightning_fl.files.user_file import near
from lightning_fl.runtime.checkpoint import load_checkpoint, load_state, resolve_checkpoint, with_client_files
from lightning_fl.runtime.surface import TrainerSurface
from lightning_fl.trainer.identity import check_fits, check_same, find_differences, identity_of, settings_of
from lightning_fl.trainer.setup import set_up
from lightning_fl.version import __version__


@contextmanager
def session(
    trainer: TrainerSurface, stage: str, module: Any, datamodule: Any, ckpt_path: str | os.PathLike[str] | None
) -> Iterator[None]:
    """Set up a run; when it ends, leave module, data, devices and torch's settings as they were before."""
    steps = CompiledSteps(module, trainer.compile)
    restore_torch = _torch_state(trainer.fabric.device)
    clients = known_clients(datamodule) if isinstance(datamodule, FederatedDataModule) else None
    if clients:  # before the data are read
        trainer.strategy.limit_processes(-(-clients // trainer.stacked_clients), f"there are {clients} clients")
    remove_generated_files()
    trainer.launch()
    first: BaseException | None = None
    # The thread that waits for signals must start after other processes are forked.
    with trainer.strategy.hidden_group(), signals_of_a_run():
        try:
            with ExitStack() as ending:
                try:
                    path, state = _start(trainer, stage, steps.module, ckpt_path)
                    began = _register_ends(ending, trainer, stage, restore_torch)
                    ending.callback(steps.end)
                    if trainer.deterministic:
                        torch.use_deterministic_algorithms(True)
                        torch.backends.cudnn.benchmark = False
                    _begin(trainer, stage, steps, datamodule, path, state)
                    began.append(True)
                    yield
                except BaseException as error:
                    first = error
                    if isinstance(error, LostPeerError) and trainer.round.fitting:
                        error.args = (f"{error} {_resume_hint(trainer)}",)
                    trainer.strategy.disconnect(error)  # first of all, as other ranks wait
                    raise
        except BaseException as error:
            trainer.strategy.disconnect(error)
            if first is None or not breaks_device(error):  # a lost GPU reports that again; the first error counts
                raise
        if first is not None:
            raise first


def _torch_state(device: torch.device) -> Callable[[], None]:
    """Return a function that restores the present random states and choice of algorithms."""
    random = collect_rng_states(include_cuda=device.type == "cuda" or torch.cuda.is_initialized())
    deterministic, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    warn_only, threads = torch.is_deterministic_algorithms_warn_only_enabled(), torch.get_num_threads()

    def restore() -> None:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        torch.set_num_threads(threads)
        set_rng_states(random)

    return restore


def _start(trainer: TrainerSurface, stage: str, module: Any, ckpt_path: Any) -> tuple[Path | None, dict[str, Any]]:
    """Read the checkpoint, start the record and reset the trainer's state; the checkpoint's file and content."""
    if trainer.processes.several:
        check_same(trainer.strategy, settings_of(trainer, stage, module, ckpt_path), "recipe")
    # A resumed run may have found nothing better than the run that it resumes.
    resumed = [] if trainer.ckpt_path is None else [Path(trainer.ckpt_path).parent.parent]
    before = [trainer.run_log.directory] if trainer.run_log.started else []
    others = stage == "fit" or not trainer.run_log.fitted  # an evaluation after a fit does not search other runs
    # Read before this run has a folder, so that a refused one leaves none.
    path = resolve_checkpoint(ckpt_path, trainer.fabric, trainer.run_log.root, [*before, *resumed], others)
    state = {} if path is None else load_state(near(path), trainer.fabric)
    trainer.run_log.start(trainer.fabric, fits=stage == "fit")
    same = stage != "fit" and trainer.is_set_up and trainer.module is module and bool(trainer.federation.current_round)
    if same and path is None and trainer.left is not None and trainer.left[0].marks() != trainer.left[1]:
        what = f"the {type(module).__name__} may have changed since the last run, whose clients' models are evaluated"
        rank_zero_warn(f"{what}: give copy.deepcopy of it to evaluate its own weights.")
    trainer.left = None
    trainer.begin(trainer.federation.for_evaluation() if same else Federation())
    return path, state


def _begin(
    trainer: TrainerSurface,
    stage: str,
    steps: CompiledSteps,
    datamodule: FederatedDataModule,
    path: Path | None,
    state: dict[str, Any],
) -> None:
    """Set up module and data, and restore the checkpoint."""
    module_trainer = set_up(trainer, stage, steps, datamodule, state)
    fits = stage == "fit"
    trainer.resumes_fit = fits and path is not None
    if fits or path is not None:
        trainer.identity = identity_of(trainer, trainer.module, trainer.datamodule)
        own = {client: trainer.datamodule.data_digests(client, stage) for client in trainer.processes.panel}
        trainer.data_digests = own if trainer.processes.private else trainer.processes.exchange(own)
    if fits:
        trainer.call("on_fit_start")
        _write_splits(trainer)
    if path is not None:
        _restore(trainer, state, path, evaluates=not fits)
        trainer.ckpt_path = module_trainer.ckpt_path = os.fspath(path)
        if fits:
            trainer.run_log.replay(path, trainer.federation.current_round, state["record"] or {})


def _restore(trainer: TrainerSurface, state: dict[str, Any], path: Path, *, evaluates: bool) -> None:
    """Restore a checkpoint that fits, and report what differs."""
    shown = near(path)
    state = {**state, "client_names": state["client_names"] or trainer.client_names}
    check_fits(trainer, state, shown)
    state = with_client_files(state, path, trainer.processes, trainer.client_names, trainer.strategy.rank_names)
    trainer.differs = find_differences(trainer, state, shown, evaluates=evaluates)
    try:
        trainer.load_state_dict(state, weights_only=evaluates)
    except CheckpointError as error:
        raise CheckpointError(f"{shown}: {error}") from error
    trainer.federation.of_clients = trainer.client_names
    if evaluates:
        return
    done = trainer.federation.current_round
    rank_zero_info(f"resumed after round {done} of {shown}")
    if done >= trainer.max_rounds:
        done_by = f"{shown} is of round {done}, and trainer.max_rounds is {trainer.max_rounds}"
        rank_zero_warn(f"nothing is left to train: {done_by}. Raise it to train on; models are written as is.")


def _register_ends(
    ending: ExitStack, trainer: TrainerSurface, stage: str, restore_torch: Callable[[], None]
) -> list[bool]:
    """Register what is done when the run ends, the last step first; an item in the result says that it has begun."""
    began: list[bool] = []

    def end_record(kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None and trainer.is_global_zero:
            found, fitted = _about(trainer, stage), stage == "fit"
            trainer.run_log.finish(None, found, trainer.federation, trainer.client_names, fitted=fitted)
        elif began:
            trainer.run_log.finish(error)
        else:
            trainer.run_log.discard()

    def tear_down() -> None:
        if trainer.is_set_up:
            trainer.datamodule.teardown(stage)
            _call_module_callbacks(trainer, "teardown", stage)
            trainer.module.teardown(stage)
            trainer.module._metric_attributes = None  # as in Lightning: the next setup may make others
        if hasattr(trainer, "loop"):
            trainer.left = (trainer.loop.flat, trainer.loop.flat.marks())

    def end_round(kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            trainer.call("on_exception", error)
            if trainer.is_set_up:
                _call_module_callbacks(trainer, "on_exception", error)
                trainer.datamodule.on_exception(error)
        if hasattr(trainer, "loop"):
            trainer.loop.training.optimization.end_run()
            trainer.loop.metric_states.leave()
        if error is None and trainer.num_clients:
            trainer.loop.flat.load(trainer.client_model(0))
        _leave_device(trainer, error)

    ending.callback(restore_torch)
    ending.callback(setattr, trainer.round, "fitting", False)
    ending.callback(trainer.call, "teardown", stage)
    ending.push(end_record)
    ending.callback(tear_down)
    ending.push(end_round)
    return began


def _leave_device(trainer: TrainerSurface, error: BaseException | None) -> None:
    """Move the module and the models to the host, as Lightning does after a run; frees a GPU's memory."""
    host = torch.device("cpu")
    if trainer.fabric.device == host or not trainer.is_set_up:
        return
    try:
        if hasattr(trainer, "loop") and trainer.loop.module is trainer.module:
            trainer.loop.flat.to(host)
        trainer.module.to(host)
        trainer.federation.to_(host)
    except RuntimeError:
        if error is None:  # a broken GPU returns nothing; the error that broke it counts
            raise
    trainer.batch_factory.release()


def _call_module_callbacks(trainer: TrainerSurface, hook: str, *args: Any) -> None:
    """Call a hook of Lightning's callbacks that the module does not define or that is not called by itself."""
    own = trainer.module._trainer
    if isinstance(own, ModuleTrainer):
        own.call_callbacks(own.watching, hook, *args)


def _write_splits(trainer: TrainerSurface) -> None:
    """Write which client holds which samples, unless there are too many clients; of private data each rank its own."""
    data, private = trainer.datamodule, trainer.processes.private
    if are_many(data.num_clients):
        return
    files: dict[str, Sequence[int]] = {"splits.json": range(data.num_clients)}
    if private:
        files = {f"splits.client-{client}.json": [client] for client in trainer.hosted_clients}
    for name, clients in files.items():
        if (private or trainer.is_global_zero) and (text := split_file_text(data, clients)) is not None:
            trainer.run_log.write(name, text, of_every_rank=private)


def _resume_hint(trainer: TrainerSurface) -> str:
    """What to do after another rank was lost; the round is the checkpoint's, or known where there is none here."""
    checkpoint, path = trainer.callback(ModelCheckpoint), near(trainer.log_dir) / "checkpoints" / "last.ckpt"
    written: int | None
    try:
        written = int(load_checkpoint(path)["round"])
    except CheckpointError:
        elsewhere = trainer.processes.private or not path.parent.is_dir()
        written = checkpoint.last_round if elsewhere and checkpoint is not None else None
    if written is not None:
        return f"To resume after round {written}, start all ranks again with --ckpt_path {path}."
    if trainer.ckpt_path is not None:
        return f"To resume where this run did, start all ranks again with --ckpt_path {near(trainer.ckpt_path)}."
    return "This run has no checkpoint: start a new run."


def _about(trainer: TrainerSurface, stage: str) -> dict[str, Any]:
    """Entries of the summary for a stage."""
    module, data, names = trainer.module, trainer.datamodule, trainer.client_names
    predicts = None  # what `lightning-fl predict` can read
    if is_overridden("predict_step", module) or is_overridden("forward", module):
        reads = type(data).unlabelled_data is not FederatedDataModule.unlabelled_data
        predicts = "new samples" if reads else "test data"
    found = {
        "title": trainer.run_log.summary.get("title", f"{type(module).__name__} on {data.source} data"),
        "data_source": data.source,
        "data": dict(data.describe()),
        "method": method_of(type(trainer.strategy).__name__, trainer.callbacks),
        "strategy": type(trainer.strategy).__name__,
        "evaluated": trainer.evaluated_model,
        "predicts": predicts,
        "callbacks": [type(callback).__name__ for callback in (*trainer.callbacks, *trainer.lightning_callbacks)],
        "seed": trainer.seed,
        "num_clients": trainer.num_clients,
        "client_names": trainer.recorded_names,
        "num_processes": trainer.fabric.world_size,
        "device": str(trainer.fabric.device),
        "versions": {"python": platform.python_version(), "lightning-fl": __version__, **package_versions()},
    }
    if trainer.differs:
        before = trainer.run_log.summary.get("differs_from_checkpoint", {})
        found["differs_from_checkpoint"] = {**before, **trainer.differs}
    if stage != "fit":
        return found
    checkpoint = trainer.callback(ModelCheckpoint)
    found |= {
        "rounds": trainer.federation.current_round,
        "wall_time_seconds": round(trainer.federation.wall_time_seconds, 3),
        "communication": trainer.federation.communication.summary(names),
        "interrupted": trainer.federation.interrupted_by is not None,
        "resumed_from": trainer.ckpt_path,
    }
    if checkpoint is not None:
        found |= {"best_round": checkpoint.best_round, "best_value": checkpoint.best_value}
    return found
