"""Molecules, crystals and collective variables."""

from typing import Any

import numpy as np
import torch
from harness import case

from public.lit import Lit, draws, load_into, split_loaders

SMILES = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "CCCl", "CCBr", "c1ccncc1", "CC#N", "OCCO", "CCOC", "CN(C)C", "CCCC"]


def _chemprop_loaders(silo: int, *, classes: bool = False, tasks: int = 1) -> dict[str, Any]:
    from chemprop.data import MoleculeDatapoint, MoleculeDataset, build_dataloader

    values = np.random.default_rng(silo).normal(size=(24, tasks))
    values = (values > 0).astype(float) if classes else values
    points = [MoleculeDatapoint.from_smi(SMILES[i % 12], y=values[i]) for i in range(24)]
    return {
        "train": build_dataloader(MoleculeDataset(points[:14]), batch_size=4, shuffle=False),
        "val": build_dataloader(MoleculeDataset(points[14:19]), batch_size=4, shuffle=False, drop_last=False),
        "test": build_dataloader(MoleculeDataset(points[19:]), batch_size=4, shuffle=False, drop_last=False),
    }


@case("MPNN, regression", "chemprop")
def chemprop_regression() -> dict[str, Any]:
    from chemprop import models, nn

    def make() -> Any:
        return models.MPNN(
            nn.BondMessagePassing(d_h=16),
            nn.MeanAggregation(),
            nn.RegressionFFN(input_dim=16, hidden_dim=16),
            batch_norm=True,
            metrics=[nn.metrics.RMSE(), nn.metrics.MAE()],
            warmup_epochs=1,
        )

    return {"make": make, "loaders": _chemprop_loaders}


@case("MPNN, classification", "chemprop")
def chemprop_classification() -> dict[str, Any]:
    from chemprop import models, nn

    def make() -> Any:
        return models.MPNN(
            nn.AtomMessagePassing(d_h=16),
            nn.NormAggregation(),
            nn.BinaryClassificationFFN(input_dim=16, n_tasks=2),
            metrics=[nn.metrics.BinaryAUROC()],
            warmup_epochs=1,
        )

    return {"make": make, "loaders": lambda silo: _chemprop_loaders(silo, classes=True, tasks=2)}


@case("MulticomponentMPNN", "chemprop")
def chemprop_multicomponent() -> dict[str, Any]:
    from chemprop import data, models, nn

    def make() -> Any:
        blocks = nn.MulticomponentMessagePassing([nn.BondMessagePassing(d_h=8) for _ in range(2)], 2)
        return models.MulticomponentMPNN(
            blocks, nn.MeanAggregation(), nn.RegressionFFN(input_dim=blocks.output_dim), warmup_epochs=1
        )

    def loaders(silo: int) -> dict[str, Any]:
        values = np.random.default_rng(silo).normal(size=(24, 1))

        def dataset(part: range) -> Any:
            columns = [
                [data.MoleculeDatapoint.from_smi(SMILES[(i + k) % 12], y=values[i]) for i in part] for k in (0, 5)
            ]
            return data.MulticomponentDataset([data.MoleculeDataset(column) for column in columns])

        parts = {"train": range(14), "val": range(14, 19), "test": range(19, 24)}
        return {
            split: data.build_dataloader(dataset(part), batch_size=4, shuffle=False, drop_last=False)
            for split, part in parts.items()
        }

    return {"make": make, "loaders": loaders}


@case("SchNet in AtomisticTask", "schnetpack")
def schnetpack() -> dict[str, Any]:
    from typing import TypeVar

    if not hasattr(torch.utils.data.dataloader, "T_co"):  # schnetpack 2.0 reads this private name, gone in torch 2.15
        torch.utils.data.dataloader.T_co = TypeVar("T_co", covariant=True)  # type: ignore[attr-defined]
    import schnetpack as spk
    import torchmetrics
    from schnetpack.data.loader import _atoms_collate_fn

    def make() -> Any:
        radial = spk.nn.GaussianRBF(n_rbf=8, cutoff=4.0)
        net = spk.model.NeuralNetworkPotential(
            representation=spk.representation.SchNet(
                n_atom_basis=8, n_interactions=1, radial_basis=radial, cutoff_fn=spk.nn.CosineCutoff(4.0)
            ),
            input_modules=[spk.atomistic.PairwiseDistances()],
            output_modules=[spk.atomistic.Atomwise(n_in=8, output_key="energy")],
        )
        output = spk.task.ModelOutput(
            name="energy",
            loss_fn=torch.nn.MSELoss(),
            loss_weight=1.0,
            metrics={"mae": torchmetrics.MeanAbsoluteError()},
        )
        return spk.task.AtomisticTask(model=net, outputs=[output], optimizer_args={"lr": 1e-3})

    def loaders(silo: int) -> dict[str, Any]:
        generator = draws(silo)
        samples = []
        for index in range(16):
            count = 3 + index % 3
            first, second = (~torch.eye(count, dtype=torch.bool)).nonzero(as_tuple=True)
            samples.append(
                {
                    "_idx": torch.tensor([index]),
                    "_n_atoms": torch.tensor([count]),
                    "_atomic_numbers": torch.randint(1, 9, (count,), generator=generator),
                    "_positions": torch.randn(count, 3, generator=generator),
                    "_cell": torch.zeros(1, 3, 3),
                    "_pbc": torch.zeros(3, dtype=torch.bool),
                    "_idx_i": first,
                    "_idx_j": second,
                    "_offsets": torch.zeros(len(first), 3),
                    "energy": torch.randn(1, generator=generator),
                }
            )
        return split_loaders(samples, collate_fn=_atoms_collate_fn)

    return {"make": make, "loaders": loaders, "load": load_into}


