"""FedDyn: clients keep a correction of their gradient, and the server corrects the average accordingly.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on Dynamic Regularization", ICLR
2021 (https://arxiv.org/abs/2111.04263), algorithm 1.

=========================  ================================================  ======
paper                      here                                              shape
=========================  ================================================  ======
∇L_k(θ_k^{t-1})            ``turn.kept["gradient"]``, 0 at first             [P]
h^t                        ``update.state["h"]``, 0 at first                 [P]
θ^{t-1}, θ_k^t             ``turn.start``, the client's weights              [P]
α                          ``alpha``
m, P_t                     ``update.num_clients``, ``update.contributions``
=========================  ================================================  ======

Differs from the paper: local steps solve the client's problem approximately; every model of a collaboration has its own
h; buffers (statistics of BatchNorm) are averaged as in FedAvg, and personal layers stay local.
"""

from typing import Any

from lightning_fl.core.validation import Positive, checked
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies import ClientTurn, ClientUpdate, FedAvg, ModelUpdate


class FedDyn(FedAvg):
    """Federated averaging with dynamic regularisation and equal weights of clients.

    Args:
        alpha: strength of the pull to the shared model; the paper's grid is 0.1, 0.01, 0.001.
        **settings: arguments of every strategy.

    Raises:
        ConfigurationError: alpha is out of range.
    """

    @checked
    def __init__(self, alpha: Positive = 0.01, **settings: Any) -> None:
        super().__init__(**settings)
        self.alpha = alpha

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """``∇L_k(θ) - ∇L_k(θ_k^{t-1}) + α (θ - θ^{t-1})``."""
        last = turn.kept.get("gradient")
        for dtype, vector in gradient.floating():
            vector.add_(weights.vectors[dtype] - turn.start.vectors[dtype], alpha=self.alpha)
            if last is not None:
                vector.sub_(last.vectors[dtype])

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        """``∇L_k(θ_k^t) = ∇L_k(θ_k^{t-1}) - α (θ_k^t - θ^{t-1})``, if the regularised problem is solved."""
        last = turn.kept.get("gradient") or turn.direction((0.0, turn.start))
        turn.kept["gradient"] = turn.direction((1.0, last), (-self.alpha, weights), (self.alpha, turn.start))
        return ClientUpdate(weights, scale=1 / turn.num_samples)  # times its samples is one

    def aggregate(self, update: ModelUpdate) -> Weights:
        """``h^t = h^{t-1} - (α/m) Σ (θ_k^t - θ^{t-1})``, ``θ^t = mean θ_k^t - h^t / α``."""
        last = update.state.get("h") or update.direction((0.0, update.start))
        share = self.alpha * len(update.contributions) / update.num_clients
        update.state["h"] = update.direction((1.0, last), (-share, update.average), (share, update.start))
        return update.combine((1.0, update.average), (-1 / self.alpha, update.state["h"]))
