"""The base of callbacks that put clients into clusters, each with a model of its own."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts
from lightning_fl.engine.probes.updates import update_blocks
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.functional.gram import gram_matrix, join_most_similar
from lightning_fl.functional.labels import in_order
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["ClientClusters", "check_at_most_clients"]


class ClientClusters(Callback):
    """Puts clients into clusters; each cluster's model is the average of its clients by samples, and what they use.

    A subclass defines :meth:`assign`, and what it keeps besides in :meth:`reset`, :meth:`state_dict` and
    :meth:`load_state_dict`. Works with any strategy, with sampled clients, with ``PersonalLayers`` (left out of
    comparisons) and ``ClientArrivals``. Keeps the weights of all clients of a round until they are assigned.

    Who took no part in a round stays where it was. A client that belongs to no cluster (yet) uses the average of the
    clusters by the samples of their clients, counts in none, and is let in by :meth:`join` when it takes part in a
    round together with clients of a cluster that it fits. It counts in its cluster's average from that round on.

    Logs in every round, under the class's name in lower case, ``NAME/clusters``, how many clusters the clients that are
    present belong to, and, where their number is fixed, ``NAME/moved``, how many clients changed theirs.

    Args:
        num_clusters: a fixed number of clusters, at most that of clients, whose labels say which one it is; ``None``
            if there may be any number, labelled in order of appearance.

    Attributes:
        rounds: rounds done when each entry of ``assignments`` was made.
        assignments: cluster of every client after each round, labels 0..K-1, -1 for none, length N.
        clusters: cluster of every client at present, as :meth:`assign` numbers them, -1 for none, length N.

    Raises:
        ConfigurationError: the number of clusters is out of range; at the start of a run, there are more clusters than
            clients.

    Example:
        >>> class Halves(ClientClusters):
        ...     def assign(self, trainer, weights, clients):
        ...         return {client: client % 2 for client in clients}
    """

    role = "collaboration"
    #: What the number of clusters is logged as.
    _curve = "clusters"

    def __init__(self, *, num_clusters: int | None = None) -> None:
        check_counts(self, num_clusters=num_clusters)
        self.method_name = type(self).__name__
        self.num_clusters = num_clusters
        self.reset(0)

    def reset(self, num_clients: int) -> None:
        """Forget an earlier run. Called by the constructor too, with no clients: set arguments before that."""
        self.rounds: list[int] = []
        self.assignments: list[list[int]] = []
        self.clusters = [-1] * num_clients

    @property
    def assignment(self) -> list[int]:
        """Cluster of every client at present, labels 0..K-1, -1 for none, length N."""
        return list(self.clusters) if self.num_clusters is not None else in_order(self.clusters)

    # -- what a subclass decides -----------------------------------------------------------------------------------

    def assign(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]
    ) -> Mapping[int, int] | None:
        """Say after the turns who belongs to which cluster. Called on every rank, and the same on every rank.

        Args:
            trainer: ``trainer.shared_model(i)`` is what client i started the round from.
            weights: hosted client that took part -> its weights after its turn, without its personal layers.
            clients: who took part, on whatever rank, ascending.

        Returns:
            client -> cluster, any number of at least 0, or -1 for none. Clients that are left out stay. ``None``
            changes nothing.
        """
        raise NotImplementedError

    def join(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int], clusters: Sequence[int]
    ) -> list[int]:
        """Let newcomers in: into the cluster whose mean update of this round is most similar (cosine) to theirs.

        Clusters none of whose clients took part have none. Where no cosine is positive, as if only others took part,
        the newcomer waits for its next turn.

        Args:
            trainer: as in :meth:`assign`.
            weights: as in :meth:`assign`.
            clients: who took part, n of them.
            clusters: theirs, -1 for newcomers, not for all, length n.

        Returns:
            Clusters with those of the newcomers, -1 for one that waits, length n.
        """
        samples = [trainer.federation.num_samples[client] for client in clients]
        return join_most_similar(self.gram(trainer, weights, clients), samples, clusters)

    # -- what it decides by ----------------------------------------------------------------------------------------

    def gram(
        self,
        trainer: TrainerSurface,
        weights: Mapping[int, Weights],
        clients: Sequence[int],
        spans: Sequence[Span] | None = None,
    ) -> Tensor:
        """Inner products of what clients learned in the round, float64 [n, n] on the CPU. Called on every rank.

        Args:
            trainer: as in :meth:`assign`.
            weights: as in :meth:`assign`.
            clients: n of those that took part.
            spans: the parameters that count; all shared, trainable ones unless given.
        """
        spans = trainer.loop.averaged_spans() if spans is None else spans
        return gram_matrix(update_blocks(trainer.loop, weights, clients, spans)).cpu()

    def collaboration(self, trainer: TrainerSurface) -> Collaboration:
        """One model for each cluster that has clients, in the order of their labels."""
        labels = self.assignment
        models = {-1: -1} | {label: model for model, label in enumerate(sorted(set(labels) - {-1}))}
        return Collaboration.coalitions([models[label] for label in labels], trainer.federation.num_samples)

    # -- the run ---------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Forget an earlier run."""
        self.reset(trainer.num_clients)
        if self.num_clusters is not None:
            check_at_most_clients(self, trainer.num_clients, num_clusters=self.num_clusters)

    def select_collaboration(self, trainer: TrainerSurface, weights: Mapping[int, Weights]) -> Collaboration | None:
        """Assign clients, and let newcomers in."""
        clients = sorted(trainer.round.survivors)
        found = self.assign(trainer, weights, clients)
        self._check(found, trainer.num_clients)
        clusters = [int((found or {}).get(client, own)) for client, own in enumerate(self.clusters)]
        taking_part = [clusters[client] for client in clients]
        if min(taking_part) < 0 <= max(taking_part):
            found = dict(zip(clients, self.join(trainer, weights, clients, taking_part), strict=True))
            clusters = [found.get(client, own) for client, own in enumerate(clusters)]
        if found is None or max(clusters) < 0:
            return None
        self.clusters = clusters
        return self.collaboration(trainer)

    def _check(self, found: Mapping[int, int] | None, num_clients: int) -> None:
        for client, cluster in (found or {}).items():
            if client not in range(num_clients) or not isinstance(cluster, Integral) or cluster < -1:
                raise ConfigurationError(
                    f"{type(self).__name__}.assign puts client {client} into cluster {cluster!r}: name clients of"
                    f" 0..{num_clients - 1} and whole numbers of at least 0, or -1 for none."
                )

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Keep and log the round's clusters."""
        name, labels = type(self).__name__.lower(), self.assignment
        trainer.log(f"{name}/{self._curve}", len({labels[client] for client in trainer.present_clients} - {-1}))
        if self.num_clusters is not None:
            before = self.assignments[-1] if self.assignments else labels
            moved = [own not in (-1, label) for own, label in zip(before, labels, strict=True)]
            trainer.log(f"{name}/moved", sum(moved))
        self.rounds.append(trainer.federation.current_round + 1)
        self.assignments.append(labels)

    def state_dict(self) -> dict[str, Any]:
        """The clusters and their history."""
        return {"rounds": self.rounds, "assignments": self.assignments, "clusters": self.clusters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history."""
        self.rounds = list(state["rounds"])
        self.assignments = [list(labels) for labels in state["assignments"]]
        self.clusters = list(state["clusters"])


def check_at_most_clients(owner: object, num_clients: int, **values: int) -> None:
    """Refuse more clusters, or models, than clients."""
    for name, value in values.items():
        if value > num_clients:
            raise ConfigurationError(
                f"{type(owner).__name__}.{name}={value} for {num_clients} clients: give at most as many."
            )
