"""Every strategy as a plain loop in float64, written from its paper: what the battery compares the package with.

Clients fit lines: the loss of a sample is ``(x . (body, head) - y)^2 / 2``, a bowl with a curvature of each client's.
With ``norm`` the body makes two features of three, which a layer of BatchNorm takes to the head. A model is one vector:
body, head and, with ``norm``, scale, shift, running mean and running variance.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["BATCH_SIZE", "EPOCHS", "MOMENTUM", "RATE", "REFERENCES", "Plan", "after_rounds", "samples", "start"]

RATE, MOMENTUM, BATCH_SIZE, EPOCHS = 0.04, 0.5, 6, 2
#: Samples of the clients: 2, 6, 4, 6 and 4 batches in a turn. One sample is no batch for BatchNorm.
SIZES, SIZES_WITH_NORM = (6, 18, 9, 13, 10), (6, 18, 9, 12, 10)


@dataclass(frozen=True)
class Plan:
    """What a run does in its rounds.

    Args:
        labels: the coalition of each client, by round; the last one stays.
        chosen: coalitions are found after the clients have trained, else before.
        cohorts: who takes part, by round; all where a round is not named.
        failing: round -> who fails.
        decay: the rate of a client's step t, counted over all its rounds, is ``RATE / (1 + decay t)``.
        accumulate: batches in a step.
        norm: the model has a layer of BatchNorm.
        rounds: how many.
    """

    labels: Sequence[Sequence[int]] = ((0, 0, 0, 0, 0),)
    chosen: bool = False
    cohorts: dict[int, list[int]] = field(default_factory=dict)
    failing: dict[int, list[int]] = field(default_factory=dict)
    decay: float = 0.0
    accumulate: int = 1
    norm: bool = False
    rounds: int = 3

    def labels_of(self, number: int) -> list[int]:
        """Of a round."""
        return list(self.labels[min(number, len(self.labels) - 1)])

    def cohort(self, number: int) -> list[int]:
        """Of a round."""
        return self.cohorts.get(number, [0, 1, 2, 3, 4])


def samples(client: int, split: str, norm: bool) -> Tensor:
    """A client's samples: three features and the target, float64 [n, 4]."""
    count = (SIZES_WITH_NORM if norm else SIZES)[client] if split == "train" else 5
    draws = torch.Generator().manual_seed(10 * client + (split == "train"))
    x = torch.randn(count, 3, dtype=torch.float64, generator=draws) + 0.4 * (client - 1.5)
    target = x @ torch.tensor([1.0 - client, 0.5 * client, 2.0 - client], dtype=torch.float64)
    return torch.cat([x, target[:, None] + torch.randn(count, 1, dtype=torch.float64, generator=draws)], 1)


def start(norm: bool) -> Tensor:
    """The model that a run begins with."""
    body, head = ([0.8, -0.5, 0.3, 0.2, 0.9, -0.4], [1.0, -0.7]) if norm else ([1.0, -0.5], [0.7])
    values = body + head + norm * [1.2, 0.9, 0.1, -0.2, 0.0, 0.0, 1.0, 1.0]
    return torch.tensor(values, dtype=torch.float64)


def loss_of(w: Tensor, batch: Tensor, train: bool) -> Tensor:
    """The mean loss of a batch; BatchNorm by the batch's statistics in training, by the model's in evaluation."""
    x, y = batch[:, :3], batch[:, 3]
    if len(w) == 3:
        return (x @ w - y).square().mean() / 2
    body, head, scale, shift, *statistics = w.split([6, 2, 2, 2, 2, 2])
    h = x @ body.view(2, 3).T
    mean, variance = (h.mean(0), h.var(0, correction=0)) if train else statistics
    return ((scale * (h - mean) / (variance + 1e-5).sqrt() + shift) @ head - y).square().mean() / 2


