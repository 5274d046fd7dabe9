"""pFedGraph: every client has a model of its own and averages it with those of clients that learned alike.

Ye, Ni, Wu, Chen, Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023,
https://proceedings.mlr.press/v202/ye23b.html. The mathematics is in ``functional/pfedgraph.py``.

=========================  ====================================================  ======
paper                      here                                                  shape
=========================  ====================================================  ======
θ_i                        ``trainer.models``, one a client                      [P]
Δθ_i, from the first       w_i after its turn minus the run's first model        [P]
model on
W, collaboration graph     A of ``trainer.collaboration``, rows by               [N, N]
                           ``collaboration_weights``
p                          samples over the sum of those who took part           [N]
α, λ                       ``alpha``, ``lam``
Σ_j W_ij cos(θ, θ_j)       ``z_i·w / |w|``, ``z_i = Σ_j A_ij w_j / |w_j|``       [P]
=========================  ====================================================  ======

After the first round a client descends ``f_i(w) - λ Σ_j A_ij cos(w, w_j)``, with A and w_j of the last round that it
took part in. Differs from the authors' code: that adds ``+λ``, which pushes clients apart (``sign="push"``); rows are
projections in place of a solver's results; buffers (statistics of BatchNorm) are averaged, but neither compared nor in
any norm. The server sends z_i beside the model, which is in the account.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.collaboration import Collaboration
from lightning_fl.engine.probes.updates import column_blocks
from lightning_fl.engine.weights.flat import Span, Weights, combined, inner_product
from lightning_fl.engine.weights.local_parameters import matches
from lightning_fl.errors import ConfigurationError
from lightning_fl.functional.gram import gram_matrix
from lightning_fl.functional.pfedgraph import collaboration_weights, pull_terms, thresholded_cosines
from lightning_fl.options import check_numbers
from lightning_fl.surface import TrainerSurface

__all__ = ["PFedGraph"]

#: What hosted clients keep: z_i.
_STORE = "pfedgraph"


class PFedGraph(Callback):
    """A server averages each client's model with others by the cosines of what they have learned since the first one.

    Works with any strategy's local objective, with sampled clients (who takes no part keeps its model and is in
    nobody's average of that round), ``PersonalLayers`` (not compared) and ``ClientArrivals``. Logs ``pfedgraph/own``,
    the mean weight of clients in their own models, and ``pfedgraph/cosine``, the mean cosine of two clients.

    Args:
        alpha: α, weight of the samples' shares against similarity.
        lam: λ, the pull of clients' models to those that they are averaged with; 0 for none.
        sign: "pull" as the paper has it, or "push", the sign of the authors' code.
        threshold: two clients whose cosine is above it are alike: it counts as 1.
        layers: names of submodules or parameters whose updates are compared, with the wildcards ``*`` and ``?``:
            ["fc*"], as the authors do by default; ``None`` for all that is shared and trained.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, a layer matches nothing.
    """

    role = "collaboration"
    traits = ("model_per_client",)
    by_server = True

    def __init__(
        self,
        *,
        alpha: float = 0.8,
        lam: float = 0.01,
        sign: Literal["pull", "push"] = "pull",
        threshold: float = 0.9,
        layers: list[str] | None = None,
    ) -> None:
        check_numbers(self, above=0, alpha=alpha)
        check_numbers(self, at_least=0, lam=lam)
        check_numbers(self, at_least=-1, at_most=1, threshold=threshold)
        if sign not in ("pull", "push"):
            raise ConfigurationError(f"PFedGraph.sign={sign!r}: give pull or push.")
        if layers == []:
            raise ConfigurationError("PFedGraph.layers=[]: name at least one layer, or leave it out for all.")
        self.alpha, self.lam, self.sign, self.threshold = alpha, lam, sign, threshold
        self.layers = layers

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Give every client a model; check the layers' names."""
        self._compared(trainer)
        self._initial = trainer.models[0].clone()
        self._device = trainer.processes.device
        #: Who has a z_i, on whatever rank: it takes part for the second time.
        self._pulled: set[int] = set()
        trainer.collaboration = Collaboration.local(trainer.num_clients)
        shares = Collaboration.fedavg(trainer.num_samples).aggregation  # so that the first model counts as sent
        trainer.collaboration = Collaboration(shares.expand(trainer.num_clients, -1), torch.eye(trainer.num_clients))

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Keep the model that the run begins with, as other callbacks have made it."""
        if trainer.current_round == 0:
            self._initial = trainer.models[0].clone()

    def gradient_correction(self, trainer: TrainerSurface, client: int) -> Callable[[Weights, Weights], None] | None:
        """The pull, from a client's second turn on."""
        kept = trainer.client_store(_STORE).get(client)
        if kept is None or self.lam == 0:
            return None
        centre, spans = Weights.from_state_dict(kept, self._device), trainer.loop.averaged_spans()
        strength = -self.lam if self.sign == "pull" else self.lam

        def correct_(gradient: Weights, weights: Weights) -> None:
            a, b = pull_terms(inner_product(centre, weights, spans), inner_product(weights, weights, spans))
            for dtype, vector in gradient.floating():
                vector.add_(centre.vectors[dtype], alpha=strength * a)
                vector.add_(weights.vectors[dtype], alpha=strength * b)

        return correct_

    def select_collaborators(self, trainer: TrainerSurface) -> Collaboration:
        """The rows of those who took part."""
        clients = sorted(trainer.survivors)
        cosines = thresholded_cosines(gram_matrix(self._updates(trainer, clients)).cpu(), self.threshold)
        rows = collaboration_weights(cosines, [trainer.num_samples[client] for client in clients], self.alpha)
        matrix = torch.eye(trainer.num_clients, dtype=torch.float64)
        for client, row in zip(clients, rows, strict=True):
            matrix[client, client] = 0.0
            matrix[client, clients] = row
        trainer.log("pfedgraph/own", float(rows.diagonal().mean()))
        others = len(clients) * (len(clients) - 1)
        trainer.log("pfedgraph/cosine", float((cosines.sum() - len(clients)) / others) if others else 1.0)
        if self.lam:
            self._keep_centres(trainer, clients, rows)
        return Collaboration(matrix)

    def _keep_centres(self, trainer: TrainerSurface, clients: list[int], rows: Tensor) -> None:
        """z_i of those who took part, where they are hosted."""
        spans, store = trainer.loop.averaged_spans(), trainer.client_store(_STORE)
        norms = [inner_product(trainer.models[client], trainer.models[client], spans) ** 0.5 for client in clients]
        hosted = set(trainer.hosted_clients)
        for client, row in zip(clients, rows.tolist(), strict=True):
            if client in hosted:
                terms = [
                    (weight / norm if norm else 0.0, trainer.models[other])
                    for other, weight, norm in zip(clients, row, norms, strict=True)
                    if weight > 0
                ]
                store[client] = combined(trainer.models[client], terms, spans).state_dict()
        received = sorted(self._pulled.intersection(trainer.client_reports))  # when their turns began
        trainer.communication.add(dict.fromkeys(received, trainer.communication.model_bytes), {})
        self._pulled |= set(clients)

    def _updates(self, trainer: TrainerSurface, clients: list[int]) -> Iterator[Tensor]:
        """What clients have learned since the first model, a block of columns [n, c] at a time."""
        for dtype, part in column_blocks(self._compared(trainer)):
            learned = torch.stack([trainer.models[client].vectors[dtype][part] for client in clients])
            yield learned - self._initial.vectors[dtype][part]

    def _compared(self, trainer: TrainerSurface) -> list[Span]:
        """The parameters whose updates are compared."""
        spans = trainer.loop.averaged_spans()
        if self.layers is None:
            return spans
        for pattern in self.layers:
            if not any(matches(span.name, pattern) for span in spans):
                names = ", ".join(dict.fromkeys(span.name.rpartition(".")[0] or span.name for span in spans))
                raise ConfigurationError(
                    f"PFedGraph.layers: {pattern!r} matches no shared, trained parameter. Choose of {names}, or leave"
                    " it out for all."
                )
        return [span for span in spans if any(matches(span.name, pattern) for pattern in self.layers)]

    def state_dict(self) -> dict[str, Any]:
        """The first model; z_i are the clients'."""
        return {"initial": self._initial.state_dict(), "pulled": sorted(self._pulled)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the first model."""
        self._initial = Weights.from_state_dict(state["initial"], self._device)
        self._pulled = set(state["pulled"])
