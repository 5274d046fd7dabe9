"""FedCollab: coalitions formed before training, from distances between clients' data and numbers of samples.

Bao, Wang, Wu, He: Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023
(https://arxiv.org/abs/2306.06508), algorithms 1 (:mod:`.discriminators.distances`) and 2, equation 10
(:mod:`lightning_fl.functional.fedcollab`).

Differs from the paper: the search also merges coalitions and has several kinds of starts, not only single moves;
regression targets are standardised (classes are one-hot), and molecules enter as Morgan fingerprints. Differences
of the discriminators are in the module named above.
"""

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, doc
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from lightning_fl.callbacks.callback import Callback, Drawings
from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.callbacks.collaboration.discriminators.distances import pairwise_distances
from lightning_fl.callbacks.collaboration.discriminators.inputs import LayerOutput, client_features
from lightning_fl.callbacks.collaboration.discriminators.networks import DiscriminatorSettings
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import NOT_A_NUMBER, csv_table, csv_value
from lightning_fl.core.seeding import derive_seed
from lightning_fl.core.validation import Count, Size, checked
from lightning_fl.engine.weights.flat import FlatModule, Weights
from lightning_fl.files.tensors import read_numpy, read_torch
from lightning_fl.functional import fedcollab
from lightning_fl.runtime.surface import TrainerSurface

#: Share of draws with the same coalitions below which a run warns.
_STABLE = 0.8
#: The paper's C, for clients with hundreds of samples or more.
_CAPACITY = 10.0


