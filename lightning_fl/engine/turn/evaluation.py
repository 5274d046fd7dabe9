"""Evaluation of clients' models on the process's module, and calls of the module's hooks and steps."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from lightning.fabric.plugins.precision import Precision
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.model_helpers import _ModuleMode

from lightning_fl.core.errors import TrainingError
from lightning_fl.core.held_generators import held_generators, seed_held_generators
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.core.seeding import seed_default_generators
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.batches.transfer import BatchTransfer
from lightning_fl.engine.client import ClientReport
from lightning_fl.engine.federation import Federation, Round
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.profile import DATA, HOOKS
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.callback_states import CallbackStates
from lightning_fl.engine.turn.metric_states import MetricStates
from lightning_fl.engine.turn.module_checks import check_dataloader_idx, refuse_hooks, takes_batch_index
from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.engine.weights.flat import FlatModule, Weights

__all__ = ["Evaluator", "Reading"]

_STAGES: dict[Split, tuple[TrainerFn, RunningStage, str]] = {
    "val": (TrainerFn.VALIDATING, RunningStage.VALIDATING, "validation"),
    "test": (TrainerFn.TESTING, RunningStage.TESTING, "test"),
}

#: Reads some of a loader's batches.
Reading = Callable[[ClientBatches], Iterator[SizedBatch]]

#: Hooks called once for all clients, with their stages.
_HOOKS_OF_RUN: dict[str, tuple[TrainerFn, RunningStage]] = {
    f"on_{word}_{moment}": (fn, stage)
    for fn, stage, word in (*_STAGES.values(), (TrainerFn.PREDICTING, RunningStage.PREDICTING, "predict"))
    for moment in ("start", "end")
} | dict.fromkeys(("on_train_start", "on_train_end", "on_fit_end"), (TrainerFn.FITTING, RunningStage.TRAINING))
#: Those that a fit calls in every round.
_HOOKS_OF_ROUND = frozenset({"on_validation_start", "on_validation_end"})


class Evaluator:
    """Evaluates clients one after another on one module, whose hooks and steps it calls.

    Args:
        module_trainer: the module's ``self.trainer``; the module is on its device.
        flat: the module's flat weights.
        data: of all clients.
        factory: the clients' batches.
        settings: of the run.
        federation: models and clients' states.
        round: the present round.
        processes: hosts of the clients.

    Raises:
        ConfigurationError: the module has a hook or signature that is not supported in a federated turn.
    """

    def __init__(
        self,
        module_trainer: ModuleTrainer,
        flat: FlatModule,
        data: FederatedDataModule,
        factory: BatchFactory,
        *,
        settings: Settings,
        federation: Federation,
        round: Round,
        processes: Processes,
    ) -> None:
        module = module_trainer.lightning_module
        self.module = module
        self.module_trainer = module_trainer
        self.profiler: Profiler = module_trainer.profiler
        self.flat = flat
        self.data = data
        self.factory = factory
        self.settings = settings
        self.federation = federation
        self.round = round
        self.processes = processes
        self._overridden: dict[str, bool] = {}  # cached, because every step looks it up
        refuse_hooks(module)
        self._precision: Precision = module_trainer.precision_plugin.plugin
        self._step_takes_index = {
            name: takes_batch_index(module, name)
            for name in ("training_step", "validation_step", "test_step", "predict_step")
        }
        self._checked_loaders: set[tuple[str, bool]] = set()
        self.precision = str(self._precision.precision)
        self.move = BatchTransfer(module, data, processes.device, self._precision, channels_last=settings.channels_last)
        self.mode = _ModuleMode()  # training flags of the submodules, saved during an evaluation
        self.metric_states = MetricStates(module, federation)
        self.callback_states = CallbackStates(module_trainer, flat, federation)
        self._generators = held_generators(*module.modules())
        self._swapping = False  # whether hooks of the run are called in each client's turn

    @contextmanager
    def evaluations(self, word: str) -> Iterator[None]:
        """Call ``on_WORD_start`` and ``on_WORD_end`` once around the evaluations of all clients of this process.

        If the first swaps the module's weights (for an average over its steps), or a callback with a state has one of
        the two, both are called in each client's turn instead. A call with a shared model shows whether weights change.
        """
        start, end = f"on_{word}_start", f"on_{word}_end"
        self._swapping = self.callback_states.of_run(start) or self.callback_states.of_run(end)
        if self.overridden(start) and not self._swapping:
            self.flat.load(self.federation.models[0])
            self.call(start)
            self._swapping = self.flat.differs_from(self.federation.models[0])
            if self._swapping:
                self.call(end)
                self.module_trainer.begin_hook_of_run()  # drops what was logged
        try:
            yield
            if not self._swapping:
                self.call(end)
        finally:
            self._swapping = False

    def seed_user_code(self, *path: int | str) -> None:
        """Seed the default generators, and those of the module."""
        seed_default_generators(*path)  # type: ignore[arg-type]
        seed_held_generators(self._generators, *path)  # type: ignore[arg-type]

    def evaluates(self, split: Split) -> bool:
        """Whether the module has a step for this split."""
        return self.overridden(f"{_STAGES[split][2]}_step")

    def evaluate(
        self, client: int, weights: Weights, split: Split, read: Reading | None = None, *, own: bool = False
    ) -> ClientReport | None:
        """Evaluate weights on a client's split; ``None`` if it has no such data.

        Args:
            client: a hosted client.
            weights: of the evaluated model.
            split: of the data and step; training data are validated.
            read: selects batches of a loader, outside the run's own validations.
            own: whether it is one of the run's own evaluations, which the client's metrics ("best so far") count.
        """
        batches = self.batches(client, split)
        if batches is None:
            return None
        fn, stage, word = _STAGES["val" if split == "train" else split]
        trainer = self.module_trainer
        trainer.set_stage(TrainerFn.FITTING if self.round.fitting and read is None else fn, stage)
        if self.round.fitting:
            self.call("on_validation_model_zero_grad")
        for _ in self._evaluation_turn(client, weights, batches, split, word, read, keep=own and self.round.fitting):
            pass
        if self.round.fitting:
            self.refuse_new(f"in the {word}", client)
        sizes = [loader.num_samples for loader in batches.loaders]
        report = ClientReport(sum(sizes), 0, trainer.collector.reduce(sum(sizes), sizes))
        self.metric_states.end(client, keep=own)
        return report

    def predict(self, client: int, weights: Weights, split: Split) -> list[Any]:
        """Outputs of ``predict_step`` for a client's split, on the CPU; a list per loader if there are several."""
        batches = self.batches(client, split)
        if batches is None:
            return []
        self.module_trainer.set_stage(TrainerFn.PREDICTING, RunningStage.PREDICTING)
        outputs: list[list[Any]] = [[] for _ in batches.loaders]
        for number, output in self._evaluation_turn(client, weights, batches, split, "predict"):
            outputs[number].append(move_data_to_device(output, "cpu"))
        return outputs if len(outputs) > 1 else outputs[0]

    def _evaluation_turn(
        self,
        client: int,
        weights: Weights,
        batches: ClientBatches,
        split: Split,
        word: str,
        read: Reading | None = None,
        *,
        keep: bool = False,
    ) -> Iterator[tuple[int, Any]]:
        """Yields the number of the loader and the step's output for every batch."""
        trainer, loaders = self.module_trainer, batches.loaders
        several = len(loaders) > 1
        self._check_loaders(word, several, len(loaders))
        lengths = [loader.epoch_length() for loader in loaders]
        path = self.path(client, split)
        self.flat.load(weights)
        self.metric_states.begin(client)
        self.seed_user_code(*path)
        counts = [math.inf if length is None else length for length in lengths]
        trainer.begin_turn(client, self.global_step(client), evaluated=split, num_batches=counts)
        self.mode.capture(self.module)
        if self.overridden(f"on_{word}_model_eval"):
            self.call(f"on_{word}_model_eval")
        else:
            self.module.eval()
        try:
            with torch.no_grad(), self.callback_states.turn(client, keep=keep):
                if self._swapping:
                    trainer.call_hook(f"on_{word}_start")
                self.call(f"on_{word}_epoch_start")
                for number, loader in enumerate(loaders):
                    which = (number,) if several else ()
                    trainer.collector.begin_loader(number if several else None)
                    loader.next_pass = trainer.current_epoch
                    given = loader.once((*path, *which)) if read is None else read(loader)
                    known, seen = loader.num_samples > 0, 0.0
                    for index, (batch, size) in enumerate(given):
                        yield number, self._evaluate_batch(client, loader, word, batch, size, index, which)
                        if not known:
                            seen += trainer.collector.step_size()
                    if not known:  # the samples of a stream are known once it is read
                        loader.num_samples = int(seen)
                trainer.collector.begin_loader(None)
                trainer.collector.begin_step(None, None)
                self.call(f"on_{word}_epoch_end")
                if self._swapping:
                    trainer.call_hook(f"on_{word}_end")
        finally:
            if self.overridden(f"on_{word}_model_train"):
                self.call(f"on_{word}_model_train")
            else:
                self.mode.restore(self.module)
            trainer.end_turn()

    def _evaluate_batch(
        self,
        client: int,
        loader: ClientBatches,
        word: str,
        batch: Any,
        size: int | None,
        index: int,
        which: tuple[int, ...],
    ) -> Any:
        """Run the step on one batch with its hooks; ``which`` is the loader's number if there are several."""
        trainer = self.module_trainer
        batch = self.move(batch, loader.on_device, client, *which)
        trainer.collector.begin_step(batch, size)
        progress = trainer.progress
        progress.increment_ready()
        if self.overridden(f"on_{word}_batch_start"):
            self.call(f"on_{word}_batch_start", batch, index, *which)
        progress.increment_started()
        output = self.step(f"{word}_step", batch, index, *which)
        progress.increment_processed()
        if self.overridden(f"on_{word}_batch_end"):
            self.call(f"on_{word}_batch_end", output, batch, index, *which)
        progress.increment_completed()
        return output

    def open_validation_data(self) -> None:
        """Open a fit's validation data, so that errors show before training.

        Raises:
            ConfigurationError: a client's loaders do not fit ``validation_step``.
        """
        if not (self.settings.check_val_every_n_rounds and self.evaluates("val")):
            return
        for client in self.processes.panel:
            batches = self.batches(client, "val")
            if batches is not None:
                self._check_loaders("validation", len(batches.loaders) > 1, len(batches.loaders))

    def _check_loaders(self, word: str, several: bool, num_loaders: int) -> None:
        if (word, several) not in self._checked_loaders:
            check_dataloader_idx(self.module, word, num_loaders)
            self._checked_loaders.add((word, several))

    def global_step(self, client: int) -> int:
        """Optimiser steps of a client in the run."""
        state = self.federation.client_states.get(client)
        return 0 if state is None else state.global_step

    def refuse_new(self, where: str, client: int | None = None) -> None:
        """Refuse parameters and buffers that were created while clients already train.

        Args:
            where: place of the check, for the message.
            client: whose turn it was.
        """
        new = self.flat.new_tensors()
        if new:
            where += "" if client is None else f" of {self.name_of(client)}"
            raise TrainingError(
                f"{', '.join(map(repr, new))} appeared {where}, after training started: create it in __init__,"
                " configure_model, on_fit_start or on_train_start, frozen if it is to be trained later."
            )

    # -- the module's methods ------------------------------------------------------------------------------------

    def batches(self, client: int, split: Split) -> Any:
        """A client's batches, after callbacks (such as label noise) changed them."""
        with self.profiler.profile(DATA):
            found, state = self.factory.batches(client, split), self.federation.client_states.get(client)
        if found is not None:
            found.next_pass = 0 if state is None else state.passes
        return found

    def path(self, client: int, purpose: str) -> tuple[int, int, int, str]:
        """Seed path of a client's draws for one purpose in the current round."""
        return self.settings.seed, self.federation.current_round, client, purpose

    def name_of(self, client: int) -> str:
        """A client's name in messages."""
        return f"client {client} ({self.data.client_names()[client]})"

    def overridden(self, name: str) -> bool:
        """Whether the module, or a callback of its ``configure_callbacks``, defines a hook."""
        if name not in self._overridden:
            self._overridden[name] = is_overridden(name, self.module) or name in self.module_trainer.watching
        return self._overridden[name]

    def call(self, name: str, *args: Any) -> Any:
        """Call a hook of the module if it is defined, with ``self.log`` knowing the caller."""
        if not self.overridden(name):
            return None
        with self.profiler.profile(HOOKS):
            return self._call(name, *args)

    def _call(self, name: str, *args: Any) -> Any:
        if name not in _HOOKS_OF_RUN:
            return self.module_trainer.call_hook(name, *args)
        fn, stage = _HOOKS_OF_RUN[name]
        self.module_trainer.set_stage(TrainerFn.FITTING if self.round.fitting else fn, stage)
        self.module_trainer.begin_hook_of_run()
        if name == "on_train_start":  # may draw initial weights
            seed_default_generators(self.settings.seed, name)
        if name not in _HOOKS_OF_ROUND:
            return self.module_trainer.call_hook(name, *args)
        with self.metric_states.hook_of_round():
            returned = self.module_trainer.call_hook(name, *args)
        if self.round.fitting:
            self.refuse_new(f"in {name}")
        return returned

    def step(self, name: str, batch: Any, index: int, *which: int) -> Any:
        """Call a step of the module; ``which`` is the loader's number if there are several."""
        arguments = (batch, index, *which) if self._step_takes_index[name] else (batch, *which)
        with self._forward_context():
            return self.module_trainer.call_hook(name, *arguments)

    def _forward_context(self) -> AbstractContextManager:
        return nullcontext() if type(self._precision) is Precision else self._precision.forward_context()
