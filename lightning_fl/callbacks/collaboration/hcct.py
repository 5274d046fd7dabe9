"""HCCT: clients are grouped anew in every round, by what they have just learned and how much data they have.

"How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo Federated Learning"
(https://arxiv.org/abs/2401.13236), algorithms 1 and 2, equations 8 to 20.

==================  ============================================  =====
paper               here                                          shape
==================  ============================================  =====
g_n                 a client's update, weights after minus        [P]
                    weights before its turn
m_n                 ``trainer.num_samples``                       [N]
lambda              ``appetite * sqrt(mean of m_n)``
u_n(k), delta U     :mod:`lightning_fl.functional.hcct`
k(n), epoch t       ``assignments``                               [N]
HCCT-E              ``layer="auto"``
HCCT-P              ``PersonalLayers`` beside this callback
==================  ============================================  =====

Differs from the paper: lambda, which means nothing without the clients' data counts, is given as a multiple of the root
of their mean (``appetite``), so that one value fits tasks of any size; it is told in the log. Cosines come from the
Gram matrix of the updates, exactly and at the cost of one product; HCCT-E remains as an option. Every client keeps the
weights it ends a round with: a group's model is the average of its members' weights, also when they come from different
groups. Clients that took no part in a round stay with those of their group that took no part either; who has never
taken part uses the average of the groups. The paper does not say where a newcomer's first update starts from: here from
that average.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn

from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.engine.probes.updates import update_blocks
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.errors import ConfigurationError
from lightning_fl.functional.hcct import Merge, join_group, least_merged_cosine, most_telling_layer, partition_from_gram
from lightning_fl.options import check_counts, check_numbers, warn_beyond_end
from lightning_fl.surface import TrainerSurface

__all__ = ["HCCT"]

# A least cosine above which hardly any two clients are: those of real tasks are below 0.7 even on IID data.
_HIGH_COSINE = 0.9


class HCCT(ClientClusters):
    """Groups clients hierarchically while the total utility, more data against less similar updates, gains.

    The number of groups follows from the data: everybody alone and everybody together are possible outcomes. It is
    logged as ``hcct/groups``. For the rest see :class:`ClientClusters`: groups are its clusters.

    Args:
        appetite: appetite for data, at least 0: lambda over the root of the clients' mean number of samples. 0 leaves
            clients alone. Of two average clients those whose updates have a cosine above
            :func:`~lightning_fl.functional.least_merged_cosine` come together: 0.92 at 0.07, 0.17 at 0.8, -0.95 at
            2.9; above 3.41 even exactly opposed updates do. Groups of many are harder to bring together than two
            clients. A run says where it stands, and warns where what the clients learn hardly decides. The default is
            read off the updates of three tasks (digit domains, IID images, shards), not chosen by validation.
        every_n_rounds: rounds between two partitions. Between them clients stay together; newcomers join where the
            total utility gains most, or found a group of their own.
        layer: compare the updates of one layer only: its name, or "auto" for the one that tells clients apart best in
            the first partition (HCCT-E). ``None`` compares all shared parameters.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, there is no such layer or it is personal.
    """

    _curve = "groups"

    def __init__(self, *, appetite: float = 0.8, every_n_rounds: int = 1, layer: str | None = None) -> None:
        check_numbers(self, appetite=appetite, at_least=0, mend=", 0.8 unless validation data say otherwise")
        check_counts(self, every_n_rounds=every_n_rounds)
        self.appetite = appetite
        self.every_n_rounds = every_n_rounds
        self.layer = layer
        super().__init__()

    def reset(self, num_clients: int) -> None:
        """Forget the partitions of an earlier run."""
        super().reset(num_clients)
        #: The last hierarchical partition, and the clients it was made of: members are positions in it.
        self.merges: list[Merge] = []
        self.merged_clients: list[int] = []
        #: The layer whose updates are compared; ``None`` for all.
        self.compared_layer: str | None = None if self.layer == "auto" else self.layer
        self._last_partition = -self.every_n_rounds

    @property
    def partition_round(self) -> int:
        """The round of the last hierarchical partition, counted from 1."""
        return self._last_partition + 1

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Forget an earlier run; check the layer's name."""
        super().on_fit_start(trainer)
        #: lambda of the paper, in sqrt(samples), from the counts of all clients.
        self.tradeoff = self.appetite * math.sqrt(sum(trainer.num_samples) / trainer.num_clients)
        self._tell_range(trainer)
        warn_beyond_end(self, trainer.max_rounds, every_n_rounds=self.every_n_rounds)
        if self.compared_layer is not None:
            self._spans(trainer)

    def _tell_range(self, trainer: TrainerSurface) -> None:
        """Say once which cosines bring clients together, and warn where that hardly depends on the data."""
        least = least_merged_cosine(self.appetite)
        rank_zero_info(
            f"HCCT: appetite={self.appetite:g} is lambda={self.tradeoff:.4g}; two average clients come together above"
            f" a cosine of {least:.3f}"
        )
        if least <= -1:
            rank_zero_warn(
                f"HCCT.appetite={self.appetite:g} brings even two average clients with exactly opposed updates"
                " together: what the clients learn hardly decides. Lower it, to 0.8 say."
            )
        elif least >= _HIGH_COSINE:
            rank_zero_warn(
                f"HCCT.appetite={self.appetite:g} brings average clients together only above a cosine of {least:.3f},"
                " which updates of different clients hardly reach: this is training alone. Raise it, to 0.8 say."
            )

    def assign(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]
    ) -> dict[int, int] | None:
        """Partition those who took part, if that is due: their groups are new ones."""
        if trainer.current_round - self._last_partition < self.every_n_rounds:
            return None
        if self.layer == "auto" and self.compared_layer is None:
            self.compared_layer = self._choose_layer(trainer, weights, clients)
        gram = self.gram(trainer, weights, clients, self._spans(trainer))
        samples = [trainer.num_samples[client] for client in clients]
        partition = partition_from_gram(gram, samples, self.tradeoff)
        self._last_partition = trainer.current_round
        self.merges, self.merged_clients = partition.merges, list(clients)
        trainer.log("hcct/utility", partition.utility)
        unused = max(self.clusters) + 1
        return {client: unused + label for client, label in zip(clients, partition.labels, strict=True)}

    def join(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int], clusters: Sequence[int]
    ) -> list[int]:
        """Let newcomers in, one after another, where the total utility gains most."""
        gram = self.gram(trainer, weights, clients, self._spans(trainer))
        joined, known = list(clusters), [row for row, cluster in enumerate(clusters) if cluster >= 0]
        unused = max(self.clusters) + 1
        for newcomer in [row for row, cluster in enumerate(clusters) if cluster < 0]:
            rows = [*known, newcomer]
            samples = [trainer.num_samples[clients[row]] for row in rows]
            labels = join_group(
                gram[rows][:, rows], samples, self.tradeoff, [joined[row] for row in rows], len(rows) - 1
            )
            alone = labels[-1] not in labels[:-1]
            joined[newcomer] = unused if alone else labels[-1]
            unused, known = unused + alone, rows
        return joined

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

    def _choose_layer(self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]) -> str:
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
            **super().state_dict(),
            "merges": [[list(merge.first), list(merge.second), merge.gain] for merge in self.merges],
            "merged_clients": self.merged_clients,
            "compared_layer": self.compared_layer,
            "last_partition": self._last_partition,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history."""
        super().load_state_dict(state)
        self.merges = [Merge(tuple(first), tuple(second), gain) for first, second, gain in state["merges"]]
        self.merged_clients = list(state["merged_clients"])
        self.compared_layer = state["compared_layer"]
        self._last_partition = state["last_partition"]


def _layer(name: str) -> str:
    """The submodule that owns a parameter."""
    return name.rpartition(".")[0] or name
