"""Sums over neighbours and molecules as sparse matrix products, by rows on CPUs and by edges on GPUs.

PyG's layers gather a row for every edge and add the rows with ``scatter_add_``. Here the edges are sorted by target
once for all layers of a forward pass, each target's row is summed without an intermediate row per edge
(``torch.embedding_bag``), and the gradient is the same product with the transposed matrix. Every sum is in the order of
the edges, independently of the number of threads.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Rows(NamedTuple):
    """Entries sorted by row: row i has ``weight[e]`` in ``column[e]`` for e in ``pointer[i]:pointer[i + 1]``."""

    column: Tensor  #: [N], int64
    pointer: Tensor  #: [rows + 1], int64
    weight: Tensor  #: [N]

    @property
    def sums(self) -> Tensor:
        """Sum of each row, [rows]."""
        return torch.segment_reduce(self.weight, "sum", offsets=self.pointer, unsafe=True)


@dataclass(frozen=True)
class SparseMatrix:
    """A constant sparse matrix [R, C]; ``matrix @ x`` of a dense ``x`` [C, D] is [R, D] and differentiable in ``x``."""

    rows: _Rows  #: entries by row
    columns: _Rows  #: entries of the transpose; the same object if the matrix is symmetric

    def __matmul__(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.rows, self.columns)

    def scale_columns(self, scale: Tensor) -> "SparseMatrix":
        """Multiply column j by ``scale[j]``, [C]."""
        rows, columns = self.rows, self.columns
        of_column = scale.repeat_interleave(columns.pointer.diff(), output_size=len(columns.column))
        return SparseMatrix(
            rows._replace(weight=rows.weight * scale.index_select(0, rows.column)),
            columns._replace(weight=columns.weight * of_column),
        )


class _Product(torch.autograd.Function):
    """Product with a sparse matrix, given by its rows and its columns; the gradient is one with the transpose."""

    # Without setup_context, which would look up and bind this signature in every call: 40 us, as long as the product.
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: _Rows, columns: _Rows) -> Tensor:
        ctx.transpose = columns, rows
        weight = rows.weight.to(x.dtype)
        return torch.embedding_bag(
            x.contiguous(), rows.column, rows.pointer, mode=0, per_sample_weights=weight, include_last_offset=True
        )[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _Product.apply(gradient, *ctx.transpose), None, None


def multiplies(x: Tensor) -> bool:
    """Whether multiplying a tensor by a :class:`SparseMatrix` is possible and fast: on the CPU, not transformed."""
    return x.device.type == "cpu" and not transformed()


def transformed() -> bool:
    """Whether ``torch.compile`` or a transform of ``torch.func`` is active."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def normalized_adjacency(edge_index: Tensor, num_nodes: int, dtype: torch.dtype = torch.float32) -> SparseMatrix:
    """Make the matrix [V, V] of a graph convolution, D^-1/2 (A + I) D^-1/2, from ``edge_index`` [2, E] in any order.

    Kipf and Welling 2017 (https://arxiv.org/abs/1609.02907). As in PyG's ``gcn_norm``, an edge (j, i) is in row i and
    column j, D counts a node's incoming edges, its self loops as one. Without opposite edges it is not symmetric.
    """
    proper = edge_index[0] != edge_index[1]
    # Without loops, and every edge followed by its opposite (not for an odd number: shapes differ): symmetric.
    paired = torch.equal(edge_index[:, ::2].flip(0), edge_index[:, 1::2]) and bool(proper.all())
    if not paired:
        edge_index = edge_index[:, proper]
    nodes = torch.arange(num_nodes)
    source, target = (torch.cat([end, nodes]) for end in edge_index)
    index, pointer = _sort(source, target, num_nodes)
    counts = pointer.diff()
    scale = counts.to(dtype).rsqrt_()
    weight = scale.index_select(0, index).mul_(scale.repeat_interleave(counts, output_size=len(index)))
    rows = _Rows(index, pointer, weight)
    if paired:
        return SparseMatrix(rows, rows)
    column_index, column_pointer = _sort(target, source, num_nodes)
    of_column = scale.repeat_interleave(column_pointer.diff(), output_size=len(index))
    return SparseMatrix(rows, _Rows(column_index, column_pointer, scale.index_select(0, column_index).mul_(of_column)))


@dataclass(frozen=True)
class EdgeMatrix:
    """A constant sparse matrix [V, V] with entries for edges and on the diagonal; the host never waits for a GPU."""

    source: Tensor  #: columns of the entries, [E]
    target: Tensor  #: rows of the entries, [E]
    weight: Tensor  #: the entries, [E]
    diagonal: Tensor  #: diagonal to add, [V]

    def __matmul__(self, x: Tensor) -> Tensor:
        messages = x.index_select(0, self.source) * self.weight.unsqueeze(1)
        return (x * self.diagonal.unsqueeze(1)).index_add(0, self.target, messages)


def normalized_edges(edge_index: Tensor, num_nodes: int, dtype: torch.dtype = torch.float32) -> EdgeMatrix:
    """Make the matrix of :func:`normalized_adjacency` without reading values: self loops get weight 0, and all get 1.

    PyG's ``gcn_norm`` selects the edges that are no self loops, so that the host waits for their number in every layer.
    """
    source, target = edge_index
    weight = (source != target).to(dtype)
    scale = weight.new_ones(num_nodes).index_add(0, target, weight).rsqrt_()
    weight = weight * scale.index_select(0, source) * scale.index_select(0, target)
    return EdgeMatrix(source, target, weight, scale.square())


def molecule_matrix(
    membership: Tensor, num_molecules: int, *, mean: bool = False, dtype: torch.dtype = torch.float32
) -> SparseMatrix:
    """Make the matrix [G, V] whose product sums, or averages, the vectors of a molecule's atoms; 0 for no atom.

    ``membership`` [V] is the molecule of each atom, in any order. With ``mean`` the weights of a row add up to 1.
    """
    order, pointer = _sort(torch.arange(len(membership)), membership, num_molecules)
    counts = pointer.diff()
    by_row = by_column = torch.ones(len(order), dtype=dtype)
    if mean:
        weight_of_row = counts.to(dtype).reciprocal_()
        by_row = weight_of_row.repeat_interleave(counts, output_size=len(order))
        by_column = weight_of_row.index_select(0, membership)
    columns = _Rows(membership, torch.arange(len(membership) + 1), by_column)
    return SparseMatrix(_Rows(order, pointer, by_row), columns)


def _sort(columns: Tensor, rows: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Sort columns [N] by row, stably; return them, and where each row begins, [num_rows + 1]."""
    pointer = rows.new_zeros(num_rows + 1)
    torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=pointer[1:])
    return columns.index_select(0, rows.sort(stable=True).indices), pointer
