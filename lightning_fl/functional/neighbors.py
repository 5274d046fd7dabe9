"""Predictions of kNN-Per: those of a client's model mixed with its nearest samples.

Marfoq, Neglia, Kameni, Vidal: Personalized Federated Learning through Local Memorization, ICML 2022
(https://arxiv.org/abs/2111.09360), equations 4 to 6.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Task = Literal["classes", "binary", "values"]
#: Shares of the neighbours tried on validation samples.
SHARES = tuple(step / 10 for step in range(11))
#: Queries compared with all samples at a time.
_QUERIES = 1024


def kernel_weights(queries: Tensor, embeddings: Tensor, k: int, scale: float) -> tuple[Tensor, Tensor]:
    """The k nearest samples of each query, weighted by ``exp(-||phi(x) - phi(x_j)||^2 / (d scale))``.

    Weights that sum to 1 and indices of samples, both [q, min(k, n)], nearest first. Of equally distant samples those
    with lower indices are taken. The least distance is subtracted from all, so weights do not underflow.

    Args:
        queries: phi(x), [q, d].
        embeddings: phi(x_j) of the samples, [n, d], n at least 1.
    """
    found = []
    for part in queries.split(_QUERIES):
        squared = torch.cdist(part, embeddings, compute_mode="donot_use_mm_for_euclid_dist").square()
        nearest, indices = (values[:, :k] for values in squared.sort(dim=1, stable=True))
        found.append((torch.softmax(-nearest / (embeddings.shape[1] * scale), 1), indices))
    return torch.cat([weights for weights, _ in found]), torch.cat([indices for _, indices in found])


def neighbor_probabilities(weights: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """``p(y | x)`` [q, C]: sums of the neighbours' weights [q, k] by their classes [q, k], whole numbers."""
    return weights.new_zeros(len(weights), num_classes).scatter_add_(1, classes, weights)


def mixed_logits(logits: Tensor, probabilities: Tensor, share: float, *, binary: bool = False) -> Tensor:
    """Logits [q, C] of ``share p_knn + (1 - share) p_model``; for classes log probabilities.

    Args:
        logits: of the model, [q, C], of C classes or, if ``binary``, of C binary tasks.
        probabilities: of the neighbours, [q, C]; NaN for a binary task without labelled ones: the logits are kept.
    """
    tiny = torch.finfo(logits.dtype).tiny
    if not binary:
        return (share * probabilities + (1 - share) * torch.softmax(logits, -1)).clamp_min(tiny).log()
    yes = share * probabilities + (1 - share) * torch.sigmoid(logits)
    no = share * (1 - probabilities) + (1 - share) * torch.sigmoid(-logits)
    return torch.where(probabilities.isnan(), logits, yes.clamp_min(tiny).log() - no.clamp_min(tiny).log())


def mixed_values(outputs: Tensor, weights: Tensor, targets: Tensor, share: float) -> Tensor:
    """``share`` times the neighbours' weighted mean plus the rest times the model's output, [q, T].

    Weights [q, k] sum to 1 in rows; NaN in targets [q, k, T] is left out. Without a value the share is 0.
    """
    mean = weighted_mean(weights, targets)
    return torch.where(mean.isnan(), outputs, share * mean + (1 - share) * outputs)


def weighted_mean(weights: Tensor, targets: Tensor) -> Tensor:
    """Mean over neighbours without NaN, [q, T], of weights [q, k] and targets [q, k, T]."""
    known = ~targets.isnan()
    counted = weights.unsqueeze(-1) * known
    # The weights of all neighbours with a value may have underflown to zero: then these count equally.
    counted = torch.where((counted.sum(1) == 0).unsqueeze(1), known.to(counted), counted)
    return (counted * targets.nan_to_num()).sum(1) / counted.sum(1)


def task_of(outputs: Tensor, targets: Tensor) -> Task:
    """Infer the task from outputs and targets: integers are classes, other numbers values.

    Raises:
        ValueError: the targets are 0 and 1 as floating numbers, which may be either.
    """
    if not targets.is_floating_point():
        return "classes" if outputs.ndim > 1 and outputs.shape[1] > 1 else "binary"
    known = targets[~targets.isnan()]
    if bool(((known == 0) | (known == 1)).all()):
        raise ValueError("floating targets of 0 and 1 may be classes or values. Set task to binary or values.")
    return "values"


