"""SCAFFOLD: control variates turn every client's steps towards the direction of all.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
2020 (https://arxiv.org/abs/1910.06378), Algorithm 1 with option II.

c_i is ``turn.kept["control"]`` and c ``update.state["control"]`` of each model, zero at first; K eta_l is
:func:`~lightning_fl.strategies.local_sgd.distance`, eta_g ``server_rate`` and |S| / N ``update.share``.

Differs from the paper, where b_i = 1/N: clients are weighted by their samples, in the average of the weights and in
``c = sum_i b_i c_i``, which holds over all clients of a model, drawn or not, so that steps end where ``sum_i b_i f_i``
is least. When a model's clients or their weights change, c and their c_i restart at zero. K is each client's own number
of steps; with momentum, the sum of the weights of its gradients. Twice the bytes of FedAvg travel each way. A gradient
is corrected before it is clipped.
"""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from lightning_fl.core.validation import Positive, checked
from lightning_fl.engine.client import ClientTurn, ClientUpdate
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg
from lightning_fl.strategies.local_sgd import distance, plain_sgd


class SCAFFOLD(FedAvg):
    """Steps ``w <- w - eta (grad f_i(w) + c - c_i)``, then ``c_i <- c_i - c + (x - y_i) / (K_i eta)``; needs one SGD.

    Args:
        server_rate: eta_g, how far the server goes towards the average.
        **settings: those of every strategy.
    """

    name = "scaffold"
    elementwise = True
    without_states = ("keep", "average")
    extra_vectors = ("control",)
    kept_for_model = ("control",)
    excludes = {  # noqa: RUF012 - of the class
        "model_per_client": "its control variates need a model that several clients train",
        "soft_assignment": "its control variates belong to one shared model, and a client that uses several has none",
        "drawn_weights": "the mean of its control variates needs the clients' own weights, not how often one is drawn",
        "pooled": "the mean of its control variates is over all clients, of which one trains",
    }

    @checked
    def __init__(self, *, server_rate: Positive = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.server_rate = server_rate

    def check_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse all but one plain SGD, from which gradients can be recovered."""
        plain_sgd(optimizers, type(self).__name__)

    def begin_client(self, turn: ClientTurn) -> None:
        """Start at zero control with a model that is new to the client."""
        if "control" not in turn.kept:
            turn.kept["control"] = turn.direction((0.0, turn.start))

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Add ``c - c_i``; nothing in a model's first round."""
        server = turn.model_state.get("control")
        if server is None:
            return
        for dtype, vector in gradient.floating():
            vector.add_(server.vectors[dtype]).sub_(turn.kept["control"].vectors[dtype])

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        """The weights, and the change of c_i."""
        went = distance(turn.rates, plain_sgd(turn.optimizers, type(self).__name__))
        if not went or turn.model is None:  # a mixture has no control
            return ClientUpdate(weights, vectors={"control": turn.direction((0.0, weights))})
        before = turn.kept["control"]
        change = [(1 / went, turn.start), (-1 / went, weights)]
        if (server := turn.model_state.get("control")) is not None:
            change.append((-1.0, server))
        turn.kept["control"] = turn.direction((1.0, before), *change)
        return ClientUpdate(weights, vectors={"control": turn.direction(*change)})

    def aggregate(self, update: ModelUpdate) -> Weights:
        """``w <- x + eta_g (average - x)``, ``c <- c + sum_(i in S) b_i (c_i' - c_i)``, b_i over all clients."""
        if share := update.share:
            before = update.state.get("control", update.direction((0.0, update.start)))
            update.state["control"] = update.direction((1.0, before), (share, update.vectors["control"]))
        if self.server_rate == 1:
            return update.average
        return update.combine((1 - self.server_rate, update.start), (self.server_rate, update.average))
