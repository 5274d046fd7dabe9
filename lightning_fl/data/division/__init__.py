"""Division of one client's samples into training, validation and test samples.

No division depends on the other clients' samples: draws depend on the seed and the client's name, or its number.
``data.division`` is one of these classes; ``data.folds`` and ``data.fold`` choose parts of cross-validation.
"""

from typing import TYPE_CHECKING

from lightning_fl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from lightning_fl.data.division.division import Cut as Cut
    from lightning_fl.data.division.division import Division as Division
    from lightning_fl.data.division.division import Folds as Folds
    from lightning_fl.data.division.division import RandomDivision as RandomDivision
    from lightning_fl.data.division.division import split_indices as split_indices
    from lightning_fl.data.division.given import ColumnDivision as ColumnDivision
    from lightning_fl.data.division.given import ListDivision as ListDivision
    from lightning_fl.data.division.grouped import GroupDivision as GroupDivision
    from lightning_fl.data.division.grouped import HashDivision as HashDivision
    from lightning_fl.data.division.grouped import OrderDivision as OrderDivision
    from lightning_fl.data.division.grouped import ScaffoldDivision as ScaffoldDivision
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
