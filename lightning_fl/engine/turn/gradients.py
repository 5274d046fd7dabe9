"""Losses of a client's ``training_step`` at any weights, and their gradients, outside of training."""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.lightning_private import eval_mode
from lightning_fl.data.module import Split
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.turn.metric_states import preserve_metrics
from lightning_fl.engine.turn.module_trainer import STAGES
from lightning_fl.engine.turn.results import LogCollector
from lightning_fl.engine.turn.services import TurnServices, refuse_manual_steps
from lightning_fl.engine.turn.training import StepBatch, TrainingLoop
from lightning_fl.engine.weights.flat import FlatModule, Place, Span, Weights, copy_spans_, merge_spans

_REMEDY = "Lower the learning rate, set trainer.gradient_clip_val, or look at this client's data."


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
            what = f"{self._who} calls turn.step_gradient outside of a step"
            raise ConfigurationError(f"{what}: call it in correct_gradient_.")
        refuse_manual_steps(services.module, self._who)
        flat, trainer, now = services.flat, services.module_trainer, training.draws.read()
        gradient, collector = self._flat_gradient(turn), trainer.collector
        metrics = preserve_metrics(services.module) if services.metric_states.metrics else nullcontext()
        with flat.preserved(), metrics:
            copy_spans_(flat.weights, weights, turn.spans)
            if buffers is not None:
                copy_spans_(flat.weights, buffers, turn.buffers)
            trainer.collector = LogCollector()  # drops what is logged meanwhile
            try:
                found = gradient.of(self._losses(training.step_batches, part), 1 / trainer.accumulate_grad_batches)
            finally:
                training.draws.set(now)
                trainer.collector = collector
            if buffers is not None:
                copy_spans_(buffers, flat.collect(), turn.buffers)
            return found

    def of_batch(self, turn: ClientTurn, weights: Weights, purpose: str) -> Weights:
        """:meth:`ClientTurn.batch_gradient`; ``weights`` include the client's personal layers."""
        services, training, client = self._services, self._training, turn.client
        refuse_manual_steps(services.module, self._who)
        trainer, path = services.module_trainer, services.path(client, purpose)
        batches = services.batches(client, "train")
        with services.flat.preserved():
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

    def of(self, losses: Iterable[Tensor], share: float) -> Weights:
        """The gradient of ``share`` times the sum of losses; a new object, zero outside of the parameters."""
        gradient = Weights({dtype: torch.zeros_like(vector) for dtype, vector in self._like.floating()})
        trained = [one for one in self._parameters if one.requires_grad]  # hooks of the turn may freeze some
        for loss in losses:
            if not trained:  # the others are personal layers
                continue
            of_trained = iter(torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True))
            found = (next(of_trained) if one.requires_grad else torch.zeros_like(one) for one in self._parameters)
            for run, gaps in self._runs:
                pieces = [piece for gap in gaps for piece in (gap, next(found).reshape(-1))]
                gradient.part(run).add_(torch.cat(pieces), alpha=share)
        return gradient


