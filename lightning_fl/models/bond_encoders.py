"""Networks that read bond features (encoders of :mod:`lightning_fl.models.encoders`): GINE, MPNN and D-MPNN."""

import torch
from torch import Tensor, nn
from torch_geometric.nn import MLP, GINEConv, MessagePassing


class GINE(nn.Module):
    r"""Graph convolutions with bond features, each mapped by a network of two layers (GINE).

    Hu et al., Strategies for Pre-training Graph Neural Networks, ICLR 2020 (https://arxiv.org/abs/1905.12265), in the
    form of PyG's ``GINEConv``:

    .. math::
        h_v \leftarrow \mathrm{MLP}\Big((1 + \epsilon) h_v + \sum_{w \in N(v)} \mathrm{relu}(h_w + U e_{vw})\Big)

    with a relu and dropout between the layers. Differs from the paper: atoms enter through a linear layer, as their
    features are not one category each; :math:`\epsilon` is learned; there is no batch normalisation, whose statistics
    clients would have to share.
    """

    def __init__(self, *, node_dim: int, edge_dim: int, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Linear(node_dim, hidden_dim)
        self.convs = nn.ModuleList(
            GINEConv(MLP([hidden_dim] * 3, norm=None), train_eps=True, edge_dim=edge_dim) for _ in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.embedding(x)
        for number, conv in enumerate(self.convs):
            h = conv(self.dropout(h.relu()) if number else h, edge_index, edge_attr)
        return h


class EdgeNetworkConv(MessagePassing):
    r"""Sum of the neighbours' vectors, each multiplied by a matrix computed from the bond.

    .. math::
        m_v = b + \sum_{w \in N(v)} A(e_{vw}) h_w, \qquad
        A(e) = A_0 + \sum_{r=1}^{R} \mathrm{relu}(U e + u)_r A_r

    This is the edge network of Gilmer et al. 2017 (section 5, "Edge Network") with one hidden layer of width R, the
    same function as PyG's ``NNConv(nn=Sequential(Linear(B, R), ReLU(), Linear(R, D * D)), root_weight=False)``. A(e)
    is linear in the R hidden units, so the neighbours can be summed before the matrices are applied: no D x D matrix
    per bond is ever formed, and the cost is that of one linear layer on the atoms.

    Shapes, with D ``dim``, B ``edge_dim`` and R ``num_hidden``:
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


class DMPNN(nn.Module):
    r"""Message passing along directed bonds, where no message immediately turns back (D-MPNN).

    Yang et al., Analyzing Learned Molecular Representations for Property Prediction, J. Chem. Inf. Model. 2019
    (https://doi.org/10.1021/acs.jcim.9b00237), equations 3 to 7; the same function as chemprop's
    ``BondMessagePassing``, with its names ``W_i``, ``W_h`` and ``W_o`` of the layers.

    .. math::
        h^0_{vw} = W_i [x_v, e_{vw}], \qquad
        h^{t+1}_{vw} = \mathrm{relu}\Big(h^0_{vw} + W_h \sum_{k \in N(v) \setminus w} \mathrm{relu}(h^t_{kv})\Big)

    for ``num_layers - 1`` steps, then :math:`h_v = \mathrm{relu}(W_o [x_v, \sum_{w \in N(v)} h_{wv}])`. The sum over
    all neighbours but w is that over all, minus the message of the bond's other direction. The depth ``num_layers``
    includes the initial vectors of the bonds, as in chemprop; ``hidden_dim`` is the size of bond and atom vectors.
    """

    def __init__(self, *, node_dim: int, edge_dim: int, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.W_i = nn.Linear(node_dim + edge_dim, hidden_dim, bias=False)
        self.W_h = nn.Linear(hidden_dim, hidden_dim, bias=False)
        self.W_o = nn.Linear(node_dim + hidden_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        source, target = edge_index
        # relu applies to the initial vectors only where they are sent; they are added again without it
        first = self.W_i(torch.cat([x[source], edge_attr], dim=1))
        h = first.relu()
        if self.num_layers > 1:
            reverse, turns_back = reverse_edges(edge_index, len(x))
        for _ in range(self.num_layers - 1):
            back = h[reverse] if turns_back is None else h[reverse] * turns_back.unsqueeze(1)
            message = _sum_at(h, target, len(x))[source] - back
            h = self.dropout((first + self.W_h(message)).relu())
        return self.dropout(self.W_o(torch.cat([x, _sum_at(h, target, len(x))], dim=1)).relu())


def reverse_edges(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Find the reverse of every directed edge.

    Args:
        edge_index: [2, E]; between two nodes at most one edge in each direction, unless the two directions of every
            edge are next to each other, as in this package's graphs.
        num_nodes: V.

    Returns:
        Indices [E], arbitrary where there is no reverse edge; and whether there is one, [E], or ``None`` if always.
    """
    count = edge_index.size(1)
    order = torch.arange(count, device=edge_index.device)
    if count % 2 == 0 and torch.equal(edge_index[:, 1::2], edge_index[:, ::2].flip(0)):
        return order ^ 1, None
    source, target = edge_index
    keys, places = (source * num_nodes + target).sort()
    wanted = target * num_nodes + source
    found = torch.searchsorted(keys, wanted).clamp(max=max(count - 1, 0))
    exists = keys[found] == wanted
    return places[found], None if bool(exists.all()) else exists


def _sum_at(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums [size, D] of the rows of ``values`` [E, D] with the same index."""
    return values.new_zeros(size, values.size(1)).index_add_(0, index, values)
