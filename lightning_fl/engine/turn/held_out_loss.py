"""Loss of ``training_step`` at any weights on a client's samples, and its gradient, without training or logging."""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import Tensor

from lightning_fl.core.errors import TrainingError
from lightning_fl.core.lightning_private import eval_mode
from lightning_fl.data.module import Split
from lightning_fl.engine.turn.metric_states import preserve_metrics
from lightning_fl.engine.turn.services import TurnServices
from lightning_fl.engine.weights.flat import Span, Weights


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
            raise TrainingError(
                f"training_step returned no loss for {self._name(client)}: return one for held-out batches too, or"
                " choose the other split."
            )
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
                loss = loop.loss(loop.step("training_step", batch, index))
                if loss is not None:
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


_REMEDY = "Lower the learning rate, set trainer.gradient_clip_val, or look at this client's data."
