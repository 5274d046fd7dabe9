"""Data sets that the tests of partitions share."""

import torch
from torch.utils.data import TensorDataset

from lightning_fl.data.partition import GroupBy

RINGS = ["C1CC1", "C1CCC1", "C1CCCC1", "c1ccccc1"]


class Molecules(TensorDataset):
    """Molecules with a column ``assay``."""

    def __init__(self, smiles, assays=()):
        super().__init__(torch.arange(len(smiles)))
        self.smiles = smiles
        self.assays = list(assays)

    def column(self, name):
        return {"assay": self.assays}[name]


MOLECULES = Molecules([tail + ring for tail in ("C", "CC", "CCC") for ring in RINGS], ["b", "a", "c"] * 4)
ASSAYS = Molecules(
    ["C"] * 30, [name for name, count in zip("abcdef", (2, 4, 6, 8, 3, 7), strict=True) for _ in range(count)]
)
#: Five classes of 20 samples.
LABELLED = TensorDataset(torch.rand(100, 2), torch.arange(5).repeat(20))
#: Real targets.
REAL = TensorDataset(torch.rand(100, 2), torch.rand(100, 1, generator=torch.Generator().manual_seed(0)))


def labelled(*counts):
    """A data set of labels, ``counts[c]`` of class c."""
    return TensorDataset(torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)))


def interleaved(per_class, num_classes=10):
    """Samples of the classes 0, 1, ..., 0, 1, ..."""
    return TensorDataset(torch.arange(float(per_class * num_classes)), torch.arange(num_classes).repeat(per_class))


def by_group(groups, num_clients, seed, ratios=None):
    """Clients of samples with these groups."""
    return GroupBy(column="assay", num_clients=num_clients, ratios=ratios)(Molecules(["C"] * len(groups), groups), seed)


def lists(parts):
    return [part.tolist() for part in parts]


def class_counts(dataset, parts, num_classes):
    """[N, C] samples of every class of every client."""
    return [dataset.tensors[-1][part].flatten().bincount(minlength=num_classes).tolist() for part in parts]


def assert_partition(parts, num_samples):
    """Disjoint, ascending, covering."""
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(num_samples))
    assert all(part.dtype == torch.int64 and (part.diff() > 0).all() for part in parts)
