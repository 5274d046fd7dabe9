"""Samples that know their columns, and data modules of them."""

import torch
from torch.utils.data import TensorDataset

from lightning_fl.data.partition import IID
from lightning_fl.data.shared import OpenedData, SharedDataModule


class Rows(TensorDataset):
    """Sample i is row i + 2 of its file; columns, and SMILES where they are given."""

    def __init__(self, columns, labels=None, smiles=None):
        length = len(next(iter(columns.values()))) if columns else len(smiles)
        super().__init__(torch.arange(float(length)), torch.zeros(length) if labels is None else torch.tensor(labels))
        self.columns = columns
        self.rows = [index + 2 for index in range(length)]
        if smiles is not None:
            self.smiles = smiles

    def column(self, name):
        return self.columns[name]

    def without_rows(self):
        del self.rows
        return self


def letters(text):
    """A sample for every letter, in the column ``group``."""
    return Rows({"group": list(text)})


class GivenRows(SharedDataModule):
    """Data sets as they are; equal values of the column ``thing`` are the same thing."""

    def __init__(self, datasets, *, together=False, sha256="00ff", **kwargs):
        super().__init__(**({"partitioner": IID(num_clients=1), "split_seed": 1} | kwargs))
        self.datasets = datasets if isinstance(datasets, dict) else {"train": datasets}
        self._copies_together = together
        self.sha256 = sha256

    def _open(self, *, allow_download):
        return OpenedData(self.datasets, "measured", {"file": "rows.csv", "sha256": self.sha256})

    def _identities(self):
        return getattr(self.datasets["train"], "columns", {}).get("thing")


def ready(datasets, **kwargs):
    data = GivenRows(datasets, **kwargs)
    data.prepare_data()
    data.setup("fit")
    return data


def held(data, client=0):
    """Split -> sample numbers of a client."""
    return {split: [row - 2 for row in rows] for split, rows in data.held_rows(client).items()}
