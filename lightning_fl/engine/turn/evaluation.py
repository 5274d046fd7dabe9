"""Evaluation of clients' models on the process's module."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.loops.utilities import _verify_dataloader_idx_requirement
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.apply_func import apply_to_collection

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_private import eval_mode
from lightning_fl.data.module import Split
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch
from lightning_fl.engine.client import ClientReport, ClientState
from lightning_fl.engine.turn.module_trainer import STAGES
from lightning_fl.engine.turn.services import WORDS, TurnServices
from lightning_fl.engine.turn.training import TrainingLoop
from lightning_fl.engine.weights.flat import Weights

#: Split -> stage of the run, and name in hooks and steps; training data are validated.
_STAGES: dict[Split, tuple[str, str]] = {
    "train": ("validate", "validation"),
    "val": ("validate", "validation"),
    "test": ("test", "test"),
}

#: Reads some of a loader's batches.
Reading = Callable[[ClientBatches], Iterator[SizedBatch]]


class Evaluator:
    """Evaluates clients one after another on one module."""

    def __init__(self, services: TurnServices, training: TrainingLoop) -> None:
        self._services, self._training = services, training
        self._trainer = services.module_trainer
        self._checked_loaders: set[tuple[str, bool]] = set()
        self._warned_of: set[str] = set()
        self._swapping = False  # whether hooks of the run are called in each client's turn

    @contextmanager
    def evaluations(self, word: str) -> Iterator[None]:
        """Call ``on_WORD_start`` and ``on_WORD_end`` once around the evaluations of all clients of this process.

        They are called in each client's turn if the first swaps weights, or a callback with a state has one of them.
        """
        services, start, end = self._services, f"on_{word}_start", f"on_{word}_end"
        flat, trainable = services.flat, services.flat.trainable()

        def call(name: str) -> None:
            with torch.no_grad(), eval_mode(services.module):
                services.call(name)

        services.call_apart(start)
        self._swapping = any(map(services.callback_states.watch, (start, end)))
        if services.overridden(start) and not self._swapping:
            shared = services.federation.models[0]
            flat.load(shared)
            call(start)
            self._swapping = bool(flat.differing(shared))
            if self._swapping:
                call(end)
                self._trainer.begin_hook_of_run()  # drops what was logged
        try:
            yield
            if services.overridden(end) and not self._swapping:
                before = flat.collect().clone()
                call(end)
                self.warn_of_change(flat.differing(before), f"in {end}")
            services.call_apart(end)
            if services.round.fitting and (frozen := flat.undo_trainable(trainable)):
                services.federation.freeze(flat, [frozen])
        finally:
            self._swapping = False

    def evaluates(self, split: Split) -> bool:
        return self._services.overridden(f"{_STAGES[split][1]}_step")

    def evaluate(
        self, client: int, weights: Weights, split: Split, read: Reading | None = None, *, own: bool = False
    ) -> ClientReport | None:
        """Evaluate weights on a client's split; ``None`` if it has no such data.

        Args:
            read: selects batches of a loader, outside the run's own validations.
            own: whether it is one of the run's own evaluations, which the client's metrics ("best so far") count.
        """
        services = self._services
        batches = services.batches(client, split)
        if batches is None:
            return None
        stage, word = _STAGES[split]
        fn, running = STAGES[stage]
        fitting = services.round.fitting
        self._trainer.set_stage(TrainerFn.FITTING if fitting and read is None else fn, running)
        if fitting:
            services.call("on_validation_model_zero_grad")
        flat = services.flat
        flat.load(weights)
        marks, trainable = flat.marks(), flat.trainable()
        with self._training.seen_in_validation(client, keep=own) if fitting else nullcontext():
            for _ in self._turn(client, batches, split, word, read, keep=own and fitting):
                pass
        changed: dict[str, bool] = {}
        if fitting:
            services.refuse_new(f"in the {word}", client)
            changed = flat.undo_trainable(trainable)
        if own and flat.marks() != marks and not flat.collect().equal(weights):
            self.warn_of_change(flat.differing(weights), f"in the {word} of {services.name_of(client)}")
        sizes = [loader.num_samples for loader in batches.loaders]
        metrics = self._trainer.collector.reduce(sum(sizes), sizes)[0]
        services.metric_states.end(client, keep=own)
        return ClientReport(sum(sizes), 0, metrics, trainable=changed)

    def warn_of_change(self, names: Sequence[str], where: str) -> None:
        """Warn that a hook outside of training changed parameters or buffers in vain, once for each of them."""
        if new := [name for name in names if name not in self._warned_of]:
            self._warned_of.update(new)
            what = f"the change of {', '.join(map(repr, new))} {where} is lost"
            rank_zero_warn(f"{what}: make it in a hook of a client's training, such as on_train_epoch_end.")

    def predict(self, client: int, weights: Weights, split: Split) -> list[Any]:
        """Outputs of ``predict_step`` for a client's split, on the CPU; a list per loader if there are several."""
        batches = self._services.batches(client, split)
        if batches is None:
            return []
        self._trainer.set_stage(*STAGES["predict"])
        outputs: list[list[Any]] = [[] for _ in batches.loaders]
        self._services.flat.load(weights)
        for number, output in self._turn(client, batches, split, "predict", read=None, keep=False):
            outputs[number].append(apply_to_collection(move_data_to_device(output, "cpu"), torch.Tensor, torch.clone))
        return outputs if len(outputs) > 1 else outputs[0]

    def _turn(
        self, client: int, batches: ClientBatches, split: Split, word: str, read: Reading | None, *, keep: bool
    ) -> Iterator[tuple[int, Any]]:
        """Evaluate the module's weights; yields the number of the loader and the step's output for every batch."""
        services, trainer, loaders = self._services, self._trainer, batches.loaders
        module, several, path = services.module, len(loaders) > 1, services.path(client, split)
        self._check_loaders(word, len(loaders))
        lengths = [loader.epoch_length() for loader in loaders]
        counts = [math.inf if length is None else length for length in lengths]
        services.metric_states.begin(client)
        services.seed_user_code(*path)
        state = services.federation.client_states.get(client) or ClientState()
        trained = {"global_step": state.global_step, "batches_before": state.batches}
        trainer.begin_turn(client, **trained, evaluated=split, num_batches=counts)
        services.mode.capture(module)
        if services.overridden(f"on_{word}_model_eval"):
            services.call(f"on_{word}_model_eval")
        else:
            module.eval()
        try:
            with torch.no_grad(), services.callback_states.turn(client, keep=keep):
                if self._swapping:
                    trainer.call_hook(f"on_{word}_start")
                services.call(f"on_{word}_epoch_start")
                for number, loader in enumerate(loaders):
                    which = (number,) if several else ()
                    trainer.collector.begin_loader(number if several else None)
                    loader.next_pass = trainer.current_epoch
                    given = loader.once((*path, *which)) if read is None else read(loader)
                    known, seen = loader.num_samples > 0, 0.0
                    for index, (batch, size) in enumerate(given):
                        batch = services.move(batch, loader.on_device, client, *which)
                        trainer.collector.begin_step(batch, size)
                        yield number, self._step(word, batch, index, which)
                        if not known:
                            seen += trainer.collector.step_size()
                    if not known:  # the samples of a stream are known once it is read
                        loader.num_samples = int(seen)
                trainer.collector.begin_loader(None)
                trainer.collector.begin_step(None, None)
                services.call(f"on_{word}_epoch_end")
                if self._swapping:
                    trainer.call_hook(f"on_{word}_end")
        finally:
            if services.overridden(f"on_{word}_model_train"):
                services.call(f"on_{word}_model_train")
            else:
                services.mode.restore(module)
            trainer.end_turn()

    def _step(self, word: str, batch: Any, index: int, which: tuple[int, ...]) -> Any:
        services, progress = self._services, self._trainer.progress
        progress.increment_ready()
        services.call(f"on_{word}_batch_start", batch, index, *which)
        progress.increment_started()
        output = services.step(f"{word}_step", batch, index, *which)
        progress.increment_processed()
        services.call(f"on_{word}_batch_end", output, batch, index, *which)
        progress.increment_completed()
        return output

    def open_validation_data(self) -> None:
        """Open a fit's validation data, so that errors show before training."""
        services = self._services
        if services.settings.check_val_every_n_rounds and self.evaluates("val"):
            for client in services.processes.panel:
                if (batches := services.batches(client, "val")) is not None:
                    self._check_loaders("validation", len(batches.loaders))

    def _check_loaders(self, word: str, num_loaders: int) -> None:
        """Check a step and its batch hooks against a client's number of loaders, by Lightning's own rule."""
        module, several = self._services.module, num_loaders > 1
        if (word, several) in self._checked_loaders:
            return
        hooks = (f"{word}_step", f"on_{word}_batch_start", f"on_{word}_batch_end")
        try:
            _verify_dataloader_idx_requirement(hooks, several, STAGES[WORDS[word]][1], module)
        except RuntimeError as error:
            has = f"{num_loaders} loaders" if several else "one loader"
            raise ConfigurationError(f"{type(module).__name__} does not fit data with {has}: {error}") from error
        self._checked_loaders.add((word, several))
