"""Strategies: how clients and server learn. Importing this package registers them with Fabric."""

from lightning_fl.engine.client import ClientTurn, ClientUpdate, LocalWork, Phase
from lightning_fl.engine.learner import Contribution, ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.apfl import APFL
from lightning_fl.strategies.ditto import Ditto
from lightning_fl.strategies.fedavg import FedAvg
from lightning_fl.strategies.federated import FederatedStrategy
from lightning_fl.strategies.fedfa import FedFA
from lightning_fl.strategies.fednova import FedNova
from lightning_fl.strategies.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from lightning_fl.strategies.fedprox import FedProx
from lightning_fl.strategies.fedrep import FedRep
from lightning_fl.strategies.maxfl import MaxFL
from lightning_fl.strategies.perfedavg import PerFedAvg
from lightning_fl.strategies.pfedme import PFedMe
from lightning_fl.strategies.qfedavg import QFedAvg
from lightning_fl.strategies.scaffold import SCAFFOLD

__all__ = [
    "APFL",
    "SCAFFOLD",
    "ClientTurn",
    "ClientUpdate",
    "Contribution",
    "Ditto",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedFA",
    "FedNova",
    "FedProx",
    "FedRep",
    "FedYogi",
    "FederatedStrategy",
    "LocalWork",
    "MaxFL",
    "ModelUpdate",
    "PFedMe",
    "PerFedAvg",
    "Phase",
    "QFedAvg",
    "Weights",
]