class FedCollab(ClientClusters):
    """Divides clients into coalitions before the first round; any strategy then trains one model in each.

    Every pair of clients trains a small discriminator federatedly on its inputs and targets; twice its balanced
    accuracy less 1 is their distance. Coalitions minimise the mean over clients of
    ``capacity / sqrt(samples in the coalition) + distance to the coalition``. Writes ``distances.csv``,
    ``distance_errors.csv`` (standard errors) and ``coalitions.csv``, and logs the share of draws of distances with
    these errors that lead to the same coalitions.

    Clients that arrive later (``ClientArrivals``) are measured on arrival and join where the objective is least; the
    others stay. The same holds for new clients of a finished run with ``structure``: its coalitions and models are
    restored, and only coalitions with a new client train.

    Args:
        capacity: C of the model class: 10 for Fashion-MNIST and CIFAR-10, 8 for CIFAR-100 in the paper; 0 leaves
            clients with different data alone. C / √m is the excess error of a model of m samples, which 1 bounds.
            ``None``: 10, or √m of the clients' mean m if less. The study ``fedcollab_capacity`` chooses by validation.
        num_restarts: starts of the search for coalitions.
        distances: file of known distances: ``distances.csv`` of another run (clients by name), or a ``.npy`` matrix
            [N, N] in the clients' order. Missing pairs and NaN are measured.
        structure: folder of a finished FedCollab run to join.
        encoder: a frozen network from a batch's inputs to features [B, d] for the discriminators; ``None`` for the
            inputs themselves, or Morgan fingerprints of molecules.
        warm_up_rounds: rounds in which all clients first train together; ``layer`` of the shared model is then the
            frozen encoder, and coalitions start from that model.
        layer: submodule whose output is the features, with ``warm_up_rounds``: "network.encoder" of a
            ``ClassificationModel``, "readout" of a ``MoleculeModel``.
        discriminator: training of the discriminators; ``None`` for the defaults of ``DiscriminatorSettings``.
        ignore: for ablations (section 5.5): "quantities" gives every client the mean number of samples, "distances"
            gives every pair the mean distance.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, a file does not fit, a client has fewer than
            four training samples, or clients' inputs have different sizes.
        DataError: inputs or targets cannot be read.
    """

    saved = (*ClientClusters.saved, "distances", "distance_errors", "_frozen")
    #: Coalitions are formed before the turns, so no weights need to be kept.
    select_collaboration = Callback.select_collaboration

    @checked
    def __init__(
        self,
        *,
        capacity: Annotated[float, Ge(0), doc("10 in the paper")] | None = None,
        num_restarts: Count = 20,
        distances: str | None = None,
        structure: str | None = None,
        encoder: nn.Module | None = None,
        warm_up_rounds: Size = 0,
        layer: str | None = None,
        discriminator: DiscriminatorSettings | None = None,
        ignore: Literal["quantities", "distances"] | None = None,
    ) -> None:
        if distances is not None and structure is not None:
            given = f"distances={distances!r} and structure={structure!r}"
            raise ConfigurationError(f"FedCollab.{given} are both set. Drop one: a structure has its own distances.")
        if (warm_up_rounds > 0) != (layer is not None) or (layer and encoder is not None):
            raise ConfigurationError(f"FedCollab.{warm_up_rounds=}, {layer=}: give both without encoder, or neither.")
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
        super().reset(num_clients)
        #: D, float64 [N, N]; NaN for pairs not measured (absent clients).
        self.distances = torch.empty(0, 0, dtype=torch.float64)
        #: Standard errors of D, float64 [N, N]; NaN for pairs not measured, also for given distances.
        unknown = torch.full((num_clients, num_clients), torch.nan, dtype=torch.float64)
        self.distance_errors = unknown.fill_diagonal_(0.0)
        self._frozen: dict[str, Any] | None = None  # the model whose ``layer`` is the encoder

    @property
    def assignment(self) -> list[int]:
        """Coalition of every client, 0..K-1 as models are numbered, -1 for absent ones, length N."""
        return list(self.clusters)

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        super().on_fit_start(trainer)
        if self.layer is not None:
            LayerOutput(trainer.module, self.layer)  # raises for a wrong name
        if self.warm_up_rounds >= trainer.max_rounds:
            ends = f"FedCollab.warm_up_rounds={self.warm_up_rounds}: the run ends at max_rounds={trainer.max_rounds}"
            rank_zero_warn(f"{ends}, before coalitions are formed. Give more rounds.")
        if not trainer.resumes_fit and not self.warm_up_rounds:
            self._form_coalitions(trainer)

    def _form_coalitions(self, trainer: TrainerSurface) -> None:
        present = trainer.present_clients
        path = self.distances_file if self.structure is None else Path(self.structure) / "distances.csv"
        names = trainer.datamodule.client_names()
        unknown = self.distance_errors.clone()  # nothing is measured yet
        self.distances = unknown if path is None else read_distances(Path(path), names)
        if self.layer is not None:
            self._frozen = trainer.shared_model(present[0]).clone().state_dict()
        self._measure(trainer, present)
        if self.structure is not None:
            self._join_structure(trainer, Path(self.structure))
            return
        inputs, seed = self._objective_inputs(trainer, present), derive_seed(trainer.seed, "coalitions")
        labels = fedcollab.solve_coalitions(*inputs, num_restarts=self.num_restarts, seed=seed)
        self._set_coalitions(trainer, dict(zip(present, labels, strict=True)))
        self._log_stability(trainer, present, labels)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({"frozen": None, **state})  # older checkpoints lack it

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Measure new clients and add them where the objective is least."""
        if trainer.federation.current_round < self.warm_up_rounds:
            return
        if max(self.clusters) < 0:
            self._form_coalitions(trainer)
        present = trainer.present_clients
        newcomers = [client for client in present if self.clusters[client] < 0]
        if newcomers:
            self._measure(trainer, present)
            known = {client: label for client, label in enumerate(self.clusters) if label >= 0}
            before = list(trainer.federation.models)
            self._set_coalitions(trainer, self._join(trainer, known, newcomers))
            trainer.federation.models[: len(before)] = before  # without the newcomers' share

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        if max(self.clusters) >= 0:
            self._write(trainer)

    def figures(self, trainer: TrainerSurface, stage: str) -> Drawings:
        from lightning_fl.callbacks.figures.plots.coalitions import draw_distances

        present, partition = trainer.present_clients, trainer.federation.collaboration.partition
        if stage == "fit" and len(self.distances) == trainer.num_clients:  # else not measured yet
            labels = [partition[client] for client in present]
            names = [trainer.client_names[client] for client in present]
            title = "Distances between clients, by coalition"
            yield "distances", partial(draw_distances, self.distances[present][:, present], labels, names, title)

    def _measure(self, trainer: TrainerSurface, clients: Sequence[int]) -> None:
        pairs = [(i, j) for i in clients for j in clients if i < j and torch.isnan(self.distances[i, j])]
        if not pairs:
            return
        rank_zero_info(f"FedCollab: measuring {len(pairs)} distances between {len(clients)} clients")
        started = time.perf_counter()
        involved = sorted({client for pair in pairs for client in pair})
        places = {client: place for place, client in enumerate(involved)}
        encoder = self.encoder
        if self.layer is not None:
            encoder, model = LayerOutput(trainer.module, self.layer), trainer.shared_model(involved[0])
            frozen = model if self._frozen is None else Weights.from_state_dict(self._frozen, trainer.fabric.device)
            model = model if model.equal(frozen) else frozen  # the object says which clients hold it
            unknown = [client for client in involved if self._frozen is None or self.clusters[client] < 0]
            trainer.federation.communication.receive(unknown, [model])
            trainer.loop.flat.load(model)
        features, classes = client_features(trainer.loop, involved, encoder, self.discriminator.label_weight)
        found = pairwise_distances(
            {places[client]: rows for client, rows in features.items()},
            self.discriminator,
            num_clients=len(involved),
            pairs=[(places[i], places[j]) for i, j in pairs],
            seed=derive_seed(trainer.seed, "client discriminators"),
            groups={places[client]: labels for client, labels in classes.items()},
            reduce=trainer.processes.sum,
            names=[f"client {client} ({trainer.client_names[client]})" for client in involved],
        )
        traffic = dict(zip(involved, found.bytes_each_way.tolist(), strict=True))
        trainer.federation.communication.add(traffic, traffic)
        record = trainer.run_log.summary.setdefault("fedcollab", {})
        record["measured_pairs"] = record.get("measured_pairs", 0) + len(pairs)
        record["distance_seconds"] = round(record.get("distance_seconds", 0.0) + time.perf_counter() - started, 3)
        for i, j in pairs:
            where = places[i], places[j]
            self.distances[i, j] = self.distances[j, i] = found.distances[where]
            self.distance_errors[i, j] = self.distance_errors[j, i] = found.standard_errors[where]

    def _objective_inputs(self, trainer: TrainerSurface, clients: Sequence[int]) -> tuple[Tensor, Tensor, float]:
        """The distances [n, n] and numbers of samples [n] of some clients for the objective, and its C."""
        distances = self.distances[clients][:, clients]
        samples = torch.tensor([trainer.federation.num_samples[client] for client in clients], dtype=torch.float64)
        if self.ignore == "quantities":
            samples = samples.mean().expand(len(clients))
        if self.ignore == "distances" and len(clients) > 1:
            pairs = ~torch.eye(len(clients), dtype=torch.bool)
            distances = torch.where(pairs, distances[pairs].mean(), distances)
        if self.capacity is not None:
            return distances, samples, self.capacity
        return distances, samples, min(_CAPACITY, math.sqrt(fmean(trainer.federation.num_samples)))

    def _join(self, trainer: TrainerSurface, labels: dict[int, int], newcomers: list[int]) -> dict[int, int]:
        """Labels of clients, with newcomers where the objective is least."""
        clients = sorted([*labels, *newcomers])
        places = {client: place for place, client in enumerate(clients)}
        joined = fedcollab.join_coalitions(
            [labels.get(client, 0) for client in clients],
            *self._objective_inputs(trainer, clients),
            [places[client] for client in newcomers],
        )
        return dict(zip(clients, joined, strict=True))

    def _set_coalitions(self, trainer: TrainerSurface, labels: dict[int, int]) -> None:
        self.clusters = [labels.get(client, -1) for client in range(trainer.num_clients)]
        trainer.federation.collaboration = self.collaboration(trainer)
        clients = sorted(labels)
        inputs = self._objective_inputs(trainer, clients)
        objective = fedcollab.coalition_objective([labels[client] for client in clients], *inputs)
        names = trainer.datamodule.client_names()
        coalitions = [[names[i] for i in clients if labels[i] == label] for label in sorted(set(labels.values()))]
        found = {"coalitions": coalitions, "capacity": inputs[-1], "objective": objective}
        trainer.run_log.summary.setdefault("fedcollab", {}).update(found)
        rank_zero_info("FedCollab: " + "; ".join(f"coalition {k}: {', '.join(c)}" for k, c in enumerate(coalitions)))
        self._write(trainer)

    def _log_stability(self, trainer: TrainerSurface, clients: Sequence[int], labels: list[int]) -> None:
        errors = self.distance_errors[clients][:, clients].nan_to_num(0.0)
        if self.ignore == "distances" or not errors.any():
            return
        distances, samples, capacity = self._objective_inputs(trainer, clients)
        seed = derive_seed(trainer.seed, "coalition stability")
        share = fedcollab.same_coalitions_share(labels, distances, errors, samples, capacity, seed=seed)
        trainer.run_log.summary["fedcollab"]["same_coalitions_share"] = share
        rank_zero_info(f"FedCollab: the same coalitions in {share:.0%} of draws of the distances with their errors")
        if share < _STABLE:
            rank_zero_warn(
                "FedCollab: coalitions are unstable: distances drawn with their errors (distance_errors.csv) lead to"
                f" others in {1 - share:.0%} of draws. Use more samples, or a better encoder (warm_up_rounds, layer)."
            )

    def _join_structure(self, trainer: TrainerSurface, run: Path) -> None:
        """Restore the coalitions and models of a finished run; coalitions without a newcomer rest."""
        known = read_coalitions(run, trainer.datamodule.client_names())
        newcomers = [client for client in trainer.present_clients if client not in known]
        if not newcomers:
            raise ConfigurationError(f"FedCollab.structure={str(run)!r}: the data have no new client. Add new ones.")
        initial = trainer.federation.models[0]
        self._set_coalitions(trainer, self._join(trainer, known, newcomers))
        trainer.federation.models = [
            read_model(run, label, trainer.module, trainer.loop.flat) if label in known.values() else initial
            for label in range(trainer.federation.collaboration.num_models)
        ]
        rests = set(self.clusters) - {-1} - {self.clusters[client] for client in newcomers}
        trainer.federation.resting_clients = {client for client, label in enumerate(self.clusters) if label in rests}

    def _write(self, trainer: TrainerSurface) -> None:
        if trainer.is_global_zero:
            names = trainer.datamodule.client_names()
            trainer.run_log.write("distances.csv", distance_table(names, self.distances))
            trainer.run_log.write("distance_errors.csv", distance_table(names, self.distance_errors))
            rows = zip(names, trainer.federation.num_samples, self.clusters, strict=True)
            present = [row for row in rows if row[2] >= 0]
            trainer.write_table("coalitions.csv", ("client", "samples", "coalition"), present)


def read_distances(path: Path, names: list[str]) -> Tensor:
    """Read distances [N, N], NaN for missing pairs: CSV by clients' names, or ``.npy`` in their order."""
    import pandas as pd  # takes a second to import

    advice = "Give a CSV file with the clients' names in its first row and column, or a .npy matrix in their order."
    try:
        if path.suffix == ".npy":
            arrays = read_numpy(path, ".npy", f"{advice[0].lower()}{advice[1:]}", error=ConfigurationError)
            matrix = torch.from_numpy(arrays[""]).double()
        else:
            table = pd.read_csv(path, index_col=0, dtype={0: str}, keep_default_na=False, na_values=NOT_A_NUMBER)
            table = table.replace("NA", float("nan"))
            table.index = table.index.astype(str).map(csv_value)
            table.columns = table.columns.map(csv_value)
            if not set(names) & set(table.index) or list(table.index) != list(table.columns):
                raise ValueError("its first row and column are not the names of this run's clients")
            matrix = torch.from_numpy(table.reindex(index=names, columns=names).to_numpy("float64", copy=True))
    except ConfigurationError as error:
        raise ConfigurationError(f"FedCollab: distances in {error}") from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"FedCollab: distances in {path} cannot be read: {error}. {advice}") from error
    if matrix.shape != (len(names), len(names)):
        shape = f"shape {tuple(matrix.shape)} for {len(names)} clients"
        raise ConfigurationError(f"FedCollab: distances in {path} have {shape}. {advice}")
    matrix.fill_diagonal_(0.0)
    known = ~torch.isnan(matrix)
    symmetric = torch.equal(known, known.T) and torch.allclose(matrix.nan_to_num(), matrix.T.nan_to_num())
    if not symmetric or not bool(matrix[known].isfinite().all()):
        raise ConfigurationError(f"FedCollab: distances in {path} must be symmetric and finite (NaN: unknown).")
    return matrix


