"""Strategies: how clients and server learn. Importing this package registers them with Fabric."""

from lightning_fl.engine.client import ClientTurn, ClientUpdate
from lightning_fl.engine.learner import Contribution, ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg
from lightning_fl.strategies.federated import FederatedStrategy

__all__ = ["ClientTurn", "ClientUpdate", "Contribution", "FedAvg", "FederatedStrategy", "ModelUpdate", "Weights"]
