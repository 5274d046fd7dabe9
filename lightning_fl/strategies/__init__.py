"""Strategies: how clients and server learn. Importing this package registers them with Fabric."""

from lightning.fabric.strategies import STRATEGY_REGISTRY

from lightning_fl.engine.client import ClientTurn, ClientUpdate
from lightning_fl.engine.learner import Contribution, ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg
from lightning_fl.strategies.federated import FederatedStrategy

__all__ = ["ClientTurn", "ClientUpdate", "Contribution", "FedAvg", "FederatedStrategy", "ModelUpdate", "Weights"]

for _strategy in (FedAvg,):
    _strategy.register_strategies(STRATEGY_REGISTRY)
