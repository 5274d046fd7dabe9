"""Attentive FP in two parts: attention between atoms (an encoder), and of the molecule to its atoms (a readout).

Xiong et al., Pushing the Boundaries of Molecular Representation for Drug Discovery with the Graph Attention Mechanism,
J. Med. Chem. 2020 (https://doi.org/10.1021/acs.jmedchem.9b00959). In sequence they are PyG's ``AttentiveFP``, with its
layers, without its last linear layer.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu
from torch_geometric.nn import GATConv
from torch_geometric.nn.models.attentive_fp import GATEConv
from torch_geometric.utils import scatter


class AttentiveFPEncoder(nn.Module):
    """Rounds of attention between bonded atoms, the bond features in the first, with a gated update after each.

    Dropout also applies to the attention.
    """

    def __init__(self, *, node_dim: int, edge_dim: int, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Linear(node_dim, hidden_dim)
        self.convs = nn.ModuleList([GATEConv(hidden_dim, hidden_dim, edge_dim, dropout)])
        for _ in range(num_layers - 1):
            conv = GATConv(hidden_dim, hidden_dim, dropout=dropout, add_self_loops=False, negative_slope=0.01)
            self.convs.append(conv)
        self.updates = nn.ModuleList(nn.GRUCell(hidden_dim, hidden_dim) for _ in range(num_layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Compute atom embeddings [V, D]."""
        h = leaky_relu(self.embedding(x))
        for number, (conv, update) in enumerate(zip(self.convs, self.updates, strict=True)):
            message = conv(h, edge_index) if number else conv(h, edge_index, edge_attr)
            h = update(self.dropout(elu(message)), h).relu()
        return h


class AttentiveFPReadout(nn.Module):
    """Readout with the molecule as a node that attends to its atoms ``num_steps`` times, starting from their sum.

    Dropout is as in :class:`AttentiveFPEncoder`; ``dim`` is the size D of the vectors of atoms and molecules.
    """

    def __init__(self, dim: int, *, dropout: float, num_steps: int = 2) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.conv = GATConv(dim, dim, dropout=dropout, add_self_loops=False, negative_slope=0.01)
        self.update = nn.GRUCell(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, index: Tensor, dim_size: int) -> Tensor:
        """Compute molecules [G, D] from atoms [V, D]; ``index`` [V] is the molecule of each atom, ``dim_size`` is G."""
        edges = torch.stack([torch.arange(len(x), device=x.device), index])
        h = scatter(x, index, dim=0, dim_size=dim_size, reduce="sum").relu()
        for _ in range(self.num_steps):
            h = self.update(self.dropout(elu(self.conv((x, h), edges))), h).relu()
        return h
