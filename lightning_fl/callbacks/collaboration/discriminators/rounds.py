"""Rounds of FedCollab's algorithm 1: client discriminators of all pairs, trained together across processes.

A *lane* is one discriminator: a pair of clients and a fold of their samples. Lanes with batches of the same size train
stacked, as many as the memory limit allows, until each has stopped.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_fl.callbacks.collaboration.discriminators.networks import DiscriminatorSettings, evaluate, local_step_

#: Adds a tensor over all processes and returns the sum to each.
Reduce = Callable[[Tensor], Tensor]

# Memory of the lanes trained at once: the size of a CPU's cache, or enough to keep an accelerator busy.
_CPU_CHUNK_BYTES, _GPU_CHUNK_BYTES = 2**23, 2**30


class Lane(NamedTuple):
    """A discriminator: its clients, the fold, and the training samples of each side.

    In fold 0 the first ``size`` samples of a client's order train, in fold 1 the last; the others validate.
    """

    first: int
    second: int
    fold: int
    size: int


@dataclass
class Outcome:
    """Accuracies on both clients' validation samples in the best round (0 if there is none), and rounds trained."""

    accuracies: tuple[float, float] = (math.nan, math.nan)
    best_round: int = 0
    rounds: int = 0
    score: float = -math.inf
    stale: int = 0

    def add(self, accuracies: tuple[float, float], loss: float, rounds: int, settings: DiscriminatorSettings) -> bool:
        """Record an evaluation; return whether the discriminator stops."""
        score = -loss if settings.monitor == "loss" else sum(accuracies) / 2
        self.rounds, perfect = rounds, min(accuracies) == 1
        self.stale += 1
        if math.isfinite(loss) and (score > self.score or perfect):
            self.score, self.stale, self.accuracies, self.best_round = score, 0, accuracies, rounds
        return perfect or rounds + settings.eval_every > settings.max_rounds or self.stale >= settings.patience


class _Side(NamedTuple):
    """A client of this process in the lanes that train: their rows, and per lane label, fold and size, [S]."""

    samples: Tensor
    rows: Tensor
    labels: Tensor
    folds: Tensor
    sizes: Tensor

    def batch(self, round_number: int, size: int) -> Tensor:
        turn = torch.arange(round_number * size, (round_number + 1) * size, device=self.rows.device)
        place = turn % self.sizes[:, None]
        return self.samples[torch.where(self.folds[:, None] > 0, len(self.samples) - 1 - place, place)]

    def held_out(self, at_most: int) -> Tensor:
        place = torch.arange(len(self.samples), device=self.rows.device)
        place = torch.where(self.folds[:, None] > 0, len(self.samples) - 1 - place, place)
        return (place >= self.sizes[:, None]) & (place < self.sizes[:, None] + at_most)


@dataclass(frozen=True)
class Survey:
    """State that the discriminators of one call share."""

    samples: dict[int, Tensor]  #: of the clients of this process, in order, float32 [n, d + 1]
    first: Tensor  #: the server's initial weights
    sizes: list[int]  #: all clients' numbers of samples
    apart: set[tuple[int, int]]  #: pairs whose clients are in different processes
    settings: DiscriminatorSettings
    reduce: Reduce | None

    def chunks(self, lanes: Sequence[Lane]) -> Iterator[tuple[list[Lane], int]]:
        """Lanes with batches of the same size, as many as the memory limit allows; the same in all processes."""
        limit = _CPU_CHUNK_BYTES if self.first.device.type == "cpu" else _GPU_CHUNK_BYTES
        batch_size = {lane: min(lane.size, self.settings.batch_size) for lane in lanes}
        for size in sorted(set(batch_size.values())):
            alike = [lane for lane in lanes if batch_size[lane] == size]
            room = max(1, limit // (4 * (3 * len(self.first) + 4 * size * self.settings.hidden)))
            yield from ((alike[start : start + room], size) for start in range(0, len(alike), room))

    @torch.no_grad()
    def train(self, lanes: list[Lane], batch_size: int) -> dict[Lane, Outcome]:
        outcomes = {lane: Outcome() for lane in lanes}
        weights, rounds = self.first.repeat(len(lanes), 1), 0
        while lanes:
            sides = self._sides(lanes)
            for number in range(rounds, rounds + self.settings.eval_every):
                weights = self._round(weights, lanes, sides, number, batch_size)
            rounds += self.settings.eval_every
            kept = [
                row
                for row, (lane, evaluated) in enumerate(zip(lanes, self._evaluate(weights, lanes, sides), strict=True))
                if not outcomes[lane].add(*evaluated, rounds, self.settings)
            ]
            lanes, weights = [lanes[row] for row in kept], weights[kept]
        return outcomes

    def num_held_out(self, lane: Lane) -> tuple[int, int]:
        first, second = (
            min(self.sizes[client] - lane.size, self.settings.max_validation) for client in (lane.first, lane.second)
        )
        return first, second

    def _sides(self, lanes: list[Lane]) -> list[_Side]:
        sides = []
        for client in sorted({client for lane in lanes for client in lane[:2]} & self.samples.keys()):
            own = [
                (row, client == lane.first, lane.fold, lane.size)
                for row, lane in enumerate(lanes)
                if client in lane[:2]
            ]
            rows, labels, folds, sizes = torch.tensor(own, device=self.first.device).unbind(1)
            sides.append(_Side(self.samples[client], rows, labels.float(), folds, sizes))
        return sides

    def _round(self, weights: Tensor, lanes: list[Lane], sides: list[_Side], number: int, batch_size: int) -> Tensor:
        """A step of every client in all of its lanes, and each lane's average."""
        total = torch.zeros_like(weights)
        for side in sides:
            local = weights.index_select(0, side.rows)
            batch = side.batch(number, batch_size)
            local_step_(local, batch, side.labels, self.settings.hidden, self.settings.learning_rate)
            total.index_add_(0, side.rows, local)
        if crossing := [row for row, lane in enumerate(lanes) if lane[:2] in self.apart]:
            assert self.reduce is not None
            total[crossing] = self.reduce(total[crossing])
        return total.mul_(0.5)

    def _evaluate(
        self, weights: Tensor, lanes: list[Lane], sides: list[_Side]
    ) -> list[tuple[tuple[float, float], float]]:
        """Both sides' accuracies, and the mean loss, of each lane on its validation samples."""
        table = weights.new_zeros(len(lanes), 2, 2)  # results of ``evaluate`` for both sides
        for side in sides:
            held_out = side.held_out(self.settings.max_validation)
            local = weights.index_select(0, side.rows)
            for fold in side.folds.unique().tolist():  # the other half trains
                own = (side.folds == fold).nonzero().squeeze(1)
                used = held_out[own].any(0).nonzero().squeeze(1).tolist()
                span = slice(used[0], used[-1] + 1)
                labels = side.labels[own]
                counted = evaluate(local[own], side.samples[span], labels, held_out[own, span], self.settings.hidden)
                table[side.rows[own], 1 - labels.long()] = counted
        if self.reduce is not None:
            table = self.reduce(table)
        found = []
        for lane, ((first, first_loss), (second, second_loss)) in zip(lanes, table.tolist(), strict=True):
            counts = self.num_held_out(lane)
            loss = (first_loss / counts[0] + second_loss / counts[1]) / 2
            found.append(((first / counts[0], second / counts[1]), loss))
        return found