@dataclass(frozen=True)
class Neighbors:
    """A client's own samples, which correct a model's outputs.

    Args:
        embeddings: phi(x_j), [n, d].
        targets: [n, T], on the scale of the outputs.
        task: kind of the outputs: logits of classes, of binary tasks, or values.
        scale: see :func:`kernel_weights`.
        target_scales: mean and standard deviation that bring targets to the outputs' scale.
    """

    embeddings: Tensor
    targets: Tensor
    task: Task
    k: int = 10
    scale: float = 1.0
    target_scales: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(
        cls,
        inputs: Tensor,
        outputs: Tensor,
        targets: Tensor,
        task: Task,
        *,
        k: int = 10,
        scale: float = 1.0,
        target_scales: tuple[Tensor, Tensor] | None = None,
    ) -> "Neighbors":
        """Build from a layer's inputs [n, d] and outputs [n] or [n, C] on samples with targets [n] or [n, T]."""
        width = outputs.shape[1] if outputs.ndim > 1 else 1
        rows = targets.reshape(len(targets), -1)
        if task == "classes":
            fits = not rows.is_floating_point() and rows.shape[1] == 1 and bool(((rows >= 0) & (rows < width)).all())
        else:
            fits = rows.shape[1] == width
        if outputs.ndim > 2 or not fits:
            what = f"outputs of shape {list(outputs.shape)}"
            given = f"targets of shape {list(targets.shape)} and type {targets.dtype} as {task}"
            raise ValueError(f"{what} do not fit {given}. Name another layer, or the task.")
        rows = rows.long() if task == "classes" else _scaled(targets, _exact(outputs), target_scales)
        return cls(_exact(inputs), rows, task, k, scale, target_scales)

    def mixed(self, inputs: Tensor, outputs: Tensor, share: float) -> Tensor:
        """Mix outputs [q] or [q, C] for inputs [q, d] with the neighbours by a share; same shape and type."""
        weights, indices = kernel_weights(_exact(inputs), self.embeddings, self.k, self.scale)
        rows, near = _exact(outputs).reshape(len(outputs), -1), self.targets[indices]
        if self.task == "classes":
            mixed = mixed_logits(rows, neighbor_probabilities(weights, near.squeeze(-1), rows.shape[1]), share)
        elif self.task == "binary":
            mixed = mixed_logits(rows, weighted_mean(weights, near), share, binary=True)
        else:
            mixed = mixed_values(rows, weights, near, share)
        return mixed.to(outputs.dtype).reshape(outputs.shape)

    def best_share(self, inputs: Tensor, outputs: Tensor, targets: Tensor) -> float:
        """The share of :data:`SHARES` with the fewest errors, then the least loss; for values only the latter."""
        scores: list[tuple[float, float]] = []
        for share in SHARES:
            made = self.mixed(inputs, _exact(outputs), share).reshape(len(inputs), -1)
            if self.task == "classes":
                labels = targets.reshape(-1).long()
                wrong = float((made.argmax(1) != labels).sum())
                scores.append((wrong, float(nn.functional.cross_entropy(made, labels))))
                continue
            wanted = _scaled(targets, made, self.target_scales)
            known = ~wanted.isnan()
            if self.task == "values":
                scores.append((float(nn.functional.mse_loss(made[known], wanted[known])), 0.0))
                continue
            wrong = float(((made > 0) != (wanted > 0))[known].sum())
            scores.append((wrong, float(nn.functional.binary_cross_entropy_with_logits(made[known], wanted[known]))))
        return SHARES[scores.index(min(scores))]


def _exact(values: Tensor) -> Tensor:
    """Half precision as float32, since torch has no distances in it."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _scaled(targets: Tensor, outputs: Tensor, scales: tuple[Tensor, Tensor] | None) -> Tensor:
    """Targets on the outputs' scale, [n, T]."""
    rows = targets.reshape(len(targets), -1).to(outputs.dtype)
    return rows if scales is None else (rows - scales[0]) / scales[1]
