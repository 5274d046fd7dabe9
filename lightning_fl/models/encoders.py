"""Encoders of molecules: from atoms and bonds to one vector per atom.

Each is a module called as ``encoder(x, edge_index, edge_attr=edge_attr)`` with

- ``x`` [V, A] atom features, ``edge_index`` [2, E] bonds (each in both directions), ``edge_attr`` [E, B] bond features,
- result [V, D] atom embeddings.

Results do not depend on the order of the atoms, nor on the other molecules of the batch (none has batch normalisation,
whose statistics clients would have to share).
"""

from typing import Literal, get_args

from torch import nn

from lightning_fl.core.errors import ConfigurationError

EncoderName = Literal["gcn", "gat", "gin", "gine", "mpnn", "dmpnn", "attentivefp", "fingerprint"]

#: Encoders that use bond features; a GCN and a GIN only know which atoms are bonded.
EDGE_ENCODERS: frozenset[str] = frozenset({"gat", "gine", "mpnn", "dmpnn", "attentivefp"})

_GAT_HEADS = 4


def build_encoder(
    name: EncoderName, *, node_dim: int, edge_dim: int, hidden_dim: int, num_layers: int, dropout: float
) -> nn.Module:
    """Build an encoder of A = ``node_dim`` atom and B = ``edge_dim`` bond features, with D = ``hidden_dim``.

    Each has ``num_layers`` rounds of message passing, and drops entries of hidden vectors with probability ``dropout``.

    - ``gcn``: :class:`~lightning_fl.models.gcn.GCN`; ignores ``edge_dim``.
    - ``gat``: graph attention with four heads, bond features in the attention (Veličković et al. 2018,
      https://arxiv.org/abs/1710.10903).
    - ``gin``: graph isomorphism network (Xu et al. 2019, https://arxiv.org/abs/1810.00826) with a learned epsilon:
      PyG's ``GIN``, without batch normalisation; ignores ``edge_dim``.
    - ``gine``: :class:`~lightning_fl.models.bond_encoders.GINE`.
    - ``mpnn``: :class:`~lightning_fl.models.bond_encoders.MPNN`.
    - ``dmpnn``: :class:`~lightning_fl.models.bond_encoders.DMPNN`.
    - ``attentivefp``: :class:`~lightning_fl.models.attentive_fp.AttentiveFPEncoder`.
    """
    # Imported here: PyG loads slowly, and recipes without graphs name no encoder.
    from torch_geometric.nn import GAT, GIN

    from lightning_fl.models.attentive_fp import AttentiveFPEncoder
    from lightning_fl.models.bond_encoders import DMPNN, GINE, MPNN
    from lightning_fl.models.gcn import GCN

    if name == "gcn":
        return GCN(node_dim, hidden_dim, num_layers, dropout=dropout)
    if name == "gat":
        if hidden_dim % _GAT_HEADS:
            raise ConfigurationError(f"hidden_dim={hidden_dim}: must be a multiple of gat's {_GAT_HEADS} heads.")
        return GAT(node_dim, hidden_dim, num_layers, dropout=dropout, heads=_GAT_HEADS, edge_dim=edge_dim)
    if name == "gin":
        return GIN(node_dim, hidden_dim, num_layers, dropout=dropout, train_eps=True)
    kinds: dict[str, type[nn.Module]] = {"gine": GINE, "mpnn": MPNN, "dmpnn": DMPNN, "attentivefp": AttentiveFPEncoder}
    if name in kinds:
        sizes = {"node_dim": node_dim, "edge_dim": edge_dim, "hidden_dim": hidden_dim, "num_layers": num_layers}
        return kinds[name](**sizes, dropout=dropout)
    graphs = [repr(known) for known in get_args(EncoderName) if known != "fingerprint"]
    raise ConfigurationError(f"encoder={name!r}: choose one of {', '.join(graphs)}.")
