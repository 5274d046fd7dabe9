"""FedNova: clients that took more steps do not count for more.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
NeurIPS 2020 (https://arxiv.org/abs/2007.07481), equations 6 to 8.

tau_i is ``turn.report.num_steps``, ``||a_i||_1`` :func:`~lightning_fl.strategies.local_sgd.distance`, in steps, d_i
``(x - y_i) / (eta a_i)``, p_i the weight of a contribution and ``tau_eff = sum_i p_i a_i``.

Differs from the paper: p_i and tau_eff are over the participants. With momentum, optimisers are fresh in every round.
For optimisers other than SGD, a_i is the number of steps. Learning rates that change within a turn enter a_i relative
to the optimiser's default rate.
"""

from collections.abc import Sequence

from torch.optim import Optimizer

from lightning_fl.engine.client import ClientTurn, ClientUpdate
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg
from lightning_fl.strategies.local_sgd import distance, plain_sgd


class FedNova(FedAvg):
    """``w <- x - tau_eff sum_i p_i (x - y_i) / a_i``, for each model over its cohort.

    Where all clients take the same number of steps it is federated averaging, up to the rounding of the sum. A client
    that took no step is left out. Buffers are averaged with the weights p_i / a_i.

    Raises:
        ConfigurationError: optimisers with momentum are not one SGD that :func:`.plain_sgd` accepts.
    """

    name = "fednova"
    without_states = ("keep", "average")
    excludes = {  # noqa: RUF012 - of the class
        "model_per_client": "its lengthened step needs a model that several clients train",
        "mixed_starts": "its lengthened step would go from a model that no client started with",
        "drawn_weights": "there a client's weight is how often it is drawn, which FedNova would divide by its steps",
    }

    def check_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        _momentum(optimizers)

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        """``y_i``, weighted by ``1 / a_i``."""
        whole = float(turn.optimizers[0].defaults.get("lr") or 1.0)
        accumulated = distance([rate / whole for rate in turn.rates], _momentum(turn.optimizers))
        if not accumulated:
            return ClientUpdate(weights, scale=0.0)
        return ClientUpdate(weights, 1 / accumulated, {"accumulated_steps": accumulated})

    def aggregate(self, update: ModelUpdate) -> Weights:
        """``x + s (average - x)`` with ``s = tau_eff sum_i p_i / a_i``, 1 where all steps are equal."""
        told = [one for one in update.contributions if one.report.scale]
        steps = [one.report.numbers["accumulated_steps"] for one in told]
        if len(set(steps)) <= 1:  # none: no client of this average took a step
            return update.average
        total = sum(one.weight for one in told)
        effective = sum(one.weight * a for one, a in zip(told, steps, strict=True)) / total
        step = effective * sum(one.weight / a for one, a in zip(told, steps, strict=True)) / total
        return update.combine((1 - step, update.start), (step, update.average))


def _momentum(optimizers: Sequence[Optimizer]) -> float:
    """SGD's momentum; 0 for other optimisers."""
    some = any(group.get("momentum") for one in optimizers for group in one.param_groups)
    return plain_sgd(optimizers, "FedNova") if some else 0.0
