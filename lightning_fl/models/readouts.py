"""From atom vectors to one vector a molecule."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

from lightning_fl.models.segments import SparseMatrix, molecule_matrix

__all__ = ["LinearReadout"]


class LinearReadout(nn.Module):
    """Sum or mean of a molecule's atom vectors; 0 for a molecule without atoms.

    On a CPU as a product with a :class:`~lightning_fl.models.segments.SparseMatrix`, elsewhere PyG's scatter.

    Args:
        reduce: "sum" or "mean".
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
        """Vectors of the molecules.

        Args:
            atoms: [V, D].
            index: [V], the molecule of each atom.
            dim_size: number G of molecules; the last ones may have no atom.
            encode: in place of ``atoms``, what gives the product of this readout's matrix [G, V] and the atom vectors,
                for an encoder that has a shorter way to it.

        Returns:
            [G, D].
        """
        if encode is not None:
            return encode(molecule_matrix(index, dim_size, mean=self.reduce == "mean"))
        assert atoms is not None
        if atoms.device.type != "cpu" or torch.compiler.is_compiling():
            return scatter(atoms, index, dim=0, dim_size=dim_size, reduce=self.reduce)
        return molecule_matrix(index, dim_size, mean=self.reduce == "mean", dtype=atoms.dtype) @ atoms

    def extra_repr(self) -> str:
        """What the module says of itself."""
        return repr(self.reduce)