def moved(w: Tensor, batch: Tensor) -> Tensor:
    """The model, whose statistics have seen a batch."""
    if len(w) == 3:
        return w
    h = batch[:, :3] @ w[:6].view(2, 3).T
    return torch.cat([w[:12], 0.9 * w[12:] + 0.1 * torch.cat([h.mean(0), h.var(0)])])


class FedAvg:
    """A federation, and federated averaging: McMahan et al. 2017, Algorithm 1."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.labels = plan, [0, 0, 0, 0, 0]
        self.data = {i: samples(i, "train", plan.norm) for i in range(5)}
        self.models = [start(plan.norm)]
        self.kept: list[dict[str, Any]] = [{} for _ in range(5)]  # by each client
        self.server: list[dict[str, Any]] = [{}]  # of each model
        self.steps: Counter[tuple[int, str]] = Counter()  # of each client's optimisers
        self.trained = torch.ones_like(self.models[0])  # 1 for parameters, 0 for statistics
        self.trained[12:] = 0

    # -- a client ------------------------------------------------------------------------------------------------------

    def windows(self, i: int, epochs: int) -> Iterator[list[Tensor]]:
        """The batches of each step of a turn; every epoch begins a step."""
        for _ in range(epochs):
            batches = self.data[i].split(BATCH_SIZE)
            for first in range(0, len(batches), self.plan.accumulate):
                yield list(batches[first : first + self.plan.accumulate])

    def gradient(self, w: Tensor, window: list[Tensor], train: bool = True) -> tuple[Tensor, Tensor]:
        """Of a step's batches, each divided by the number that a step has; and w, whose statistics they have moved."""
        gradient = torch.zeros_like(w)
        for batch in window:
            at = w.clone().requires_grad_()
            (slope,) = torch.autograd.grad(loss_of(at, batch, train), at)
            gradient += slope * self.trained / self.plan.accumulate
            w = moved(w, batch) if train else w
        return gradient, w

    def descend(
        self, i: int, w: Tensor, correct: Callable[..., Tensor] | None = None, purpose: str = "train", **how: Any
    ) -> tuple[Tensor, float]:
        """SGD with momentum: where it ends, and the sum of rate x weight over all gradients that entered."""
        memory, weight, reach = torch.zeros_like(w), 0.0, 0.0
        for window in self.windows(i, how.get("epochs", EPOCHS)):
            rate = RATE / (1 + self.plan.decay * self.steps[i, purpose])
            self.steps[i, purpose] += 1
            gradient, w = self.gradient(w, window, how.get("train", True))
            memory = MOMENTUM * memory + (gradient if correct is None else correct(gradient, w, window, rate))
            weight = MOMENTUM * weight + 1
            reach += rate * weight
            w = w - rate * memory
        return w, reach

    def loss(self, i: int, w: Tensor) -> float:
        """Of a model on all of a client's training data."""
        return float(loss_of(w, self.data[i], False))

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        """What a client hands over of its local work, y and more."""
        return {"y": self.descend(i, x)[0]}

    def evaluated(self, i: int, x: Tensor) -> Tensor:
        """What a client is evaluated with, x being its shared model."""
        return x

    # -- the server ----------------------------------------------------------------------------------------------------

    def average(self, told: dict[int, dict[str, Any]], weights: dict[int, float] | None = None) -> Tensor:
        """Of what clients handed over, by their samples or by other weights."""
        by = weights or {i: float(len(self.data[i])) for i in told}
        total = sum(by.values())
        return sum((by[i] / total * told[i]["y"] for i in told), torch.zeros_like(self.models[0]))

    def with_statistics(self, w: Tensor, average: Tensor) -> Tensor:
        """The parameters of the first, the statistics of the second."""
        return torch.where(self.trained > 0, w, average)

    def aggregate(self, k: int, x: Tensor, told: dict[int, dict[str, Any]]) -> Tensor:
        """The next shared model of number k."""
        return self.average(told)

    def share(self, i: int) -> float:
        """Of a client's samples in those of all that use its model."""
        return len(self.data[i]) / sum(len(self.data[j]) for j in self.members(self.labels[i]))

    def members(self, k: int) -> list[int]:
        """Of a model."""
        return [i for i in range(5) if self.labels[i] == k]

    def assign(self, labels: list[int]) -> None:
        """Change who shares a model.

        Coalitions that are chosen after the training, or are more or fewer than before, begin with the average of
        their members' models. What a server keeps is of a coalition, and is forgotten with it.
        """
        before, models, server = self.labels, self.models, self.server
        kept = {frozenset(self.members(k)): server[k] for k in range(len(models))}
        moves = self.plan.chosen or len(set(labels)) != len(models)
        self.labels, self.server = labels, []
        self.models = [
            self.average({i: {"y": models[before[i]]} for i in self.members(k)}) if moves else models[k]
            for k in range(len(set(labels)))
        ]
        for k in range(len(self.models)):
            same = frozenset(self.members(k)) in kept
            self.server.append(kept[frozenset(self.members(k))] if same else {})
            if not same:
                self.forget(k)

    def forget(self, k: int) -> None:
        """The members of a model have changed."""

    def round(self, number: int) -> None:
        """One round; clients that fail leave nothing behind."""
        if not self.plan.chosen:
            self.assign(self.plan.labels_of(number))
        taking = [i for i in self.plan.cohort(number) if i not in self.plan.failing.get(number, [])]
        handed = {i: self.turn(i, self.models[self.labels[i]]) for i in taking}
        if self.plan.chosen:
            self.assign(self.plan.labels_of(number))
        for k, x in enumerate(self.models):
            told = {i: handed[i] for i in handed if self.labels[i] == k}
            if told:
                self.models[k] = self.aggregate(k, x, told)


