"""A node for the whole molecule, bonded to all of its atoms, around any encoder."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

__all__ = ["VirtualNode"]


class VirtualNode(nn.Module):
    """Lets distant atoms speak to each other through one more node in every molecule.

    Gilmer et al., Neural Message Passing for Quantum Chemistry, ICML 2017 (https://arxiv.org/abs/1704.01212), section
    5.2, "Virtual Graph Elements": a master node that is connected to every atom by edges of a special type. It has no
    atom features but one that says what it is, and neither have its edges; both are one feature wider for it.

    Args:
        encoder: an encoder of ``node_dim + 1`` atom and ``edge_dim + 1`` bond features.
        edges: whether it reads bond features.
    """

    def __init__(self, encoder: nn.Module, *, edges: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.edges = edges

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None, *, batch: Tensor, num_graphs: int
    ) -> Tensor:
        """Atom embeddings [V, D]; ``batch`` [V] is the molecule of each of the atoms, ``num_graphs`` their number."""
        num_atoms, device = len(x), x.device
        atoms = torch.arange(num_atoms, device=device)
        # Both directions of an edge one behind the other, as those of bonds are.
        out, back = torch.stack([atoms, num_atoms + batch]), torch.stack([num_atoms + batch, atoms])
        edge_index = torch.cat([edge_index, torch.stack([out, back], dim=2).flatten(1)], dim=1)
        x = torch.cat([pad(x, (0, 1)), pad(x.new_ones(num_graphs, 1), (x.size(1), 0))])
        if self.edges:
            assert edge_attr is not None
            edge_attr = torch.cat(
                [pad(edge_attr, (0, 1)), pad(edge_attr.new_ones(2 * num_atoms, 1), (edge_attr.size(1), 0))]
            )
        return self.encoder(x, edge_index, edge_attr=edge_attr)[:num_atoms]
