"""Strategies: how clients and server learn. Importing this package registers them with Fabric."""

from lightning_fl.engine.client import ClientTurn as ClientTurn
from lightning_fl.engine.client import ClientUpdate as ClientUpdate
from lightning_fl.engine.client import LocalWork as LocalWork
from lightning_fl.engine.client import Phase as Phase
from lightning_fl.engine.learner import Contribution as Contribution
from lightning_fl.engine.learner import ModelUpdate as ModelUpdate
from lightning_fl.engine.weights.flat import Weights as Weights
from lightning_fl.strategies.apfl import APFL as APFL
from lightning_fl.strategies.ditto import Ditto as Ditto
from lightning_fl.strategies.fedavg import FedAvg as FedAvg
from lightning_fl.strategies.federated import FederatedStrategy as FederatedStrategy
from lightning_fl.strategies.fedfa import FedFA as FedFA
from lightning_fl.strategies.fednova import FedNova as FedNova
from lightning_fl.strategies.fedopt import FedAdagrad as FedAdagrad
from lightning_fl.strategies.fedopt import FedAdam as FedAdam
from lightning_fl.strategies.fedopt import FedAvgM as FedAvgM
from lightning_fl.strategies.fedopt import FedYogi as FedYogi
from lightning_fl.strategies.fedprox import FedProx as FedProx
from lightning_fl.strategies.fedrep import FedRep as FedRep
from lightning_fl.strategies.maxfl import MaxFL as MaxFL
from lightning_fl.strategies.perfedavg import PerFedAvg as PerFedAvg
from lightning_fl.strategies.pfedme import PFedMe as PFedMe
from lightning_fl.strategies.qfedavg import QFedAvg as QFedAvg
from lightning_fl.strategies.scaffold import SCAFFOLD as SCAFFOLD

__all__ = sorted(name for name, value in vars().items() if isinstance(value, type))
