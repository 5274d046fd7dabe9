"""Groups of participants that train at once, and their turns in the cohort's order."""

from collections import Counter

from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.client import ClientReport, ClientTurn
from lightning_fl.engine.stacked.loop import StackedLoop
from lightning_fl.engine.stacked.weights import StackedWeights
from lightning_fl.engine.turn.loop import LocalLoop

__all__ = ["StackedTurns", "groups_of"]


def groups_of(cohort: Cohort, block: int) -> list[tuple[int, int]]:
    """The group of every participant; a group trains at once.

    A group consists of the participants among a block of consecutive clients on one rank, so that it does not depend on
    the number of processes. If clients train several models, their first turns are a group, then their second ones.

    Returns:
        For each place in the cohort, the number of the block and of the client's turn.
    """
    turns: Counter[int] = Counter()
    groups = []
    for participant in cohort.participants:
        groups.append((participant.client // block, turns[participant.client]))
        turns[participant.client] += 1
    return groups


class StackedTurns:
    """The turns of a round; a group is trained when the first of its participants is due.

    A group's weights are kept until its last participant was due: one group at a time if the cohort is in the order of
    clients.

    Raises:
        ConfigurationError: a client trains several models and has personal layers.
    """

    def __init__(self, loop: LocalLoop, stacked: StackedLoop, cohort: Cohort) -> None:
        self._loop = loop
        self._stacked = stacked
        self._cohort = cohort
        self._groups = groups_of(cohort, loop.settings.stacked_clients)
        if loop.federation.personal is not None and any(turn for _, turn in self._groups):
            raise ConfigurationError(
                f"trainer.stacked_clients={loop.settings.stacked_clients}: a client trains several models in a round,"
                " each of which continues from the personal layers of the one before. Set trainer.stacked_clients=1, or"
                " remove PersonalLayers."
            )
        hosted = set(loop.processes.hosted)
        self._members: dict[tuple[int, int], list[int]] = {}
        for place, participant in enumerate(cohort.participants):
            if participant.client in hosted:
                self._members.setdefault(self._groups[place], []).append(place)
        #: Place -> turn, the group's weights, its row and report; or its error.
        self._trained: dict[int, tuple[ClientTurn, StackedWeights, int, ClientReport] | Exception] = {}

    def take(self, place: int, participant: Participant) -> tuple[ClientReport, ClientTurn]:
        """Take a hosted participant's turn, which leaves its new weights in the module."""
        if place not in self._trained:
            self._train(self._members[self._groups[place]])
        outcome = self._trained.pop(place)
        if isinstance(outcome, Exception):
            raise outcome
        turn, weights, row, report = outcome
        weights.give(row)
        return report, turn

    def _train(self, places: list[int]) -> None:
        """Train a group, without clients whose start fails."""
        turns: dict[int, ClientTurn] = {}
        for place in places:
            participant = self._cohort.participants[place]
            try:
                turns[place] = self._loop.begin_turn(participant)
            except Exception as error:
                self._trained[place] = error
        if not turns:
            return
        try:
            weights, outcomes = self._stacked.train(list(turns.values()))
        except Exception as error:
            self._trained.update(dict.fromkeys(turns, error))
            return
        for (place, turn), (row, report) in zip(turns.items(), outcomes, strict=True):
            self._trained[place] = report if isinstance(report, Exception) else (turn, weights, row, report)
