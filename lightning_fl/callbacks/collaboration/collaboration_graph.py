"""DPFL: every client has its own model and chooses by validation data which models to average it with.

Kharrat, Canini, Horváth, "DPFL: Decentralized Personalized Federated Learning", AISTATS 2025,
https://arxiv.org/abs/2406.06520, algorithms 1 to 3.

The candidates Omega_k are chosen once, after the first round (BGGC), the collaborators C_k every ``every_n_rounds``
(GGC); R(S) is minus the client's validation loss. The choice is :mod:`lightning_fl.functional.dpfl`.

Differs from the paper: the first round is the preprocessing. In a simulation every process holds all N models; a client
refers to at most B_c at once.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback, Drawings
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import NOT_A_NUMBER
from lightning_fl.core.metrics import default_metric, higher_is_better, monitored_metric
from lightning_fl.core.seeding import generator, shuffled
from lightning_fl.core.validation import Count, NonNegative, Size, checked_fields, number_of, number_or_share
from lightning_fl.engine.client import LocalWork
from lightning_fl.engine.probes.on_hosts import clients_without
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.dpfl import Collaborators, Model, batched_greedy_collaborators
from lightning_fl.runtime.surface import TrainerSurface

#: Models that a client without a budget holds at a time.
_BATCH = 16


@checked_fields
class CollaborationGraph(Callback):
    """Directed graph of collaboration: an edge from j to k means that client k's average includes j's model.

    Works with any strategy's local objective, with sampled clients (absent ones keep their models and are not
    collaborators in that round), ``PersonalLayers`` and ``ClientArrivals`` (a newcomer chooses among all present
    clients; the others keep their candidates). Writes ``communication.csv``.

    Args:
        budget: B_c, most collaborators of a client: a number, a share of N (0.1), or ``None`` for all; 0 trains alone.
        graph: "greedy" is DPFL; "random" gives every client ``budget`` others, drawn once; "full" all others;
            otherwise a CSV file with the clients' names in its first row and column, and a 1 in row k for the
            collaborators of client k, else 0.
        every_n_rounds: rounds between two greedy choices.
        init_epochs: epochs of the first round, after which candidates are chosen; default as in other rounds.
        monitor: validation metric of the greedy choice; default the first one with "loss" in its name, else the first.
        never_worse: choose no collaborators in a round in which the choice is worse on validation data than the own
            model; candidates stay. The paper's rule does not guarantee it, despite its remark 3: averages of models
            that trained apart are worse at first, and better after the next local training.
        loners: numbers of clients that choose no collaborators, while others may choose them.
        watched: clients (of doubtful data, say) whose share of the others' edges is logged as ``graph/watched_share``.

    Raises:
        ConfigurationError: a value or file does not fit (range, ``graph``, clients), or validation data are missing.
    """

    method_name = "DPFL"
    role = "collaboration"
    traits = ("model_per_client",)
    saved = ("candidates", "rounds", "chosen", "received", "_last_choice")

    budget: Size | NonNegative | None = None
    graph: str = "greedy"
    every_n_rounds: Count = 1
    init_epochs: Count | None = None
    monitor: str | None = None
    never_worse: bool = False
    loners: list[Size] | None = None
    watched: list[Size] | None = None

    def __post_init__(self) -> None:
        if self.graph == "random" and self.budget is None:
            raise ConfigurationError("CollaborationGraph.graph='random' needs a budget: set CollaborationGraph.budget.")
        others = {"budget": self.budget if self.graph != "random" else None, "monitor": self.monitor}
        if unused := [name for name, value in others.items() if value is not None and self.graph != "greedy"]:
            text = f"CollaborationGraph.{unused[0]}={others[unused[0]]!r} has no effect with graph={self.graph!r}"
            raise ConfigurationError(f"{text}: omit it.")
        if self.budget is not None:
            number_or_share("CollaborationGraph.budget", self.budget)
        self.loners, self.watched = self.loners or [], self.watched or []
        #: Client -> its candidates (Omega_k), once it took part.
        self.candidates: dict[int, list[int]] = {}
        #: Number of finished rounds at each entry of :attr:`chosen`.
        self.rounds: list[int] = []
        #: In each round, client -> its collaborators (C_k).
        self.chosen: list[dict[int, list[int]]] = []
        #: In each round, rows (k, j, models that k received from j), int32 [E, 3].
        self.received: list[Tensor] = []
        self._last_choice = 0

    def num_collaborators(self, num_clients: int) -> int | None:
        return None if self.budget is None else number_of(self.budget, num_clients)

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        self.__post_init__()
        for name, clients in (("loners", self.loners or []), ("watched", self.watched or [])):
            if not set(clients) <= set(range(count := trainer.num_clients)):
                raise ConfigurationError(f"CollaborationGraph.{name}={clients}: clients are 0..{count - 1}.")
        if self.graph != "greedy":
            self.candidates = self._given(trainer)
        elif self.budget != 0:
            self._check_validation(trainer)
        trainer.federation.collaboration = Collaboration.local(trainer.num_clients)
        if self.init_epochs is not None:
            trainer.round.first_work = LocalWork(None, self.init_epochs)

    def select_collaboration(self, trainer: TrainerSurface, weights: Mapping[int, Weights]) -> Collaboration:
        clients = list(weights)
        newcomers = [client for client in clients if client not in self.candidates]
        due = trainer.federation.current_round - self._last_choice >= self.every_n_rounds
        received = torch.zeros(trainer.num_clients, trainer.num_clients, dtype=torch.int32)
        if self.graph != "greedy":
            survivors, loners = trainer.round.survivors, self.loners or ()
            chosen = {k: [j for j in self.candidates[k] if j in survivors and k not in loners] for k in clients}
        else:
            chosen = self._greedy(trainer, clients, newcomers, due, received)
        if due or newcomers == clients:
            self._last_choice = trainer.federation.current_round
        edges = torch.zeros_like(received)
        for k in clients:
            edges[k, chosen[k]] = 1
        received = torch.maximum(received, edges)  # models not received for the choice are received for the average
        trainer.federation.communication.between_clients(received - edges)  # those of the average are counted with it
        self.rounds.append(trainer.federation.current_round + 1)
        self.chosen.append(chosen)
        self._log(trainer, clients, chosen, received)
        matrix = torch.eye(trainer.num_clients, dtype=torch.float64)  # absent clients keep their models
        samples = torch.tensor(trainer.federation.num_samples, dtype=torch.float64)
        for k, others in chosen.items():
            members = [k, *others]
            matrix[k] = 0.0
            matrix[k, members] = samples[members] / samples[members].sum()
        return Collaboration(matrix)

    def _greedy(
        self, trainer: TrainerSurface, clients: list[int], newcomers: list[int], due: bool, received: Tensor
    ) -> dict[int, list[int]]:
        """C_k of every client: chosen by newcomers and, if due, by the others."""
        total = self._sum(trainer, clients) if set(newcomers).intersection(trainer.hosted_clients) else None

        def choose(client: int) -> tuple[list[int], list[int] | None, list[int]] | None:
            """C_k, a newcomer's candidates, and the clients whose models it received; ``None`` to keep the choice."""
            if client in (self.loners or ()) or self.budget == 0:
                return [], [], []
            is_new = client in newcomers
            if not (is_new or due):
                return None
            possible = clients if is_new else self.candidates[client]
            others = [other for other in possible if other != client and other in trainer.round.survivors]
            result, asked = self._choose(trainer, client, others, total if is_new else None)
            chosen = result.never_worse if self.never_worse else result.chosen
            return (chosen, result.chosen, [*others, *asked]) if is_new else (chosen, None, others)

        found = trainer.on_hosts(clients, choose, "choosing collaborators failed")
        chosen: dict[int, list[int]] = {}
        for client in clients:
            choice = found[client]
            if choice is None:  # those of when it last took part
                last: list[int] = next((one[client] for one in reversed(self.chosen) if client in one), [])
                chosen[client] = [other for other in last if other in trainer.round.survivors]
                continue
            chosen[client], candidates, asked = choice
            if candidates is not None:
                self.candidates[client] = candidates
            for other in asked:
                received[client, other] += 1
        return chosen

    def _choose(
        self, trainer: TrainerSurface, client: int, others: list[int], everybody: Model | None
    ) -> tuple[Collaborators, list[int]]:
        """One client's choice, and the clients whose models it received in the deciding pass."""
        asked: list[int] = []

        def fetch(batch: Sequence[int]) -> list[list[Tensor]]:
            asked.extend(batch)
            return [[vector for _, vector in trainer.federation.models[other].floating()] for other in batch]

        own = trainer.federation.models[client]
        samples = trainer.federation.num_samples
        budget = self.num_collaborators(trainer.num_clients)
        result = batched_greedy_collaborators(
            lambda vectors: self._reward(trainer, client, own, vectors),
            [vector for _, vector in own.floating()],
            others,
            {other: samples[other] for other in others},
            samples[client],
            fetch,
            budget,
            generator(trainer.seed, trainer.federation.current_round, client, "collaborators"),
            batch_size=min(budget or _BATCH, _BATCH) if everybody is not None else None,
            everybody=everybody,
        )
        return result, asked

    def _sum(self, trainer: TrainerSurface, clients: list[int]) -> list[Tensor]:
        """``sum_i p_i w_i`` of all clients, the result of every client's first pass."""
        total = [torch.zeros_like(v, dtype=torch.float64) for _, v in trainer.federation.models[clients[0]].floating()]
        for client in clients:
            for part, (_, vector) in zip(total, trainer.federation.models[client].floating(), strict=True):
                part.add_(vector, alpha=trainer.federation.num_samples[client])
        return total

    def _reward(self, trainer: TrainerSurface, client: int, own: Weights, vectors: list[Tensor]) -> float:
        dtypes = [dtype for dtype, _ in own.floating()]
        weights = Weights({**own.vectors, **dict(zip(dtypes, vectors, strict=True))})
        personal = trainer.federation.personal_layers.get(client)
        if trainer.federation.personal is not None and personal is not None:
            trainer.federation.personal.insert_(weights, personal)
        report = trainer.loop.evaluator.evaluate(client, weights, "val")
        assert report is not None
        name = monitored_metric(report.metrics, self.monitor, default_metric(report.metrics), "CollaborationGraph")
        metric = report.metrics[name]
        return metric.value if higher_is_better(name, metric.higher_is_better) else -metric.value

    def _check_validation(self, trainer: TrainerSurface) -> None:
        if not trainer.loop.evaluator.evaluates("val"):
            raise ConfigurationError(f"CollaborationGraph: {type(trainer.module).__name__} needs a validation_step.")
        missing = clients_without(trainer.loop, "val", set(range(trainer.num_clients)).difference(self.loners or ()))
        if missing:
            count = f"{len(missing)} of {trainer.num_clients} clients have none (the first is {missing[0]})"
            raise ConfigurationError(f"CollaborationGraph chooses by validation data, and {count}: set data.split.")

    def _given(self, trainer: TrainerSurface) -> dict[int, list[int]]:
        """Candidates of a graph that does not depend on data."""
        count = trainer.num_clients
        others = {k: [j for j in range(count) if j != k] for k in range(count)}
        if self.graph == "full":
            return others
        if self.graph == "random":
            budget = self.num_collaborators(count)
            draws = {k: generator(trainer.seed, k, "random graph") for k in others}
            return {k: sorted(shuffled(possible, draws[k])[:budget]) for k, possible in others.items()}
        return read_graph(Path(self.graph), trainer.datamodule.client_names())

    def _log(self, trainer: TrainerSurface, clients: list[int], chosen: dict[int, list[int]], received: Tensor) -> None:
        edges_used = received.nonzero()
        counts = received[edges_used[:, 0], edges_used[:, 1]]
        self.received.append(torch.cat([edges_used.int(), counts[:, None]], dim=1))
        edges = {(k, j) for k, others in chosen.items() for j in others}
        possible = len(clients) * (len(clients) - 1)
        one_way = sum((j, k) not in edges for k, j in edges)
        models = int(received.sum())
        trainer.log("graph/edges", len(edges))
        trainer.log("graph/sparsity", 1 - len(edges) / possible if possible else 1.0)
        trainer.log("graph/asymmetry", one_way / len(edges) if edges else 0.0)
        if self.watched:
            others = [j for k, j in edges if k not in self.watched]
            trainer.log("graph/watched_share", sum(j in self.watched for j in others) / len(others) if others else 0.0)
        trainer.log("graph/models_received", models)
        trainer.log("graph/megabytes_received", models * trainer.federation.communication.model_bytes / 1e6)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        if not self.received:
            return
        names, size = trainer.client_names, trainer.federation.communication.model_bytes
        rows = [
            (turn, names[k], names[j], count, count * size, int(j in chosen[k]))
            for turn, chosen, received in zip(self.rounds, self.chosen, self.received, strict=True)
            for k, j, count in received.tolist()
        ]
        columns = ("round", "client", "received_from", "models", "bytes", "chosen")
        trainer.write_table("communication.csv", columns, rows)

    def figures(self, trainer: TrainerSurface, stage: str) -> Drawings:
        """The choices of up to six rounds, from the first to the last."""
        from lightning_fl.callbacks.figures.plots.run import draw_graph

        if stage == "fit" and self.chosen:
            yield "graph", partial(draw_graph, self.rounds, self.chosen, self.candidates, trainer.client_names)


