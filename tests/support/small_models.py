"""Small molecules and models, and Lightning's own trainer without output."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch_geometric.data import Batch, Data

from lightning_fl.models import MoleculeModel

ATOM, BOND = 5, 3


def molecule(num_atoms: int, seed: int = 0, num_targets: int = 1) -> Data:
    """A ring with a tail where it has four atoms or more, else a chain; both directions of a bond side by side."""
    draws = torch.Generator().manual_seed(seed)
    bonds = [(i, i + 1) for i in range(num_atoms - 1)] + ([(0, num_atoms - 2)] if num_atoms > 3 else [])
    edges = torch.tensor([pair for i, j in bonds for pair in ((i, j), (j, i))], dtype=torch.long).reshape(-1, 2)
    return Data(
        x=torch.randn(num_atoms, ATOM, generator=draws),
        edge_index=edges.t().contiguous(),
        edge_attr=torch.rand(len(bonds), BOND, generator=draws).repeat_interleave(2, dim=0),
        y=torch.randn(1, num_targets, generator=draws),
    )


def molecules(count: int, num_targets: int = 1, first: int = 0) -> list[Data]:
    """Molecules of one to six atoms."""
    return [molecule(1 + seed % 6, seed, num_targets) for seed in range(first, first + count)]


def collate(graphs: list[Data]) -> Any:
    return Batch.from_data_list(graphs)


def renumbered(graph: Data) -> Data:
    """The same molecule with its atoms and bonds in another order."""
    atoms, bonds = torch.randperm(graph.num_nodes), torch.randperm(graph.edge_index.size(1))
    edges = atoms.argsort()[graph.edge_index][:, bonds]
    return Data(x=graph.x[atoms], edge_index=edges, edge_attr=graph.edge_attr[bonds], y=graph.y)


def molecule_model(seed: int = 0, **arguments: Any) -> MoleculeModel:
    torch.manual_seed(seed)
    return MoleculeModel(**({"node_dim": ATOM, "edge_dim": BOND, "hidden_dim": 16, "num_layers": 2} | arguments))


def plain_trainer(**arguments: Any) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", devices=1, enable_model_summary=False, **(quiet | arguments))


def silence(model: LightningModule) -> Any:
    """Lets a step be called without a trainer."""
    model.log = model.log_dict = lambda *args, **kwargs: None  # type: ignore[method-assign]
    return model
