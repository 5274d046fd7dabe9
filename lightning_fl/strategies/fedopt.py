"""Servers with an optimiser: FedAvgM, FedAdagrad, FedAdam and FedYogi.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019
(https://arxiv.org/abs/1909.06335), for FedAvgM; Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan:
Adaptive Federated Optimization, ICLR 2021 (https://arxiv.org/abs/2003.00295), Algorithm 2, for the others.

Delta_t is the average of the clients' weights less the start, m_t (v of Hsu et al.) ``update.state["momentum"]``, v_t
``update.state["variance"]``, ``tau^2`` at first, and eta ``server_rate``.

As in the paper's algorithm there is no bias correction. Each shared model has its own state; buffers take the plain
average. Differs from the paper: Delta is weighted by samples; v_{-1} is tau^2, the least that the paper allows.
"""

from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor

from lightning_fl.core.validation import Positive, checked
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg

#: Decay factor of a running average.
_Decay = Annotated[float, Interval(ge=0, lt=1)]

#: With a model for each client.
_CAUTION = "no paper has a server optimiser for models with a single client: compare with fedavg"


class FedAvgM(FedAvg):
    """``v <- momentum v + Delta``, ``w <- x + server_rate v``.

    Without momentum and with a rate of 1 it is federated averaging, to the bit.

    Args:
        momentum: beta.
        server_rate: eta.
        **settings: those of every strategy.
    """

    name = "fedavgm"
    cautions = {"model_per_client": _CAUTION}  # noqa: RUF012 - of the class

    @checked
    def __init__(self, *, momentum: _Decay = 0.9, server_rate: Positive = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.momentum, self.server_rate = momentum, server_rate

    def aggregate(self, update: ModelUpdate) -> Weights:
        if not self.momentum and self.server_rate == 1:
            return update.average
        change = [(1.0, update.average), (-1.0, update.start)]
        if (before := update.state.get("momentum")) is not None:
            change.append((self.momentum, before))
        update.state["momentum"] = update.direction(*change)
        return update.combine((1.0, update.start), (self.server_rate, update.state["momentum"]))


class _Adaptive(FedAvg):
    """``m <- beta_1 m + (1 - beta_1) Delta``, ``w <- x + eta m / (sqrt(v) + tau)``.

    Args:
        server_rate: eta; 0.01 to 1 in the paper, to be chosen by validation. A weight moves by up to about
            twice eta in a round, however little the clients' weights do.
        momentum: beta_1.
        tau: adaptivity; keeps the steps of small changes small.
        **settings: those of every strategy.
    """

    cautions = {"model_per_client": _CAUTION}  # noqa: RUF012 - of the class

    @checked
    def __init__(
        self, *, server_rate: Positive = 0.01, momentum: _Decay = 0.9, tau: Positive = 1e-3, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.server_rate, self.momentum, self.tau = server_rate, momentum, tau

    def variance(self, variance: Tensor, squared: Tensor) -> Tensor:
        """The next v, from the last one and ``Delta^2``, both [P]."""
        raise NotImplementedError

    def aggregate(self, update: ModelUpdate) -> Weights:
        share, last = 1 - self.momentum, update.state.get("variance")
        moved = [(share, update.average), (-share, update.start)]
        if (before := update.state.get("momentum")) is not None:
            moved.append((self.momentum, before))
        momentum = update.direction(*moved)
        step, variance = momentum.clone(), update.direction((1.0, update.average), (-1.0, update.start))
        for dtype, vector in variance.floating():
            known = torch.full_like(vector, self.tau**2) if last is None else last.vectors[dtype]
            vector.copy_(self.variance(known, vector.square()))
            step.vectors[dtype].div_(vector.sqrt() + self.tau)
        update.state["momentum"], update.state["variance"] = momentum, variance
        return update.combine((1.0, update.start), (self.server_rate, step))


class FedAdagrad(_Adaptive):
    """``v <- v + Delta^2``.

    Args:
        momentum: beta_1, 0 in the paper.
        **settings: ``server_rate`` (eta), ``tau`` (adaptivity), and those of every strategy.
    """

    name = "fedadagrad"

    def __init__(self, *, momentum: _Decay = 0.0, **settings: Any) -> None:
        super().__init__(momentum=momentum, **settings)

    def variance(self, variance: Tensor, squared: Tensor) -> Tensor:
        return variance + squared


class FedAdam(_Adaptive):
    """``v <- beta_2 v + (1 - beta_2) Delta^2``.

    Args:
        beta2: beta_2.
        **settings: ``server_rate`` (eta), ``momentum`` (beta_1), ``tau`` (adaptivity), and those of every strategy.
    """

    name = "fedadam"

    @checked
    def __init__(self, *, beta2: _Decay = 0.99, **settings: Any) -> None:
        super().__init__(**settings)
        self.beta2 = beta2

    def variance(self, variance: Tensor, squared: Tensor) -> Tensor:
        return self.beta2 * variance + (1 - self.beta2) * squared


class FedYogi(FedAdam):
    """``v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2)``. Arguments are those of :class:`FedAdam`."""

    name = "fedyogi"

    def variance(self, variance: Tensor, squared: Tensor) -> Tensor:
        return variance - (1 - self.beta2) * squared * (variance - squared).sign()
