"""What clients' models know of each class after they were trained alone: their F1 scores, without moving a sample."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_fl.data.module import Split
from lightning_fl.data.targets import batch_targets
from lightning_fl.engine.batches.client import SizedBatch
from lightning_fl.engine.client import ClientState
from lightning_fl.engine.probes.on_hosts import compute_on_hosts
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.errors import ConfigurationError
from lightning_fl.functional.pifl import f1_scores

__all__ = ["class_scores", "predicted_classes"]


def class_scores(
    loop: LocalLoop,
    clients: Sequence[int],
    *,
    num_rounds: int,
    splits: Sequence[Split],
    num_samples: int | None,
) -> Tensor:
    """Per-class F1 of clients' own models on all these clients' samples together.

    Every client trains alone from the first shared model; its weights go to the others' ranks, and counts of right and
    wrong predictions come back. Its host keeps them until they are scored: one model more per hosted client. To be
    called on every rank.

    Args:
        loop: in a fit.
        clients: who trains and whose samples count, ascending.
        num_rounds: turns that each client trains.
        splits: whose samples; of each client, the first of these that it has.
        num_samples: of each client; ``None`` for all.

    Returns:
        float64, shape [number of clients, C], a row for each of the clients.

    Raises:
        ConfigurationError: ``predict_step`` gives no class scores or classes, or targets are no classes.
        DataError: a batch has no targets that can be found.
        TrainingError: a client's training fails.
    """
    trained: dict[int, Weights] = {}
    federation, communication = loop.federation, loop.federation.communication
    communication.receive(clients, [federation.models[0]])

    def train(client: int) -> None:
        weights, state = federation.models[0], ClientState()
        for number in range(num_rounds):
            loop.train(client, weights, state, purpose=f"pretraining {number}", own=False)
            weights = loop.flat.collect().clone()
        trained[client] = weights

    compute_on_hosts(loop.processes, clients, train, "training before the tiers are formed failed")

    def samples(client: int) -> tuple[Split, Iterator[SizedBatch]]:
        split = next(split for split in splits if loop.factory.batches(client, split) is not None)
        return split, loop.batches(client, split).some(loop.path(client, "class scores"), num_samples)

    rows: list[Tensor] = []
    for owner in clients:
        model = _on_all_ranks(loop, trained, owner)
        communication.send([owner])
        communication.receive([client for client in clients if client != owner], [model])

        def confusion(client: int, model: Weights = model) -> list[list[int]]:
            split, batches = samples(client)
            targets = torch.cat([_classes(batch_targets(batch)) for batch, _ in batches if batch is not None])
            outputs = loop.predict(client, model, split, samples(client)[1])
            return _counts(torch.cat([predicted_classes(output) for output in outputs]), targets).tolist()

        found = compute_on_hosts(loop.processes, clients, confusion, "tiers cannot be formed by F1 scores")
        trained.pop(owner, None)
        rows.append(_sum([torch.tensor(counts) for counts in found.values()]))
    width = max(row.shape[1] for row in rows)
    return torch.stack([f1_scores(*_padded(row, width)) for row in rows])


def predicted_classes(output: Any) -> Tensor:
    """The classes that an output of ``predict_step`` names, int64 [B].

    Args:
        output: scores or probabilities [B, C] with C >= 2, of which the largest counts, or integer classes [B].

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(output, Tensor):
        if output.ndim == 2 and output.shape[1] > 1 and output.is_floating_point():
            return output.argmax(1)
        if output.ndim == 1 and not output.is_floating_point():
            return output.long()
    what = f"a tensor of shape {list(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    raise ConfigurationError(
        f"predict_step returned {what}: for F1 scores let it return class scores [B, C], at least two columns, or"
        " integer classes [B]; or set initial_tiers=random."
    )


def _classes(targets: Tensor) -> Tensor:
    if targets.is_floating_point() or targets.numel() != len(targets) or (targets < 0).any():
        raise ConfigurationError(
            f"targets of shape {list(targets.shape)} and type {targets.dtype} are no classes 0, 1, ...: F1 scores need"
            " a classification; set initial_tiers=random."
        )
    return targets.flatten().long().cpu()


def _counts(predictions: Tensor, targets: Tensor) -> Tensor:
    """True positives, false positives and false negatives of every class, int64 [3, C]."""
    if predictions.shape != targets.shape:
        raise ConfigurationError(
            f"predict_step returned {len(predictions)} predictions for {len(targets)} samples: return one per sample."
        )
    width = int(max(predictions.max(), targets.max())) + 1
    right = predictions == targets
    groups = (targets[right], predictions[~right], targets[~right])
    return torch.stack([torch.bincount(group, minlength=width) for group in groups])


def _sum(counts: Sequence[Tensor]) -> Tensor:
    width = max(count.shape[1] for count in counts)
    return torch.stack([_padded(count, width) for count in counts]).sum(0)


def _padded(counts: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(counts, (0, width - counts.shape[1]))


def _on_all_ranks(loop: LocalLoop, trained: dict[int, Weights], client: int) -> Weights:
    model = trained.get(client)
    if model is None:
        model = loop.federation.models[0].clone()
    processes = loop.processes
    if processes.several:
        for vector in model.vectors.values():
            processes.transport.broadcast_bytes_(vector, processes.client_ranks[client])
    return model
