"""A graph convolutional network, faster than PyG's on a CPU (an encoder of :mod:`lightning_fl.models.encoders`)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCN as PyGGCN
from torch_geometric.nn import GCNConv
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.nn.models.basic_gnn import BasicGNN

from lightning_fl.models.segments import SparseMatrix, normalized_adjacency

__all__ = ["GCN", "unobserved"]


class GCN(PyGGCN):
    r"""Graph convolutions (Kipf and Welling 2017, https://arxiv.org/abs/1609.02907), a ReLU after each but the last.

    .. math::
        H^{l+1} = \mathrm{relu}(\hat{A} H^l W_l^T + b_l), \qquad \hat{A} = D^{-1/2} (A + I) D^{-1/2}

    Parameters, their first values and results are those of ``torch_geometric.nn.GCN`` (results within rounding). On a
    CPU :math:`\hat{A}` is made once for all layers and multiplied as a :class:`~lightning_fl.models.segments.SparseMatrix`.
    PyG's own layers run where a layer has been replaced or has a hook, on other devices and under ``torch.compile``.

    Args:
        node_dim: number A of atom features.
        hidden_dim: size D of the atom vectors.
        num_layers: graph convolutions.
        dropout: probability that an entry of a hidden layer is zeroed in training.

    Shapes:
        ``x`` [V, A], ``edge_index`` [2, E] -> [V, D].
    """

    def __init__(self, node_dim: int, hidden_dim: int, num_layers: int, *, dropout: float = 0.0) -> None:
        super().__init__(node_dim, hidden_dim, num_layers, dropout=dropout)

    def forward(self, x: Tensor, edge_index: Tensor, **unused: Any) -> Tensor:
        """Atom embeddings [V, D]."""
        if not self._is_plain(x):
            return BasicGNN.forward(self, x, edge_index)
        adjacency = normalized_adjacency(edge_index, len(x), x.dtype)
        last: Any = self.convs[-1]
        return _convolve(self._hidden(x, adjacency), adjacency, last)

    def read_out(self, x: Tensor, edge_index: Tensor, matrix: SparseMatrix) -> Tensor | None:
        """Sums or means of the atom embeddings, ``matrix @ forward(...)``, [G, D], at the cost of one layer less.

        Nothing follows the last layer, so the atoms may be summed before it: it then has G rows instead of V.

        Returns:
            ``None`` where PyG's own layers must run.
        """
        if not (self._is_plain(x) and unobserved(self)):
            return None
        adjacency = normalized_adjacency(edge_index, len(x), x.dtype)
        last: Any = self.convs[-1]
        pooled = matrix @ (adjacency @ self._hidden(x, adjacency))
        return F.linear(pooled, last.lin.weight).addcmul(matrix.row_sums.to(pooled.dtype), last.bias)

    def _hidden(self, x: Tensor, adjacency: SparseMatrix) -> Tensor:
        for conv in self.convs[:-1]:
            x = self.dropout(_convolve(x, adjacency, conv).relu_())
        return x

    def _is_plain(self, x: Tensor) -> bool:
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return False
        return all(
            type(conv) is GCNConv and type(conv.lin) is Linear and unobserved(conv) and unobserved(conv.lin)
            for conv in self.convs
        )


def _convolve(x: Tensor, adjacency: SparseMatrix, conv: Any) -> Tensor:
    """A graph convolution; neighbours are summed where the vectors are shorter."""
    weight = conv.lin.weight
    if weight.size(0) < weight.size(1):
        return (adjacency @ F.linear(x, weight)) + conv.bias
    return F.linear(adjacency @ x, weight, conv.bias)


def unobserved(module: nn.Module) -> bool:
    """Whether nobody would notice that a module's parts are computed without calling it: it has no hook."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return not any(hooks) and not nn.modules.module._has_any_global_hook()
