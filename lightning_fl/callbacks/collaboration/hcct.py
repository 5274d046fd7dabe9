"""HCCT: clients are grouped anew in every round, by what they have just learned and how much data they have.

"How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo Federated Learning"
(https://arxiv.org/abs/2401.13236), algorithms 1 and 2, equations 8 to 20.

==================  ============================================  =====
paper               here                                          shape
==================  ============================================  =====
g_n                 a client's update, weights after minus        [P]
                    weights before its turn
m_n                 ``trainer.num_samples``                       [N]
lambda              ``tradeoff``, in sqrt(samples)
u_n(k), delta U     :mod:`lightning_fl.functional.hcct`
k(n), epoch t       ``assignments``                               [N]
HCCT-E              ``layer="auto"``
HCCT-P              ``PersonalLayers`` beside this callback
==================  ============================================  =====

Differs from the paper: cosines come from the Gram matrix of the updates, exactly and at the cost of one product; HCCT-E
remains as an option. Every client keeps the weights it ends a round with: a group's model is the average of its
members' weights, also when they come from different groups. Clients that took no part in a round stay with those of
their group that took no part either. The paper does not say where a newcomer's first update starts from: here from the
average of the others' models (``ClientArrivals``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.collaboration import Collaboration
from lightning_fl.engine.probes.updates import update_blocks
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.errors import ConfigurationError
from lightning_fl.functional.hcct import Merge, gram_matrix, join_group, most_telling_layer, partition_from_gram
from lightning_fl.surface import TrainerSurface

__all__ = ["HCCT"]


class HCCT(Callback):
    """Groups clients hierarchically while the total utility, more data against less similar updates, gains.

    The number of groups follows from the data: everybody alone and everybody together are possible outcomes. Works
    with any strategy, with sampled clients, with ``PersonalLayers`` (left out of the comparison) and
    ``ClientArrivals``. Keeps the weights of all clients of a round until they are grouped.

    Args:
        tradeoff: lambda >= 0, the appetite for data: 0 leaves clients alone, a large value brings all together. With
            m samples a client alone lacks ``lambda / sqrt(m)``, to be compared with cosines between -1 and 1.
        every_n_rounds: rounds between two partitions. Between them clients stay together; newcomers join where the
            total utility gains most.
        layer: compare the updates of one layer only: its name, or "auto" for the one that tells clients apart best in
            the first partition (HCCT-E). ``None`` compares all shared parameters.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, there is no such layer or it is personal.
    """

    role = "collaboration"

    def __init__(self, *, tradeoff: float, every_n_rounds: int = 1, layer: str | None = None) -> None:
        if not 0 <= tradeoff < float("inf"):
            raise ConfigurationError(
                f"HCCT.tradeoff={tradeoff}: give a number of at least 0, of the size of the square root of a client's"
                " samples."
            )
        if every_n_rounds < 1:
            raise ConfigurationError(f"HCCT.every_n_rounds={every_n_rounds}: give a number of at least 1.")
        self.tradeoff = tradeoff
        self.every_n_rounds = every_n_rounds
        self.layer = layer
        self._reset()

    def _reset(self) -> None:
        #: Rounds done when each entry of :attr:`assignments` was made.
        self.rounds: list[int] = []
        #: Group of every client, labels 0..K-1.
        self.assignments: list[list[int]] = []
        #: The last hierarchical partition, and the clients it was made of: members are positions in it.
        self.merges: list[Merge] = []
        self.merged_clients: list[int] = []
        #: The layer whose updates are compared; ``None`` for all.
        self.compared_layer: str | None = None if self.layer == "auto" else self.layer
        self._seen: set[int] = set()
        self._last_partition = -self.every_n_rounds

    @property
    def partition_round(self) -> int:
        """The round of the last hierarchical partition, counted from 1."""
        return self._last_partition + 1

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Forget an earlier run; check the layer's name."""
        self._reset()
        if self.compared_layer is not None:
            self._spans(trainer)

    def select_collaboration(self, trainer: TrainerSurface, weights: Mapping[int, Weights]) -> Collaboration | None:
        """Partition those who took part, or let newcomers join."""
        clients = sorted(trainer.survivors)
        newcomers = [client for client in clients if client not in self._seen]
        due = trainer.current_round - self._last_partition >= self.every_n_rounds
        self._seen.update(clients)
        if not due and not newcomers:
            self._record(trainer, self.assignments[-1])
            return None
        if self.layer == "auto" and self.compared_layer is None:
            self.compared_layer = self._most_telling_layer(trainer, weights, clients)
        gram = gram_matrix(update_blocks(trainer.loop, weights, clients, self._spans(trainer))).cpu()
        samples = [trainer.num_samples[client] for client in clients]
        if due:
            partition = partition_from_gram(gram, samples, self.tradeoff)
            self._last_partition = trainer.current_round
            self.merges, self.merged_clients = partition.merges, clients
            groups = partition.labels
            trainer.log("hcct/utility", partition.utility)
        else:
            groups = self._joined(gram, samples, clients, newcomers)
        labels = self._everybody(trainer, clients, groups, stay=not due)
        self._record(trainer, labels)
        return Collaboration.coalitions(labels, trainer.num_samples)

    def _joined(self, gram: Tensor, samples: list[int], clients: list[int], newcomers: list[int]) -> list[int]:
        """Groups of those who took part, newcomers one after another where they gain most."""
        known = [position for position, client in enumerate(clients) if client not in newcomers]
        groups = [self.assignments[-1][client] for client in clients]
        for newcomer in newcomers:
            position = clients.index(newcomer)
            rows = [*known, position]
            joined = join_group(
                gram[rows][:, rows],
                [samples[row] for row in rows],
                self.tradeoff,
                [groups[row] for row in rows],
                len(rows) - 1,
            )
            groups[position] = joined[-1]
            known = rows
        return groups

    def _everybody(
        self, trainer: TrainerSurface, clients: Sequence[int], groups: Sequence[int], stay: bool
    ) -> list[int]:
        """Labels 0..K-1 of all clients.

        Those who took no part stay in their group if groups only grow (``stay``), else with those of their model that
        took no part either.
        """
        keys: list[tuple[str, int]] = [("model", 0)] * trainer.num_clients
        for client in range(trainer.num_clients):
            model = trainer.collaboration.model_of(client)
            keys[client] = ("client", client) if model is None else ("model", model)
            if stay and client in self._seen:
                keys[client] = ("group", self.assignments[-1][client])
        for client, group in zip(clients, groups, strict=True):
            keys[client] = ("group", group)
        order = {key: label for label, key in enumerate(dict.fromkeys(keys))}
        return [order[key] for key in keys]

    def _record(self, trainer: TrainerSurface, labels: list[int]) -> None:
        self.rounds.append(trainer.current_round + 1)
        self.assignments.append(list(labels))
        trainer.log("hcct/groups", float(len({labels[client] for client in trainer.present_clients})))

    def _spans(self, trainer: TrainerSurface) -> list[Span]:
        """The entries that are compared."""
        spans = trainer.loop.averaged_spans()
        if self.compared_layer is None:
            return spans
        chosen = [span for span in spans if _layer(span.name) == self.compared_layer]
        if not chosen:
            layers = ", ".join(dict.fromkeys(_layer(span.name) for span in spans))
            raise ConfigurationError(
                f"HCCT.layer={self.compared_layer!r}: there is no such layer with shared, trainable parameters. Choose"
                f" one of {layers}, or auto."
            )
        return chosen

    def _most_telling_layer(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]
    ) -> str:
        by_layer: dict[str, list[Span]] = {}
        for span in self._spans(trainer):
            by_layer.setdefault(_layer(span.name), []).append(span)
        updates = {
            layer: torch.cat(list(update_blocks(trainer.loop, weights, clients, spans)), dim=1)
            for layer, spans in by_layer.items()
        }
        return most_telling_layer(updates, [trainer.num_samples[client] for client in clients])

    def state_dict(self) -> dict[str, Any]:
        """The history of the groups."""
        return {
            "rounds": self.rounds,
            "assignments": self.assignments,
            "merges": [[list(merge.first), list(merge.second), merge.gain] for merge in self.merges],
            "merged_clients": self.merged_clients,
            "compared_layer": self.compared_layer,
            "seen": sorted(self._seen),
            "last_partition": self._last_partition,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history."""
        self.rounds, self.assignments = list(state["rounds"]), [list(labels) for labels in state["assignments"]]
        self.merges = [Merge(tuple(first), tuple(second), gain) for first, second, gain in state["merges"]]
        self.merged_clients = list(state["merged_clients"])
        self.compared_layer = state["compared_layer"]
        self._seen = set(state["seen"])
        self._last_partition = state["last_partition"]


def _layer(name: str) -> str:
    """The submodule that owns a parameter."""
    return name.rpartition(".")[0] or name
