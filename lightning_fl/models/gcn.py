"""Graph convolutional network, faster than PyG's (an encoder of :mod:`lightning_fl.models.encoders`)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCN as PyGGCN
from torch_geometric.nn import GCNConv
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.nn.models.basic_gnn import BasicGNN

from lightning_fl.models import segments


class GCN(PyGGCN):
    r"""Graph convolutions (Kipf and Welling 2017, https://arxiv.org/abs/1609.02907), a ReLU after each but the last.

    .. math::
        H^{l+1} = \mathrm{relu}(\hat{A} H^l W_l^T + b_l), \qquad \hat{A} = D^{-1/2} (A + I) D^{-1/2}

    Parameters, their initial values and results are those of ``torch_geometric.nn.GCN`` (results within rounding).
    :math:`\hat{A}` is made once for all layers: on a CPU as a :class:`~lightning_fl.models.segments.SparseMatrix`, on a
    GPU as an :class:`~lightning_fl.models.segments.EdgeMatrix`, for which the host does not wait. PyG's own layers run
    if one is replaced or has a hook, or under ``torch.compile`` and transforms of ``torch.func``.

    Shapes:
        ``x`` [V, A], ``edge_index`` [2, E] -> [V, D].
    """

    def __init__(self, node_dim: int, hidden_dim: int, num_layers: int, *, dropout: float = 0.0) -> None:
        super().__init__(node_dim, hidden_dim, num_layers, dropout=dropout)

    def forward(self, x: Tensor, edge_index: Tensor, **unused: Any) -> Tensor:
        if not self._is_plain():
            return BasicGNN.forward(self, x, edge_index)
        adjacency: segments.SparseMatrix | segments.EdgeMatrix
        if segments.multiplies(x):
            adjacency = segments.normalized_adjacency(edge_index, len(x), x.dtype)
        elif x.is_cuda and not segments.transformed():
            adjacency = segments.normalized_edges(edge_index, len(x), x.dtype)
        else:
            return BasicGNN.forward(self, x, edge_index)
        last: Any = self.convs[-1]
        return _convolve(self._hidden(x, adjacency), adjacency, last)

    def can_read_out(self, x: Tensor) -> bool:
        """Whether :meth:`read_out` can replace a call: no hook watches the module or its layers."""
        return unobserved(self) and segments.multiplies(x) and self._is_plain()

    def read_out(self, x: Tensor, edge_index: Tensor, membership: Tensor, molecules: segments.SparseMatrix) -> Tensor:
        r"""Compute sums or means of the atom embeddings, ``molecules @ forward(...)``, for the cost of one layer less.

        Nothing follows the last layer, so the atoms can be summed before its weights are applied, to G rows instead of
        V. If no bond joins two molecules, the sum of :math:`\hat{A} H` over a molecule is that of H with every atom
        weighted by its column sum of :math:`\hat{A}`.

        Shapes:
            ``x`` [V, A], ``edge_index`` [2, E], ``membership`` [V] (the molecule of each atom), ``molecules`` (its
            :func:`~lightning_fl.models.segments.molecule_matrix`) [G, V] -> [G, D].
        """
        adjacency = segments.normalized_adjacency(edge_index, len(x), x.dtype)
        hidden = self._hidden(x, adjacency)
        source, target = (membership.index_select(0, end) for end in edge_index)
        if torch.equal(source, target):
            pooled = molecules.scale_columns(adjacency.columns.sums) @ hidden
        else:
            pooled = molecules @ (adjacency @ hidden)
        last: Any = self.convs[-1]
        return F.linear(pooled, last.lin.weight) + molecules.rows.sums.unsqueeze(1) * last.bias

    def _hidden(self, x: Tensor, adjacency: segments.SparseMatrix | segments.EdgeMatrix) -> Tensor:
        convs: Any = self.convs
        for conv in convs[:-1]:
            x = self.dropout(_convolve(x, adjacency, conv).relu_())
        return x

    def _is_plain(self) -> bool:
        return unobserved(self.act) and all(
            type(conv) is GCNConv and type(conv.lin) is Linear and unobserved(conv) and unobserved(conv.lin)
            for conv in self.convs
        )


def _convolve(x: Tensor, adjacency: segments.SparseMatrix | segments.EdgeMatrix, conv: Any) -> Tensor:
    """Apply a graph convolution; neighbours are summed where the vectors are shorter."""
    weight = conv.lin.weight
    if weight.size(0) < weight.size(1):
        return (adjacency @ F.linear(x, weight)) + conv.bias
    return F.linear(adjacency @ x, weight, conv.bias)


def unobserved(module: nn.Module) -> bool:
    """Whether a module has no hook, so that its parts can be computed without calling it."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(getattr(module, kind) for kind in kinds) and not nn.modules.module._has_any_global_hook()
