"""Data sets, data modules and partitioners that the tests of federated data share."""

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightning_fl.data.partition import IID, Partitioner
from lightning_fl.data.partitioned import Partitioned
from lightning_fl.data.shared import OpenedData, SharedDataModule

#: Sample i is i, of class i % 4.
DATA = TensorDataset(torch.arange(100.0), torch.arange(100) % 4)
LABELS = torch.tensor([0] * 30 + [1] * 50 + [2] * 20)


def numbered(count, labels=None):
    """Sample i is i."""
    return TensorDataset(torch.arange(float(count)), LABELS[:count] if labels is None else labels)


class Given(SharedDataModule):
    """These data sets."""

    def __init__(self, datasets, **kwargs):
        super().__init__(**kwargs)
        self.datasets = datasets

    def _open(self, *, allow_download):
        return OpenedData(self.datasets, "measured", {"title": "numbers"})


def ready(datasets, **kwargs):
    data = Given(datasets, **({"partitioner": IID(num_clients=4), "split_seed": 1} | kwargs))
    data.prepare_data()
    data.setup("fit")
    return data


def partitioned(*args, **kwargs):
    data = Partitioned(*args, **({"split_seed": 1} | kwargs))
    data.prepare_data()
    data.setup("fit")
    return data


class Lists(Partitioner):
    """These samples, whatever the data."""

    def __init__(self, *parts):
        self.parts = parts

    def __call__(self, dataset, seed):
        return [torch.tensor(part, dtype=torch.long) for part in self.parts]


class Sliced(LightningDataModule):
    """Ordinary data module; the constructor says which loaders it has and how they are made."""

    def __init__(self, splits=("train",), loader=None, size: int = 100):
        super().__init__()
        self.splits = splits
        self.loader = loader or (lambda data, split: DataLoader(data, batch_size=8, shuffle=split == "train"))
        self.size = size
        self.calls: list[str] = []

    def prepare_data(self):
        self.calls.append("prepare_data")

    def setup(self, stage):
        self.calls.append(f"setup {stage}")
        values = torch.arange(self.size)
        offsets = {"train": 0, "val": 1000, "test": 2000}
        self.datasets = {split: TensorDataset(values + offset, values % 4) for split, offset in offsets.items()}

    def teardown(self, stage):
        self.calls.append(f"teardown {stage}")

    def _loader(self, split):
        return self.loader(self.datasets[split], split) if split in self.splits else None

    def train_dataloader(self):
        return self._loader("train")

    def val_dataloader(self):
        return self._loader("val")

    def test_dataloader(self):
        return self._loader("test")


class Assays(TensorDataset):
    """Samples with a column ``assay``."""

    source = "measured"

    def __init__(self, assays):
        super().__init__(torch.arange(len(assays)))
        self.assays = assays

    def column(self, name):
        return self.assays


class Stream(IterableDataset):
    """A stream of numbers."""

    def __iter__(self):
        return iter(range(3))


class Recorder(LightningDataModule):
    """Writes down every call."""

    def __init__(self, size: int = 20):
        super().__init__()
        self.size = size
        self.calls: list[str] = []

    def prepare_data(self):
        self.calls.append("prepare_data")

    def setup(self, stage):
        self.calls.append(f"setup {stage}")
        self.dataset = TensorDataset(torch.arange(float(self.size)))

    def teardown(self, stage):
        self.calls.append(f"teardown {stage}")

    def train_dataloader(self):
        self.calls.append("train_dataloader")
        return DataLoader(self.dataset, batch_size=4, shuffle=True)

    def test_dataloader(self):
        self.calls.append("test_dataloader")
        return DataLoader(self.dataset, batch_size=7)


class Loader(LightningDataModule):
    """A data module around one ready loader."""

    def __init__(self, loader):
        super().__init__()
        self.loader = loader

    def train_dataloader(self):
        return self.loader
