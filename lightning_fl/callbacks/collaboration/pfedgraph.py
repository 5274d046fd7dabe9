"""pFedGraph: every client has its own model and averages it with those of clients with similar updates.

Ye, Ni, Wu, Chen, Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023,
https://proceedings.mlr.press/v202/ye23b.html. The mathematics is in ``functional/pfedgraph.py``.

After the first round a client descends ``f_i(w) - λ Σ_j A_ij cos(w, w_j)``, with A and w_j of the last round that it
took part in. Differs from the authors' code: that adds ``+λ``, which pushes clients apart (``sign="push"``); rows are
projections instead of a solver's results; buffers are averaged, but not compared and in no norm. The server sends
``z_i = Σ_j A_ij w_j / |w_j|`` with the model, which counts as traffic.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import NonNegative, Positive, checked_fields
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.probes.updates import change_blocks
from lightning_fl.engine.weights.flat import Span, Weights, inner_product, linear_combination
from lightning_fl.engine.weights.local_parameters import spans_in
from lightning_fl.functional import pfedgraph
from lightning_fl.functional.gram import gram_matrix
from lightning_fl.runtime.surface import TrainerSurface

#: Name of the client store of z_i.
_STORE = "pfedgraph"


@checked_fields
class PFedGraph(Callback):
    """A server averages each client's model with others by the cosines of their changes since the first model.

    Works with any strategy's local objective, with sampled clients (absent ones keep their models and are in no average
    of that round), ``PersonalLayers`` (not compared) and ``ClientArrivals``. Logs ``pfedgraph/own``, the mean weight of
    clients in their own models, and ``pfedgraph/cosine``, the mean cosine of two clients.

    Args:
        alpha: α, weight of the samples' shares against similarity.
        lam: λ, strength of the pull towards the models of the average; 0 for none.
        sign: "pull" as in the paper, or "push", the sign of the authors' code.
        threshold: larger cosines count as 1.
        layers: names of the layers to compare, as in ``PersonalLayers`` (the authors: ["fc*"]); default all.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, a layer matches nothing.
    """

    method_name = "pFedGraph"
    role = "collaboration"
    traits = ("model_per_client",)
    by_server = True

    alpha: Positive = 0.8
    lam: NonNegative = 0.01
    sign: Literal["pull", "push"] = "pull"
    threshold: Annotated[float, Ge(-1), Le(1)] = 0.9
    layers: list[str] | None = None

    def __post_init__(self) -> None:
        if self.layers == []:
            raise ConfigurationError("PFedGraph.layers=[]: name at least one layer, or leave it out to compare all.")
        self._strength = -self.lam if self.sign == "pull" else self.lam

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        self._compared(trainer)
        self._initial, self._device = trainer.federation.models[0].clone(), trainer.processes.device
        #: Clients with a z_i, on all ranks.
        self._pulled: set[int] = set()
        trainer.federation.collaboration = Collaboration.local(trainer.num_clients)
        shares = Collaboration.fedavg(trainer.federation.num_samples).aggregation  # counts the first model as sent
        shares = shares.expand(trainer.num_clients, -1)
        trainer.federation.collaboration = Collaboration(shares, torch.eye(trainer.num_clients))

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Keep the initial model, once all callbacks have changed it."""
        if trainer.federation.current_round == 0:
            self._initial = trainer.federation.models[0].clone()

    def correct_gradient_(self, trainer: TrainerSurface, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Add the gradient of ``strength z_i·w / |w|``, from a client's second turn on."""
        if turn.steps == 0:  # keep z_i of the turn, and the entries that are averaged
            kept = trainer.client_store(_STORE).get(turn.client) if self._strength else None
            self._centre = None if kept is None else Weights.from_state_dict(kept, trainer.processes.device)
            self._spans = trainer.loop.averaged_spans()
        if self._centre is None:
            return
        a, b = pfedgraph.pull_terms(
            inner_product(self._centre, weights, self._spans), inner_product(weights, weights, self._spans)
        )
        for dtype, vector in gradient.floating():
            vector.add_(self._centre.vectors[dtype], alpha=self._strength * a)
            vector.add_(weights.vectors[dtype], alpha=self._strength * b)

    def select_collaboration(self, trainer: TrainerSurface, weights: Mapping[int, Weights]) -> Collaboration:
        clients = list(weights)
        learned = change_blocks(list(weights.values()), self._initial, self._compared(trainer))
        cosines = pfedgraph.thresholded_cosines(gram_matrix(learned).cpu(), self.threshold)
        samples = [trainer.federation.num_samples[client] for client in clients]
        rows = pfedgraph.collaboration_weights(cosines, samples, self.alpha)
        trainer.log("pfedgraph/own", float(rows.diagonal().mean()))
        trainer.log("pfedgraph/cosine", pfedgraph.mean_cosine(cosines))
        self._keep_centres(trainer, clients, rows)
        return Collaboration(pfedgraph.placed_rows(rows, clients, trainer.num_clients))

    def _keep_centres(self, trainer: TrainerSurface, clients: Sequence[int], rows: Tensor) -> None:
        """Store z_i of the hosted among n participants, by their rows of A [n, n]; count the last ones' download."""
        if self._strength == 0:
            return
        spans, store = trainer.loop.averaged_spans(), trainer.client_store(_STORE)
        models = [trainer.federation.models[client] for client in clients]
        norms = [inner_product(model, model, spans) ** 0.5 for model in models]
        for client, model, row in zip(clients, models, rows.tolist(), strict=True):
            if client in trainer.hosted_clients:
                terms = [(weight, models[place]) for place, weight in pfedgraph.centre_terms(row, norms)]
                store[client] = linear_combination(model, terms, spans).state_dict()
        received = sorted(self._pulled.intersection(trainer.round.reports))  # received with the model
        trainer.federation.communication.add(dict.fromkeys(received, trainer.federation.communication.model_bytes), {})
        self._pulled |= set(clients)

    def _compared(self, trainer: TrainerSurface) -> list[Span]:
        return spans_in(self.layers, trainer.loop.averaged_spans(), "PFedGraph.layers")

    def state_dict(self) -> dict[str, Any]:
        return {"initial": self._initial.state_dict(), "pulled": sorted(self._pulled)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._initial = Weights.from_state_dict(state["initial"], self._device)
        self._pulled = set(state["pulled"])
