import torch
from torch.utils.data import Subset, TensorDataset

from lightning_fl.recipe.predictions import prediction_table


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
