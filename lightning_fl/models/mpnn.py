"""Message passing network that reads bond features (an encoder of :mod:`lightning_fl.models.encoders`)."""

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing


class EdgeNetworkConv(MessagePassing):
    r"""Sum of the neighbours' vectors, each multiplied by a matrix computed from the bond.

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
        hidden = self.edge_network(edge_attr)
        coefficients = torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1)
        return self.linear(self.propagate(edge_index, x=x, coefficients=coefficients))

    def message(self, x_j: Tensor, coefficients: Tensor) -> Tensor:
        """Compute the contribution of bond (j -> i) to the sum at atom i: [E, (R + 1) * D]."""
        return (coefficients.unsqueeze(2) * x_j.unsqueeze(1)).flatten(start_dim=1)


class MPNN(nn.Module):
    """Message passing with an edge network and a gated update (Gilmer et al. 2017, https://arxiv.org/abs/1704.01212).

    h^0 = relu(W x), then ``num_layers`` times h^{t+1} = GRU(m^{t+1}, h^t), with the messages m of
    :class:`EdgeNetworkConv`, with dropout, and the same weights at every step.
    """

    def __init__(self, *, node_dim: int, edge_dim: int, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.embedding = nn.Linear(node_dim, hidden_dim)
        self.conv = EdgeNetworkConv(dim=hidden_dim, edge_dim=edge_dim)
        self.dropout = nn.Dropout(dropout)
        self.update = nn.GRUCell(hidden_dim, hidden_dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.embedding(x).relu()
        for _ in range(self.num_layers):
            h = self.update(self.dropout(self.conv(h, edge_index, edge_attr)), h)
        return h
