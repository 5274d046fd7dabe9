import pandas as pd
import pytest
import torch
from lightning.pytorch import LightningDataModule
from tiny import TinyModule, quiet_trainer, regression_set
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from lightning_fl.data import Silos
from lightning_fl.recipe.predictions import prediction_table, write_predictions


def test_prediction_table_of_any_data():
    features = torch.arange(6.0)[:, None]
    targets = torch.tensor([0, 1, 0, 1, 0, 1])
    subset = Subset(TensorDataset(features, targets), [4, 1, 3])
    table = prediction_table(subset, [torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([[1.0, 0.0]])])
    assert table.to_dict("list") == {
        "index": [4, 1, 3],
        "target": [0, 1, 1],
        "prediction_0": [0.5, 0.25, 1.0],
        "prediction_1": [0.5, 0.75, 0.0],
    }
    table = prediction_table(subset, [{"mean": torch.zeros(3), "class": torch.tensor([1, 2, 3])}])
    assert list(table["class"]) == [1, 2, 3]
    assert list(table["mean"]) == [0.0, 0.0, 0.0]
    table = prediction_table([object(), object()], [torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(2.0)])
    assert table.to_dict("list") == {"index": [0, 1], "prediction": [1.0, 2.0]}


class Samples(Dataset):
    """Reads one sample after another, so that its loader is asked for their order."""

    def __init__(self) -> None:
        self.x, self.targets = regression_set(6, seed=1).tensors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.targets[index]


class Silo(LightningDataModule):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.options = options

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Samples(), batch_size=4)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(Samples(), batch_size=4, **self.options)


def test_targets_stand_beside_their_predictions_or_nowhere(recwarn: pytest.WarningsRecorder) -> None:
    data, samples = Silos([Silo(shuffle=False), Silo(shuffle=True)], names=["plain", "mixed"]), Samples()
    trainer, module = quiet_trainer(max_rounds=1, devices=1), TinyModule()
    trainer.fit(module, data)
    folder = write_predictions(trainer, trainer.predict(module, data))
    plain, mixed = (pd.read_csv(folder / f"{name}.csv") for name in ("plain", "mixed"))
    predicted = module(samples.x).flatten().tolist()
    assert plain["prediction"].tolist() == pytest.approx(predicted)
    assert plain["target"].tolist() == pytest.approx(samples.targets.flatten().tolist())
    assert list(mixed) == ["index", "prediction"]
    assert mixed["prediction"].tolist() != pytest.approx(predicted)
    assert sorted(mixed["prediction"]) == pytest.approx(sorted(predicted))
    assert [str(one.message) for one in recwarn if "without targets" in str(one.message)] == [
        "the test loader of mixed has an order of its own, so its predictions are written without targets:"
        " use shuffle=False."
    ]
