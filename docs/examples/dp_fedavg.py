"""DP-FedAvg: clips every client's update and adds noise to the average, which hides any single client.

McMahan, Ramage, Talwar, Zhang: "Learning Differentially Private Recurrent Language Models", ICLR 2018
(https://arxiv.org/abs/1710.06963), algorithm 1 with flat clipping; all clients take part with equal weights.

=============  ==========================================  ======
paper          here                                        unit
=============  ==========================================  ======
Delta^k        a client's update, clipped                  [P]
S              ``clipping_norm``                           length
z              ``noise_multiplier``
sigma          z S / n with n contributing clients         length
=============  ==========================================  ======

Differs from the paper: no accountant; noise is drawn anew for every model of a collaboration.
"""

from typing import Any

import torch

from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import NonNegative, Positive, checked
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies import ClientTurn, ClientUpdate, FedAvg, ModelUpdate


class DPFedAvg(FedAvg):
    """Federated averaging of clipped updates, with Gaussian noise on the average.

    Args:
        clipping_norm: S > 0, largest norm of a client's update.
        noise_multiplier: z >= 0; the standard deviation of the noise in a weight is ``z S / n``. 0 only clips.
        noise_seed: seed of the noise; keep it secret, because it allows subtracting the noise.
        **settings: arguments of every strategy.

    Raises:
        ConfigurationError: a number is out of range.
    """

    @checked
    def __init__(
        self, clipping_norm: Positive = 1.0, noise_multiplier: NonNegative = 1.0, noise_seed: int = 0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.clipping_norm = clipping_norm
        self.noise_multiplier = noise_multiplier
        self.noise_seed = noise_seed

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        """``Delta^k min(1, S / ||Delta^k||)``, on top of the received model; clients have equal weights."""
        change = turn.combine((1.0, weights), (-1.0, turn.start))
        factor = min(1.0, self.clipping_norm / max(turn.dot(change, change) ** 0.5, 1e-12))
        clipped = turn.combine((1.0, turn.start), (factor, change), elsewhere=weights)
        return ClientUpdate(clipped, scale=1 / turn.num_samples)  # times its samples is one

    def aggregate(self, update: ModelUpdate) -> Weights:
        """The average plus ``N(0, (z S / n)^2)`` in every trained and shared weight."""
        rounds = int(update.state.get("rounds", 0))
        update.state["rounds"] = rounds + 1
        deviation = self.noise_multiplier * self.clipping_norm / len(update.contributions)
        if deviation == 0:
            return update.average
        draws = generator(self.noise_seed, update.model, rounds, "DPFedAvg")
        noise = update.average.clone()
        for _, vector in noise.floating():
            vector.copy_(torch.randn(vector.shape, dtype=vector.dtype, generator=draws))
        return update.combine((1.0, update.average), (deviation, noise))
