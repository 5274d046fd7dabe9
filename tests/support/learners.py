"""Learners from the literature in a few lines each: what the hooks of strategies are tried with."""

import torch
from torch import Tensor

from lightning_fl.engine.client import ClientTurn, ClientUpdate
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies import FedAvg


class Proximal(FedAvg):
    """FedProx: every gradient has ``mu (w - x)`` added."""

    def __init__(self, mu: float = 0.5) -> None:
        super().__init__()
        self.mu = mu

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        for dtype, vector in gradient.floating():
            vector.add_(weights.vectors[dtype] - turn.start.vectors[dtype], alpha=self.mu)


class Scaffold(FedAvg):
    """SCAFFOLD, option II, with weights by samples."""

    extra_vectors = ("control",)
    kept_for_model = ("control",)

    def begin_client(self, turn: ClientTurn) -> None:
        turn.kept.setdefault("control", turn.combine((0.0, turn.start)))

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        server = turn.model_state.get("control")
        for dtype, vector in gradient.floating():
            if server is not None:
                vector.add_(server.vectors[dtype])
            vector.sub_(turn.kept["control"].vectors[dtype])

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        assert turn.report is not None
        before, rate = turn.kept["control"], turn.optimizers[0].param_groups[0]["lr"]
        server = turn.model_state.get("control", turn.combine((0.0, before)))
        step = 1 / (turn.report.num_steps * rate)
        after = turn.combine((1.0, before), (-1.0, server), (step, turn.start), (-step, weights))
        turn.kept["control"] = after
        return ClientUpdate(weights, vectors={"control": turn.combine((1.0, after), (-1.0, before))})

    def aggregate(self, update: ModelUpdate) -> Weights:
        before = update.state.get("control", update.combine((0.0, update.start)))
        update.state["control"] = update.combine((1.0, before), (update.share, update.vectors["control"]))
        return update.average


class ServerMomentum(FedAvg):
    """FedAvgM: the server's step has a memory."""

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = momentum

    def aggregate(self, update: ModelUpdate) -> Weights:
        before = update.state.get("velocity", update.combine((0.0, update.start)))
        velocity = update.combine((self.momentum, before), (1.0, update.average), (-1.0, update.start))
        update.state["velocity"] = velocity
        return update.combine((1.0, update.start), (1.0, velocity))


class FairAverage(FedAvg):
    """q-FedAvg: clients with a large loss count for more, and tell the server how far it may go."""

    def __init__(self, q: float = 1.0) -> None:
        super().__init__()
        self.q = q

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        loss, lipschitz = self.loss_of(turn), 1 / turn.optimizers[0].param_groups[0]["lr"]
        change = turn.combine((lipschitz, turn.start), (-lipschitz, weights))
        squared = float(sum(vector.double().square().sum() for _, vector in change.floating()))
        bound = self.q * loss ** (self.q - 1) * squared + lipschitz * loss**self.q
        return ClientUpdate(weights, loss**self.q / turn.num_samples, {"bound": bound, "loss": loss})

    def loss_of(self, turn: ClientTurn) -> float:
        """The loss at the start of the turn."""
        raise NotImplementedError

    def aggregate(self, update: ModelUpdate) -> Weights:
        told = [one.report.numbers for one in update.contributions]
        rates = 10.0 * sum(numbers["loss"] ** self.q for numbers in told)
        step = rates / sum(numbers["bound"] for numbers in told)
        return update.combine((1 - step, update.start), (step, update.average))


class PersonalModels(FedAvg):
    """Ditto: every client also trains a model of its own, pulled to the shared one, and is evaluated with it."""

    def __init__(self, strength: float = 0.75) -> None:
        super().__init__()
        self.strength = strength

    def end_client(self, turn: ClientTurn, weights: Weights) -> None:
        def pull(gradient: Weights, present: Weights) -> None:
            for dtype, vector in gradient.floating():
                vector.add_(present.vectors[dtype] - turn.start.vectors[dtype], alpha=self.strength)

        own = turn.kept.get("own", turn.start)
        turn.kept["own"] = turn.train(own, "personal", correct_=pull)

    def evaluation_weights(self, turn: ClientTurn) -> Weights:
        return turn.kept.get("own", turn.start)


class Everything(Scaffold, PersonalModels):
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
