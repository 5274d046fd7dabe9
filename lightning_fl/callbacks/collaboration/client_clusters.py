"""Base of callbacks that put clients into clusters, each with its own model."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import ClassVar

from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, checked
from lightning_fl.engine.probes.updates import update_blocks
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.functional.gram import gram_matrix, in_order, join_most_similar
from lightning_fl.runtime.surface import TrainerSurface


class ClientClusters(Callback):
    """Puts clients into clusters; a cluster's clients use their average, weighted by samples.

    A subclass defines :meth:`assign`, and its own state in :meth:`reset` and ``saved``. Works with any strategy, with
    sampled clients, ``PersonalLayers`` (not compared) and ``ClientArrivals``. Keeps the weights of all clients of a
    round until they are assigned.

    Absent clients keep their cluster. A client without a cluster uses the average of the clusters, weighted by samples,
    and counts in none. :meth:`join` adds it when it takes part in a round with clients of a similar cluster; from that
    round on it counts in the cluster's average.

    Logs ``NAME/clusters``, the number of clusters of present clients, and for a fixed number of clusters
    ``NAME/moved``, the number of clients that changed theirs; NAME is the class's name in lower case.

    Args:
        num_clusters: a fixed number of clusters, at most that of clients, with labels that keep their meaning;
            ``None`` for any number, labelled in order of appearance.

    Attributes:
        rounds: number of finished rounds at each entry of ``assignments``.
        assignments: cluster of every client after each round, labels 0..K-1, -1 for none, length N.
        clusters: current cluster of every client, as numbered by :meth:`assign`, -1 for none, length N.

    Raises:
        ConfigurationError: the number of clusters is out of range, or at the start of a run exceeds that of clients.

    Example:
        >>> class Halves(ClientClusters):
        ...     def assign(self, trainer, weights, clients):
        ...         return {client: client % 2 for client in clients}
    """

    role = "collaboration"
    saved: ClassVar[tuple[str, ...]] = ("rounds", "assignments", "clusters")
    num_clusters: int | None = None
    #: Name of the logged number of clusters.
    _curve = "clusters"

    @checked
    def __init__(self, *, num_clusters: Count | None = None) -> None:
        self.num_clusters = num_clusters
        self.__post_init__()

    def __post_init__(self) -> None:
        self.method_name = type(self).__name__
        self.reset(0)

    def reset(self, num_clients: int) -> None:
        """Forget an earlier run. The constructor calls it without clients, so set arguments first."""
        self.rounds: list[int] = []
        self.assignments: list[list[int]] = []
        self.clusters = [-1] * num_clients

    @property
    def assignment(self) -> list[int]:
        """Current cluster of every client, labels 0..K-1, -1 for none, length N."""
        return list(self.clusters) if self.num_clusters is not None else in_order(self.clusters)

    def assign(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]
    ) -> Mapping[int, int] | None:
        """Assign clients to clusters after their turns. Called on every rank, with the same result on every rank.

        Args:
            trainer: ``trainer.shared_model(i)`` is the model from which client i started the round.
            weights: hosted participant -> its weights after its turn, without personal layers.
            clients: participants on all ranks, ascending.

        Returns:
            client -> cluster, any number of at least 0, or -1 for none. Missing clients stay. ``None`` changes nothing.
        """
        raise NotImplementedError

    def join(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int], clusters: Sequence[int]
    ) -> list[int]:
        """Add newcomers to the cluster with the most similar mean update of this round (cosine).

        Clusters without participants are not compared. Without a positive cosine a newcomer waits for its next turn.

        Arguments are those of :meth:`assign`; ``clusters`` are the n participants' clusters, -1 for newcomers, but not
        for all. Returns clusters with those of the newcomers, -1 for those that wait, length n.
        """
        samples = [trainer.federation.num_samples[client] for client in clients]
        return join_most_similar(self.gram(trainer, weights, clients), samples, clusters)

    def gram(
        self,
        trainer: TrainerSurface,
        weights: Mapping[int, Weights],
        clients: Sequence[int],
        spans: Sequence[Span] | None = None,
    ) -> Tensor:
        """Inner products of clients' updates of the round, float64 [n, n] on the CPU. Called on every rank.

        Arguments are those of :meth:`assign`, for n of the participants; ``spans`` are the parameters to compare, by
        default all shared, trainable ones.
        """
        spans = trainer.loop.averaged_spans() if spans is None else spans
        return gram_matrix(update_blocks(trainer.loop, weights, clients, spans)).cpu()

    def collaboration(self, trainer: TrainerSurface) -> Collaboration:
        """One model for each cluster with clients, in the order of labels."""
        labels = self.assignment
        models = {-1: -1} | {label: model for model, label in enumerate(sorted(set(labels) - {-1}))}
        return Collaboration.coalitions([models[label] for label in labels], trainer.federation.num_samples)

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        self.reset(trainer.num_clients)
        if self.num_clusters is not None:
            check_at_most_clients(self, trainer.num_clients, num_clusters=self.num_clusters)

    def select_collaboration(self, trainer: TrainerSurface, weights: Mapping[int, Weights]) -> Collaboration | None:
        clients = sorted(trainer.round.survivors)
        found = self.assign(trainer, weights, clients)
        for client, cluster in (found or {}).items():
            if client not in range(trainer.num_clients) or not isinstance(cluster, Integral) or cluster < -1:
                name, most = type(self).__name__, trainer.num_clients - 1
                what = f"{name}.assign puts client {client} into cluster {cluster!r}"
                raise ConfigurationError(f"{what}: return clients 0..{most} and integers of at least 0, or -1.")
        clusters = [int((found or {}).get(client, own)) for client, own in enumerate(self.clusters)]
        taking_part = [clusters[client] for client in clients]
        if min(taking_part) < 0 <= max(taking_part):
            found = dict(zip(clients, self.join(trainer, weights, clients, taking_part), strict=True))
            clusters = [found.get(client, own) for client, own in enumerate(clusters)]
        if found is None or max(clusters) < 0:
            return None
        self.clusters = clusters
        return self.collaboration(trainer)

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        name, labels = type(self).__name__.lower(), self.assignment
        trainer.log(f"{name}/{self._curve}", len({labels[client] for client in trainer.present_clients} - {-1}))
        if self.num_clusters is not None:
            before = self.assignments[-1] if self.assignments else labels
            moved = [own not in (-1, label) for own, label in zip(before, labels, strict=True)]
            trainer.log(f"{name}/moved", sum(moved))
        self.rounds.append(trainer.federation.current_round + 1)
        self.assignments.append(labels)


def check_at_most_clients(owner: object, num_clients: int, **values: int) -> None:
    """Raise an error if there are more clusters, or models, than clients."""
    for name, value in values.items():
        if value > num_clients:
            option = f"{type(owner).__name__}.{name}={value}"
            raise ConfigurationError(f"{option} for {num_clients} clients: must be at most as many.")
