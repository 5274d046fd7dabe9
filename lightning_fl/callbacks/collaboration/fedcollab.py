"""FedCollab: before training, clients find out with whom to train, from distances between their data and their counts.

Bao, Wang, Wu, He: Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023
(https://arxiv.org/abs/2306.06508), algorithms 1 and 2, equation 10.

=====================  ==================================================  ======
paper                  here                                                shape
=====================  ==================================================  ======
D_ij                   ``distances``, by client discriminators             [N, N]
                       (:mod:`lightning_fl.functional.client_distances`)
m_i                    ``trainer.num_samples``                             [N]
C                      ``capacity``
L, its minimiser       :mod:`lightning_fl.functional.fedcollab`
coalitions             ``assignment``                                      [N]
=====================  ==================================================  ======

Differs from the paper: coalitions also merge and are searched from several kinds of starts, not by single moves alone;
targets of regression are standardised where classes are one-hot, and graphs of molecules enter as Morgan fingerprints.
What the discriminators do otherwise is in the file named above.
"""

import time
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.callbacks.collaboration.coalition_files import (
    coalition_table,
    distance_table,
    read_coalitions,
    read_distances,
    read_model,
)
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import derive_seed
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.engine.probes.client_features import LayerOutput, client_features
from lightning_fl.functional.client_discriminator import DiscriminatorSettings
from lightning_fl.functional.client_distances import pairwise_distances
from lightning_fl.functional.coalition_stability import same_coalitions_share
from lightning_fl.functional.fedcollab import coalition_objective, join_coalitions, solve_coalitions
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["FedCollab"]

# Coalitions that come out the same less often are warned of.
_FIRM = 0.8