class FedProx(FedAvg):
    """Li et al. 2020: ``f_i(w) + mu/2 |w - x|^2``."""

    mu = 0.5

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        return {"y": self.descend(i, x, lambda g, w, *_: g + self.mu * (w - x) * self.trained)[0]}


class FedNova(FedAvg):
    """Wang et al. 2020: ``x - tau_eff sum_i beta_i (x - y_i) / a_i``, a_i with the rates in it."""

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        y, reach = self.descend(i, x)
        return {"y": y, "a": reach}

    def aggregate(self, k: int, x: Tensor, told: dict[int, dict[str, Any]]) -> Tensor:
        count = {i: len(self.data[i]) for i in told}
        beta = {i: count[i] / sum(count.values()) for i in told}
        effective = sum(beta[i] * told[i]["a"] for i in told)
        moved = sum(beta[i] / told[i]["a"] * (x - told[i]["y"]) for i in told)
        average = self.average(told, {i: beta[i] / told[i]["a"] for i in told})
        return self.with_statistics(x - effective * moved, average)


class SCAFFOLD(FedAvg):
    """Karimireddy et al. 2020, option II: c is always the mean of the c_i of all clients of the model."""

    server_rate = 0.8

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        c = self.server[self.labels[i]].get("c", 0 * x)
        own = self.kept[i].get("c", 0 * x)
        y, reach = self.descend(i, x, lambda g, *_: g + c - own)
        self.kept[i]["c"] = own - c + (x - y) * self.trained / reach
        return {"y": y, "change": self.kept[i]["c"] - own}

    def aggregate(self, k: int, x: Tensor, told: dict[int, dict[str, Any]]) -> Tensor:
        c = self.server[k].get("c", 0 * x)
        self.server[k]["c"] = c + sum(self.share(i) * told[i]["change"] for i in told if "c" in self.kept[i])
        average = self.average(told)
        return self.with_statistics(x + self.server_rate * (average - x), average)

    def forget(self, k: int) -> None:
        for i in self.members(k):
            self.kept[i].pop("c", None)


