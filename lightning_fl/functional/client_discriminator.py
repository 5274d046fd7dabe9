"""Client discriminators of FedCollab, many trained at once: networks that tell two clients' samples apart.

Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning", ICML 2023,
https://arxiv.org/abs/2306.06508, algorithm 1. A network with one hidden layer learns to tell the samples of a pair's
first client (label 1) from those of its second (label 0). Both start a round from the server's weights, take one
full-batch gradient step of binary cross-entropy on their own training samples, and the server averages the two.

| paper | here | shape |
|---|---|---|
| (x, y) of m_train training and v validation samples | rows of ``Side.design`` and ``Side.start`` | [m + v, ...] |
| f_w: ΔW1 and Δb1 since the first round; w2; b2 | ``coefficients``, ``output``, ``bias`` | [k, h], [h], [1] |
| T, rounds | ``DiscriminatorSettings.max_rounds`` | count |

**Weights by coordinates.** A gradient of W1 is a combination of the training samples that it comes from, so after any
number of rounds ``ΔW1 = Q_i B_i + Q_j B_j``, where the columns of Q_i [d, m] are an orthonormal basis of i's training
samples, ``X_iᵀ = Q_i R_i``. Training B [m, h] instead of W1 [d, h] is the same algorithm, not an approximation: a
round costs O(m² h) instead of O(m d h). Where m is not well below d, W1 itself is trained; its coordinates are then
the features, and both sides share them.

**Federation.** Samples never leave the process that holds them. What crosses from one process to another is what the
paper's clients send, the change of the weights: of W1 as the factors Q_i, once, and the round's change of B_i, of the
rest as it is. Q_i is made to be a function of the span alone, which the changes of W1 show anyway. Either side's
products are formed by themselves, also where one process holds both, so a discriminator has the same bits in one
process and in several (on one kind of device; shown for CPUs).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_fl.errors import ConfigurationError
from lightning_fl.seeding import generator

__all__ = ["Discriminator", "DiscriminatorBatch", "DiscriminatorSettings", "FirstWeights", "Reduce", "Side"]

Monitor = Literal["loss", "balanced_accuracy"]
MONITORS: tuple[Monitor, ...] = ("loss", "balanced_accuracy")
#: Adds a tensor over all processes and returns the sum to each.
Reduce = Callable[[Tensor], Tensor]
#: Of the coefficients of one side, the output weights and the output bias, of stacked pairs.
Changes = tuple[Tensor, Tensor, Tensor]

# A CPU's vectorised loops take this many numbers at a time or a divisor of it.
_LANES = 64


@dataclass(frozen=True, kw_only=True)
class DiscriminatorSettings:
    """How a client discriminator is trained.

    Args:
        hidden: units of the hidden layer.
        learning_rate: of the gradient steps.
        max_rounds: rounds at most; those after the last evaluation are not trained.
        eval_every: rounds from one evaluation to the next.
        patience: evaluations without a better value of ``monitor`` after which a pair stops.
        monitor: what is compared on the validation samples to choose the round that counts: their ``"loss"``, or the
            ``"balanced_accuracy"`` itself, whose largest value over many rounds flatters the discriminator.
        max_train: training samples of each side at most.
        max_validation: validation samples of each side at most.
        shared_size: the same number of training samples in all pairs, half of the smallest client's; otherwise half of
            the smaller client of each pair.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    hidden: int = 200
    learning_rate: float = 0.3
    max_rounds: int = 2000
    eval_every: int = 10
    patience: int = 10
    monitor: Monitor = "loss"
    max_train: int = 48
    max_validation: int = 500
    shared_size: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden", "eval_every", "patience", "max_train", "max_validation"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)}: give a whole number of at least 1.")
        if self.max_rounds < self.eval_every:
            raise ConfigurationError(
                f"max_rounds={self.max_rounds} is less than eval_every={self.eval_every}: a discriminator must be"
                " evaluated at least once."
            )
        if not 0 < self.learning_rate < math.inf:
            raise ConfigurationError(f"learning_rate={self.learning_rate}: give a number above 0.")
        if self.monitor not in MONITORS:
            raise ConfigurationError(f"monitor={self.monitor!r}: choose from {', '.join(MONITORS)}.")


