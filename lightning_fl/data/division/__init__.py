"""Division of one client's samples into training, validation and test samples.

Random draws for a client depend on the seed and the client only, so that no division depends on the other clients.
``data.division`` is one of these classes; ``data.folds`` and ``data.fold`` choose parts of cross-validation.
"""

from lightning_fl.data.division.clients import ClientShares, DivisionSettings, divide_clients
from lightning_fl.data.division.division import Cut, Division, Folds
from lightning_fl.data.division.given import ColumnDivision, ListDivision
from lightning_fl.data.division.grouped import GroupDivision, ScaffoldDivision
from lightning_fl.data.division.hashed import HashDivision
from lightning_fl.data.division.ordered import OrderDivision
from lightning_fl.data.division.random import RandomDivision, cut_splits, split_indices

__all__ = [
    "ClientShares",
    "ColumnDivision",
    "Cut",
    "Division",
    "DivisionSettings",
    "Folds",
    "GroupDivision",
    "HashDivision",
    "ListDivision",
    "OrderDivision",
    "RandomDivision",
    "ScaffoldDivision",
    "cut_splits",
    "divide_clients",
    "split_indices",
]
