"""Predictions from the nearest of a client's own samples, mixed with those of its model (kNN-Per).

Marfoq, Neglia, Kameni, Vidal: Personalized Federated Learning through Local Memorization, ICML 2022
(https://arxiv.org/abs/2111.09360), equations 4 to 6.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

__all__ = [
    "SHARES",
    "Neighbors",
    "kernel_weights",
    "mixed_logits",
    "mixed_values",
    "neighbor_probabilities",
    "task_of",
    "weighted_mean",
]

Task = Literal["classes", "binary", "values"]
#: Shares of the neighbours that are tried on validation samples.
SHARES = tuple(step / 10 for step in range(11))
#: Queries that are compared with all samples at a time.
_QUERIES = 1024


def kernel_weights(queries: Tensor, embeddings: Tensor, k: int, scale: float) -> tuple[Tensor, Tensor]:
    """The k nearest samples of each query, weighted by ``exp(-||phi(x) - phi(x_j)||^2 / (d scale))``.

    Of samples at the same distance those with lower indices are taken. Weights do not underflow: the least distance is
    subtracted from all.

    Args:
        queries: phi(x), [q, d].
        embeddings: phi(x_j) of the samples, [n, d], n at least 1.
        k: neighbours; all samples where there are fewer.
        scale: of the squared distances, relative to their dimension.

    Returns:
        Weights that sum to 1 and indices of samples, both [q, min(k, n)], nearest first.
    """
    found = []
    for part in queries.split(_QUERIES):
        squared = torch.cdist(part, embeddings, compute_mode="donot_use_mm_for_euclid_dist").square()
        nearest, indices = (values[:, :k] for values in squared.sort(dim=1, stable=True))
        found.append((torch.softmax(-nearest / (embeddings.shape[1] * scale), 1), indices))
    return torch.cat([weights for weights, _ in found]), torch.cat([indices for _, indices in found])


def neighbor_probabilities(weights: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """``p(y | x)``, the weight of the neighbours of each class.

    Args:
        weights: [q, k], rows sum to 1.
        classes: of the neighbours, whole numbers [q, k].
        num_classes: C.

    Returns:
        Probabilities [q, C].
    """
    return weights.new_zeros(len(weights), num_classes).scatter_add_(1, classes, weights)


def mixed_logits(logits: Tensor, probabilities: Tensor, share: float, *, binary: bool = False) -> Tensor:
    """Logits of ``share p_knn + (1 - share) p_model``.

    Args:
        logits: of the model, [q, C] of which one is true, or of C questions each if ``binary``.
        probabilities: of the neighbours, [q, C]; of a question none of whose neighbours has an answer NaN, where the
            model's stand.
        share: of the neighbours, 0 to 1.
        binary: the entries are questions with yes and no.

    Returns:
        Logits [q, C]; those of classes log probabilities.
    """
    tiny = torch.finfo(logits.dtype).tiny
    if not binary:
        mixed = share * probabilities + (1 - share) * torch.softmax(logits, -1)
        return mixed.clamp_min(tiny).log()
    yes = share * probabilities + (1 - share) * torch.sigmoid(logits)
    no = share * (1 - probabilities) + (1 - share) * torch.sigmoid(-logits)
    return torch.where(probabilities.isnan(), logits, yes.clamp_min(tiny).log() - no.clamp_min(tiny).log())


def mixed_values(outputs: Tensor, weights: Tensor, targets: Tensor, share: float) -> Tensor:
    """``share`` of the neighbours' weighted mean and the rest of the model's output.

    Args:
        outputs: of the model, [q, T].
        weights: [q, k], rows sum to 1.
        targets: of the neighbours, [q, k, T]; those that are NaN are left out.
        share: of the neighbours, 0 to 1; 0 where no neighbour has a value.

    Returns:
        Values [q, T].
    """
    mean = weighted_mean(weights, targets)
    return torch.where(mean.isnan(), outputs, share * mean + (1 - share) * outputs)


def weighted_mean(weights: Tensor, targets: Tensor) -> Tensor:
    """The mean over neighbours without those that are NaN, [q, T] of weights [q, k] and targets [q, k, T]."""
    known = ~targets.isnan()
    counted = weights.unsqueeze(-1) * known
    total = counted.sum(1)
    # Far neighbours' weights may be zero while the near ones have no value: then all known ones count alike.
    counted = torch.where((total == 0).unsqueeze(1), known.to(counted), counted)
    return (counted * targets.nan_to_num()).sum(1) / counted.sum(1)


def task_of(outputs: Tensor, targets: Tensor) -> Task:
    """What a model's outputs and a client's targets are about: whole numbers are classes, others values.

    Raises:
        ValueError: the targets are 0 and 1 as real numbers, which may be either.
    """
    if not targets.is_floating_point():
        return "classes" if outputs.ndim > 1 and outputs.shape[1] > 1 else "binary"
    known = targets[~targets.isnan()]
    if bool(((known == 0) | (known == 1)).all()):
        raise ValueError("targets of 0 and 1 as real numbers may be classes or values. Give task: binary, or values.")
    return "values"


@dataclass(frozen=True)
class Neighbors:
    """A client's own samples, by which a model's outputs are corrected.

    Args:
        embeddings: phi(x_j), [n, d].
        targets: [n, T], on the scale of the outputs.
        task: what outputs are: logits of classes, of questions with yes and no, or values.
        k: neighbours.
        scale: see :func:`kernel_weights`.
        target_scales: mean and deviation by which targets were brought to the outputs' scale.
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
        """From what a layer was given and made of some samples.

        Args:
            inputs: [n, d].
            outputs: [n] or [n, C].
            targets: [n] or [n, T], as the data have them.
            task: as of the class.
            k: likewise.
            scale: likewise.
            target_scales: likewise; for values.

        Raises:
            ValueError: the targets are not those of such outputs.
        """
        width = outputs.shape[1] if outputs.ndim > 1 else 1
        rows = targets.reshape(len(targets), -1)
        if task == "classes":
            fits = not rows.is_floating_point() and rows.shape[1] == 1 and bool(((rows >= 0) & (rows < width)).all())
        else:
            fits = rows.shape[1] == width
        if outputs.ndim > 2 or not fits:
            raise ValueError(
                f"outputs of shape {list(outputs.shape)} do not fit targets of shape {list(targets.shape)} and type"
                f" {targets.dtype} as {task}. Name another layer, or the task."
            )
        made = cls(inputs, rows, task, k, scale, target_scales)
        return made if task == "classes" else cls(inputs, made._wanted(targets, outputs), task, k, scale, target_scales)

    def mixed(self, inputs: Tensor, outputs: Tensor, share: float) -> Tensor:
        """The outputs with the neighbours' share, in their shape and type.

        Args:
            inputs: [q, d].
            outputs: [q] or [q, C].
            share: 0 to 1.
        """
        weights, indices = kernel_weights(inputs, self.embeddings, self.k, self.scale)
        rows, near = outputs.reshape(len(outputs), -1), self.targets[indices]
        if self.task == "classes":
            mixed = mixed_logits(rows, neighbor_probabilities(weights, near.squeeze(-1), rows.shape[1]), share)
        elif self.task == "binary":
            mixed = mixed_logits(rows, weighted_mean(weights, near), share, binary=True)
        else:
            mixed = mixed_values(rows, weights, near, share)
        return mixed.to(outputs.dtype).reshape(outputs.shape)

    def best_share(self, inputs: Tensor, outputs: Tensor, targets: Tensor) -> float:
        """The share of :data:`SHARES` with the fewest wrong answers on some samples, of equals the least mean loss.

        Of values that with the least squared error; of equals the least.
        """
        scores: list[tuple[float, float]] = []
        for share in SHARES:
            made = self.mixed(inputs, outputs, share).reshape(len(inputs), -1)
            if self.task == "classes":
                labels = targets.reshape(-1)
                wrong = float((made.argmax(1) != labels).sum())
                scores.append((wrong, float(nn.functional.cross_entropy(made, labels))))
                continue
            wanted = self._wanted(targets, made)
            known = ~wanted.isnan()
            if self.task == "values":
                scores.append((float(nn.functional.mse_loss(made[known], wanted[known])), 0.0))
                continue
            wrong = float(((made > 0) != (wanted > 0))[known].sum())
            scores.append((wrong, float(nn.functional.binary_cross_entropy_with_logits(made[known], wanted[known]))))
        return SHARES[scores.index(min(scores))]

    def _wanted(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Targets on the outputs' scale, [n, T]."""
        rows = targets.reshape(len(targets), -1).to(outputs.dtype)
        if self.target_scales is None:
            return rows
        mean, deviation = self.target_scales
        return (rows - mean) / deviation
