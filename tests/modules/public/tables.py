"""Tables, cells, recommendations, uncertainty."""

from typing import Any

import numpy as np
import torch
from harness import case
from torch import nn
from torch.utils.data import DataLoader

from public.lit import Lit, draws, load_into, split_loaders, tensors


@case("CategoryEmbedding", "pytorch-tabular")
def pytorch_tabular() -> dict[str, Any]:
    import pandas as pd
    from pytorch_tabular import TabularModel
    from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
    from pytorch_tabular.models import CategoryEmbeddingModelConfig

    def frame(silo: int) -> Any:
        rng = np.random.default_rng(silo)
        kinds = [["a", "b"][i % 2] for i in range(32)]
        return pd.DataFrame({"x": rng.normal(size=32), "kind": kinds, "y": rng.normal(size=32)})

    def tabular() -> Any:
        return TabularModel(
            data_config=DataConfig(target=["y"], continuous_cols=["x"], categorical_cols=["kind"], num_workers=0),
            model_config=CategoryEmbeddingModelConfig(task="regression", layers="8-4"),
            optimizer_config=OptimizerConfig(),
            verbose=False,
            trainer_config=TrainerConfig(
                batch_size=8,
                accelerator="cpu",
                checkpoints=None,
                early_stopping=None,
                load_best=False,
                progress_bar="none",
            ),
        )

    def make() -> Any:
        model = tabular()
        return model.prepare_model(model.prepare_dataloader(frame(0), frame(0), seed=0))

    def loaders(silo: int) -> dict[str, Any]:
        data = tabular().prepare_dataloader(frame(silo), frame(silo), seed=0)
        train, val = data.train_dataloader(), data.val_dataloader()
        return {
            "train": DataLoader(train.dataset, batch_size=8),
            "val": DataLoader(val.dataset, batch_size=8),
            "test": DataLoader(val.dataset, batch_size=8),
        }

    return {"make": make, "loaders": loaders, "load": load_into}


def _cells(silo: int) -> Any:
    import anndata
    import scvi

    rng = np.random.default_rng(silo)
    cells = anndata.AnnData(rng.poisson(3.0, size=(48, 10)).astype("float32"))
    cells.obs["batch"] = ["a", "b"] * 24
    scvi.model.SCVI.setup_anndata(cells, batch_key="batch")
    return cells


@case("TrainingPlan of SCVI", "scvi-tools")
def scvi_plan() -> dict[str, Any]:
    import scvi
    from scvi.train import TrainingPlan

    scvi.settings.verbosity = 40

    def make() -> Any:
        return TrainingPlan(scvi.model.SCVI(_cells(0), n_hidden=8, n_latent=2).module)

    def loaders(silo: int) -> dict[str, Any]:
        model = scvi.model.SCVI(_cells(silo), n_hidden=8, n_latent=2)
        part = {"train": range(24), "val": range(24, 36), "test": range(36, 48)}
        return {
            split: model._make_data_loader(model.adata, indices=np.array(list(cells)), batch_size=8, shuffle=False)
            for split, cells in part.items()
        }

    return {"make": make, "loaders": loaders, "load": load_into}


@case("MVERegression", "lightning-uq-box")
def mean_variance() -> dict[str, Any]:
    from lightning_uq_box.models import MLP
    from lightning_uq_box.uq_methods import MVERegression

    def loaders(silo: int) -> dict[str, Any]:
        data = [{"input": x, "target": y} for x, y in tensors(silo, (3,), (1,))]
        return split_loaders(data)

    return {
        "make": lambda: MVERegression(MLP(n_inputs=3, n_hidden=[8], n_outputs=2), burnin_epochs=1),
        "loaders": loaders,
        "load": load_into,
    }


@case("ClassificationRoutine", "torch-uncertainty")
def classification_routine() -> dict[str, Any]:
    from torch_uncertainty.routines import ClassificationRoutine

    def make() -> Any:
        net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.Adam
        return ClassificationRoutine(
            net,
            num_classes=3,
            loss=nn.CrossEntropyLoss(),
            optim_recipe=lambda model: optimizer(model.parameters(), 1e-3),
        )

    return {
        "make": make,
        "loaders": lambda silo: split_loaders(tensors(silo, (6,), classes=3, count=40)),
        "load": load_into,
    }


@case("RegressionRoutine", "torch-uncertainty")
def regression_routine() -> dict[str, Any]:
    from torch_uncertainty.routines import RegressionRoutine

    def make() -> Any:
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        return RegressionRoutine(net, output_dim=1, loss=nn.MSELoss(), optim_recipe=torch.optim.Adam(net.parameters()))

    return {
        "make": make,
        "loaders": lambda silo: split_loaders([(x, y[0]) for x, y in tensors(silo, (6,), (1,))]),
        "load": load_into,
    }


@case("embedding with triplet loss", "pytorch-metric-learning", wraps=True)
def metric_learning() -> dict[str, Any]:
    from pytorch_metric_learning import losses, miners

    miner, distance = miners.MultiSimilarityMiner(), losses.TripletMarginLoss(margin=0.5)

    def loss(net: Any, batch: Any) -> Any:
        x, labels = batch
        embedded = net(x)
        return distance(embedded, labels, miner(embedded, labels))

    return {
        "make": lambda: Lit(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)), loss),
        "loaders": lambda silo: split_loaders(tensors(silo, (6,), classes=3, count=64), batch_size=8),
        "load": load_into,
    }


@case("recommender of embeddings (batches of dicts)", "torch", wraps=True)
def recommender() -> dict[str, Any]:
    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.EmbeddingBag(20, 8, mode="sum"), nn.Embedding(30, 8)
            self.head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))

        def forward(self, user: Any, item: Any) -> Any:
            return self.head(torch.cat([self.users(user[:, None]), self.items(item)], 1))[:, 0]

    def loss(net: Any, batch: Any) -> Any:
        return nn.functional.binary_cross_entropy_with_logits(net(batch["user"], batch["item"]), batch["clicked"])

    def loaders(silo: int) -> dict[str, Any]:
        generator = draws(silo)
        rows = [
            {"user": int(u), "item": int(i), "clicked": float((u + i) % 2)}
            for u, i in zip(
                torch.randint(20, (40,), generator=generator),
                torch.randint(30, (40,), generator=generator),
                strict=True,
            )
        ]
        return split_loaders(rows, batch_size=8, collate_fn=_rows)

    return {"make": lambda: Lit(Recommender(), loss), "loaders": loaders, "load": load_into}


def _rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    batch = torch.utils.data.default_collate(rows)
    return {key: value.float() if value.is_floating_point() else value for key, value in batch.items()}
