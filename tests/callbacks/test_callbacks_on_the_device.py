"""Every callback on a CUDA device of software: no mistake of devices, and the results of the CPU to the bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from corners import CornerModule, Greedy, MixedClients
from cuda_standin.device import StandIn
from lightning.pytorch import LightningModule
from records import same_values
from tiny import TinyClients, TinyModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import lightning_fl.callbacks as room
from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.callbacks import Callback
from lightning_fl.data import IID, Partitioned

#: Each callback with what it is tried with, and what it needs beside it.
SETTINGS: dict[str, tuple[Callable[[], dict[str, Any]], tuple[str, ...]]] = {
    "BestClientModels": (dict, ()),
    "CFL": (lambda: {"mean_norm": 10.0, "client_norm": 0.0}, ()),
    "Calibration": (dict, ()),
    "CalibrationFigure": (dict, ()),
    "ClientArrivals": (lambda: {"rounds": {"client_1": 2}}, ()),
    "CoalitionFigure": (dict, ("HCCT",)),
    "CollaborationFigure": (dict, ("CollaborationGraph",)),
    "CollaborationGraph": (lambda: {"budget": 2, "init_epochs": 1, "monitor": "val/loss"}, ()),
    "ContributionFigure": (dict, ("ShapleyRewards",)),
    "DROClientSampling": (lambda: {"cohort_size": 2}, ()),
    "FLSC": (lambda: {"num_clusters": 3, "num_best": 2, "initial_noise": 0.1}, ()),
    "FeSEM": (lambda: {"num_clusters": 2}, ()),
    "FedCollab": (lambda: {"discriminator": room.DiscriminatorSettings(max_train=12)}, ()),
    "FedSoft": (lambda: {"num_models": 2, "lam": 0.1}, ()),
    "FineTuning": (lambda: {"steps": 2}, ()),
    "Figures": (dict, ("CollaborationGraph", "LocalReference")),
    "GainFigure": (dict, ("LocalReference",)),
    "GraphFigure": (dict, ("CollaborationGraph",)),
    "GroupAgreement": (lambda: {"groups": None}, ()),
    "HCCT": (lambda: {"relative_trade_off": 0.5}, ()),
    "IFCA": (lambda: {"num_clusters": 2, "initial_noise": 0.1}, ()),
    "KMeans": (lambda: {"num_clusters": 2}, ()),
    "KNNPer": (lambda: {"k": 3, "interpolation": "validation", "layer": "linear"}, ()),
    "LabelNoise": (lambda: {"num_classes": 4}, ()),
    "LastRounds": (lambda: {"num": 2}, ()),
    "LearningCurves": (dict, ()),
    "LocalMixup": (lambda: {"alpha": 1.0}, ()),
    "LocalReference": (dict, ()),
    "LocalTraining": (dict, ()),
    "ModelCheckpoint": (dict, ()),
    "PFedGraph": (dict, ()),
    "ParityFigure": (dict, ()),
    "PersonalLayers": (lambda: {"layers": ["linear"]}, ()),
    "PooledTraining": (dict, ()),
    "PrecisionRecallFigure": (dict, ()),
    "PretrainedWeights": (lambda: {"path": _written_weights(), "module": "before"}, ()),
    "PrivateHeads": (lambda: {"layers": ["linear"]}, ()),
    "ProgressDisplay": (dict, ()),
    "ROCFigure": (dict, ()),
    "SamplingWeightsFigure": (dict, ("DROClientSampling",)),
    "ShapleyRewards": (lambda: {"method": "permutations", "num_permutations": 4}, ()),
    "Snapshots": (lambda: {"num": 2}, ()),
    "SoftAveraging": (lambda: {"num_models": 2}, ()),
    "TierBidding": (lambda: {"num_tiers": 2, "num_best": 2, "policy": Greedy()}, ("ShapleyRewards",)),
    "TierFigures": (dict, ("ShapleyRewards", "TierBidding")),
    "UniformSampling": (lambda: {"cohort_size": 2}, ()),
}
#: Exported beside callbacks: their bases, and what callbacks are given.
NO_CALLBACKS = {
    *("BiddingPolicy", "Callback", "ClientClusters", "ClusterSplit", "DiscriminatorSettings"),
    *("HonestBidding", "RandomBidding", "Tokens"),
}
#: What needs molecules, and is among the recipes on the device.
OF_MOLECULES = {"ForestReference"}


class DeepCornerModule(CornerModule):
    """With a layer before the last one, for what shares one of them."""

    def __init__(self) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(6)
        self.before, self.linear = nn.Linear(2, 3), nn.Linear(3, 4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draws))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.before(x).relu())


def _written_weights() -> str:
    path = Path("pretrained.pt")
    draws = torch.Generator().manual_seed(5)
    weights = {"weight": torch.randn(3, 2, generator=draws), "bias": torch.randn(3, generator=draws)}
    torch.save(weights, path)
    return str(path)


def test_every_callback_is_tried() -> None:
    assert set(SETTINGS) | NO_CALLBACKS | OF_MOLECULES == set(room.__all__)


def _task(names: tuple[str, ...]) -> tuple[LightningModule, FederatedDataModule]:
    if "ParityFigure" in names:  # of values
        return TinyModule(), TinyClients()
    if "PooledTraining" in names:  # of one data set, which is shared out
        clients = MixedClients()
        parts = [clients.sets[client, "train"].tensors for client in range(clients.num_clients)]
        shared = TensorDataset(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
        return DeepCornerModule(), Partitioned(shared, IID(num_clients=3), split=(0.6, 0.2, 0.2), batch_size=6)
    return DeepCornerModule(), MixedClients()


def _run(accelerator: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Weights and metrics, tested after training."""
    callbacks: list[Callback] = [getattr(room, name)(**SETTINGS[name][0]()) for name in names]
    module, data = _task(names)
    trainer = FederatedTrainer(
        accelerator=accelerator,
        devices=1,
        callbacks=callbacks,
        max_rounds=3,
        local_steps=2,
        seed=4,
        enable_progress_bar=False,
        enable_checkpointing="ModelCheckpoint" in names,
        default_root_dir=accelerator,
    )
    trainer.fit(module, data)
    where = {tensor.device.type for tensor in module.state_dict().values()}
    trained = {name: value.clone() for name, value in module.state_dict().items()}
    metrics = trainer.test(module, data)
    models = [trainer.client_model(client).vectors for client in range(data.num_clients)]
    return {"where": where, "trained": trained, "metrics": metrics, "models": models}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_callback_has_the_results_of_the_cpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = (*SETTINGS[name][1], name)
    on_host = _run("cpu", names)
    with StandIn() as standin:
        on_device = _run("cuda", names)
        assert not standin.refusals
        assert standin.waits
        assert on_device["where"] == {"cpu"}
        for what in ("trained", "models", "metrics"):
            assert same_values(on_host[what], on_device[what]), what