class FirstWeights:
    """The server's first weights, the same for all pairs, drawn as ``nn.Linear`` does (uniform in ±1/√inputs).

    Attributes:
        weight: W1, [d, h].
        hidden_bias: b1, [h].
        output: w2, [h].
        bias: b2, [1].
    """

    def __init__(self, num_features: int, hidden: int, seed: int, device: torch.device) -> None:
        draws = generator(seed, "client discriminator")

        def uniform(*shape: int, inputs: int) -> Tensor:
            return ((2 * torch.rand(*shape, generator=draws) - 1) / math.sqrt(inputs)).to(device)

        self.weight = uniform(num_features, hidden, inputs=num_features)
        self.hidden_bias = uniform(hidden, inputs=num_features)
        self.output = uniform(hidden, inputs=hidden)
        self.bias = uniform(1, inputs=hidden)


@dataclass
class Side:
    """One client's part in one pair. Rows are its m training, then its v validation samples.

    Attributes:
        design: the samples in the coordinates that changes of W1 and b1 are written in, [m + v, k]; k is
            k_first + k_second, or the k of both where they share coordinates.
        start: ``X W1 + b1`` with the first weights, [m + v, h].
        spread: carries gradients by hidden units into this side's coordinates, [k_side, m].
    """

    design: Tensor
    start: Tensor
    spread: Tensor


@dataclass
class Discriminator:
    """A pair's network and how far it is.

    Attributes:
        pair: first and second client.
        sides: of either; ``None`` where another process holds it.
        held_out: validation samples of either.
        coefficients: changes of W1 and b1, [k, h].
        output: w2, [h].
        bias: b2, [1].
        rounds: rounds trained.
        record: validation samples of either side told rightly in the round that counts, and that round; 0 while there
            is none.
    """

    pair: tuple[int, int]
    sides: tuple[Side | None, Side | None]
    held_out: tuple[int, int]
    coefficients: Tensor
    output: Tensor
    bias: Tensor
    rounds: int = 0
    record: tuple[int, int, int] = (0, 0, 0)
    _best: float = field(default=-math.inf, repr=False)
    _stale: int = field(default=0, repr=False)

    def judge(self, correct: tuple[int, int], loss: float, settings: DiscriminatorSettings) -> bool:
        """Take note of an evaluation after ``eval_every`` more rounds; whether to stop."""
        accuracy = (correct[0] / self.held_out[0] + correct[1] / self.held_out[1]) / 2
        score = -loss if settings.monitor == "loss" else accuracy
        self.rounds += settings.eval_every
        self._stale += 1
        perfect = accuracy == 1
        if math.isfinite(loss) and (score > self._best or perfect):
            self._best, self._stale, self.record = score, 0, (*correct, self.rounds)
        # Nothing is better than never to be wrong: going on could only use up the patience.
        last = self.rounds + settings.eval_every > settings.max_rounds
        return perfect or last or self._stale >= settings.patience


