"""pFedGraph: every client has a model of its own and averages it with those of clients that learned alike.

Ye, Ni, Wu, Chen, Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023,
https://proceedings.mlr.press/v202/ye23b.html. The mathematics is in ``functional/pfedgraph.py``.

=========================  ====================================================  ======
paper                      here                                                  shape
=========================  ====================================================  ======
θ_i                        ``trainer.models``, one a client                      [P]
Δθ_i                       w_i after its turn minus the run's first model        [P]
W, collaboration graph     A of ``trainer.collaboration``                        [N, N]
p                          samples over the sum of those who took part           [N]
=========================  ====================================================  ======

After the first round a client descends ``f_i(w) - λ Σ_j A_ij cos(w, w_j)``, with A and w_j of the last round that it
took part in. Differs from the authors' code: that adds ``+λ``, which pushes clients apart (``sign="push"``); rows are
projections in place of a solver's results; buffers are averaged, but neither compared nor in any norm. The server sends
``z_i = Σ_j A_ij w_j / |w_j|`` beside the model (``cosine_pull.py``), which is in the account.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.collaboration.cosine_pull import CosinePull
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_numbers
from lightning_fl.engine.probes.updates import change_blocks
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.engine.weights.local_parameters import spans_in
from lightning_fl.functional.gram import gram_matrix
from lightning_fl.functional.pfedgraph import collaboration_weights, mean_cosine, placed_rows, thresholded_cosines
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["PFedGraph"]


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
        layers: names of those whose updates are compared, as in ``PersonalLayers`` (the authors: ["fc*"]); else all.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, a layer matches nothing.
    """

    method_name = "pFedGraph"
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
        self.alpha, self.lam, self.sign, self.threshold, self.layers = alpha, lam, sign, threshold, layers

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Give every client a model; check the layers' names."""
        self._compared(trainer)
        self._initial, self._device = trainer.federation.models[0].clone(), trainer.processes.device
        self._pull = CosinePull(-self.lam if self.sign == "pull" else self.lam)
        trainer.federation.collaboration = Collaboration.local(trainer.num_clients)
        shares = Collaboration.fedavg(
            trainer.federation.num_samples
        ).aggregation  # so that the first model counts as sent
        trainer.federation.collaboration = Collaboration(
            shares.expand(trainer.num_clients, -1), torch.eye(trainer.num_clients)
        )

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Keep the model that the run begins with, as other callbacks have made it."""
        if trainer.federation.current_round == 0:
            self._initial = trainer.federation.models[0].clone()

    def gradient_correction(self, trainer: TrainerSurface, client: int) -> Callable[[Weights, Weights], None] | None:
        """The pull, from a client's second turn on."""
        return self._pull.correction(trainer, client)

    def select_collaborators(self, trainer: TrainerSurface) -> Collaboration:
        """The rows of those who took part."""
        clients = sorted(trainer.round.survivors)
        learned = change_blocks(
            [trainer.federation.models[client] for client in clients], self._initial, self._compared(trainer)
        )
        cosines = thresholded_cosines(gram_matrix(learned).cpu(), self.threshold)
        rows = collaboration_weights(
            cosines, [trainer.federation.num_samples[client] for client in clients], self.alpha
        )
        trainer.log("pfedgraph/own", float(rows.diagonal().mean()))
        trainer.log("pfedgraph/cosine", mean_cosine(cosines))
        self._pull.keep_centres(trainer, clients, rows)
        return Collaboration(placed_rows(rows, clients, trainer.num_clients))

    def _compared(self, trainer: TrainerSurface) -> list[Span]:
        return spans_in(self.layers, trainer.loop.averaged_spans(), "PFedGraph.layers")

    def state_dict(self) -> dict[str, Any]:
        """The first model; z_i are the clients'."""
        return {"initial": self._initial.state_dict(), "pulled": sorted(self._pull.clients)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the first model."""
        self._initial = Weights.from_state_dict(state["initial"], self._device)
        self._pull.clients = set(state["pulled"])
