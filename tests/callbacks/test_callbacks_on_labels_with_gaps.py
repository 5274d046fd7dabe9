"""Every algorithm on labels of molecules with gaps, [n, T] with NaN, and on several classes."""

import pytest
import torch
from torch_geometric.data import Data

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl import callbacks as package
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.models import MoleculeModel

ATOM, BOND, NAN = 5, 3, float("nan")


def molecule(draws, labels):
    """A chain of atoms whose features tell its labels."""
    atoms = int(torch.randint(2, 6, (), generator=draws))
    ends = torch.stack([torch.arange(atoms - 1), torch.arange(1, atoms)])
    target = torch.as_tensor(labels).float().reshape(1, -1)
    return Data(
        x=torch.randn(atoms, ATOM, generator=draws) + target.nan_to_num(0.5).mean(),
        edge_index=torch.cat([ends, ends.flip(0)], dim=1),
        edge_attr=torch.rand(2 * (atoms - 1), BOND, generator=draws),
        y=target,
    )


class Laboratories(FederatedDataModule):
    """Three clients with ten molecules each, the last of which lacks a whole target where there are gaps."""

    def __init__(self, task):
        super().__init__(batch_size=4)
        draws = torch.Generator().manual_seed(3)
        self.clients = []
        for client in range(3):
            labels = torch.randint(0, 2 if task == "classification" else 3, (10, 2), generator=draws).float()
            labels[:3] = torch.tensor([[0.0, 1], [1, 0], [2, 2]]) % (2 if task == "classification" else 3)
            if task == "classification":
                labels[torch.rand(10, 2, generator=draws) < 0.3] = NAN
                labels[:2, 0] = torch.tensor([0.0, 1])
                if client == 2:
                    labels[:, 1] = NAN
            self.clients.append([molecule(draws, row) for row in labels])

    @property
    def num_clients(self):
        return 3

    def client_data(self, client, split):
        return self.clients[client]


def fitted(folder, task, *names, **arguments):
    torch.manual_seed(0)
    model = MoleculeModel(node_dim=ATOM, edge_dim=BOND, hidden_dim=8, num_layers=1, task=task)
    trainer = FederatedTrainer(
        max_rounds=2,
        local_steps=2,
        logger=False,
        enable_progress_bar=False,
        seed=1,
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        callbacks=[getattr(package, name)(**settings) for name, settings in names],
        **arguments,
    )
    trainer.fit(model, Laboratories(task))
    return trainer


ALGORITHMS = [
    ("FedCollab", {}),
    ("FedCollab", {"layer": "readout", "warm_up_rounds": 1}),
    ("HCCT", {"relative_trade_off": 0.3}),
    ("CollaborationGraph", {"budget": 1}),
    ("TierBidding", {"num_tiers": 2}),
    ("ShapleyRewards", {}),
    ("ShapleyRewards", {"method": "exact"}),
    ("LocalMixup", {"layer": "readout"}),
    ("DROClientSampling", {"cohort_size": 2}),
    ("PersonalLayers", {"layers": ["head"]}),
    ("PrivateHeads", {}),
    ("SoftAveraging", {"num_models": 2}),
    ("IFCA", {"num_clusters": 2}),
    ("CFL", {}),
    ("FineTuning", {"steps": 1}),
    ("BestClientModels", {}),
]


@pytest.mark.parametrize("task", ["classification", "multiclass"])
@pytest.mark.parametrize(("name", "settings"), ALGORITHMS)
def test_the_algorithm_trains_on_them(tmp_path, name, settings, task):
    trained(tmp_path, task, name, settings)


@pytest.mark.parametrize(("task", "num_classes"), [("classification", 2), ("multiclass", 3)])
def test_noise_keeps_labels_labels(tmp_path, task, num_classes):
    """Training would refuse anything else."""
    settings = {"probability": 1.0, "client_share": 1.0, "num_classes": num_classes}
    trained(tmp_path, task, "LabelNoise", settings)


def test_calibration_leaves_gaps_out(tmp_path):
    trained(tmp_path, "classification", "Calibration", {})


@pytest.mark.parametrize("task", ["classification", "multiclass"])
def test_a_forest_needs_smiles(tmp_path, task):
    with pytest.raises(ConfigurationError, match="ForestReference .*Laboratories"):
        fitted(tmp_path, task, ("ForestReference", {"num_trees": 5}))


def test_a_client_that_is_judged_with_several_models_is_named_once(tmp_path):
    with pytest.warns(UserWarning, match=r"left out of the means: 1 \(no value at client_2\)\.$"):
        trained(tmp_path, "classification", "TierBidding", {"num_tiers": 2})


def trained(folder, task, name, settings):
    """Two rounds, after which all weights are numbers."""
    trainer = fitted(folder, task, (name, settings))
    assert trainer.current_round == 2
    assert all(vector.isfinite().all() for model in trainer.models for _, vector in model.floating())
