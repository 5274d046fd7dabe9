"""Coalitions of several clients, and which of them are the same from round to round."""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["coalition_of", "coalitions", "track_coalitions"]


def coalition_of(trainer: TrainerSurface, client: int) -> int:
    """A client's coalition: the model that it uses, or the one that it uses most; who counts in none is alone."""
    if not trainer.federation.collaboration.aggregation[:, client].any():
        return trainer.federation.collaboration.num_models + client
    return int(trainer.federation.collaboration.personalisation[client].argmax())


def coalitions(labels: Sequence[int]) -> dict[int, set[int]]:
    """The clients of each coalition that has several, by ascending label.

    Args:
        labels: every client's coalition, N of them.
    """
    several = sorted(label for label, count in Counter(labels).items() if count > 1)
    return {label: {client for client, own in enumerate(labels) if own == label} for label in several}


def track_coalitions(assignments: Sequence[Sequence[int]]) -> list[list[int]]:
    """Number coalitions so that one keeps its number from round to round.

    The last round keeps its numbers, so that they are those of other pictures of that round. From there backwards the
    coalitions of a round are matched one to one with those known from later rounds, as these were when they were seen
    nearest, such that the most clients stay in their coalition; of equal matches the one in the round next to it is
    taken. A coalition that matches none gets a new number. A client alone is no coalition: it is not matched, and its
    number says nothing about its numbers in other rounds.

    Args:
        assignments: every client's coalition in each round, [R][N].

    Returns:
        The same partitions, [R][N], renumbered.
    """
    if not assignments:
        return []
    tracked = [list(assignments[-1])]
    used = set(assignments[-1])
    known = coalitions(assignments[-1])
    for labels in reversed(assignments[:-1]):
        own, near = coalitions(labels), set(tracked[-1])
        # Whole clients count; being near decides between equals, for it adds less than one client in all.
        overlap = np.array(
            [
                [len(members & other) * (len(labels) + 1) + (number in near) for number, other in known.items()]
                for members in own.values()
            ]
        ).reshape(len(own), len(known))
        matched: dict[int, int] = {}
        for row, column in zip(*linear_sum_assignment(overlap, maximize=True), strict=True):
            if overlap[row, column] > len(labels):
                matched[list(own)[row]] = list(known)[column]
        free = (number for number in itertools.count() if number not in used)
        matched |= {label: next(free) for label in sorted(own.keys() - matched.keys())}
        known |= {matched[label]: members for label, members in own.items()}
        used.update(matched.values())
        free = (number for number in itertools.count() if number not in used)
        matched |= {label: next(free) for label in sorted(set(labels) - matched.keys())}
        tracked.append([matched[label] for label in labels])
    return tracked[::-1]