class FedAvgM(FedAvg):
    """Hsu et al. 2019: ``v <- rho v + Delta``, ``w <- x + eta v``."""

    momentum, rate = 0.9, 0.7

    def aggregate(self, k: int, x: Tensor, told: dict[int, dict[str, Any]]) -> Tensor:
        average, state = self.average(told), self.server[k]
        state["v"] = self.momentum * state.get("v", 0.0) + average - x
        return self.with_statistics(x + self.rate * state["v"], average)


class FedAdagrad(FedAvg):
    """Reddi et al. 2021, Algorithm 2: no correction of a bias, and v begins as tau^2."""

    rate, beta1, tau = 0.1, 0.4, 1e-2

    def variance(self, v: Tensor, squared: Tensor) -> Tensor:
        return v + squared

    def aggregate(self, k: int, x: Tensor, told: dict[int, dict[str, Any]]) -> Tensor:
        average, state = self.average(told), self.server[k]
        delta = average - x
        state["m"] = self.beta1 * state.get("m", 0.0) + (1 - self.beta1) * delta
        state["v"] = self.variance(state.get("v", self.tau**2 * torch.ones_like(x)), delta**2)
        return self.with_statistics(x + self.rate * state["m"] / (state["v"].sqrt() + self.tau), average)


class FedAdam(FedAdagrad):
    beta2 = 0.9

    def variance(self, v: Tensor, squared: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * squared


class FedYogi(FedAdam):
    def variance(self, v: Tensor, squared: Tensor) -> Tensor:
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)


class QFedAvg(FedAvg):
    """Li et al. 2020 (q-FFL), algorithm 2; L is one over a turn's mean rate, so that q = 0 is the mean of clients."""

    q = 1.5

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        before, loss = self.steps[i, "train"], self.loss(i, x) + 1e-10
        y, _ = self.descend(i, x)
        rates = [RATE / (1 + self.plan.decay * step) for step in range(before, self.steps[i, "train"])]
        curvature = len(rates) / sum(rates)
        change = curvature * (x - y)
        length = float((change * self.trained).square().sum())
        bound = self.q * loss ** (self.q - 1) * length + curvature * loss**self.q
        return {"y": y, "weight": loss**self.q, "L": curvature, "h": bound}

    def aggregate(self, k: int, x: Tensor, told: dict[int, dict[str, Any]]) -> Tensor:
        average = self.average(told, {i: told[i]["weight"] for i in told})
        step = sum(one["weight"] * one["L"] for one in told.values()) / sum(one["h"] for one in told.values())
        return self.with_statistics(x + step * (average - x), average)


class QFedAvgOfNoFairness(QFedAvg):
    """The mean of clients that count alike."""

    q = 0.0


class MaxFL(FedAvg):
    """Cho et al. 2024: thresholds are losses of models trained alone; weights are the slopes of sigmoids."""

    server_rate, eps = 0.7, 0.3

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        if "rho" not in self.kept[i]:
            self.kept[i]["rho"] = self.loss(i, self.descend(i, x, purpose="threshold")[0])
        sigmoid = 1 / (1 + math.exp(self.kept[i]["rho"] - self.loss(i, x)))
        return {"y": self.descend(i, x)[0], "q": sigmoid * (1 - sigmoid)}

    def aggregate(self, k: int, x: Tensor, told: dict[int, dict[str, Any]]) -> Tensor:
        q = {i: told[i]["q"] for i in told}
        moved = sum(q[i] * (told[i]["y"] - x) for i in told) / (sum(q.values()) + self.eps)
        return self.with_statistics(x + self.server_rate * moved, self.average(told, q))


class MaxFLWithOptOut(FedAvg):
    """Its reading by HCCT: whom the shared model does not satisfy trains alone, the others by samples."""

    rho = 4.0

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        own, y = self.kept[i], self.descend(i, x)[0]
        own["out"] = self.loss(i, x) >= self.rho
        if own["out"]:
            own["own"] = self.descend(i, own.get("own", x), purpose="alone")[0]
        return {"y": y, "out": own["out"]}

    def aggregate(self, k: int, x: Tensor, told: dict[int, dict[str, Any]]) -> Tensor:
        told = {i: told[i] for i in told if not told[i]["out"]}
        return self.average(told) if told else x

    def evaluated(self, i: int, x: Tensor) -> Tensor:
        return self.kept[i]["own"] if self.kept[i].get("out") else x


