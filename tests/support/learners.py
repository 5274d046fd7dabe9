"""Strategies that define all hooks."""

import torch
from torch import Tensor

from lightning_fl.engine.client import ClientTurn, ClientUpdate
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies import SCAFFOLD, Ditto, FedAvg


class Everything(SCAFFOLD, Ditto):
    """All hooks at once."""

    def client_loss(self, loss: Tensor, module: torch.nn.Module) -> Tensor:
        return 1.1 * loss

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        super().correct_gradient_(turn, gradient, weights)
        for dtype, vector in gradient.floating():
            vector.add_(weights.vectors[dtype] - turn.start.vectors[dtype], alpha=0.1)

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        update = super().client_update(turn, weights)
        assert turn.report is not None
        return ClientUpdate(update.weights, 1 / turn.report.num_steps, {"steps": 1.0}, update.vectors)

    def aggregate(self, update: ModelUpdate) -> Weights:
        average = super().aggregate(update)
        rounds = update.state.get("rounds", 0) + 1
        update.state["rounds"] = rounds
        return update.combine((0.1 / rounds, update.start), (1 - 0.1 / rounds, average))


class Neutral(FedAvg):
    """Every hook defined, none of them doing anything."""

    def client_loss(self, loss: Tensor, module: torch.nn.Module) -> Tensor:
        return loss

    def begin_client(self, turn: ClientTurn) -> None: ...

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None: ...

    def end_client(self, turn: ClientTurn, weights: Weights) -> None: ...

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        return ClientUpdate(weights)

    def aggregate(self, update: ModelUpdate) -> Weights:
        return update.average

    def evaluation_weights(self, turn: ClientTurn) -> Weights:
        return turn.start
