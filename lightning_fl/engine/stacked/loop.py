"""Several clients' turns at once: stacked weights and one ``training_step`` for all through ``torch.vmap``.

The results are those of single turns, up to rounding, which depends on the stacked clients.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor, nn
from torch.func import functional_call

from lightning_fl.core.cohort import Cohort
from lightning_fl.core.errors import ConfigurationError, FederatedError, TrainingError
from lightning_fl.core.pinned_memory import to_device
from lightning_fl.core.seeding import seed_default_generators
from lightning_fl.engine.batches.packs import PackedBatches, TensorPack
from lightning_fl.engine.client import ClientReport, ClientState, ClientTurn
from lightning_fl.engine.profile import BACKWARD, BOOKKEEPING, DATA, FORWARD, OPTIMIZER, SET_UP
from lightning_fl.engine.stacked.stackable import explain, outside_draws, refuse_kept_tensors, refuse_unstackable
from lightning_fl.engine.stacked.visits import Row, RowBatch, StackedTrainer, Visits
from lightning_fl.engine.stacked.weights import StackedCorrection, StackedWeights
from lightning_fl.engine.turn.flat_optimizer import has_fused_step
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.results import LogCollector
from lightning_fl.engine.turn.services import turn_report
from lightning_fl.engine.weights.flat import Weights

_INSTEAD = "Or set trainer.stacked_clients=1."


class StackedLoop:
    """Trains groups of clients at once on one module, if module, data, callbacks and settings can be stacked."""

    def __init__(self, loop: LocalLoop) -> None:
        self._loop = loop
        self._settings = loop.settings
        self._module = loop.module
        self._trainer = loop.module_trainer
        self._profile = self._trainer.profiler.profile
        self._view = StackedTrainer(self._trainer)
        self._training_step = _TrainingStep(self._loop)
        self._losses: list[tuple[list[Row], Tensor]] = []
        self._step_was_checked = False
        #: Hooks of single clients' batches.
        self.visits = Visits(loop, self._view, self._facts)
        # The optimiser is checked before any turn, with one step per round instead of a client's own number.
        self._view.begin_step(estimated_stepping_batches={loop.settings.max_rounds})
        with self._view.replace_module_trainer():
            refuse_unstackable(loop)

    def train(
        self, turns: Sequence[ClientTurn]
    ) -> tuple[StackedWeights, list[tuple[int, ClientReport | FederatedError]]]:
        """Train a group in the current round, and update the clients' states, unless the step fails.

        Returns the clients' new weights; for each turn its row of them, and its report or error.
        """
        self._trainer.set_stage(TrainerFn.FITTING, RunningStage.TRAINING)
        self._losses.clear()
        self.visits.begin()
        with self._profile(DATA):
            rows = self._rows(turns)
        # Sorted by decreasing number of steps, so that active clients are always the first rows.
        order = sorted(range(len(rows)), key=lambda place: -len(rows[place].steps))
        ordered = [rows[place] for place in order]
        changed = ClientState()
        with self._view.replace_module_trainer(), self._loop.training.modes_of(changed):
            with self._profile(SET_UP):
                weights = self._begin(ordered)
            correct_ = None
            if "correct_gradient_" in self._loop.own_steps:
                correct_ = StackedCorrection(self._loop.learner, [row.turn for row in ordered], weights).apply_
            for step in range(len(ordered[0].steps)):
                active = [row for row in ordered if len(row.steps) > step]
                weights.keep_first(len(active))
                for members, batches in _alike([row.steps[step] for row in active]):
                    self._batch_of(weights, [active[member] for member in members], members, batches, step)
                with self._profile(OPTIMIZER):
                    weights.step(self._settings, correct_)
                for row in active:
                    row.turn.rates.append(row.turn.learning_rate)
        for name in changed.modes:
            what = f"{type(self._module).__name__} switches {name!r} to train() or eval() in its turn"
            raise ConfigurationError(f"{what}: set trainer.stacked_clients=1.")
        return weights, [(order.index(place), report) for place, report in enumerate(self._reports(rows))]

    def _rows(self, turns: Sequence[ClientTurn]) -> list[Row]:
        loop = self._loop
        rows = []
        for turn in turns:
            batches = loop.factory.batches(turn.client, "train")
            assert isinstance(batches, PackedBatches)
            assert isinstance(batches.pack, TensorPack)
            length = loop.training.turn_length(batches, None)
            total = int(length.total)
            path = loop.path(turn.client, turn.purpose)
            layout = tuple((tensor.shape[1:], tensor.dtype) for tensor in batches.pack.tensors)
            steps: list[list[RowBatch]] = []
            begins = True
            for index, (samples, targets) in enumerate(batches.picks(path, total)):
                if begins:
                    steps.append([])
                steps[-1].append(RowBatch(index, samples, targets, (index, len(samples), layout)))
                begins = length.ends_step(index)
            collector = LogCollector(self._settings.log_every_n_steps)
            self._trainer.replay(collector)
            rows.append(Row(turn, batches.pack, batches.num_samples, total, int(length.run_steps), steps, collector))
        return rows

    def _begin(self, rows: Sequence[Row]) -> StackedWeights:
        loop = self._loop
        # Steps draw nothing; all other draws are the same on any number of processes.
        seed_default_generators(*loop.path(rows[0].turn.client, rows[0].turn.purpose))
        self._view.begin_step(**self._facts(rows, 0))
        (optimizer, *_), _ = loop.training.optimization.configure()
        self._trainer.take_optimizers([optimizer], [])
        if not has_fused_step(optimizer):
            loop.training.optimization.warn_not_fused(optimizer)
        for row in rows:
            row.turn.optimizers = [optimizer]
        weights = StackedWeights(loop.flat, optimizer, len(rows), fused=loop.fused_optimizers)
        loaded: Weights | None = None
        for place, row in enumerate(rows):
            if row.turn.start is not loaded or loop.federation.personal is not None:
                loop.load(row.turn.client, row.turn.start, own=True)
                loaded = row.turn.start
            weights.take(place)
        return weights

    def _facts(self, rows: Sequence[Row], step: int) -> dict[str, set[Any]]:
        """Attributes of ``self.trainer`` -> their values in some turns."""
        return {
            "global_step": {row.turn.state.global_step + step for row in rows},
            "num_training_batches": {row.total for row in rows},
            "estimated_stepping_batches": {row.planned_steps for row in rows},
        }

    def _batch_of(
        self, weights: StackedWeights, rows: list[Row], places: list[int], batches: list[RowBatch], step: int
    ) -> None:
        index, size = batches[0].index, len(batches[0].samples)
        for row in rows:
            row.collector.begin_step(None, size, row.turn.state.global_step + step)
        with self._profile(DATA):
            if self.visits.needed:
                pairs = zip(rows, places, strict=True)
                batch = self.visits.stack([self.visits.next_batch(weights, row, place) for row, place in pairs])
            else:
                batch = self._gather(rows, batches)
        self._view.begin_step(**self._facts(rows, step), is_last_batch={index == row.total - 1 for row in rows})
        chosen = None if len(places) == weights.active else to_device(torch.tensor(places), self._loop.flat.device)
        trained, kept = weights.parts(chosen)
        with self._profile(FORWARD):
            losses, logged = self._forward(weights, trained, kept, batch, index)
        with self._profile(BACKWARD):
            gradients = self._backward(weights, trained, losses)
        weights.accumulate(chosen, gradients, trained, kept)
        self._losses.append((rows, losses.detach()))
        for entry, values in zip(self._view.logged, logged, strict=True):
            for row, value in zip(rows, values.unbind(0), strict=True):
                row.collector.log(entry.hook, entry.name, value, **entry.options)
        given = any(entry.options.get("batch_size") is not None for entry in self._view.logged)
        for row in rows:
            row.sizes.append(row.collector.step_size() if given else size)

    def _gather(self, rows: Sequence[Row], batches: Sequence[RowBatch]) -> list[Tensor]:
        """The clients' batches as one: tensors [n, size, ...]."""
        if any(row.pack is not rows[0].pack for row in rows) or any(batch.targets is not None for batch in batches):
            each = [row.samples(batch) for row, batch in zip(rows, batches, strict=True)]
            tensors = [torch.stack(column) for column in zip(*each, strict=True)]
        else:
            samples = torch.cat([batch.samples for batch in batches])
            shape = (len(batches), len(batches[0].samples))
            tensors = [rows_of.unflatten(0, shape) for rows_of in rows[0].pack.rows(samples)]
        return self._loop.move(tensors, True, rows[0].turn.client)

    def _forward(
        self, weights: StackedWeights, trained: list[Tensor], kept: list[Tensor], batch: list[Tensor], index: int
    ) -> tuple[Tensor, list[Tensor]]:
        """The losses of some clients, [n], and what they logged, [n] each."""
        what = f"{type(self._module).__name__}.training_step"

        def of_one(trained: list[Tensor], kept: list[Tensor], batch: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            values = dict(weights.named(trained, kept, prefix="module."))
            given = dict(values)
            # Tied tensors are passed under each of their names; torch's own tying breaks shared modules.
            loss = self._loop.loss(functional_call(self._training_step, values, (batch, index), tie_weights=False))
            if loss is None or loss.ndim:
                got = "None" if loss is None else f"a loss of shape {tuple(loss.shape)}"
                raise TrainingError(f"{what} returned {got}: return one number for each batch. {_INSTEAD}")
            if replaced := [name for name, value in given.items() if values[name] is not value]:
                name = replaced[0].removeprefix("module.")
                raise ConfigurationError(f"{what} assigns a new tensor to {name!r}: use copy_. {_INSTEAD}")
            return loss, [entry.value for entry in self._view.logged]

        before = None if self._step_was_checked else outside_draws()
        try:
            with torch.enable_grad():
                losses, logged = torch.vmap(of_one, randomness="error")(trained, kept, batch)
        except FederatedError:
            raise
        except Exception as error:
            raise TrainingError(explain(what, error)) from error
        if before is not None:
            if before != outside_draws():
                raise ConfigurationError(f"{what} draws from Python's or NumPy's random numbers: omit them. {_INSTEAD}")
            refuse_kept_tensors(self._module)
            self._step_was_checked = True
        return losses, logged

    def _backward(self, weights: StackedWeights, trained: list[Tensor], losses: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the trained parameters, [n, *shape] each; every loss depends on its own row alone."""
        what = f"{type(self._module).__name__}.training_step"
        share = torch.full_like(losses, 1 / self._settings.accumulate_grad_batches)
        try:
            gradients = torch.autograd.grad(losses, trained, share, allow_unused=True)
        except Exception as error:
            raise TrainingError(explain(what, error)) from error
        for names, gradient in zip(weights.trained_names, gradients, strict=True):
            if gradient is None:
                unused = f"does not use the parameter {names[0]!r}, which stacked clients would step nevertheless"
                raise ConfigurationError(f"{what} {unused}: freeze it. {_INSTEAD}")
        return gradients

    def _reports(self, rows: Sequence[Row]) -> list[ClientReport | FederatedError]:
        if self._losses:
            values = iter(torch.cat([losses for _, losses in self._losses]).tolist())  # one wait for the device
            for members, _ in self._losses:
                for row in members:
                    row.losses.append(next(values))
        reports: list[ClientReport | FederatedError] = []
        for row in rows:
            try:
                metrics, _ = row.collector.reduce(row.num_samples)
                reports.append(turn_report(row.num_samples, len(row.steps), metrics, row.losses, row.sizes))
            except FederatedError as error:
                reports.append(error)
                continue
            state = row.turn.state
            state.global_step += len(row.steps)
            state.batches += row.total
            state.rounds_seen = self._loop.federation.current_round
        return reports


class _TrainingStep(nn.Module):
    """A module's ``training_step`` as a forward pass, for :func:`torch.func.functional_call`."""

    def __init__(self, loop: LocalLoop) -> None:
        super().__init__()
        self.module = loop.module
        self._loop = loop

    def forward(self, batch: list[Tensor], index: int) -> STEP_OUTPUT:
        return self._loop.step("training_step", batch, index)


def _alike(of_rows: Sequence[Sequence[RowBatch]]) -> Iterator[tuple[list[int], list[RowBatch]]]:
    """Groups of batches of one optimiser step that can be stacked, with their rows; a row's batches stay in order."""
    for place in range(max(len(batches) for batches in of_rows)):
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row, batches in enumerate(of_rows):
            if place < len(batches):
                groups.setdefault(batches[place].alike, []).append(row)
        for members in groups.values():
            yield members, [of_rows[row][place] for row in members]


def groups_of(cohort: Cohort, block: int) -> list[tuple[int, int]]:
    """Block of clients and number of the client's turn for each place in the cohort; equal ones train at once.

    A block is consecutive clients on one rank, so that it does not depend on the number of processes.
    """
    turns: Counter[int] = Counter()
    groups = []
    for participant in cohort.participants:
        groups.append((participant.client // block, turns[participant.client]))
        turns[participant.client] += 1
    return groups


class StackedTurns:
    """The turns of a round; a group is trained when the first of its participants is due.

    Its weights are kept until its last one was due: one group at a time if the cohort is in the order of clients.
    """

    def __init__(self, loop: LocalLoop, stacked: StackedLoop, cohort: Cohort) -> None:
        self._loop = loop
        self._stacked = stacked
        self._cohort = cohort
        self._groups = groups_of(cohort, loop.settings.stacked_clients)
        if loop.federation.personal is not None and any(turn for _, turn in self._groups):
            option = f"trainer.stacked_clients={loop.settings.stacked_clients}"
            raise ConfigurationError(f"{option}: a client trains several models. Remove PersonalLayers. {_INSTEAD}")
        self._members: dict[tuple[int, int], list[int]] = {}
        for place, participant in enumerate(cohort.participants):
            if loop.processes.hosts(participant.client):
                self._members.setdefault(self._groups[place], []).append(place)
        #: Place -> turn, the group's weights, its row and report; or its error.
        self._trained: dict[int, tuple[ClientTurn, StackedWeights, int, ClientReport] | Exception] = {}
        self.restores: dict[int, Callable[[], None]] = {}  #: place -> undoes what its client keeps of the turn

    def take(self, place: int) -> tuple[ClientTurn, ClientReport]:
        """Take the turn of a hosted participant, by place in the cohort, which leaves its new weights in the module."""
        if place not in self._trained:
            self._train(self._members[self._groups[place]])
        outcome = self._trained.pop(place)
        if isinstance(outcome, Exception):
            raise outcome
        turn, weights, row, report = outcome
        weights.give(row)
        return turn, report

    def _train(self, places: list[int]) -> None:
        turns: dict[int, ClientTurn] = {}
        for place in places:
            participant = self._cohort.participants[place]
            if self._loop.settings.on_client_error == "skip":
                self.restores[place] = self._loop.federation.snapshot_client(participant.client)
            try:
                turns[place] = self._loop.begin_turn(participant)
            except Exception as error:
                self._trained[place] = error
        if not turns:
            return
        try:
            with self._loop.profiler.profile(BOOKKEEPING):
                weights, outcomes = self._stacked.train(list(turns.values()))
        except Exception as error:
            self._trained.update(dict.fromkeys(turns, error))
            return
        for (place, turn), (row, report) in zip(turns.items(), outcomes, strict=True):
            self._trained[place] = report if isinstance(report, Exception) else (turn, weights, row, report)
