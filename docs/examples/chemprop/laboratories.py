"""Laboratories that hold a CSV file each train one chemprop model, with chemprop's own data sets, batches and metrics.

``python laboratories.py north.csv south.csv --target logS`` is a whole run; each laboratory's file has the columns
``smiles`` and ``logS``. On machines of their own each opens its own file only (docs/processes.md).
"""

import argparse
from pathlib import Path

import pandas as pd
from chemprop import data, models, nn
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from lightning_fl import FederatedTrainer, Silos


class Laboratory(LightningDataModule):
    """The molecules of one file: of every ten, eight to train, one to validate and one to test.

    Args:
        path: a CSV file.
        target: the column to predict; an empty cell is a missing value.
        smiles: the column of SMILES.
        batch_size: molecules in a batch.
    """

    def __init__(self, path: str | Path, target: str, *, smiles: str = "smiles", batch_size: int = 32) -> None:
        super().__init__()
        self.path, self.target, self.smiles, self.batch_size = path, target, smiles, batch_size

    def setup(self, stage: str) -> None:
        """Read the file and featurise its molecules, once."""
        if hasattr(self, "parts"):
            return
        table = pd.read_csv(self.path)
        points = [
            data.MoleculeDatapoint.from_smi(smiles, y=[value])
            for smiles, value in zip(table[self.smiles], table[self.target], strict=True)
        ]
        tenths = [index % 10 for index in range(len(points))]
        chosen = {"train": range(8), "val": (8,), "test": (9,)}
        self.parts = {
            split: data.MoleculeDataset(
                [point for point, tenth in zip(points, tenths, strict=True) if tenth in of_split]
            )
            for split, of_split in chosen.items()
        }
        for part in self.parts.values():
            part.cache = True

    def train_dataloader(self) -> DataLoader:
        """chemprop's own loader, in a fresh order every round."""
        return data.build_dataloader(self.parts["train"], self.batch_size)

    def val_dataloader(self) -> DataLoader:
        """Every molecule: chemprop leaves out a last batch of one unless it is told."""
        return data.build_dataloader(self.parts["val"], self.batch_size, shuffle=False, drop_last=False)

    def test_dataloader(self) -> DataLoader:
        """As for validation."""
        return data.build_dataloader(self.parts["test"], self.batch_size, shuffle=False, drop_last=False)


def regression(hidden_dim: int = 300) -> models.MPNN:
    """chemprop's usual model of one number."""
    return models.MPNN(
        nn.BondMessagePassing(d_h=hidden_dim),
        nn.MeanAggregation(),
        nn.RegressionFFN(input_dim=hidden_dim),
        metrics=[nn.metrics.RMSE(), nn.metrics.MAE()],
    )


def classification(hidden_dim: int = 300) -> models.MPNN:
    """chemprop's usual model of a yes or no."""
    return models.MPNN(
        nn.BondMessagePassing(d_h=hidden_dim),
        nn.MeanAggregation(),
        nn.BinaryClassificationFFN(input_dim=hidden_dim),
        metrics=[nn.metrics.BinaryAUROC()],
    )


def main() -> None:
    """A run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--target", required=True)
    parser.add_argument("--classes", action="store_true", help="the target is 0 or 1")
    parser.add_argument("--rounds", type=int, default=30)
    asked = parser.parse_args()
    laboratories = Silos(
        [Laboratory(path, asked.target) for path in asked.files], names=[Path(path).stem for path in asked.files]
    )
    module = classification() if asked.classes else regression()
    trainer = FederatedTrainer(max_rounds=asked.rounds, optimizer_state="keep")
    trainer.fit(module, laboratories)
    trainer.test(module, laboratories)


if __name__ == "__main__":
    main()
