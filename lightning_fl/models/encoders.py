"""Encoders of molecules: from atoms and bonds to one vector per atom.

Each is a module called as ``encoder(x, edge_index, edge_attr=edge_attr)`` with

- ``x`` [V, A] atom features, ``edge_index`` [2, E] bonds (each in both directions), ``edge_attr`` [E, B] bond features,
- result [V, D] atom embeddings.

They do not depend on the order of the atoms, nor on what other molecules are in the batch (none has batch
normalisation, whose statistics would also have to be shared between clients).
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, MessagePassing

from lightning_fl.errors import ConfigurationError

__all__ = ["EDGE_ENCODERS", "MPNN", "EdgeNetworkConv", "EncoderName", "build_encoder"]

EncoderName = Literal["gcn", "gat", "mpnn"]

#: The encoders that use bond features. A GCN knows only which atoms are bonded.
EDGE_ENCODERS: frozenset[str] = frozenset({"gat", "mpnn"})

_GAT_HEADS = 4


class EdgeNetworkConv(MessagePassing):
    r"""Sum of the neighbours' vectors, each multiplied by a matrix that a small network computes from the bond.

    .. math::
        m_v = b + \sum_{w \in N(v)} A(e_{vw}) h_w, \qquad
        A(e) = A_0 + \sum_{r=1}^{R} \mathrm{relu}(U e + u)_r A_r

    This is the edge network of Gilmer et al. 2017 (section 5, "Edge Network") with one hidden layer of width R, the
    same function as PyG's ``NNConv(nn=Sequential(Linear(B, R), ReLU(), Linear(R, D * D)), root_weight=False)``. A(e)
    is linear in the R hidden units, so the neighbours can be summed before the matrices are applied: no D x D matrix
    per bond is ever formed, and the cost is that of one linear layer on the atoms.

    Args:
        dim: size D of the atom vectors.
        edge_dim: number B of bond features.
        num_hidden: width R of the edge network.

    Shapes:
        ``x`` [V, D], ``edge_index`` [2, E], ``edge_attr`` [E, B] -> [V, D].
    """

    def __init__(self, *, dim: int, edge_dim: int, num_hidden: int = 8) -> None:
        super().__init__(aggr="sum")
        self.edge_network = nn.Sequential(nn.Linear(edge_dim, num_hidden), nn.ReLU())
        self.linear = nn.Linear((num_hidden + 1) * dim, dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Messages [V, D] to the atoms."""
        hidden = self.edge_network(edge_attr)
        coefficients = torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1)
        return self.linear(self.propagate(edge_index, x=x, coefficients=coefficients))

    def message(self, x_j: Tensor, coefficients: Tensor) -> Tensor:
        """What bond (j -> i) adds to the sum at atom i: [E, (R + 1) * D]."""
        return (coefficients.unsqueeze(2) * x_j.unsqueeze(1)).flatten(start_dim=1)


class MPNN(nn.Module):
    """Message passing with an edge network and a gated update (Gilmer et al. 2017, https://arxiv.org/abs/1704.01212).

    h^0 = relu(W x), then ``num_layers`` times h^{t+1} = GRU(m^{t+1}, h^t), with the messages m of
    :class:`EdgeNetworkConv` and the same weights at every step.

    Args:
        node_dim: number A of atom features.
        edge_dim: number B of bond features.
        hidden_dim: size D of the atom vectors.
        num_layers: message passing steps.
        dropout: probability that an entry of a message is zeroed in training.
    """

    def __init__(self, *, node_dim: int, edge_dim: int, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.embedding = nn.Linear(node_dim, hidden_dim)
        self.conv = EdgeNetworkConv(dim=hidden_dim, edge_dim=edge_dim)
        self.dropout = nn.Dropout(dropout)
        self.update = nn.GRUCell(hidden_dim, hidden_dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Atom embeddings [V, D]."""
        h = self.embedding(x).relu()
        for _ in range(self.num_layers):
            h = self.update(self.dropout(self.conv(h, edge_index, edge_attr)), h)
        return h


def build_encoder(
    name: EncoderName, *, node_dim: int, edge_dim: int, hidden_dim: int, num_layers: int, dropout: float
) -> nn.Module:
    """The encoder of that name, with output size ``hidden_dim``.

    - ``gcn``: graph convolution (Kipf and Welling 2017, https://arxiv.org/abs/1609.02907); ``edge_dim`` plays no part.
    - ``gat``: graph attention with four heads, bond features in the attention (Veličković et al. 2018,
      https://arxiv.org/abs/1710.10903).
    - ``mpnn``: :class:`MPNN`.

    Raises:
        ConfigurationError: the name is unknown, or ``hidden_dim`` is no multiple of the number of attention heads.
    """
    if name == "gcn":
        return GCN(node_dim, hidden_dim, num_layers, dropout=dropout)
    if name == "gat":
        if hidden_dim % _GAT_HEADS:
            raise ConfigurationError(
                f"hidden_dim={hidden_dim}: encoder='gat' shares it between {_GAT_HEADS} attention heads; "
                f"give a multiple of {_GAT_HEADS}."
            )
        return GAT(node_dim, hidden_dim, num_layers, dropout=dropout, heads=_GAT_HEADS, edge_dim=edge_dim)
    if name == "mpnn":
        return MPNN(node_dim=node_dim, edge_dim=edge_dim, hidden_dim=hidden_dim, num_layers=num_layers, dropout=dropout)
    raise ConfigurationError(f"encoder={name!r}: give 'gcn', 'gat' or 'mpnn'.")
