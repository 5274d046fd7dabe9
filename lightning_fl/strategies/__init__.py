"""Strategies: how clients and server learn. Importing this package registers them with Fabric."""

from lightning_fl.engine.client import ClientTurn, ClientUpdate
from lightning_fl.engine.learner import Contribution, ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg
from lightning_fl.strategies.federated import FederatedStrategy
from lightning_fl.strategies.fedfa import FedFA
from lightning_fl.strategies.maxfl import MaxFL
from lightning_fl.strategies.qfedavg import QFedAvg

__all__ = [
    "ClientTurn",
    "ClientUpdate",
    "Contribution",
    "FedAvg",
    "FedFA",
    "FederatedStrategy",
    "MaxFL",
    "ModelUpdate",
    "QFedAvg",
    "Weights",
]
