"""Encoders of molecules: from atoms and bonds to one vector per atom.

Each is a module called as ``encoder(x, edge_index, edge_attr=edge_attr)`` with

- ``x`` [V, A] atom features, ``edge_index`` [2, E] bonds (each in both directions), ``edge_attr`` [E, B] bond features,
- result [V, D] atom embeddings.

They do not depend on the order of the atoms, nor on what other molecules are in the batch (none has batch
normalisation, whose statistics would also have to be shared between clients).
"""

from typing import Literal

from torch import nn

from lightning_fl.errors import ConfigurationError

__all__ = ["EDGE_ENCODERS", "EncoderName", "build_encoder"]

EncoderName = Literal["gcn", "gat", "mpnn"]

#: The encoders that use bond features. A GCN knows only which atoms are bonded.
EDGE_ENCODERS: frozenset[str] = frozenset({"gat", "mpnn"})

_GAT_HEADS = 4


def build_encoder(
    name: EncoderName, *, node_dim: int, edge_dim: int, hidden_dim: int, num_layers: int, dropout: float
) -> nn.Module:
    """The encoder of that name, with output size ``hidden_dim``.

    - ``gcn``: :class:`~lightning_fl.models.gcn.GCN`; ``edge_dim`` plays no part.
    - ``gat``: graph attention with four heads, bond features in the attention (Veličković et al. 2018,
      https://arxiv.org/abs/1710.10903).
    - ``mpnn``: :class:`~lightning_fl.models.mpnn.MPNN`.

    Raises:
        ConfigurationError: the name is unknown, or ``hidden_dim`` is no multiple of the number of attention heads.
    """
    # Imported here, for PyG is slow to load and recipes without graphs name no encoder.
    from torch_geometric.nn import GAT

    from lightning_fl.models.gcn import GCN
    from lightning_fl.models.mpnn import MPNN

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
