"""Readouts from atom vectors to one vector per molecule."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch_geometric.utils import scatter

from lightning_fl.models.segments import SparseMatrix, molecule_matrix, multiplies

__all__ = ["LinearReadout"]


class LinearReadout(nn.Module):
    """Sum or mean of a molecule's atom vectors; 0 for a molecule without atoms.

    Computed on a CPU as a product with a :class:`~lightning_fl.models.segments.SparseMatrix`, elsewhere by PyG.

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
        """Compute the vectors [G, D] of the molecules.

        Args:
            atoms: [V, D].
            index: [V], molecule of each atom.
            dim_size: number G of molecules; the last ones may have no atom.
            encode: instead of ``atoms``, computes the product of this readout's matrix [G, V] and the atom vectors, for
                an encoder with a faster way.
        """
        if encode is not None:
            return encode(molecule_matrix(index, dim_size, mean=self.reduce == "mean"))
        assert atoms is not None
        if not multiplies(atoms):
            return scatter(atoms, index, dim=0, dim_size=dim_size, reduce=self.reduce)
        return molecule_matrix(index, dim_size, mean=self.reduce == "mean", dtype=atoms.dtype) @ atoms

    def extra_repr(self) -> str:
        """Return the reduction."""
        return repr(self.reduce)
