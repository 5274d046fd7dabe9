"""Gradients of a client's training loss at any weights, as one flat vector."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.turn.metric_states import preserve_metrics
from lightning_fl.engine.turn.module_trainer import STAGES
from lightning_fl.engine.turn.results import LogCollector
from lightning_fl.engine.turn.services import TurnServices, refuse_manual_steps
from lightning_fl.engine.turn.training import StepBatch, TrainingLoop
from lightning_fl.engine.weights.flat import FlatModule, Place, Span, Weights, copy_spans_, merge_spans


class TurnGradients:
    """Differentiates the training loss of a turn at any weights; the module's weights and metrics are restored."""

    def __init__(self, services: TurnServices, training: TrainingLoop, learner: Learner) -> None:
        self._services = services
        self._training = training
        self._who = type(learner).__name__
        self._gradient: FlatGradient | None = None

    def of_step(self, turn: ClientTurn, weights: Weights, part: int, buffers: Weights | None) -> Weights:
        services, training = self._services, self._training
        if not training.step_batches:
            raise ConfigurationError(
                f"{self._who} calls turn.step_gradient outside of a step: call it in correct_gradient_."
            )
        refuse_manual_steps(services.module, self._who)
        flat, trainer, now = services.flat, services.module_trainer, training.draws.read()
        present = flat.collect().clone()
        gradient = self._flat_gradient(turn)
        gradient.load_(weights)
        if buffers is not None:
            copy_spans_(flat.weights, buffers, turn.buffers)
        collector, trainer.collector = trainer.collector, LogCollector()  # drops what is logged meanwhile
        try:
            with preserve_metrics(services.module) if services.metric_states.metrics else nullcontext():
                losses = self._losses(training.step_batches, part)
                found = gradient.of(losses, 1 / services.module_trainer.accumulate_grad_batches)
            if buffers is not None:
                copy_spans_(buffers, flat.collect(), turn.buffers)
            return found
        finally:
            training.draws.set(now)
            trainer.collector = collector
            flat.load(present)

    def of_batch(self, turn: ClientTurn, weights: Weights, purpose: str) -> Weights:
        """:meth:`ClientTurn.batch_gradient`; ``weights`` include the client's personal layers."""
        services, training, client = self._services, self._training, turn.client
        refuse_manual_steps(services.module, self._who)
        trainer, path = services.module_trainer, services.path(client, purpose)
        present = services.flat.collect().clone()
        batches = services.batches(client, "train")
        services.flat.load(weights)
        services.metric_states.begin(client)
        training.generators = training.seed(*path)
        trainer.set_stage(*STAGES["fit"])
        trainer.begin_turn(client, services.global_step(client))
        try:
            batch, size = next(iter(batches.shuffled(path, 1)))
            moved = StepBatch([(services.move(batch, batches.on_device, client), size)], 0)
            return self._flat_gradient(turn).of(self._losses([moved], 0), 1.0)
        finally:
            trainer.end_turn()
            trainer.collector.begin()
            services.flat.load(present)

    def _flat_gradient(self, turn: ClientTurn) -> "FlatGradient":
        if self._gradient is None or self._gradient.spans is not turn.spans:
            self._gradient = FlatGradient(self._services.module, self._services.flat, turn.spans)
        return self._gradient

    def _losses(self, batches: Iterable[StepBatch], part: int) -> Iterator[Tensor]:
        """The losses of one part of some batches at the module's present weights, with the step's own draws."""
        training = self._training
        for one in batches:
            batch, size = one.parts[part]
            training.draws.set(one.draws)
            self._services.module_trainer.collector.begin_step(batch, size)
            with torch.enable_grad():  # an optimiser may have switched gradients off
                output = training.training_output(batch, one.index, training.generators)
                loss = training.loss(output, "client_loss" in training.own_steps)
            if loss is not None:
                yield loss


class FlatGradient:
    """Differentiates losses by some parameters of a module."""

    def __init__(self, module: nn.Module, flat: FlatModule, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._like = flat.weights
        places = [(flat.place(parameter), parameter) for parameter in module.parameters()]
        found = {(place.dtype, place.begin): parameter for place, parameter in places if place is not None}
        self._runs: list[tuple[Place, list[Tensor]]] = []  # with zeros for the gap before each parameter
        self._parameters: list[nn.Parameter] = []
        for run in merge_spans(spans):
            inside = [span for span in spans if span.dtype == run.dtype and run.begin <= span.begin < run.end]
            inside.sort(key=lambda span: span.begin)
            ends = [run.begin, *[span.end for span in inside]]
            vector = flat.weights.vectors[run.dtype]
            gaps = [vector.new_zeros(span.begin - end) for span, end in zip(inside, ends[:-1], strict=True)]
            self._runs.append((run, gaps))
            self._parameters += [found[span.dtype, span.begin] for span in inside]

    def load_(self, weights: Weights) -> None:
        for run, _ in self._runs:
            part = slice(run.begin, run.end)
            self._like.vectors[run.dtype][part] = weights.vectors[run.dtype][part]

    def of(self, losses: Iterable[Tensor], share: float) -> Weights:
        """The gradient of ``share`` times the sum of losses; a new object, zero outside of the parameters."""
        gradient = Weights({dtype: torch.zeros_like(vector) for dtype, vector in self._like.floating()})
        for loss in losses:
            found = iter(torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True))
            for run, gaps in self._runs:
                pieces = [piece for gap in gaps for piece in (gap, next(found).reshape(-1))]
                gradient.vectors[run.dtype][run.begin : run.end].add_(torch.cat(pieces), alpha=share)
        return gradient
