"""Tables, cells, recommendations, uncertainty."""

from functools import partial
from typing import Any

import numpy as np
import torch
from harness import case
from torch import nn
from torch.utils.data import DataLoader

from public.lit import Lit, draws, load_into, split_loaders, tensors


def _pytorch_tabular(name: str, **options: Any) -> dict[str, Any]:
    import pandas as pd
    import pytorch_tabular.models
    from pytorch_tabular import TabularModel
    from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig

    def frame(silo: int) -> Any:
        rng = np.random.default_rng(silo)
        kinds = [["a", "b"][i % 2] for i in range(32)]
        return pd.DataFrame({"x": rng.normal(size=32), "kind": kinds, "y": rng.normal(size=32)})

    def tabular() -> Any:
        return TabularModel(
            data_config=DataConfig(target=["y"], continuous_cols=["x"], categorical_cols=["kind"], num_workers=0),
            model_config=getattr(pytorch_tabular.models, f"{name}Config")(task="regression", **options),
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


_TABULAR: dict[str, dict[str, Any]] = {
    "CategoryEmbeddingModel": {"layers": "8-4"},
    "FTTransformer": {"input_embed_dim": 8, "num_heads": 2, "num_attn_blocks": 1},
    "GANDALF": {"gflu_stages": 2},
}
for _name, _options in _TABULAR.items():
    case(_name.removesuffix("Model"), "pytorch-tabular")(partial(_pytorch_tabular, _name, **_options))


def _cells(silo: int) -> Any:
    import anndata
    import scvi

    rng = np.random.default_rng(silo)
    cells = anndata.AnnData(rng.poisson(3.0, size=(48, 10)).astype("float32"))
    cells.obs["batch"] = ["a", "b"] * 24
    scvi.model.SCVI.setup_anndata(cells, batch_key="batch")
    return cells


def _scvi(plan: str, **options: Any) -> dict[str, Any]:
    import scvi

    scvi.settings.verbosity = 40

    def model(silo: int) -> Any:
        return scvi.model.SCVI(_cells(silo), n_hidden=8, n_latent=2)

    def loaders(silo: int) -> dict[str, Any]:
        own = model(silo)
        part = {"train": range(24), "val": range(24, 36), "test": range(36, 48)}
        return {
            split: own._make_data_loader(own.adata, indices=np.array(list(cells)), batch_size=8, shuffle=False)
            for split, cells in part.items()
        }

    return {
        "make": lambda: getattr(scvi.train, plan)(model(0).module, **options),
        "loaders": loaders,
        "load": load_into,
    }


@case("TrainingPlan of SCVI", "scvi-tools")
def scvi_plan() -> dict[str, Any]:
    return _scvi("TrainingPlan")


@case("AdversarialTrainingPlan of SCVI (manual optimisation)", "scvi-tools")
def scvi_adversarial_plan() -> dict[str, Any]:
    return _scvi("AdversarialTrainingPlan", adversarial_classifier=True)


def _uncertain(name: str, outputs: int, **options: Any) -> dict[str, Any]:
    import lightning_uq_box.uq_methods
    from lightning_uq_box.models import MLP

    def make() -> Any:
        network = MLP(n_inputs=3, n_hidden=[8], n_outputs=outputs, dropout_p=0.1)
        return getattr(lightning_uq_box.uq_methods, name)(network, **options)

    def loaders(silo: int) -> dict[str, Any]:
        return split_loaders([{"input": x, "target": y} for x, y in tensors(silo, (3,), (1,))])

    return {"make": make, "loaders": loaders, "load": load_into}


_UNCERTAIN: dict[str, tuple[int, dict[str, Any]]] = {
    "BNN_VI_ELBO_Regression": (1, {"criterion": nn.MSELoss(), "burnin_epochs": 1, "num_mc_samples_test": 2}),
    "DER": (4, {}),
    "MCDropoutRegression": (1, {"num_mc_samples": 2, "loss_fn": nn.MSELoss()}),
    "MVERegression": (2, {"burnin_epochs": 1}),
    "QuantileRegression": (3, {}),
}
for _name, (_outputs, _options) in _UNCERTAIN.items():
    # Its on_fit_start counts the training samples.
    _fails = "self.trainer.datamodule.train_dataloader() belongs to a client" if _name.startswith("BNN") else None
    case(_name, "lightning-uq-box", fails=_fails)(partial(_uncertain, _name, _outputs, **_options))


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
