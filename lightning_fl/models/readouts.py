"""Readouts from atom vectors to one vector per molecule."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn import aggr
from torch_geometric.utils import scatter

from lightning_fl.models.segments import SparseMatrix, molecule_matrix, multiplies


class LinearReadout(nn.Module):
    """Sum or mean of a molecule's atom vectors; 0 for a molecule without atoms.

    Computed on a CPU as a product with a :class:`~lightning_fl.models.segments.SparseMatrix`, elsewhere by PyG.
    """

    def __init__(self, reduce: Literal["sum", "mean"]) -> None:
        super().__init__()
        self.reduce = reduce

    def forward(
        self,
        atoms: Tensor | None = None,
        *,
        index: Tensor,
        dim_size: int,
        encode: Callable[[SparseMatrix], Tensor] | None = None,
    ) -> Tensor:
        """Compute the vectors [G, D] of the molecules.

        ``index`` [V] is the molecule of each atom [V, D]; the last of the ``dim_size`` = G molecules may have no atom.
        ``encode``, given instead of ``atoms``, multiplies this readout's matrix [G, V] by the atom vectors, faster.
        """
        if encode is not None:
            return encode(molecule_matrix(index, dim_size, mean=self.reduce == "mean"))
        assert atoms is not None
        if not multiplies(atoms):
            return scatter(atoms, index, dim=0, dim_size=dim_size, reduce=self.reduce)
        return molecule_matrix(index, dim_size, mean=self.reduce == "mean", dtype=atoms.dtype) @ atoms


class Set2Set(aggr.Set2Set):
    """PyG's set2set, on a CPU in the precision of its weights: not every CPU has an LSTM in bfloat16."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the vectors [G, 2 D] of the molecules from those [V, D] of the atoms."""
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.to(self.lstm.weight_ih_l0.dtype), *args, **kwargs)
