"""Coalitions of several clients, and their identities over rounds."""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["coalition_of", "coalitions", "track_coalitions"]


def coalition_of(trainer: TrainerSurface, client: int) -> int:
    """A client's coalition: the model that it uses most; a client that contributes to none is alone."""
    if not trainer.federation.collaboration.aggregation[:, client].any():
        return trainer.federation.collaboration.num_models + client
    return int(trainer.federation.collaboration.personalisation[client].argmax())


def coalitions(labels: Sequence[int]) -> dict[int, set[int]]:
    """The clients of each coalition of several, by ascending label."""
    several = sorted(label for label, count in Counter(labels).items() if count > 1)
    return {label: {client for client, own in enumerate(labels) if own == label} for label in several}


def track_coalitions(assignments: Sequence[Sequence[int]]) -> list[list[int]]:
    """Renumber coalitions so that each keeps its number over rounds.

    The last round keeps its numbers, as in other figures of that round. Going backwards, a round's coalitions are
    matched one to one with those of later rounds, in their nearest form, so that most clients keep their coalition; of
    equal matches the next round's is taken. Coalitions without a match get a new number. Single clients are not
    matched: their numbers differ between rounds.

    Args:
        assignments: every client's coalition in each round, [R][N].

    Returns:
        The same partitions, renumbered, [R][N].
    """
    if not assignments:
        return []
    tracked = [list(assignments[-1])]
    used = set(assignments[-1])
    known = coalitions(assignments[-1])
    for labels in reversed(assignments[:-1]):
        own, near = coalitions(labels), set(tracked[-1])
        # Numbers of common clients; being near decides between equal ones, as it adds less than one client.
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
