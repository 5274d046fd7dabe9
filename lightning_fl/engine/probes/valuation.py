"""Contributions of clients to a shared model, valued on their held-out data."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from lightning_fl.engine.probes.on_hosts import compute_on_hosts
from lightning_fl.engine.turn.gradients import HeldOutLoss
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.engine.weights.local_parameters import span_bytes
from lightning_fl.engine.weights.weighted_sum import WeightedSum
from lightning_fl.functional.shapley import FirstOrderShapley

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class ModelValuation:
    """Values of the clients in a shared model's average, by the held-out loss.

    The loss L of a model is the mean of the held-out losses of the clients in its average, unweighted. Each rank
    computes it, or its gradient, for its hosted clients; sums are exact, so that any number of processes gives the same
    bits. Every rank must make the same calls.

    Args:
        shares: client -> lambda, its weight in the average; as attribute of valued clients only, summing to 1.
        learned: hosted client -> its weights after its turn. Other clients are not valued.
    """

    loop: LocalLoop
    loss: HeldOutLoss
    start: Weights
    average: Weights
    shares: Mapping[int, float]
    learned: Mapping[int, Weights]

    def __post_init__(self) -> None:
        self._processes = self.loop.processes
        self._communication = self.loop.federation.communication
        members = self._processes.exchange({client: self.shares[client] for client in self._hosted()})
        total = math.fsum(members.values())
        self.shares = {client: share / total for client, share in members.items()}

    def first_order(self, normalized: bool, leave_own_out: bool = False) -> dict[int, float]:
        """First-order Shapley values, by one gradient and one inner product per client.

        Args:
            normalized: ``-<∇L, lambda_i (W_i - W_M)>``, else ``-<∇L, lambda_i (W_i - W_start)>``.
            leave_own_out: L of a client is the mean over the others; this keeps each hosted client's gradient.
        """
        if normalized and len(self.shares) == 1:
            return dict.fromkeys(self.shares, 0.0)
        spans = self.loop.averaged_spans()
        self._communication.receive(self.shares, [self.average])
        if len(self.shares) > 1:  # a single client computes the product itself
            self._communication.send(self.shares, span_bytes(spans))
        if leave_own_out and len(self.shares) > 1:
            return self._without_own(spans, normalized)
        gradient = self._gradient(spans).split([span.end - span.begin for span in spans])
        slopes = FirstOrderShapley(gradient, normalized=False)
        for client in self._hosted():
            slopes.add(client, 1.0, self._difference(self.learned[client], spans))
        # With all slopes known, lambda is applied as in a model of one weight.
        values = FirstOrderShapley(torch.tensor([-1.0]), normalized=normalized)
        for client, slope in self._processes.exchange(slopes.values()).items():
            values.add(client, self.shares[client], torch.tensor([slope], dtype=torch.float64))
        return values.values()

    def _without_own(self, spans: list[Span], normalized: bool) -> dict[int, float]:
        """First-order values, each by the gradient of the other clients' mean loss."""
        own: dict[int, Tensor] = {}
        count = len(self.shares)
        total = self._gradient(spans, own) * count
        average = self._model_of(list(self.shares), normalized=True)  # before the server's step
        aggregate = torch.cat(self._difference(average, spans)) if normalized else None
        values = {}
        for client in self._hosted():
            update = torch.cat(self._difference(self.learned[client], spans))
            others = (total - own.pop(client)) / (count - 1)
            slope = torch.dot(others, update if aggregate is None else update - aggregate)
            values[client] = -self.shares[client] * float(slope)
        return self._processes.exchange(values)

    def coalition_value(self, normalized: bool) -> Callable[[frozenset[int]], float]:
        """v(C) = -L of a coalition's model, a function of a set of positions in :attr:`shares`.

        The empty coalition's is the model before the average. If not ``normalized`` within the coalition, clients
        outside count as untrained, ``w_start + sum_C lambda_i (W_i - w_start)``.
        """
        clients = list(self.shares)

        def value(coalition: frozenset[int]) -> float:
            model = self._model_of([clients[position] for position in sorted(coalition)], normalized)
            # The model of all is the average, which they receive for training anyway.
            self._communication.receive(clients, [self.average if len(coalition) == len(clients) else model])
            losses = self._of_hosted(lambda client: self.loss.value(client, model))
            return -math.fsum(losses.values()) / len(losses)

        return value

    def _model_of(self, coalition: list[int], normalized: bool) -> Weights:
        if not coalition:
            return self.start
        total = WeightedSum(self.start)
        total.add_all_([(self.learned[client], self.shares[client]) for client in coalition if client in self.learned])
        if self._processes.several:
            total.reduce_(self._processes.transport)
        return total.value(math.fsum(self.shares[client] for client in coalition) if normalized else 1.0)

    def _gradient(self, spans: list[Span], own: dict[int, Tensor] | None = None) -> Tensor:
        """∇L at the average, float64, shape [P]; ``own`` gets each hosted client's."""
        length = sum(span.end - span.begin for span in spans)
        zero = torch.zeros(length, dtype=torch.float64, device=self._processes.device)
        total = WeightedSum(Weights({torch.float64: zero}))

        def add(client: int) -> None:
            gradient = self.loss.gradient(client, self.average, spans)
            total.add_(Weights({torch.float64: gradient}), 1.0)
            if own is not None:
                own[client] = gradient

        count = len(self._of_hosted(add))
        if self._processes.several:
            total.reduce_(self._processes.transport)
        return total.value(float(count)).vectors[torch.float64]

    def _difference(self, weights: Weights, spans: list[Span]) -> list[Tensor]:
        """Differences from the model before the average, float64, a vector per span."""
        return [weights.part(span).double() - self.start.part(span).double() for span in spans]

    def _hosted(self) -> list[int]:
        return [client for client in self.shares if client in self.learned]

    def _of_hosted(self, compute: Callable[[int], T]) -> dict[int, T]:
        """Values of all clients, computed on their ranks."""
        return compute_on_hosts(self._processes, self.shares, compute, "the contributions to a model cannot be valued")