class FedCollab(ClientClusters):
    """Divides clients into coalitions before the first round; any strategy then trains one model in each.

    Every pair of clients trains a small discriminator federatedly on its inputs and targets; the better it tells the
    two apart, the further they are from each other. Coalitions minimise the mean over clients of
    ``capacity / sqrt(samples in the coalition) + distance to the coalition``. Distances, their standard errors and
    coalitions are written to the run's folder as ``distances.csv``, ``distance_errors.csv`` and ``coalitions.csv``. How
    firm they are is told: the share of draws of all distances, normal with these errors, in which the coalitions come
    out the same.

    Clients that arrive later (``ClientArrivals``) are measured when they come and put where the objective is least;
    nobody else moves. Likewise for clients that a finished run did not have, with ``structure``: its coalitions and
    models are taken up, and only coalitions that a new client joins are trained on.

    Args:
        capacity: C >= 0, the model's appetite for data: 10 for Fashion-MNIST and CIFAR-10, 8 for CIFAR-100 in the
            paper; 0 leaves clients with different data alone. C / √m is the excess error of a model of m samples. The
            study ``fedcollab_capacity`` chooses it by validation.
        num_restarts: starts of the search for the best coalitions.
        distances: known distances, as a file: ``distances.csv`` of another run (clients by name), or a ``.npy`` matrix
            [N, N] in the clients' order. Pairs that it lacks, or has NaN for, are measured.
        structure: folder of a finished FedCollab run to join.
        encoder: a frozen network from a batch's inputs to features [B, d] for the discriminators; ``None`` for the
            inputs themselves, or Morgan fingerprints of molecules.
        warm_up_rounds: rounds in which all clients train together first; the shared model's ``layer`` is then the
            frozen encoder, and coalitions go on from that model.
        layer: submodule of the model whose output is the features, with ``warm_up_rounds``: "network.encoder" of a
            ``ClassificationModel``, "readout" of a ``MoleculeModel``.
        discriminator: how the discriminators are trained; ``None`` for the defaults of ``DiscriminatorSettings``.
        ignore: for ablations (section 5.5): "quantities" takes every client to have the mean number of samples,
            "distances" takes every pair to be as far apart as all are on average.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, a file does not fit, a client has fewer than
            four training samples, or clients' inputs have different sizes.
        DataError: inputs or targets cannot be read.
    """

    #: Coalitions are formed before the turns, so that no weights are kept.
    select_collaboration = Callback.select_collaboration

    def __init__(
        self,
        *,
        capacity: float = 10.0,
        num_restarts: int = 20,
        distances: str | None = None,
        structure: str | None = None,
        encoder: nn.Module | None = None,
        warm_up_rounds: int = 0,
        layer: str | None = None,
        discriminator: DiscriminatorSettings | None = None,
        ignore: Literal["quantities", "distances"] | None = None,
    ) -> None:
        if ignore not in (None, "quantities", "distances"):
            raise ConfigurationError(f"FedCollab.ignore={ignore!r}: choose quantities, distances or null.")
        check_numbers(self, capacity=capacity, at_least=0, mend=" (10 in the paper)")
        check_counts(self, num_restarts=num_restarts)
        check_counts(self, warm_up_rounds=warm_up_rounds, at_least=0)
        if distances is not None and structure is not None:
            raise ConfigurationError(
                f"FedCollab.distances={distances!r} and structure={structure!r} are both set: a structure has its own"
                " distances; drop one."
            )
        if (warm_up_rounds > 0) != (layer is not None) or (layer and encoder is not None):
            raise ConfigurationError(
                f"FedCollab.warm_up_rounds={warm_up_rounds}, layer={layer!r}, encoder="
                f"{None if encoder is None else type(encoder).__name__}: give a number of rounds and a layer, or"
                " neither; an encoder goes with neither."
            )
        self.warm_up_rounds = warm_up_rounds
        self.layer = layer
        self.capacity = capacity
        self.num_restarts = num_restarts
        self.distances_file = distances
        self.structure = structure
        self.ignore = ignore
        self.encoder = encoder
        self.discriminator = discriminator or DiscriminatorSettings()
        super().__init__()

    def reset(self, num_clients: int) -> None:
        """Forget the distances of an earlier run."""
        super().reset(num_clients)
        #: D, float64 [N, N]; NaN where a pair was not measured (clients that are not there yet).
        self.distances: Tensor = torch.empty(0, 0, dtype=torch.float64)
        #: Of D, float64 [N, N]; NaN where a pair was not measured, also where its distance was given.
        unknown = torch.full((num_clients, num_clients), torch.nan, dtype=torch.float64)
        self.distance_errors: Tensor = unknown.fill_diagonal_(0.0)

    @property
    def assignment(self) -> list[int]:
        """Coalition of every client, 0..K-1 as models are numbered, -1 for one that is not there yet, length N."""
        return list(self.clusters)

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Measure distances and form coalitions; a resumed run has them in its checkpoint."""
        super().on_fit_start(trainer)
        if self.layer is not None:
            LayerOutput(trainer.module, self.layer)  # refuses a wrong name now
        if self.warm_up_rounds >= trainer.max_rounds:
            rank_zero_warn(
                f"FedCollab.warm_up_rounds={self.warm_up_rounds} of max_rounds={trainer.max_rounds}: this run ends"
                " before coalitions are formed; give more rounds to train in them."
            )
        if not trainer.resumes_fit and not self.warm_up_rounds:
            self._begin(trainer)

    def _begin(self, trainer: TrainerSurface) -> None:
        present = trainer.present_clients
        self.distances = self._measured(trainer, self._known_distances(trainer), present)
        if self.structure is not None:
            self._join_structure(trainer, Path(self.structure))
            return
        labels = solve_coalitions(
            *self._judged(trainer, present),
            self.capacity,
            num_restarts=self.num_restarts,
            seed=derive_seed(trainer.seed, "coalitions"),
        )
        self._form(trainer, dict(zip(present, labels, strict=True)))
        self._judge(trainer, present, labels)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Let in who arrives: measure its distances and put it where the objective is least."""
        if trainer.federation.current_round < self.warm_up_rounds:
            return
        if max(self.clusters) < 0:
            self._begin(trainer)
        present = trainer.present_clients
        newcomers = [client for client in present if self.clusters[client] < 0]
        if newcomers:
            self.distances = self._measured(trainer, self.distances, present)
            known = {client: label for client, label in enumerate(self.clusters) if label >= 0}
            self._form(trainer, self._joined(trainer, known, newcomers))

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Keep the files with the run, also with one that was resumed."""
        if max(self.clusters) >= 0:
            self._write(trainer)

    # -- distances -----------------------------------------------------------------------------------------------

    def _known_distances(self, trainer: TrainerSurface) -> Tensor:
        """[N, N], NaN where nothing is known."""
        count = trainer.num_clients
        path = self.distances_file if self.structure is None else Path(self.structure) / "distances.csv"
        if path is None:
            return torch.full((count, count), torch.nan, dtype=torch.float64).fill_diagonal_(0.0)
        return read_distances(Path(path), trainer.datamodule.client_names())

    def _measured(self, trainer: TrainerSurface, known: Tensor, clients: list[int]) -> Tensor:
        """The distances with those among ``clients`` that are not known measured."""
        pairs = [(i, j) for i in clients for j in clients if i < j and torch.isnan(known[i, j])]
        if not pairs:
            return known
        rank_zero_info(f"FedCollab: measuring {len(pairs)} distances between {len(clients)} clients")
        started = time.perf_counter()
        involved = sorted({client for pair in pairs for client in pair})
        places = {client: place for place, client in enumerate(involved)}
        encoder = self.encoder
        if self.layer is not None:
            encoder = LayerOutput(trainer.module, self.layer)
            trainer.federation.communication.receive(involved, [trainer.shared_model(involved[0])])
            trainer.loop.flat.load(trainer.shared_model(involved[0]))
        features, classes = client_features(trainer.loop, involved, encoder, self.discriminator.label_weight)
        several = trainer.fabric.world_size > 1
        found = pairwise_distances(
            {places[client]: rows for client, rows in features.items()},
            self.discriminator,
            num_clients=len(involved),
            pairs=[(places[i], places[j]) for i, j in pairs],
            seed=derive_seed(trainer.seed, "client discriminators"),
            groups={places[client]: labels for client, labels in classes.items()},
            reduce=(lambda tensor: trainer.strategy.all_reduce(tensor, reduce_op="sum")) if several else None,
        )
        traffic = (found.bytes_received, found.bytes_sent)
        trainer.federation.communication.add(
            *(dict(zip(involved, of_each.tolist(), strict=True)) for of_each in traffic)
        )
        record = trainer.run_log.summary.setdefault("fedcollab", {})
        record["measured_pairs"] = record.get("measured_pairs", 0) + len(pairs)
        record["distance_seconds"] = round(record.get("distance_seconds", 0.0) + time.perf_counter() - started, 3)
        measured = known.clone()
        for i, j in pairs:
            measured[i, j] = measured[j, i] = found.distances[places[i], places[j]]
            error = found.standard_errors[places[i], places[j]]
            self.distance_errors[i, j] = self.distance_errors[j, i] = error
        return measured

    # -- coalitions ----------------------------------------------------------------------------------------------

    def _judged(self, trainer: TrainerSurface, clients: list[int]) -> tuple[Tensor, Tensor]:
        """The distances [n, n] and numbers of samples [n] of some clients by which their coalitions are judged."""
        distances = self.distances[clients][:, clients]
        samples = torch.tensor([trainer.federation.num_samples[client] for client in clients], dtype=torch.float64)
        if self.ignore == "quantities":
            samples = samples.mean().expand(len(clients))
        if self.ignore == "distances" and len(clients) > 1:
            pairs = ~torch.eye(len(clients), dtype=torch.bool)
            distances = torch.where(pairs, distances[pairs].mean(), distances)
        return distances, samples

    def _joined(self, trainer: TrainerSurface, labels: dict[int, int], newcomers: list[int]) -> dict[int, int]:
        """Labels of those who are there, with the newcomers put where the objective is least."""
        clients = sorted([*labels, *newcomers])
        places = {client: place for place, client in enumerate(clients)}
        joined = join_coalitions(
            [labels.get(client, 0) for client in clients],
            *self._judged(trainer, clients),
            self.capacity,
            [places[client] for client in newcomers],
        )
        return dict(zip(clients, joined, strict=True))

    def _form(self, trainer: TrainerSurface, labels: dict[int, int]) -> None:
        """Make the coalitions those of the run; those who are not there yet belong to none."""
        self.clusters = [labels.get(client, -1) for client in range(trainer.num_clients)]
        trainer.federation.collaboration = self.collaboration(trainer)
        clients = sorted(labels)
        objective = coalition_objective(
            [labels[client] for client in clients],
            *self._judged(trainer, clients),
            self.capacity,
        )
        names = trainer.datamodule.client_names()
        coalitions = [[names[i] for i in clients if labels[i] == label] for label in sorted(set(labels.values()))]
        trainer.run_log.summary.setdefault("fedcollab", {}).update({"coalitions": coalitions, "objective": objective})
        rank_zero_info("FedCollab: " + "; ".join(f"coalition {k}: {', '.join(c)}" for k, c in enumerate(coalitions)))
        self._write(trainer)

    def _judge(self, trainer: TrainerSurface, clients: list[int], labels: list[int]) -> None:
        """Tell how often errors of the size of the distances' lead to these coalitions."""
        errors = self.distance_errors[clients][:, clients].nan_to_num(0.0)
        if self.ignore == "distances" or not errors.any():
            return
        distances, samples = self._judged(trainer, clients)
        seed = derive_seed(trainer.seed, "coalition stability")
        share = same_coalitions_share(labels, distances, errors, samples, self.capacity, seed=seed)
        trainer.run_log.summary["fedcollab"]["same_coalitions_share"] = share
        rank_zero_info(f"FedCollab: the same coalitions in {share:.0%} of draws of the distances with their errors")
        if share < _FIRM:
            rank_zero_warn(
                f"FedCollab: distances with errors like theirs lead to other coalitions in {1 - share:.0%} of draws:"
                " these are not firm. More samples, or a better encoder (warm_up_rounds, layer), tell clients apart"
                " better; distance_errors.csv has each pair's standard error."
            )

    # -- a finished run's structure ------------------------------------------------------------------------------

    def _join_structure(self, trainer: TrainerSurface, run: Path) -> None:
        """Take up the coalitions and models of a finished run; coalitions without a newcomer rest."""
        known = read_coalitions(run, trainer.datamodule.client_names())
        newcomers = [client for client in trainer.present_clients if client not in known]
        if not newcomers:
            raise ConfigurationError(
                f"FedCollab.structure={str(run)!r}: the data have no client that it lacks. Give data with the run's"
                " clients, under the same names, and new ones."
            )
        initial = trainer.federation.models[0]
        self._form(trainer, self._joined(trainer, known, newcomers))
        trainer.federation.models = [
            read_model(run, label, trainer.module, trainer.loop.flat) if label in known.values() else initial
            for label in range(trainer.federation.collaboration.num_models)
        ]
        trains = {self.clusters[client] for client in newcomers}
        trainer.federation.resting_clients = {
            client for client, label in enumerate(self.clusters) if label >= 0 and label not in trains
        }

    # -- keeping -------------------------------------------------------------------------------------------------

    def _write(self, trainer: TrainerSurface) -> None:
        if trainer.is_global_zero:
            names = trainer.datamodule.client_names()
            trainer.run_log.write("distances.csv", distance_table(names, self.distances))
            trainer.run_log.write("distance_errors.csv", distance_table(names, self.distance_errors))
            trainer.run_log.write(
                "coalitions.csv", coalition_table(names, trainer.federation.num_samples, self.clusters)
            )

    def state_dict(self) -> dict[str, Any]:
        """Distances and coalitions."""
        return {**super().state_dict(), "distances": self.distances, "distance_errors": self.distance_errors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them up."""
        super().load_state_dict(state)
        self.distances, self.distance_errors = state["distances"], state["distance_errors"]
