"""Federated averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017 (https://arxiv.org/abs/1602.05629), Algorithm 1.

C is the share of clients that a participation callback draws (without one, all), E ``local_epochs``, B the data's
``batch_size`` and n_k / n a row of ``Collaboration.aggregation``.

Differs from the paper: weights are normalised over the clients that took part (the paper's text does, its algorithm
box divides by all n); local work may be given in steps (``local_steps``) instead of epochs.
"""

from lightning_fl.strategies.federated import FederatedStrategy


class FedAvg(FederatedStrategy):
    """``w <- sum_i beta_i w_i`` over the round's cohort.

    Example:
        >>> import lightning_fl.strategies  # registers the names with Fabric
        >>> from lightning.fabric import Fabric
        >>> Fabric(strategy="fedavg", accelerator="cpu", devices=1).strategy.name
        'fedavg'
    """

    name = "fedavg"
