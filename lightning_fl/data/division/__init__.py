"""How one client's samples are divided into training, validation and test samples.

What is drawn for a client follows from the seed and the client alone, so that no division depends on who else takes
part. ``data.division`` takes one of these classes; ``data.folds`` and ``data.fold`` choose parts of cross-validation.
"""

from lightning_fl.data.division.clients import ClientShares, DivisionSettings, divide_clients
from lightning_fl.data.division.division import Cut, Division
from lightning_fl.data.division.given import ColumnDivision, ListDivision
from lightning_fl.data.division.grouped import GroupDivision, ScaffoldDivision
from lightning_fl.data.division.hashed import HashDivision
from lightning_fl.data.division.ordered import OrderDivision
from lightning_fl.data.division.random import RandomDivision, cut_splits

__all__ = [
    "ClientShares",
    "ColumnDivision",
    "Cut",
    "Division",
    "DivisionSettings",
    "GroupDivision",
    "HashDivision",
    "ListDivision",
    "OrderDivision",
    "RandomDivision",
    "ScaffoldDivision",
    "cut_splits",
    "divide_clients",
]
