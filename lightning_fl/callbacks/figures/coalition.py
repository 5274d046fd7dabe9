"""Figures of coalitions: distances, HCCT's merge tree, and the partition over rounds."""

from collections.abc import Sequence
from functools import partial

from lightning_fl.callbacks.collaboration.coalition_tracking import coalition_of
from lightning_fl.callbacks.collaboration.hcct import HCCT
from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.coalitions import draw_distances, draw_merge_tree, draw_partition
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.functional.labels import in_order
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["CoalitionFigure"]


class CoalitionFigure(FigureCallback):
    """Draws coalitions in TensorBoard and ``figures/``.

    ``distances.png`` shows distances between clients, ordered by coalition, before the first round (``FedCollab``);
    ``merge_tree.png`` the last hierarchical partition (``HCCT``) and ``partition.png`` every client's coalition over
    rounds, both at the end of the fit.

    Args:
        every_n_rounds: also draw every n rounds; 0 for never.

    Raises:
        ConfigurationError: at the start of a fit, no callback forms coalitions.
    """

    saved = ("rounds", "assignments")

    def __init__(self, *, every_n_rounds: int = 0) -> None:
        super().__init__(every_n_rounds=every_n_rounds)
        #: Rounds done, and every client's coalition after each.
        self.rounds: list[int] = []
        self.assignments: list[list[int]] = []

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse a fit without coalitions; clear the history."""
        if stage == "fit":
            self.rounds, self.assignments = [], []
            if not any(callback.role == "collaboration" for callback in trainer.callbacks):
                raise ConfigurationError(
                    "CoalitionFigure: no callback of this run forms coalitions. Add one, such as FedCollab or HCCT, to"
                    " trainer.callbacks, or remove CoalitionFigure."
                )

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Draw the distances before the first round."""
        if trainer.federation.current_round == 0:
            self.draw(trainer, self._distances(trainer))

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Keep the round's coalitions; draw if due."""
        self.rounds.append(trainer.federation.current_round)
        self.assignments.append([coalition_of(trainer, client) for client in range(trainer.num_clients)])
        super().on_round_end(trainer)

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """Distances, merge tree and partition."""
        if not self.rounds:
            return
        yield from self._distances(trainer)
        names, hcct = trainer.client_names, trainer.callback(HCCT)
        if hcct is not None and hcct.merged_clients:
            merged = [names[client] for client in hcct.merged_clients]
            title = f"Hierarchical partition, round {hcct.partition_round}"
            yield "merge_tree", partial(draw_merge_tree, hcct.merges, _final_labels(hcct), merged, title)
        title = f"Coalitions up to round {trainer.federation.current_round}"
        yield "partition", partial(draw_partition, self.rounds, self.assignments, names, title)

    @staticmethod
    def _distances(trainer: TrainerSurface) -> Drawings:
        found = next((callback for callback in trainer.callbacks if callback.role == "collaboration"), None)
        distances, present = getattr(found, "distances", None), trainer.present_clients
        if distances is not None and len(distances) == trainer.num_clients:  # else not measured yet
            labels = [coalition_of(trainer, client) for client in present]
            names = [trainer.client_names[client] for client in present]
            title = "Distances between clients, by coalition"
            yield "distances", partial(draw_distances, distances[present][:, present], labels, names, title)


def _final_labels(hcct: HCCT) -> Sequence[int]:
    """Groups after the last merge, as positions among the merged clients."""
    groups = {position: position for position in range(len(hcct.merged_clients))}
    for merge in hcct.merges:
        for position in (*merge.first, *merge.second):
            groups[position] = min(merge.first + merge.second)
    return in_order(groups.values())
