"""Local training of clients on the process's module."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import isfunction
from typing import Any, cast

import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, FederatedError, TrainingError
from lightning_fl.core.held_generators import DrawStates
from lightning_fl.core.lightning_private import ModuleModes
from lightning_fl.core.seeding import generator
from lightning_fl.core.system_errors import breaks_device
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch, parts_of
from lightning_fl.engine.batches.from_loaders import LoaderBatches
from lightning_fl.engine.batches.transfer import to_channels_last
from lightning_fl.engine.client import ClientReport, ClientState, Correction, LocalWork
from lightning_fl.engine.hooks import Hook, Hooks, overrides
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.profile import BOOKKEEPING, DATA, FORWARD, OPTIMIZER, SET_UP, timed_items
from lightning_fl.engine.turn.module_trainer import STAGES
from lightning_fl.engine.turn.optimization import Optimization
from lightning_fl.engine.turn.services import TurnLength, TurnServices, refuse_manual_steps, turn_report
from lightning_fl.engine.weights.flat import Weights

#: Steps that a strategy may override.
_STEPS = [name for name, step in vars(Learner).items() if isfunction(step)]


@dataclass
class StepBatch:
    """A batch of an optimiser step: the strategy's parts, its index in the turn, and the generators' states before."""

    parts: list[SizedBatch]
    index: int
    draws: list[Any] = field(default_factory=list)


class TrainingLoop:
    """Trains clients one after another on one module."""

    def __init__(self, services: TurnServices, hooks: Hooks, learner: Learner) -> None:
        self._services = services
        self._trainer = services.module_trainer
        self._learner = learner
        self.optimization = Optimization(services)
        #: Callbacks that change the input of ``training_step``.
        self.around: list[Hook] = hooks.of("around_training_step")
        self._after_step: list[Hook] = hooks.of("on_client_step_end")
        #: Steps that the strategy overrides.
        self.own_steps = {step for step in _STEPS if overrides(learner, step, Learner)}
        #: Batches of the present optimiser step, if something may change its gradient.
        self.step_batches: list[StepBatch] = []
        #: Generators of callbacks around the steps of the present turn.
        self.generators: Sequence[torch.Generator] = ()
        #: States of all generators that losses of the present turn may draw from.
        self.draws = DrawStates(())
        if learner.needs_losses or "client_loss" in self.own_steps:
            refuse_manual_steps(services.module, type(learner).__name__)

    def begin(self) -> None:
        """Call ``on_train_start``; all models get rank zero's new parameters and, in a new run, its other changes."""
        services = self._services
        flat, federation, processes = services.flat, services.federation, services.processes
        flat.load(federation.models[0])
        services.call("on_train_start")
        new = processes.of_ranks(flat.new_tensors())
        if any(of_rank != new[0] for of_rank in new):
            what = f"on_train_start created different parameters on different processes ({'; '.join(map(str, new))})"
            raise ConfigurationError(f"{what}: create the same on all of them.")
        moved = flat.add_late_parameters() if new[0] else None
        changes = bool(new[0]) or services.overridden("on_train_start")
        if changes and processes.several:
            for vector in flat.collect().vectors.values():
                processes.transport.broadcast_bytes_(vector, 0)
        if new[0]:
            federation.add_late_parameters(flat, moved)
            self.optimization.index_parameters()
        if changes and not federation.current_round:
            federation.adopt(flat)
        services.read_module()
        if missing := flat.missing():
            what = f"the checkpoint has '{missing[0]}', which the module lacks after on_train_start"
            raise ConfigurationError(f"{what}: use the checkpoint of a run with the same model.")
        if "check_optimizers" in self.own_steps:
            self._check_optimizers()

    def _check_optimizers(self) -> None:
        services, reasons = self._services, []
        for client in services.processes.hosted[:1]:
            self.set_length_of(client)
            self._trainer.client = client
            try:
                optimizers = self.optimization.configure()[0]
                self._learner.check_optimizers(optimizers)
                if any(group.get("momentum") for optimizer in optimizers for group in optimizer.param_groups):
                    self.optimization.begin_at_zero(self._learner)
            except ConfigurationError as error:
                reasons.append(str(error))
            finally:
                self._trainer.end_turn()
        for of_rank in services.processes.of_ranks(reasons):
            if of_rank:
                raise ConfigurationError(of_rank[0])

    def train(
        self,
        client: int,
        start: Weights | None,
        state: ClientState,
        *,
        purpose: str = "train",
        own: bool = True,
        work: LocalWork | None = None,
        correct_: Correction | None = None,
        moments: dict[str, Weights] | None = None,
    ) -> ClientReport:
        """Train a client in the current round; leaves its new weights in ``flat`` and updates ``state``.

        Args:
            start: initial weights; ``None`` for the module's present ones.
            purpose: of its random draws; the same purpose gives the same batches.
            own: whether the turn is part of the federation, with the client's personal layers, the strategy's loss and
                callbacks of steps. Otherwise only the module is trained on ``start``.
            work: amount; ``None`` for the round's, else the trainer's ``local_steps`` or ``local_epochs``.
            moments: averaged states of optimisers (:meth:`Optimization.begin`), replaced by the turn's.
        """
        services, trainer, learner = self._services, self._trainer, self._learner
        with self._states_of(client, start, own) as changed, self.modes_of(state):
            path = services.path(client, purpose)
            batches = services.batches(client, "train")
            batches.next_pass = state.passes
            trainer.set_stage(*STAGES["fit"])
            length = self.turn_length(batches, work)
            by_strategy = own and "client_loss" in self.own_steps
            parts = learner.batch_parts if own else 1
            profile, overridden, call = services.profiler.profile, services.overridden, services.call
            # An elementwise correction needs no gradients at other weights.
            again = correct_ is not None and not learner.elementwise
            with profile(SET_UP):
                self.generators = self.seed(*path)
                if again:
                    self.draws = DrawStates([*self.generators, *services.held_generators])
                trainer.begin_turn(client, state.global_step, batches_before=state.batches)
                self._set_length(length)
                self.optimization.begin(state, correct_, moments)
            if overridden("on_train_epoch_start"):
                call("on_train_epoch_start")
                if trainer.accumulate_grad_batches != length.accumulate:
                    length = self.turn_length(batches, work)
                    self._set_length(length)
                services.refuse_new("in on_train_epoch_start", client)
            collector, progress = trainer.collector, trainer.progress
            trainer.fit_loop.epoch_progress.increment_started()

            losses: list[Tensor] = []
            sizes: list[float] = []
            first = True  # no batch of the present step was used yet
            if length.total == math.inf:
                given = cast(LoaderBatches, batches).passes(path, length.epochs, length.end_epoch)
            else:
                given = batches.shuffled(path, int(length.total))
            for index, (batch, size) in enumerate(timed_items(services.profiler, given)):
                with profile(DATA):
                    batch = services.move(batch, batches.on_device, client)
                    if services.channels_last:
                        batch = to_channels_last(batch)
                progress.increment_ready()
                progress.is_last_batch = index == length.total - 1
                first, stepping = first or length.begins_step(index), length.ends_step(index)
                whole = batch
                if parts > 1 and batch is not None:
                    pieces = parts_of(batch, size, parts, learner.smallest_part, type(learner).__name__)
                    batch, size = pieces[0] if pieces else (None, None)
                else:
                    pieces = [(batch, size)]
                left_out = batch is None  # too small, or the collate function dropped all samples
                if not left_out:
                    collector.begin_step(batch, size, trainer.global_step)
                    if overridden("on_train_batch_start") and call("on_train_batch_start", whole, index) == -1:
                        break
                    if again:
                        self.step_batches = [*([] if first else self.step_batches), StepBatch(pieces, index)]
                progress.increment_started()
                if left_out and (first or not stepping):
                    progress.increment_processed()
                    progress.increment_completed()
                    continue

                def compute(batch: Any = batch, index: int = index) -> tuple[Tensor | None, STEP_OUTPUT]:
                    if batch is None:  # the step uses the batches before it
                        return None, None
                    with profile(FORWARD):
                        if again:
                            self.step_batches[-1].draws = self.draws.read()
                        output = self.training_output(batch, index, self.generators)
                        if again:
                            self.draws.look(self.step_batches[-1].draws)
                        return self.loss(output, by_strategy), output

                with profile(OPTIMIZER):
                    loss, output = self.optimization.step(compute, index, first=first, stepping=stepping)
                first = False
                progress.increment_processed()
                if loss is not None:
                    losses.append(loss.detach())
                    sizes.append(collector.step_size())
                if not left_out and overridden("on_train_batch_end"):
                    call("on_train_batch_end", _batch_outputs(output, length.accumulate), whole, index)
                progress.increment_completed()
                if stepping:
                    self.optimization.step_plateaus()
                if stepping and own:
                    for hook in self._after_step:
                        hook(client, trainer.global_step - state.global_step)
            trainer.fit_loop.epoch_progress.increment_processed()
            collector.begin_step(None, None)
            if overridden("on_train_epoch_end"):
                self.optimization.show_state()
                call("on_train_epoch_end")
            services.refuse_new("in the turn", client)
            self.step_batches = []
            with profile(SET_UP):
                self.optimization.end(state)
            state.batches += progress.current.ready
            state.passes = batches.next_pass
            trainer.end_turn()
            steps, state.global_step = trainer.global_step - state.global_step, trainer.global_step
            metrics, values = collector.reduce(batches.num_samples, losses=losses)
            report = turn_report(batches.num_samples, steps, metrics, values, sizes)
        return replace(report, trainable=changed) if changed else report

    @contextmanager
    def _states_of(self, client: int, start: Weights | None, own: bool) -> Iterator[dict[str, bool]]:
        """Context with a client's weights and states; yields a dict that gets the parameters frozen and unfrozen."""
        services = self._services
        trainable, changed = services.flat.trainable(), dict[str, bool]()
        try:
            with services.profiler.profile(BOOKKEEPING):
                services.metric_states.begin(client)
                if start is not None:
                    services.load(client, start, own)
                with services.callback_states.turn(client, keep=own, trained=True):
                    yield changed
                services.metric_states.end(client, keep=own)
        except Exception as error:
            if own or isinstance(error, FederatedError) or breaks_device(error):
                raise
            services.flat.restore()
            services.metric_states.reset()
            raise TrainingError(services.explain(error)) from error
        finally:  # freezing and unfreezing by hooks takes effect for all clients in the next round
            changed |= services.flat.undo_trainable(trainable)

    @contextmanager
    def modes_of(self, state: ClientState) -> Iterator[None]:
        """Context in which submodules are in the modes of ``state``, which gets those in which they are left."""
        module, before = self._services.module, ModuleModes()
        before.capture(module)
        try:
            for name, is_training in state.modes.items():
                module.get_submodule(name).training = is_training
            yield
            now = {name: one.training for name, one in module.named_modules()}
            state.modes = {name: now[name] for name in now if now[name] != before.mode.get(name, now[name])}
        finally:
            before.restore(module)

    def state_aside(self, client: int) -> ClientState:
        """A fresh state for training outside of turns, with the modes of the client's submodules."""
        return ClientState(modes=(self._services.federation.client_states.get(client) or ClientState()).modes)

    def turn_length(self, batches: ClientBatches, work: LocalWork | None) -> TurnLength:
        settings, first = self._services.settings, self._services.round.first_work
        usual = LocalWork(settings.local_steps, settings.local_epochs)
        if work is not None:
            length = self._length(batches, work)
            return replace(length, run_steps=length.steps * (work.turns or settings.max_rounds))
        later = self._length(batches, usual)
        begins = later if first is None else self._length(batches, first)
        more = settings.max_rounds - 1
        steps = begins.steps + (more and later.steps * more)  # a stream's are infinite
        return replace(later if self._trainer.current_epoch else begins, run_steps=steps)

    def _length(self, batches: ClientBatches, work: LocalWork) -> TurnLength:
        accumulate = self._trainer.accumulate_grad_batches
        if work.steps is not None:
            return TurnLength(accumulate, work.steps * accumulate, None, work.steps)
        length, epochs = batches.epoch_length(), work.epochs
        if length is None:
            return TurnLength(accumulate, math.inf, None, math.inf, epochs)
        return TurnLength(accumulate, length * epochs, length, -(-length // accumulate) * epochs, epochs)

    def set_length_of(self, client: int) -> None:
        """Tell the module how long the client's turns are in this round."""
        self._set_length(self.turn_length(self._services.batches(client, "train"), None))

    def _set_length(self, length: TurnLength) -> None:
        self._trainer.length = (length.total, length.run_steps)

    @contextmanager
    def seen_in_validation(self, client: int, *, keep: bool) -> Iterator[None]:
        """Context of a client's validation in a fit: hooks see its optimisers, schedulers and turn, if they ask."""
        services, strategy = self._services, self._trainer.strategy
        states, made = services.federation.client_states, list[ClientState]()

        def make() -> None:
            strategy.make = None
            made[:] = [states.get(client) or ClientState()]
            try:
                self.optimization.begin(made[0], trains=False)
            except AttributeError:  # the trainer asks again, for its message
                strategy.make = make
                raise

        strategy.make = make
        self._trainer.length = lambda: self.set_length_of(client)
        try:
            yield
        finally:
            strategy.make = None
        if made and keep:
            self.optimization.end_validation(made[0])
            states[client] = made[0]

    def seed(self, *path: int | str) -> list[torch.Generator]:
        """Seed a turn's generators; returns those of the callbacks around its steps."""
        self._services.seed_user_code(*path)
        return [generator(*path, hook.owner) for hook in self.around]  # type: ignore[arg-type]

    def training_output(self, batch: Any, index: int, generators: Sequence[torch.Generator]) -> STEP_OUTPUT:
        """Run ``training_step`` inside the callbacks that change its input (such as mixup), each with its generator."""
        if generators:
            *others, draws = generators
            return self.around[len(others)](batch, lambda inner: self.training_output(inner, index, others), draws)
        with self._services.profiler.profile(FORWARD):  # nested in the callback's time
            return self._services.step("training_step", batch, index)

    def loss(self, output: STEP_OUTPUT, by_strategy: bool) -> Tensor | None:
        """The loss in the output of ``training_step``, with the strategy's terms if ``by_strategy``."""
        loss = self._services.loss(output)
        return self._learner.client_loss(loss, self._services.module) if by_strategy and loss is not None else loss

    def mean_loss(self, client: int, weights: Weights, num_batches: float, purpose: str) -> float:
        """The mean loss of at most ``num_batches`` training batches in training mode (dropout, mixup).

        Callbacks choose or weigh clients by it, so it excludes terms that the strategy adds.
        """
        services, trainer = self._services, self._trainer
        refuse_manual_steps(services.module, "training_loss")
        path = services.path(client, purpose)
        batches = services.batches(client, "train")
        length = batches.epoch_length()
        services.load(client, weights, own=True)
        services.metric_states.begin(client)
        generators = self.seed(*path)
        trainer.set_stage(*STAGES["fit"])
        trainer.begin_turn(client, services.global_step(client))
        losses: list[Tensor] = []
        sizes: list[float] = []
        with torch.no_grad(), self.modes_of(self.state_aside(client)):
            num_batches = num_batches if length is None else min(num_batches, length)
            chosen = batches.once(path) if num_batches == math.inf else batches.shuffled(path, int(num_batches))
            for index, (batch, size) in enumerate(chosen):
                batch = services.move(batch, batches.on_device, client)
                trainer.collector.begin_step(batch, size)
                if (loss := services.loss(self.training_output(batch, index, generators))) is not None:
                    losses.append(loss.detach())
                    sizes.append(trainer.collector.step_size())
        trainer.end_turn()
        _, values = trainer.collector.reduce(math.fsum(sizes), losses=losses)
        total, samples = 0.0, sum(sizes)
        for value, size in zip(values, sizes, strict=True):
            total += value * size
        if not samples:
            what = f"training_step returned no loss for client {client}"
            who = "a callback that weighs clients by their loss (DROClientSampling)"
            raise TrainingError(f"{what}, and {who} needs one: return a loss.")
        return total / samples


def _batch_outputs(output: STEP_OUTPUT, accumulate: int) -> dict[str, Any]:
    """Outputs for ``on_train_batch_end``: the loss, detached and divided as for accumulation, and all other entries."""
    outputs = dict(output) if isinstance(output, Mapping) else {} if output is None else {"loss": output}
    if isinstance(outputs.get("loss"), Tensor):
        outputs["loss"] = outputs["loss"].detach() / accumulate
    return outputs