class FedFA(FedAvg):
    """Huang et al. 2020: weights by the accuracy, here exp(-loss), and by how often a client took part."""

    alpha, gamma = 0.4, 0.6

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        return {"y": self.descend(i, x)[0], "accuracy": math.exp(-self.loss(i, x))}

    def aggregate(self, k: int, x: Tensor, told: dict[int, dict[str, Any]]) -> Tensor:
        state = self.server[k]
        turns = state.setdefault("turns", Counter())
        turns.update(told.keys())
        accuracies, often = sum(one["accuracy"] for one in told.values()), sum(turns[i] for i in told)
        first = {i: -math.log2(told[i]["accuracy"] / accuracies) for i in told}
        second = {i: -math.log2(1 - turns[i] / often) if len(told) > 1 else 1.0 for i in told}
        whole, rest = sum(first.values()) or 1.0, sum(second.values())
        weights = {i: self.alpha * first[i] / whole + (1 - self.alpha) * second[i] / rest for i in told}
        average = self.average(told, weights)
        state["m"] = self.gamma * state.get("m", 0.0) + (1 - self.gamma) * (average - x)
        return self.with_statistics(x + state["m"], average)


class Ditto(FedAvg):
    """Li et al. 2021, Algorithm 1: v_k is pulled to the model that the client received in this round."""

    strength = 0.75

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        def pull(g: Tensor, v: Tensor, *_: Any) -> Tensor:
            return g + self.strength * (v - x) * self.trained

        self.kept[i]["v"] = self.descend(i, self.kept[i].get("v", x), pull, "personal")[0]
        return super().turn(i, x)

    def evaluated(self, i: int, x: Tensor) -> Tensor:
        return self.kept[i].get("v", x)


class APFL(FedAvg):
    """Deng et al. 2020, Algorithm 1, the share learned in every step."""

    alpha = 0.6

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        own, memory = self.kept[i], torch.zeros_like(x)
        own.setdefault("v", x)
        own.setdefault("alpha", self.alpha)

        def beside(g: Tensor, w: Tensor, window: list[Tensor], rate: float) -> Tensor:
            nonlocal memory
            v, alpha = own["v"], own["alpha"]
            slope, mixed = self.gradient(self.mixture(i, w), window)
            own["alpha"] = min(max(alpha - rate * float((v - w) @ slope), 0.0), 1.0)
            memory = MOMENTUM * memory + alpha * slope
            own["v"] = self.with_statistics(v - rate * memory, mixed)
            return g

        return {"y": self.descend(i, x, beside)[0]}

    def mixture(self, i: int, w: Tensor) -> Tensor:
        """v-bar, with statistics of its own."""
        v, alpha = self.kept[i]["v"], self.kept[i]["alpha"]
        return self.with_statistics(alpha * v + (1 - alpha) * w, v)

    def evaluated(self, i: int, x: Tensor) -> Tensor:
        return self.mixture(i, x) if self.kept[i].get("alpha") else x  # without any of v it is the shared model


class PerFedAvg(FedAvg):
    """Fallah et al. 2020, first order: the gradient on a batch's second half, after a step on its first."""

    alpha, parts, adaptation_steps = 0.05, 2, 1

    def windows(self, i: int, epochs: int) -> Iterator[list[Tensor]]:
        for window in super().windows(i, epochs):
            large = [batch for batch in window if len(batch) >= 2 * self.parts]
            if large:
                yield large

    def gradient(self, w: Tensor, window: list[Tensor], train: bool = True, part: int = 0) -> tuple[Tensor, Tensor]:
        return super().gradient(w, [batch.tensor_split(self.parts)[part] for batch in window], train)

    def meta(self, g: Tensor, w: Tensor, window: list[Tensor], rate: float) -> Tensor:
        return self.gradient(w - self.alpha * g, window, part=1)[0]

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        return {"y": self.descend(i, x, self.meta)[0]}

    def evaluated(self, i: int, x: Tensor) -> Tensor:
        w = x
        for _ in range(self.adaptation_steps):  # on a batch, which is always the first where none is drawn
            w = w - self.alpha * super().gradient(w, [self.data[i][:BATCH_SIZE]])[0] * self.plan.accumulate
        return w


