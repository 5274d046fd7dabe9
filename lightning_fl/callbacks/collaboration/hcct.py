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
s(g_n, g_k)         from the mean of cosines over rounds          [N, N]
                    (``memory``); ``memory=0``: of this round
u_n(k), delta U     :mod:`lightning_fl.functional.hcct`
k(n), epoch t       ``assignments``                               [N]
HCCT-E              ``layer="auto"``
HCCT-P              ``PersonalLayers`` beside this callback
==================  ============================================  =====

Differs from the paper: lambda, which means nothing without the clients' data counts, is given as a multiple of the root
of their mean (``appetite``), so that one value fits tasks of any size; it is told in the log. The paper partitions by
the updates of one round, in every round, and forgets the last partition: ``memory=0, hysteresis=0``. Once clients fit
their data, updates are mostly noise, which is then partitioned too; so by default cosines are the mean over all rounds
so far (lengths are this round's), and a partition is replaced only by one that is clearly better. Cosines come from the
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
from torch import Tensor

from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts, check_numbers, warn_beyond_end
from lightning_fl.engine.probes.updates import update_blocks
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.functional.gram import cosine_similarities, remembered_cosines, with_cosines
from lightning_fl.functional.hcct import Merge, join_group, least_merged_cosine, partition_from_gram, partition_utility
from lightning_fl.functional.telling_layer import most_telling_layer
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["HCCT"]

# A least cosine above which hardly any two clients are: those of real tasks are below 0.7 even on IID data.
_HIGH_COSINE = 0.9


class HCCT(ClientClusters):
    """Groups clients hierarchically while the total utility, more data against less similar updates, gains.

    The number of groups follows from the data: everybody alone and everybody together are possible outcomes. It is
    logged as ``hcct/groups``; ``hcct/utility`` is the total one, in rounds that could partition anew, and ``hcct/kept``
    whether hysteresis kept the old partition. For the rest see :class:`ClientClusters`: groups are its clusters.

    The defaults of ``appetite``, ``memory`` and ``hysteresis`` had the best mean validation accuracy over three tasks
    among those tried (``studies/hcct.yaml``); the paper's form came within its noise.

    Args:
        appetite: appetite for data, at least 0: lambda over the root of the clients' mean number of samples. 0 leaves
            clients alone. Of two average clients those whose updates have a cosine above
            :func:`~lightning_fl.functional.least_merged_cosine` come together: 0.92 at 0.07, 0.17 at 0.8, -0.95 at
            2.9; above 3.41 even exactly opposed updates do. Groups of many are harder to bring together than two
            clients. A run says where it stands, and warns where what the clients learn hardly decides.
        memory: weight of a round against the next one in the mean of cosines, from 0 (the last round alone, as in the
            paper) to 1 (all rounds alike). Every pair of clients has its own mean, over the rounds with a partition
            that both took part in.
        hysteresis: at least 0; the old partition stays unless a new one raises the utility by more than this, per
            client and so in units of a cosine. 0 takes the new one always, as the paper does. Newcomers join the old
            one before the two are compared.
        leave_one_out: compare a client with the others of its group only; the paper's group contains the client
            itself. Two average clients then come together above a cosine of 1 - 0.29 ``appetite``.
        every_n_rounds: rounds between two partitions. Between them clients stay together; newcomers join where the
            total utility gains most, or found a group of their own.
        layer: compare the updates of one layer only: its name, or "auto" for the one that tells clients apart best in
            the first partition (HCCT-E). ``None`` compares all shared parameters.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, there is no such layer or it is personal.
    """

    _curve = "groups"

    def __init__(
        self,
        *,
        appetite: float = 0.8,
        memory: float = 1.0,
        hysteresis: float = 0.05,
        leave_one_out: bool = False,
        every_n_rounds: int = 1,
        layer: str | None = None,
    ) -> None:
        check_numbers(self, appetite=appetite, at_least=0, mend=", 0.8 unless validation data say otherwise")
        check_numbers(self, memory=memory, at_least=0, at_most=1, mend=", 1 for the mean over all rounds")
        check_numbers(self, hysteresis=hysteresis, at_least=0, mend=", 0 to take every new partition")
        check_counts(self, every_n_rounds=every_n_rounds)
        self.appetite = appetite
        self.memory = memory
        self.hysteresis = hysteresis
        self.leave_one_out = leave_one_out
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
        self._last_partition = self._partition_tried = -self.every_n_rounds
        # Mean of the cosines over rounds, and the sum of the rounds' weights, which is 0 where a pair never met.
        pairs = (num_clients, num_clients) if self.memory else (0, 0)
        self._cosines = torch.zeros(pairs, dtype=torch.float64)
        self._weights = torch.zeros(pairs, dtype=torch.float64)

    @property
    def partition_round(self) -> int:
        """The round of the last hierarchical partition that was taken, counted from 1."""
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
        for hook in trainer.hooks.of("select_clients"):
            rank_zero_warn(
                f"HCCT with {hook.owner}: clients that are not drawn in a round stay behind alone, so that groups fall"
                " apart the more rounds partition anew. Have all clients take part, or raise HCCT.every_n_rounds."
            )

    def _tell_range(self, trainer: TrainerSurface) -> None:
        """Say once which cosines bring clients together, and warn where that hardly depends on the data."""
        least = least_merged_cosine(self.appetite, leave_one_out=self.leave_one_out)
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
        """Partition those who took part, if that is due: their groups are new ones, or stay the old ones."""
        if trainer.current_round - self._partition_tried < self.every_n_rounds:
            return None
        if self.layer == "auto" and self.compared_layer is None:
            self.compared_layer = self._choose_layer(trainer, weights, clients)
        gram = self.gram(trainer, weights, clients, self._spans(trainer))
        self._remember(gram, clients)
        self._partition_tried = trainer.current_round
        gram = self._over_rounds(gram, clients)
        samples = [trainer.num_samples[client] for client in clients]
        partition = partition_from_gram(gram, samples, self.tradeoff, leave_one_out=self.leave_one_out)
        old = [self.clusters[client] for client in clients]
        if self.hysteresis and max(old) >= 0:
            old = self._joined(gram, samples, old)
            kept = partition_utility(gram, samples, self.tradeoff, old, leave_one_out=self.leave_one_out)
            stays = partition.utility - kept <= self.hysteresis * len(clients)
            trainer.log("hcct/kept", int(stays))
            if stays:
                trainer.log("hcct/utility", kept)
                return dict(zip(clients, old, strict=True))
        self._last_partition = trainer.current_round
        self.merges, self.merged_clients = partition.merges, list(clients)
        trainer.log("hcct/utility", partition.utility)
        unused = max(self.clusters) + 1
        return {client: unused + label for client, label in zip(clients, partition.labels, strict=True)}

    def join(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int], clusters: Sequence[int]
    ) -> list[int]:
        """Let newcomers in, one after another, where the total utility gains most."""
        gram = self._over_rounds(self.gram(trainer, weights, clients, self._spans(trainer)), clients)
        return self._joined(gram, [trainer.num_samples[client] for client in clients], clusters)

    def _joined(self, gram: Tensor, samples: Sequence[int], clusters: Sequence[int]) -> list[int]:
        """Groups [n] of the clients of ``gram`` with those of newcomers, -1 before."""
        joined, known = list(clusters), [row for row, cluster in enumerate(clusters) if cluster >= 0]
        unused = max(self.clusters) + 1
        for newcomer in [row for row, cluster in enumerate(clusters) if cluster < 0]:
            rows = [*known, newcomer]
            labels = join_group(
                gram[rows][:, rows],
                [samples[row] for row in rows],
                self.tradeoff,
                [joined[row] for row in rows],
                len(rows) - 1,
                leave_one_out=self.leave_one_out,
            )
            alone = labels[-1] not in labels[:-1]
            joined[newcomer] = unused if alone else labels[-1]
            unused, known = unused + alone, rows
        return joined

    def _remember(self, gram: Tensor, clients: Sequence[int]) -> None:
        """Take the round's cosines into the mean of those pairs that took part."""
        if self.memory:
            at = torch.meshgrid(torch.tensor(clients), torch.tensor(clients), indexing="ij")
            self._cosines[at], self._weights[at] = remembered_cosines(
                self._cosines[at], self._weights[at], cosine_similarities(gram), self.memory
            )

    def _over_rounds(self, gram: Tensor, clients: Sequence[int]) -> Tensor:
        """The round's inner products with the mean of the cosines over rounds [n, n]; its own for pairs without one."""
        if not self.memory:
            return gram
        at = torch.meshgrid(torch.tensor(clients), torch.tensor(clients), indexing="ij")
        known = self._weights[at] > 0
        return with_cosines(gram, torch.where(known, self._cosines[at], cosine_similarities(gram)))

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
            "partition_tried": self._partition_tried,
            "cosines": self._cosines.tolist(),
            "weights": self._weights.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history."""
        super().load_state_dict(state)
        self.merges = [Merge(tuple(first), tuple(second), gain) for first, second, gain in state["merges"]]
        self.merged_clients = list(state["merged_clients"])
        self.compared_layer = state["compared_layer"]
        self._last_partition = state["last_partition"]
        self._partition_tried = state["partition_tried"]
        self._cosines = torch.tensor(state["cosines"], dtype=torch.float64).reshape(self._cosines.shape)
        self._weights = torch.tensor(state["weights"], dtype=torch.float64).reshape(self._weights.shape)


def _layer(name: str) -> str:
    """The submodule that owns a parameter."""
    return name.rpartition(".")[0] or name
