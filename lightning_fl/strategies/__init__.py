"""Strategies: how clients and server learn. Importing this package registers them with Fabric."""

from lightning.fabric.strategies import STRATEGY_REGISTRY

from lightning_fl.strategies.fedavg import FedAvg
from lightning_fl.strategies.federated import FederatedStrategy

__all__ = ["FedAvg", "FederatedStrategy"]

for _strategy in (FedAvg,):
    _strategy.register_strategies(STRATEGY_REGISTRY)
