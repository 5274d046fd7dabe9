"""FedRep: train the client's own head on the shared body, then the body under that head.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning, ICML 2021
(https://arxiv.org/abs/2102.07078), Algorithm 1.

h_i are the layers that ``PersonalLayers`` names, phi all others; tau_h is ``head_epochs``, tau_phi the local work.

Differs from the paper: the body's updates are weighted by samples. Each phase has an optimiser of its own, as the
module configures it, which leaves the frozen part as it is (weight decay and momentum too); layers of normalisation of
the frozen part use and keep their statistics.
"""

from collections.abc import Sequence
from typing import Any

from lightning_fl.core.validation import Count, checked
from lightning_fl.engine.client import ClientTurn, LocalWork, Phase
from lightning_fl.strategies.fedavg import FedAvg


class FedRep(FedAvg):
    """The client's head alone, then the body alone, which is averaged. Needs the callback ``PersonalLayers``.

    With both trained at once it is FedPer: ``PersonalLayers`` with FedAvg. A client that was never drawn is evaluated
    with the first head on the shared body.

    Args:
        head_epochs: passes in which the head is trained; 10 in the paper.
        **settings: those of every strategy.
    """

    name = "fedrep"
    requires = {  # noqa: RUF012 - of the class
        "personal_layers": "it trains personal and shared layers in turn, and no callback makes any layer personal."
        " Add PersonalLayers(layers=[the head's name]) to trainer.callbacks"
    }

    @checked
    def __init__(self, *, head_epochs: Count = 10, **settings: Any) -> None:
        super().__init__(**settings)
        self.head = LocalWork(None, head_epochs)

    def phases(self, turn: ClientTurn) -> Sequence[Phase]:
        return Phase("personal", self.head), Phase("shared")