class PerFedAvgHF(PerFedAvg):
    """Hessian-free: the product with the Hessian, on a third part, by differences."""

    parts, delta, adaptation_steps = 3, 1e-3, 2

    def meta(self, g: Tensor, w: Tensor, window: list[Tensor], rate: float) -> Tensor:
        outer = super().meta(g, w, window, rate)
        ahead, behind = (self.gradient(w + sign * self.delta * outer, window, part=2)[0] for sign in (1, -1))
        return outer - self.alpha * (ahead - behind) / (2 * self.delta)


class PFedMe(FedAvg):
    """Dinh et al. 2020, Algorithm 1: theta begins at w in each step, and is what the client is evaluated with."""

    strength, inner_steps, inner_rate, server_rate = 2.0, 3, 0.05, 0.8

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        def envelope(g: Tensor, w: Tensor, window: list[Tensor], rate: float) -> Tensor:
            last = self.kept[i].get("theta")
            theta = self.with_statistics(w, x if last is None else last)
            for _ in range(self.inner_steps):
                slope, seen = self.gradient(theta, window)
                theta = theta - self.inner_rate * (slope + self.strength * (theta - w) * self.trained)
            self.kept[i]["theta"] = self.with_statistics(theta, seen)
            return self.strength * (w - theta) * self.trained

        return {"y": self.descend(i, x, envelope)[0]}

    def aggregate(self, k: int, x: Tensor, told: dict[int, dict[str, Any]]) -> Tensor:
        average = self.average(told)
        return self.with_statistics((1 - self.server_rate) * x + self.server_rate * average, average)

    def forget(self, k: int) -> None:
        for i in self.members(k):
            self.kept[i].pop("theta", None)

    def evaluated(self, i: int, x: Tensor) -> Tensor:
        return self.kept[i].get("theta", x)


class FedRep(FedAvg):
    """Collins et al. 2021, Algorithm 1: first the client's head on the shared body, then the body under it."""

    @property
    def head(self) -> slice:
        return slice(6, 8) if self.plan.norm else slice(2, 3)

    def turn(self, i: int, x: Tensor) -> dict[str, Any]:
        head, own = torch.zeros_like(x), self.evaluated(i, x)
        head[self.head] = 1
        own, _ = self.descend(i, own, lambda g, *_: g * head, "head", epochs=1, train=False)
        own, _ = self.descend(i, own, lambda g, *_: g * (1 - head))
        self.kept[i]["head"] = own[self.head]
        return {"y": torch.where(head > 0, x, own)}

    def evaluated(self, i: int, x: Tensor) -> Tensor:
        own = x.clone()
        own[self.head] = self.kept[i].get("head", x[self.head])
        return own


#: The reference of each row of the battery.
REFERENCES: dict[str, type[FedAvg]] = {
    one.__name__: one for one in list(globals().values()) if isinstance(one, type) and issubclass(one, FedAvg)
}


def after_rounds(reference: type[FedAvg], plan: Plan) -> Iterator[tuple[Tensor, Tensor, list[float]]]:
    """After every round: the shared models, what clients are evaluated with, and what loss they then have."""
    federation = reference(plan)
    for number in range(plan.rounds):
        federation.round(number)
        used = [federation.evaluated(i, federation.models[federation.labels[i]]) for i in range(5)]
        losses = [float(loss_of(w, samples(i, "val", plan.norm), False)) for i, w in enumerate(used)]
        yield torch.stack(federation.models), torch.stack(used), losses
