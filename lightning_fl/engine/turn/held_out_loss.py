"""Loss of ``training_step`` at any weights on a client's samples, and its gradient, without training or logging."""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager

import torch
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import Tensor

from lightning_fl.core.errors import TrainingError
from lightning_fl.core.lightning_private import eval_mode
from lightning_fl.data.module import Split
from lightning_fl.engine.turn.metric_states import preserve_metrics
from lightning_fl.engine.turn.services import TurnServices
from lightning_fl.engine.weights.flat import Span, Weights

__all__ = ["HeldOutLoss"]


class HeldOutLoss:
    """L of one client at any weights: the mean of ``training_step``'s loss over samples of one of its splits.

    It is computed in eval mode, without a strategy's proximal term or callbacks' changes of batches (mixup). Logged
    values are dropped, and torchmetrics keep their states. In one round the samples and random draws are the same at
    all weights.

    Args:
        loop: of the run, in a fit.
        split: of the samples.
        num_samples: of each client, drawn in every round; ``None`` for all. With a ``DataLoader``, the first batches
            with at least as many.
        purpose: of the random draws.
        drawn_in: round of the draws; ``None`` for the current one.
        own: use the client's personal layers instead of those of the weights.
    """

    def __init__(
        self,
        loop: TurnServices,
        split: Split,
        num_samples: int | None,
        purpose: str,
        drawn_in: int | None = None,
        own: bool = True,
    ) -> None:
        self._loop = loop
        self._own = own
        self._drawn_in = drawn_in
        self._split = split
        self._num_samples = num_samples
        self._purpose = purpose

    def value(self, client: int, weights: Weights) -> float:
        """L of a hosted client.

        Raises:
            TrainingError: it is not finite, or ``training_step`` returns none.
        """
        with torch.no_grad(), closing(self._losses(client, weights)) as found:
            return self._mean(client, *_columns(found))

    def of_samples(self, client: int, weights: Weights) -> tuple[Tensor, Tensor]:
        """The loss of every sample of a hosted client, each as a batch of its own.

        With a ``DataLoader``, the mean loss of each batch.

        Returns:
            Losses and their numbers of samples, float64, shape [n], on the CPU, in the same order at all weights.

        Raises:
            TrainingError: one is not finite, or ``training_step`` returns none.
        """
        with torch.no_grad(), closing(self._losses(client, weights, singly=True)) as found:
            losses, sizes = _columns(found)
        self._mean(client, losses, sizes)
        return torch.stack(losses).double().cpu(), torch.tensor(sizes, dtype=torch.float64)

    def gradient(self, client: int, weights: Weights, spans: Sequence[Span]) -> Tensor:
        """∇L of a hosted client with respect to some trainable parameters.

        Args:
            client: a hosted client.
            weights: point of the gradient.
            spans: the parameters.

        Returns:
            Their concatenated entries, float64, shape [P], on the run's device.

        Raises:
            TrainingError: the loss or its gradient is not finite, or ``training_step`` returns no loss.
        """
        loop = self._loop
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
        return (
            f"{self._loop.name_of(client)} on its {self._split} data in round {self._loop.federation.current_round + 1}"
        )

    def _losses(
        self, client: int, weights: Weights, singly: bool = False
    ) -> Generator[tuple[Tensor, float], None, None]:
        """The loss of every batch, or of every sample, with its number of samples."""
        loop = self._loop
        trainer = loop.module_trainer
        drawn_in = loop.federation.current_round if self._drawn_in is None else self._drawn_in
        path = (loop.settings.seed, drawn_in, client, self._purpose)
        batches = loop.batches(client, self._split)
        given = batches.singly if singly else batches.some
        with self._turn(client, weights, path):
            for index, (batch, size) in enumerate(given(path, self._num_samples)):
                batch = loop.move(batch, batches.on_device, client)
                if batch is None:
                    continue
                trainer.collector.begin_step(batch, size)
                loss = loop.loss(loop.step("training_step", batch, index))
                if loss is not None:
                    yield loss, trainer.collector.step_size()

    @contextmanager
    def _turn(self, client: int, weights: Weights, path: tuple[int | str, ...]) -> Iterator[None]:
        loop = self._loop
        trainer = loop.module_trainer
        fn, stage = trainer.state.fn, trainer.state.stage
        assert fn is not None
        loop.load(client, weights, own=self._own)
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
