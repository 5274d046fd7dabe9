"""Parts of a model of molecules: encoder of atoms, readout to one vector, head; and descriptors of molecules."""

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import isolated_draws
from lightning_fl.models.descriptors import DescriptorReadout, DescriptorScale, FingerprintEncoder, descriptors_of
from lightning_fl.models.encoders import EDGE_ENCODERS, build_encoder

if TYPE_CHECKING:
    from lightning_fl.models.gcn import GCN

ReadoutName = Literal["mean", "sum", "max", "set2set", "attentivefp"]

_SET2SET_STEPS = 3
#: The parts that have a :class:`DescriptorScale`.
_READ_DESCRIPTORS = (FingerprintEncoder, DescriptorReadout)


class MoleculeNetwork(nn.Module):
    """Network from a batch of molecular graphs to outputs; base of a LightningModule with ``hparams``."""

    encoder: nn.Module  # atom features -> atom vectors; for "fingerprint" descriptors -> [G, D]
    readout: nn.Module  # atom vectors -> [G, D], with descriptors [G, D + F]
    head: nn.Sequential  # -> outputs
    hparams: Any

    def build_parts(self, num_outputs: int) -> None:
        """Build the parts described by ``hparams``; those that read descriptors only if their number is known."""
        given = self.hparams
        name, readout, hidden_dim, dropout = (given[key] for key in ("encoder", "readout", "hidden_dim", "dropout"))
        if name == "fingerprint" and (given["virtual_node"] or readout != "mean" or given["descriptor_dim"] == 0):
            others = ", ".join(f"{key}={given[key]!r}" for key in ("virtual_node", "readout", "descriptor_dim"))
            raise ConfigurationError(f"encoder='fingerprint' reads descriptors and no graph: omit {others}.")
        self.encoder, self.readout = nn.Identity(), nn.Identity()
        if name != "fingerprint":
            more = int(given["virtual_node"])
            dims = {"node_dim": given["node_dim"] + more, "edge_dim": given["edge_dim"] + more}
            sizes = {"hidden_dim": hidden_dim, "num_layers": given["num_layers"]}
            found = build_encoder(name, **dims, **sizes, dropout=dropout)
            self.encoder = VirtualNode(found, edges=name in EDGE_ENCODERS) if more else found
            self.readout = _build_readout(readout, hidden_dim, dropout)
        self.head = nn.Sequential(
            nn.Linear(2 * hidden_dim if readout == "set2set" else hidden_dim, hidden_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_dim, num_outputs),
        )
        with isolated_draws():  # for layers that are resized when the data are known
            self._late_seed = int(torch.randint(2**62, ()))
        if given["descriptor_dim"]:
            self.add_descriptors(given["descriptor_dim"])

    def resize_outputs(self, num_outputs: int) -> None:
        """Replace the last layer by a new one of another size; does nothing if it has that size."""
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        if last.out_features == num_outputs:
            return
        with isolated_draws():
            torch.manual_seed(self._late_seed)
            new = nn.Linear(last.in_features, num_outputs)
        self.head[-1] = new.to(last.weight)

    def add_descriptors(self, dim: int) -> None:
        """Build the layers that read F descriptors of a molecule; does nothing for 0."""
        self.hparams["descriptor_dim"] = dim
        if not dim and self.hparams["encoder"] != "fingerprint":
            return
        if not dim:
            raise ConfigurationError("encoder='fingerprint' reads descriptors: set data.features, such as [morgan].")
        hidden_dim, first = self.hparams["hidden_dim"], self.head[0]
        assert isinstance(first, nn.Linear)
        device = first.weight.device
        scale = DescriptorScale(dim, learns=self.hparams["standardize_descriptors"])
        with isolated_draws():  # does not change the other layers
            torch.manual_seed(self._late_seed + 1)
            if self.hparams["encoder"] == "fingerprint":
                sizes = {"hidden_dim": hidden_dim, "num_layers": self.hparams["num_layers"]}
                self.encoder = FingerprintEncoder(scale, dim=dim, **sizes, dropout=self.hparams["dropout"]).to(device)
            else:
                self.readout = DescriptorReadout(self.readout, scale).to(device)
                self.head[0] = nn.Linear(first.in_features + dim, hidden_dim).to(device)

    @property
    def descriptor_scale(self) -> DescriptorScale | None:
        """Shift and scale of the descriptors; ``None`` without descriptors."""
        return next((part.scale for part in (self.encoder, self.readout) if isinstance(part, _READ_DESCRIPTORS)), None)

    def embed(self, batch: Any) -> Tensor:
        """Compute the readout's output, [G, D], with descriptors [G, D + F]."""
        if isinstance(batch, list | tuple | dict | Tensor):
            needed = f"needs batches of molecular graphs, not a {type(batch).__name__}"
            raise ConfigurationError(f"{type(self).__name__} {needed}: use data of molecules, such as MoleculeCSV.")
        dim = self.hparams["descriptor_dim"] or 0
        if not dim and (given := getattr(batch, "descriptors", None)) is not None:
            remedy = f"set descriptor_dim={given.size(-1)}, or omit the data's features"
            raise ConfigurationError(f"descriptor_dim={dim}, but the molecules have descriptors: {remedy}.")
        extra = {"descriptors": descriptors_of(batch, dim)} if dim else {}
        if self.hparams["encoder"] == "fingerprint":
            return self.readout(self.encoder(**extra))
        self._check_features(batch)
        # dim_size: the last molecules of a batch may have no atom but still need a row
        extra |= {"index": batch.batch, "dim_size": batch.num_graphs}
        if (early := self._early_encoder(batch.x)) is not None:
            return self.readout(encode=partial(early.read_out, batch.x, batch.edge_index, batch.batch), **extra)
        whole = {"batch": batch.batch, "num_graphs": batch.num_graphs} if self.hparams["virtual_node"] else {}
        return self.readout(self.encoder(batch.x, batch.edge_index, edge_attr=batch.edge_attr, **whole), **extra)

    def _early_encoder(self, x: Tensor) -> "GCN | None":
        """Return the encoder if it can sum a molecule's atoms before its last layer without any hook noticing."""
        from lightning_fl.models.gcn import GCN
        from lightning_fl.models.readouts import LinearReadout

        encoder, readout = self.encoder, self.readout
        if isinstance(readout, DescriptorReadout):
            readout = readout.readout
        if isinstance(encoder, GCN) and isinstance(readout, LinearReadout) and encoder.can_read_out(x):
            return encoder
        return None

    def _check_features(self, batch: Any) -> None:
        given = self.hparams
        bonds = batch.edge_attr if given["encoder"] in EDGE_ENCODERS else None
        if given["encoder"] in EDGE_ENCODERS and (bonds is None or bonds.dim() != 2):
            found = "none" if bonds is None else f"some of shape {list(bonds.shape)}"
            what = f"encoder={given['encoder']!r} needs bond features, but the batch has {found}"
            raise ConfigurationError(f"{what}: give edge_attr of shape [bonds, features], or use encoder='gcn'.")
        for name, features in (("node_dim", batch.x), ("edge_dim", bonds)):
            if features is not None and (width := features.size(-1)) != given[name]:
                raise ConfigurationError(f"{name}={given[name]}: the data have {width}; set {name}={width}.")


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
        x = torch.block_diag(x, x.new_ones(num_graphs, 1))
        if self.edges:
            assert edge_attr is not None
            edge_attr = torch.block_diag(edge_attr, edge_attr.new_ones(2 * num_atoms, 1))
        return self.encoder(x, edge_index, edge_attr=edge_attr)[:num_atoms]


def _build_readout(name: ReadoutName, dim: int, dropout: float) -> nn.Module:
    from torch_geometric.nn.aggr import MaxAggregation

    from lightning_fl.models.readouts import LinearReadout, Set2Set

    if name == "attentivefp":
        from lightning_fl.models.attentive_fp import AttentiveFPReadout

        return AttentiveFPReadout(dim, dropout=dropout)
    if name == "set2set":
        return Set2Set(dim, processing_steps=_SET2SET_STEPS)
    return MaxAggregation() if name == "max" else LinearReadout(name)