@case("ModelLightningModule (M3GNet)", "matgl")
def matgl() -> dict[str, Any]:
    from matgl.ext.pymatgen import Structure2Graph
    from matgl.graph.data import MGLDataset, collate_fn_graph
    from matgl.models import M3GNet
    from matgl.utils.training import ModelLightningModule
    from pymatgen.core import Lattice, Structure

    def make() -> Any:
        net = M3GNet(
            element_types=("Na", "Cl"),
            is_intensive=True,
            readout_type="set2set",
            dim_node_embedding=8,
            dim_edge_embedding=8,
            units=8,
            nblocks=1,
            max_n=2,
            max_l=2,
        )
        return ModelLightningModule(model=net)

    def loaders(silo: int) -> dict[str, Any]:
        rng = np.random.default_rng(silo)
        cells = [
            Structure.from_spacegroup("Pm-3m", Lattice.cubic(4 + rng.random()), ["Na", "Cl"], [[0] * 3, [0.5] * 3])
            for _ in range(16)
        ]
        dataset = MGLDataset(
            structures=cells,
            labels={"e": rng.normal(size=16).tolist()},
            save_cache=False,
            converter=Structure2Graph(("Na", "Cl"), cutoff=4.0),
        )
        return split_loaders(dataset, collate_fn=collate_fn_graph)

    return {"make": make, "loaders": loaders, "load": load_into}


@case(
    "GAT on PyG batches",
    "torch-geometric",
    wraps=True,
    differs="graphs lie packed in memory, at other addresses than PyG's copies: a product rounds otherwise",
    atol=1e-8,
)
def pyg() -> dict[str, Any]:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GAT, global_mean_pool

    def loss(net: Any, batch: Any) -> Any:
        nodes = net(batch.x, batch.edge_index)
        return torch.nn.functional.mse_loss(global_mean_pool(nodes, batch.batch), batch.y)

    def loaders(silo: int) -> dict[str, Any]:
        generator = draws(silo)
        graphs = [
            Data(
                x=torch.randn(n, 5, generator=generator),
                edge_index=torch.randint(n, (2, 3 * n), generator=generator),
                y=torch.randn(1, 1, generator=generator),
            )
            for n in [3 + i % 4 for i in range(24)]
        ]
        return split_loaders(graphs, kind=GraphLoader)

    return {"make": lambda: Lit(GAT(5, 8, 2, 1), loss), "loaders": loaders, "load": load_into}


def _mlcolvar_loaders(silo: int, *, labels: bool) -> dict[str, Any]:
    from mlcolvar.data import DictDataset, DictLoader

    generator = draws(silo)
    parts = {}
    for split, count in (("train", 16), ("val", 8)):
        content = {"data": torch.randn(count, 6, generator=generator)}
        if labels:
            content["labels"] = (torch.arange(count) % 2).float()
        parts[split] = DictLoader(DictDataset(content), batch_size=4, shuffle=False)
    return parts


def _deep_tda(**options: Any) -> dict[str, Any]:
    from mlcolvar.cvs import DeepTDA

    return {
        "make": lambda: DeepTDA(2, 1, [-7.0, 7.0], [0.2, 0.2], [6, 8, 1], options=options),
        "loaders": lambda silo: _mlcolvar_loaders(silo, labels=True),
        "load": load_into,
    }


@case(
    "DeepTDA, scaled by all training data in `setup`",
    "mlcolvar",
    fails="self.trainer.datamodule.train_dataloader() belongs to a client",
)
def deep_tda_scaled() -> dict[str, Any]:
    return _deep_tda()


@case("DeepTDA, `norm_in=None`", "mlcolvar")
def deep_tda() -> dict[str, Any]:
    return _deep_tda(norm_in=None)


@case("AutoEncoderCV, `norm_in=None`", "mlcolvar")
def autoencoder_cv() -> dict[str, Any]:
    from mlcolvar.cvs import AutoEncoderCV

    return {
        "make": lambda: AutoEncoderCV([6, 8, 2], options={"norm_in": None}),
        "loaders": lambda silo: _mlcolvar_loaders(silo, labels=False),
        "load": load_into,
    }


@case("DeepLDA, `norm_in=None`", "mlcolvar")
def deep_lda() -> dict[str, Any]:
    from mlcolvar.cvs import DeepLDA

    return {
        "make": lambda: DeepLDA([6, 8, 3], n_states=2, options={"norm_in": None}),
        "loaders": lambda silo: _mlcolvar_loaders(silo, labels=True),
        "load": load_into,
    }


@case("VariationalAutoEncoderCV, `norm_in=None`", "mlcolvar")
def variational_autoencoder_cv() -> dict[str, Any]:
    from mlcolvar.cvs import VariationalAutoEncoderCV

    return {
        "make": lambda: VariationalAutoEncoderCV(n_cvs=2, encoder_layers=[6, 8], options={"norm_in": None}),
        "loaders": lambda silo: _mlcolvar_loaders(silo, labels=False),
        "load": load_into,
    }
