"""Graph isomorphism network that reads bond features (an encoder of :mod:`lightning_fl.models.encoders`)."""

from torch import Tensor, nn
from torch_geometric.nn import MLP, GINEConv


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