@dataclass(frozen=True, eq=False, repr=False)
class HeldOutLoss:
    """L of one client at any weights: the mean of ``training_step``'s loss over samples of one of its splits.

    It is computed in eval mode, without a strategy's proximal term or callbacks' changes of batches (mixup). Logged
    values are dropped, and torchmetrics keep their states. In one round the samples and random draws are the same at
    all weights. A loss or gradient that is not finite, or no loss, is a ``TrainingError``.

    Args:
        num_samples: of each client, drawn in every round (``drawn_in``, if given); ``None`` for all.
        own: use the client's personal layers instead of those of the weights.
    """

    loop: TurnServices
    split: Split
    num_samples: int | None
    purpose: str
    drawn_in: int | None = None
    own: bool = True

    def value(self, client: int, weights: Weights) -> float:
        with torch.no_grad(), closing(self._losses(client, weights)) as found:
            return self._mean(client, *_columns(found))

    def of_samples(self, client: int, weights: Weights) -> tuple[Tensor, Tensor]:
        """The loss of every sample of a hosted client, or every batch of a ``DataLoader``, and the numbers of samples.

        Float64, shape [n], on the CPU, in the same order at all weights.
        """
        with torch.no_grad(), closing(self._losses(client, weights, singly=True)) as found:
            losses, sizes = _columns(found)
        self._mean(client, losses, sizes)
        return torch.stack(losses).double().cpu(), torch.tensor(sizes, dtype=torch.float64)

    def gradient(self, client: int, weights: Weights, spans: Sequence[Span]) -> Tensor:
        """∇L of a hosted client by the parameters of some spans, concatenated: float64, [P], on the run's device."""
        loop = self.loop
        named = dict(loop.module.named_parameters(remove_duplicate=False))
        parameters = [named[span.name] for span in spans]
        lengths = [span.end - span.begin for span in spans]
        total = torch.zeros(sum(lengths), dtype=torch.float64, device=loop.processes.device)
        parts = total.split(lengths)
        losses: list[Tensor] = []
        sizes: list[float] = []
        with torch.enable_grad(), closing(self._losses(client, weights)) as found:
            for loss, size in found:
                losses.append(loss.detach())
                sizes.append(size)
                if not loss.requires_grad:  # independent of all parameters
                    continue
                for part, gradient in zip(parts, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
                    if gradient is not None:
                        part.add_(gradient.flatten(), alpha=size)
        self._mean(client, losses, sizes)
        total /= sum(sizes)
        if not bool(total.isfinite().all()):
            raise TrainingError(f"the gradient of the loss of {self._name(client)} is not finite. {_REMEDY}")
        return total

    def _mean(self, client: int, losses: list[Tensor], sizes: list[float]) -> float:
        if not losses:
            what = f"training_step returned no loss for {self._name(client)}"
            raise TrainingError(f"{what}: return one for held-out batches too, or choose the other split.")
        values: list[float] = torch.stack([loss.detach() for loss in losses]).tolist()
        mean = math.fsum(value * size for value, size in zip(values, sizes, strict=True)) / sum(sizes)
        if not math.isfinite(mean):
            raise TrainingError(f"the loss of {self._name(client)} is {mean}. {_REMEDY}")
        return mean

    def _name(self, client: int) -> str:
        return f"{self.loop.name_of(client)} on its {self.split} data in round {self.loop.federation.current_round + 1}"

    def _losses(
        self, client: int, weights: Weights, singly: bool = False
    ) -> Generator[tuple[Tensor, float], None, None]:
        """The loss of every batch, or of every sample, with its number of samples."""
        loop = self.loop
        trainer = loop.module_trainer
        drawn_in = loop.federation.current_round if self.drawn_in is None else self.drawn_in
        path = (loop.settings.seed, drawn_in, client, self.purpose)
        batches = loop.batches(client, self.split)
        given = batches.singly if singly else batches.some
        with self._turn(client, weights, path):
            for index, (batch, size) in enumerate(given(path, self.num_samples)):
                batch = loop.move(batch, batches.on_device, client)
                if batch is None:
                    continue
                trainer.collector.begin_step(batch, size)
                if (loss := loop.loss(loop.step("training_step", batch, index))) is not None:
                    yield loss, trainer.collector.step_size()

    @contextmanager
    def _turn(self, client: int, weights: Weights, path: tuple[int | str, ...]) -> Iterator[None]:
        loop = self.loop
        trainer = loop.module_trainer
        fn, stage = trainer.state.fn, trainer.state.stage
        assert fn is not None
        loop.load(client, weights, own=self.own)
        loop.seed_user_code(*path)
        # Not FITTING: in a fit's validation the round's number has moved on, here it has not.
        trainer.set_stage(TrainerFn.VALIDATING, RunningStage.VALIDATING)
        trainer.begin_turn(client, loop.global_step(client))
        with preserve_metrics(loop.module):
            try:
                with eval_mode(loop.module):
                    yield
            finally:
                trainer.end_turn()
                trainer.collector.begin()
                trainer.set_stage(fn, stage)


def _columns(found: Iterator[tuple[Tensor, float]]) -> tuple[list[Tensor], list[float]]:
    pairs = list(found)
    return [loss for loss, _ in pairs], [size for _, size in pairs]
