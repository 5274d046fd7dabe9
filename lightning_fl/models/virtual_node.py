"""Node for the whole molecule, bonded to all its atoms, around any encoder."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


class VirtualNode(nn.Module):
    """Encoder with one more node per molecule, through which distant atoms exchange messages.

    Gilmer et al., Neural Message Passing for Quantum Chemistry, ICML 2017 (https://arxiv.org/abs/1704.01212), section
    5.2, "Virtual Graph Elements": a master node connected to every atom by edges of a special type. The node and its
    edges have only one feature, which marks them; atoms and bonds get this feature too, so the encoder has one more
    feature of each. ``edges`` says whether it reads bond features.
    """

    def __init__(self, encoder: nn.Module, *, edges: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.edges = edges

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None, *, batch: Tensor, num_graphs: int
    ) -> Tensor:
        """Compute atom embeddings [V, D]; ``batch`` [V] is the molecule of each atom, ``num_graphs`` their number."""
        num_atoms, device = len(x), x.device
        atoms = torch.arange(num_atoms, device=device)
        # both directions of an edge next to each other, as for bonds
        out, back = torch.stack([atoms, num_atoms + batch]), torch.stack([num_atoms + batch, atoms])
        edge_index = torch.cat([edge_index, torch.stack([out, back], dim=2).flatten(1)], dim=1)
        x = torch.cat([pad(x, (0, 1)), pad(x.new_ones(num_graphs, 1), (x.size(1), 0))])
        if self.edges:
            assert edge_attr is not None
            edge_attr = torch.cat(
                [pad(edge_attr, (0, 1)), pad(edge_attr.new_ones(2 * num_atoms, 1), (edge_attr.size(1), 0))]
            )
        return self.encoder(x, edge_index, edge_attr=edge_attr)[:num_atoms]
