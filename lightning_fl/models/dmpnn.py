"""Directed message passing network with vectors on bonds (an encoder of :mod:`lightning_fl.models.encoders`)."""

import torch
from torch import Tensor, nn


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
        Indices [E]; and whether there is a reverse edge, [E], or ``None`` if there is for all. Without one, the index
        is arbitrary.
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
