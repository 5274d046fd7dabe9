"""HCCT: hierarchical grouping of the clients in every round, by their updates and numbers of samples.

"How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo Federated Learning"
(https://arxiv.org/abs/2401.13236), algorithms 1 and 2, equations 8 to 20, which :mod:`lightning_fl.functional.hcct`
states. HCCT-E is ``layer="auto"``; HCCT-P is this callback with ``PersonalLayers``.

Differs from the paper: the option ``relative_trade_off`` is lambda over the root of the clients' mean number of
samples, so that one value fits tasks of any size; lambda is logged. The paper partitions by the updates of one round,
in every round, and forgets the last partition: ``memory=0, hysteresis=0``. Once clients fit their data, updates are
mostly noise. By default, therefore, cosines are means over all rounds so far (lengths are this round's), and only a
clearly better partition replaces the old one. Cosines come from the Gram matrix of the updates, exactly and at the cost
of one product; HCCT-E remains as an option. A group's model is the average of its members' weights, also when they come
from different groups. Clients absent from a round stay with the absent clients of their group; a client that never took
part uses the average of the groups. A newcomer's first update starts there; the paper does not say where.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_fl.callbacks.callback import Drawings
from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Fraction, NonNegative, checked_fields, warn_beyond_end
from lightning_fl.engine.probes.updates import update_blocks
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.functional import hcct
from lightning_fl.functional.gram import cosine_similarities, in_order, remembered_cosines, with_cosines
from lightning_fl.runtime.surface import TrainerSurface

# Cosines of real tasks are below 0.7, even on IID data.
_HIGH_COSINE = 0.9


@checked_fields
class HCCT(ClientClusters):
    """Merges groups of clients while the total utility (more data against less similar updates) rises.

    The number of groups follows from the data, from one group per client to one group of all. Logs ``hcct/groups`` and,
    in rounds with a new partition, ``hcct/utility`` (the total) and ``hcct/kept`` (1 if hysteresis kept the old
    partition). For the rest see :class:`ClientClusters`: groups are its clusters.

    The defaults of ``relative_trade_off``, ``memory`` and ``hysteresis`` had the best mean validation accuracy over
    three tasks among those tried (``studies/hcct.yaml``); the paper's form differs by less than the seeds do.

    Args:
        relative_trade_off: lambda over the root of the clients' mean number of samples; 0 keeps clients alone. Two
            average clients merge if the cosine of their updates is above
            :func:`~lightning_fl.functional.least_merged_cosine`: 0.92 at 0.07, 0.17 at 0.8, -0.95 at 2.9; above 3.41
            even opposed updates merge. Larger groups are harder to merge than two clients. A run logs this cosine and
            warns where the updates hardly matter.
        memory: weight of a round relative to the next one in the mean of cosines, from 0 (only the last round, as in
            the paper) to 1 (all rounds equally). Each pair of clients has its own mean, over the rounds with a
            partition in which both took part.
        hysteresis: the old partition stays unless a new one raises the utility per client, in units of a cosine, by
            more than this; 0 always takes the new one, as in the paper. Newcomers join the old partition first.
        leave_one_out: compare a client with the other members of its group; the paper's group includes the client
            itself. Two average clients then merge above a cosine of 1 - 0.29 ``relative_trade_off``.
        every_n_rounds: rounds between two partitions. Meanwhile clients stay together; newcomers join where the total
            utility gains most, or found a group.
        layer: compare the updates of one layer only: its name, or "auto" for the most discriminative one at the first
            partition (HCCT-E). ``None`` compares all shared parameters.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, the layer does not exist or is personal.
    """

    _curve = "groups"
    saved = (*ClientClusters.saved, "merged_clients", "compared_layer", "_last_partition", "_partition_tried")

    relative_trade_off: NonNegative = 0.8
    memory: Fraction = 1.0
    hysteresis: NonNegative = 0.05
    leave_one_out: bool = False
    every_n_rounds: Count = 1
    layer: str | None = None

    def reset(self, num_clients: int) -> None:
        super().reset(num_clients)
        #: The last hierarchical partition, and the clients it was made of: members are positions in it.
        self.merges: list[hcct.Merge] = []
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
        super().on_fit_start(trainer)
        #: lambda of the paper, in sqrt(samples), from the counts of all clients.
        self.tradeoff = self.relative_trade_off * math.sqrt(sum(trainer.federation.num_samples) / trainer.num_clients)
        self._log_least_cosine()
        warn_beyond_end(self, trainer.max_rounds, every_n_rounds=self.every_n_rounds)
        if self.compared_layer is not None:
            self._spans(trainer)
        for hook in trainer.hooks.of("select_clients"):
            what = f"HCCT with {hook.owner}: clients that are not drawn in a round drop out of their groups"
            rank_zero_warn(f"{what}. Let all clients take part, or raise HCCT.every_n_rounds.")

    def _log_least_cosine(self) -> None:
        """Log the cosine above which clients merge; warn if it hardly depends on the data."""
        least = hcct.least_merged_cosine(self.relative_trade_off, leave_one_out=self.leave_one_out)
        option = f"relative_trade_off={self.relative_trade_off:g}"
        merged = f"two average clients merge above a cosine of {least:.3f}"
        rank_zero_info(f"HCCT: {option} is lambda={self.tradeoff:.4g}; {merged}")
        if least <= -1:
            rank_zero_warn(f"HCCT.{option} lets even opposed updates merge, so they hardly matter. Lower it.")
        elif least >= _HIGH_COSINE:
            rank_zero_warn(f"HCCT.{option} means that {merged}, which is rare: clients train alone. Raise it.")

    def assign(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]
    ) -> dict[int, int] | None:
        """Partition the participants if a partition is due, into new groups or the old ones."""
        if trainer.federation.current_round - self._partition_tried < self.every_n_rounds:
            return None
        if self.layer == "auto" and self.compared_layer is None:
            self.compared_layer = self._choose_layer(trainer, weights, clients)
        gram = self.gram(trainer, weights, clients, self._spans(trainer))
        if self.memory:
            at = torch.meshgrid(torch.tensor(clients), torch.tensor(clients), indexing="ij")
            before = self._cosines[at], self._weights[at]
            self._cosines[at], self._weights[at] = remembered_cosines(*before, cosine_similarities(gram), self.memory)
        self._partition_tried = trainer.federation.current_round
        gram = self._over_rounds(gram, clients)
        samples = [trainer.federation.num_samples[client] for client in clients]
        partition = hcct.partition_from_gram(gram, samples, self.tradeoff, leave_one_out=self.leave_one_out)
        old = [self.clusters[client] for client in clients]
        if self.hysteresis and max(old) >= 0:
            old = self._join_newcomers(gram, samples, old)
            kept = hcct.partition_utility(gram, samples, self.tradeoff, old, leave_one_out=self.leave_one_out)
            stays = partition.utility - kept <= self.hysteresis * len(clients)
            trainer.log("hcct/kept", int(stays))
            if stays:
                trainer.log("hcct/utility", kept)
                return dict(zip(clients, old, strict=True))
        self._last_partition = trainer.federation.current_round
        self.merges, self.merged_clients = partition.merges, list(clients)
        trainer.log("hcct/utility", partition.utility)
        unused = max(self.clusters) + 1
        return {client: unused + label for client, label in zip(clients, partition.labels, strict=True)}

    def join(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int], clusters: Sequence[int]
    ) -> list[int]:
        """Add newcomers, one after another, where the total utility gains most."""
        gram = self._over_rounds(self.gram(trainer, weights, clients, self._spans(trainer)), clients)
        return self._join_newcomers(gram, [trainer.federation.num_samples[client] for client in clients], clusters)

    def _join_newcomers(self, gram: Tensor, samples: Sequence[int], clusters: Sequence[int]) -> list[int]:
        """Groups [n] of the clients of ``gram``; newcomers have -1 in ``clusters``."""
        joined, known = list(clusters), [row for row, cluster in enumerate(clusters) if cluster >= 0]
        unused = max(self.clusters) + 1
        for newcomer in [row for row, cluster in enumerate(clusters) if cluster < 0]:
            rows = [*known, newcomer]
            labels = hcct.join_group(
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

    def _over_rounds(self, gram: Tensor, clients: Sequence[int]) -> Tensor:
        """The round's Gram matrix [n, n] with mean cosines over rounds; pairs without a mean keep the round's."""
        if not self.memory:
            return gram
        at = torch.meshgrid(torch.tensor(clients), torch.tensor(clients), indexing="ij")
        return with_cosines(gram, torch.where(self._weights[at] > 0, self._cosines[at], cosine_similarities(gram)))

    def _spans(self, trainer: TrainerSurface) -> list[Span]:
        spans = trainer.loop.averaged_spans()
        if self.compared_layer is None:
            return spans
        chosen = [span for span in spans if _layer(span.name) == self.compared_layer]
        if not chosen:
            layers = ", ".join(dict.fromkeys(_layer(span.name) for span in spans))
            what = f"HCCT.layer={self.compared_layer!r}: no layer of this name has shared, trainable parameters"
            raise ConfigurationError(f"{what}. Choose one of {layers}, or auto.")
        return chosen

    def _choose_layer(self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]) -> str:
        by_layer: dict[str, list[Span]] = {}
        for span in self._spans(trainer):
            by_layer.setdefault(_layer(span.name), []).append(span)
        updates = {
            layer: torch.cat(list(update_blocks(trainer.loop, weights, clients, spans)), dim=1)
            for layer, spans in by_layer.items()
        }
        return hcct.most_discriminative_layer(updates, [trainer.federation.num_samples[client] for client in clients])

    def figures(self, trainer: TrainerSurface, stage: str) -> Drawings:
        from lightning_fl.callbacks.figures.plots.coalitions import draw_merge_tree

        if stage == "fit" and self.merged_clients:
            groups = dict(enumerate(range(len(self.merged_clients))))
            for merge in self.merges:
                groups |= dict.fromkeys(merge.first + merge.second, min(merge.first + merge.second))
            names = [trainer.client_names[client] for client in self.merged_clients]
            title = f"Hierarchical partition, round {self.partition_round}"
            yield "merge_tree", partial(draw_merge_tree, self.merges, in_order(groups.values()), names, title)

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "merges": [[list(merge.first), list(merge.second), merge.gain] for merge in self.merges],
            "cosines": self._cosines.tolist(),
            "weights": self._weights.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.merges = [hcct.Merge(tuple(first), tuple(second), gain) for first, second, gain in state["merges"]]
        self._cosines = torch.tensor(state["cosines"], dtype=torch.float64).reshape(self._cosines.shape)
        self._weights = torch.tensor(state["weights"], dtype=torch.float64).reshape(self._weights.shape)


def _layer(name: str) -> str:
    """The submodule that owns a parameter."""
    return name.rpartition(".")[0] or name