def distance_table(names: Sequence[str], distances: Tensor) -> str:
    """Content of ``distances.csv`` for distances [N, N]."""
    import pandas as pd  # takes a second to import

    table = pd.DataFrame(distances.numpy(), index=pd.Index(names, name="client"), columns=list(names))
    return csv_table(table, index=True)


def read_coalitions(run: Path, names: Sequence[str]) -> dict[int, int]:
    """Read client -> coalition of a finished run, whose clients must be this run's."""
    import pandas as pd  # takes a second to import

    path, place = run / "coalitions.csv", f"FedCollab.structure={str(run)!r}"
    try:
        rows = pd.read_csv(path, converters={"client": csv_value}, keep_default_na=False)
        table = rows.set_index("client")["coalition"].astype(int)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{place}: {path} cannot be read ({error}). Give a FedCollab run's folder.") from error
    missing = sorted(set(table.index) - set(names))
    if missing:
        raise ConfigurationError(f"{place}: the data lack its clients {', '.join(missing)}. Add them.")
    return {client: int(table[name]) for client, name in enumerate(names) if name in table.index}


def read_model(run: Path, label: int, module: nn.Module, flat: FlatModule) -> Weights:
    """Read the exported model of a run's coalition into ``module``, which it must fit, with its weights ``flat``."""
    path = run / "models" / f"shared_{label}.ckpt"
    advice = "Join a run with the same model, made with save_models (the default)."
    kind = f"a model of the kind {type(module).__name__} is"
    content = read_torch(path, kind, advice, error=ConfigurationError, place=f"FedCollab.structure: {path}")
    try:
        module.load_state_dict(content["state_dict"])
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        reason = f"{path} is not {kind} ({str(error).splitlines()[0]})"
        raise ConfigurationError(f"FedCollab.structure: {reason}. {advice}") from error
    return flat.collect().clone()