class DiscriminatorBatch:
    """Discriminators of pairs with the same number of training samples, stacked: [P, ...].

    Args:
        items: the discriminators, at least one.
        num_train: m, training samples of each side.
        width: coordinates of one side, k_side.
        settings: how to train.
        reduce: sums over processes, where the two sides are not in the same one; else ``None``.
    """

    def __init__(
        self,
        items: list[Discriminator],
        num_train: int,
        width: int,
        settings: DiscriminatorSettings,
        reduce: Reduce | None = None,
    ) -> None:
        self._items, self._width, self._settings, self._reduce = items, width, settings, reduce
        self._coefficients = torch.stack([item.coefficients for item in items])
        self._output = torch.stack([item.output for item in items])
        self._bias = torch.stack([item.bias for item in items])
        self._halves = [_Half([item.sides[which] for item in items], which, num_train) for which in (0, 1)]
        shared = self._coefficients.shape[1] == width
        self._parts = [slice(None) if shared else slice(which * width, (which + 1) * width) for which in (0, 1)]

    def advance(self) -> set[tuple[int, int]]:
        """Train to the next evaluation and evaluate; the pairs that stop."""
        for _ in range(self._settings.eval_every):
            self._round()
        stopped = set()
        for item, (first, second, *losses) in zip(self._items, self._evaluate().tolist(), strict=True):
            if item.judge((int(first), int(second)), sum(losses) / 2, self._settings):
                stopped.add(item.pair)
        return stopped

    def write_back(self) -> None:
        """Leave the weights with the discriminators."""
        for position, item in enumerate(self._items):
            item.coefficients = self._coefficients[position]
            item.output, item.bias = self._output[position], self._bias[position]

    def _round(self) -> None:
        """One step of either side on its own samples from the same weights, and the average of the two."""
        rate = self._settings.learning_rate / 2
        changes = [half.changes(self._coefficients, self._output, self._bias, rate) for half in self._halves]
        if self._reduce is not None:
            changes = self._exchange(changes, self._reduce)
        for part, (inner, output, bias) in zip(self._parts, changes, strict=True):
            self._coefficients[:, part] += inner
            self._output += output
            self._bias += bias

    def _exchange(self, changes: list[Changes], reduce: Reduce) -> list[Changes]:
        """Both sides' changes in every process: each adds what it has to zeros, which is exact in any order."""
        hidden = self._output.shape[1]
        parcel = self._output.new_zeros(len(self._items), 2, (self._width + 1) * hidden + 1)
        for which, (half, (inner, output, bias)) in enumerate(zip(self._halves, changes, strict=True)):
            if half.members:
                parcel[half.members, which] = torch.cat([inner.flatten(1), output, bias], 1)
        inner, output, bias = reduce(parcel).split([self._width * hidden, hidden, 1], 2)
        inner = inner.unflatten(2, (self._width, hidden))
        return [(inner[:, which], output[:, which], bias[:, which]) for which in (0, 1)]

    def _evaluate(self) -> Tensor:
        """Validation samples of either side told rightly, and either side's mean loss, float32 [P, 4]."""
        table = torch.zeros(len(self._items), 4, device=self._output.device)
        for which, half in enumerate(self._halves):
            for position, side in zip(half.members, half.sides, strict=True):
                design, start = side.design[half.num_train :], side.start[half.num_train :]
                hidden = torch.addmm(start, design, self._coefficients[position]).relu_()
                logits = hidden @ self._output[position] + self._bias[position]
                table[position, which] = (logits > 0 if which == 0 else logits <= 0).sum()
                table[position, 2 + which] = F.softplus(-logits if which == 0 else logits).mean()
        return table if self._reduce is None else self._reduce(table)


class _Half:
    """All first (``which`` 0) or second sides of a batch that this process holds: S of P pairs."""

    def __init__(self, sides: list[Side | None], which: int, num_train: int) -> None:
        self.members = [position for position, side in enumerate(sides) if side is not None]
        self.sides = [side for side in sides if side is not None]
        self.num_train, self._target = num_train, 1.0 - which
        if not self.sides:
            return
        # The product of one matrix runs other code than that of several, with other bits: a lone one comes twice.
        twice = 2 if len(self.sides) == 1 else 1
        whole = twice == 1 and len(self.sides) == len(sides)
        self._rows = None if whole else torch.tensor(self.members * twice, device=self.sides[0].design.device)
        self._design = torch.stack([side.design[:num_train] for side in self.sides * twice])
        self._start = torch.stack([side.start[:num_train] for side in self.sides * twice])
        self._spread = torch.stack([side.spread for side in self.sides * twice])

    def changes(self, coefficients: Tensor, output: Tensor, bias: Tensor, rate: float) -> Changes:
        """Minus ``rate`` times the gradients of the sides' mean losses.

        Nothing here rounds otherwise when other pairs are stacked: no product is fused with a sum, and no exponential
        is left to the loop over the remainder of a vector.

        Returns:
            By the own coordinates [S, k_side, h], the output weights [S, h] and the output bias [S, 1].
        """
        if not self.sides:
            return coefficients[:0], output[:0], bias[:0]
        if self._rows is not None:
            coefficients, output, bias = (part.index_select(0, self._rows) for part in (coefficients, output, bias))
        hidden = torch.baddbmm(self._start, self._design, coefficients).relu_()  # [S, m, h]
        logits = torch.bmm(output.unsqueeze(1), hidden.mT).squeeze(1) + bias
        probabilities = F.pad(logits, (0, -self.num_train % _LANES)).sigmoid_()[:, : self.num_train]
        error = (self._target - probabilities) * (rate / self.num_train)  # [S, m]
        by_output = torch.bmm(error.unsqueeze(1), hidden).squeeze(1)
        active = hidden.sign_()  # the derivative of ReLU
        inner = torch.bmm(self._spread * error.unsqueeze(1), active).mul_(output.unsqueeze(1))
        count = len(self.sides)
        return inner[:count], by_output[:count], error.sum(1, keepdim=True)[:count]