def read_graph(path: Path, names: Sequence[str]) -> dict[int, list[int]]:
    """Read client -> its collaborators from a CSV file with a row and a column per client, and entries of 0 or 1."""
    import pandas as pd  # takes a second to import

    try:
        table = pd.read_csv(path, index_col=0, dtype={0: str}, keep_default_na=False, na_values=NOT_A_NUMBER)
    except (OSError, ValueError) as error:
        what = f"CollaborationGraph.graph={str(path)!r} cannot be read: {error}"
        raise ConfigurationError(f"{what}. Give greedy, random, full, or a CSV file.") from error
    table.index, table.columns = table.index.astype(str), table.columns.astype(str)
    missing = [name for name in names if name not in table.index or name not in table.columns]
    if missing or table.index.has_duplicates:
        name = (missing or table.index[table.index.duplicated()])[0]
        raise ConfigurationError(f"{path}: give client {name} exactly one row and one column.")
    matrix = table.loc[list(names), list(names)]
    for (k, j), entry in np.ndenumerate(matrix.to_numpy()):
        if entry not in (0, 1):
            raise ConfigurationError(f"{path}: row {names[k]}, column {names[j]} is {entry}. Give 1 or 0.")
    return {k: [j for j in range(len(names)) if j != k and matrix.iat[k, j] == 1] for k in range(len(names))}
