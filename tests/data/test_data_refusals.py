"""What data modules, silos and shifts refuse: the exception and the option or thing at fault."""

import re

import pytest
import torch
from data_tiny import (
    DATA,
    LABELS,
    Assays,
    Given,
    Lists,
    Loader,
    Recorder,
    Sliced,
    Stream,
    numbered,
    partitioned,
    ready,
)
from lightning.pytorch import LightningDataModule
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset, WeightedRandomSampler

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.partition import IID, GroupBy
from lightning_fl.data.partition.classes import check_classes, stratified_parts
from lightning_fl.data.partitioned import Partitioned
from lightning_fl.data.shifts import FedCollabConceptShift, Inversion, LabelPermutation, Rotation
from lightning_fl.data.silos import Silos

LOADER, MODULE = DataLoader(DATA), Recorder()
TWO = IID(num_clients=2)


def weighted(data):
    return WeightedRandomSampler([1.0] * len(data), len(data))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Given({}, partitioner=TWO, split=(0.5, 0.1, 0.1)), "split="),
        (lambda: Given({}, partitioner=TWO, unlabelled="drop"), "Given.unlabelled='drop'"),
        *[
            (lambda share=share: Given({}, partitioner=TWO, train_shares=[1.0, share]), "Given.train_shares[1]")
            for share in (0.0, 1.1)
        ],
        (lambda: ready({"train": numbered(9)}, partitioner=Lists([0], [2]), train_shares=[1.0]), "train_shares has 1"),
        (lambda: Partitioned(Stream(), TWO), "Stream"),
        (lambda: Partitioned(Partitioned(DATA, TWO), TWO), "data: Partitioned"),
        (lambda: Partitioned(DATA, TWO, split=(0.8, 0.1, 0.2)), "split="),
        (lambda: Partitioned(DATA, TWO, batch_size=0), "Partitioned.batch_size=0"),
        (lambda: Silos([]), "datamodules=[]"),
        (lambda: Silos([MODULE, Recorder(), MODULE]), "datamodules has an object twice"),
        (lambda: Silos([Recorder(), Recorder()], names=["one"]), "names=['one'] for 2 clients"),
        (lambda: Silos([Recorder(), Recorder()], names=["one", "one"]), "names=['one', 'one']"),
        (lambda: Silos([Partitioned(DATA, TWO)]), "client_0: Partitioned"),
        (lambda: Silos([Recorder()], batch_size=0), "Silos.batch_size=0"),
        (lambda: Silos([LOADER, Recorder()], collate_fn=list), "collate_fn"),
        (lambda: Silos([(LOADER, DataLoader(DATA)), Recorder()]), "client_0: the data are a tuple of 2"),
        (lambda: Silos([{"fit": LOADER, "val": LOADER}, Recorder()]), "client_0: the data are a dict of fit, val"),
        (lambda: Silos([LOADER, {"train": DATA, "val": 3}]), "client_1: the val data are a int"),
        (lambda: Silos({"train": LOADER, "val": DATA}), "datamodules is a dict of the splits train, val"),
        (lambda: Silos(DATA), "datamodules is a TensorDataset"),
        (lambda: Silos({"north": LOADER}, names=["a"]), "names=['a']"),
        (lambda: Silos([LOADER, Recorder()], num_samples=[1]), "num_samples=[1]"),
        (lambda: Silos([LOADER, Recorder()], num_samples=[1, 0]), "Silos.num_samples[1]=0"),
        (lambda: Silos([LOADER, Recorder()], num_samples={"client_0": 1}), "num_samples={'client_0': 1}"),
        (lambda: Rotation(degrees=[]), "degrees=[]"),
        (lambda: Rotation(clients_per_value=0), "Rotation.clients_per_value=0"),
        (lambda: Rotation().check(19, 10), "Rotation is for 20 clients (4 blocks of 5), there are 19"),
        (lambda: LabelPermutation(permutations=[]), "permutations=[]"),
        (lambda: LabelPermutation(permutations=[[]]), "permutations[0]=[]"),
        (lambda: LabelPermutation(permutations=[[0, 1], [1, 1]]), "permutations[1]=[1, 1]"),
        (lambda: LabelPermutation(permutations=[[0, 1], [0, 2, 1]]), "permutations[1]=[0, 2, 1]"),
        (lambda: LabelPermutation(permutations=[[0]], clients_per_value=0), "LabelPermutation.clients_per_value=0"),
        (lambda: LabelPermutation(permutations=[[0, 1]]).check(10, 2), "LabelPermutation is for 5 clients"),
        (lambda: LabelPermutation(permutations=[[0, 1]]).check(5, 3), "permutations have 2 labels"),
        (lambda: FedCollabConceptShift(clients_per_type=0), "FedCollabConceptShift.clients_per_type=0"),
        (lambda: FedCollabConceptShift(num_permuted=11), "num_permuted=11 of num_classes=20"),
        (lambda: FedCollabConceptShift(num_permuted=1), "FedCollabConceptShift.num_permuted=1"),
        (lambda: FedCollabConceptShift().check(20, 10), "permutations have 20 labels"),
        (lambda: Inversion(clients=[]), "clients=[]"),
        (lambda: Inversion(clients=[1, 1]), "clients=[1, 1]"),
        (lambda: Inversion(clients=[3]).check(3, 10), "Inversion.clients=[3]"),
    ],
)
def test_arguments(make, name):
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        make()


class OwnIteration(DataLoader):
    def __iter__(self):
        return iter([])


def batched(data, split):
    sampler = BatchSampler(SequentialSampler(data), 4, False)
    return DataLoader(data, batch_sampler=sampler) if split == "train" else DataLoader(data, batch_size=None)


@pytest.mark.parametrize(
    ("loader", "options", "error", "name"),
    [
        (lambda data, split: DataLoader(Stream()), {}, ConfigurationError, "train loader reads a Stream"),
        (lambda data, split: OwnIteration(data), {}, ConfigurationError, "train loader is a OwnIteration"),
        (
            lambda data, split: LOADER if split == "train" else [LOADER, LOADER],
            {},
            ConfigurationError,
            "val loader is a list of 2",
        ),
        (lambda data, split: data, {}, ConfigurationError, "train loader is a TensorDataset"),
        (lambda data, split: None, {}, ConfigurationError, "no train_dataloader"),
        (lambda data, split: DataLoader(Subset(data, [])), {}, DataError, "train loader has no samples"),
        (
            lambda data, split: DataLoader(data, sampler=weighted(data)),
            {},
            ConfigurationError,
            "train loader has a custom WeightedRandomSampler",
        ),
        (
            lambda data, split: DataLoader(data, sampler=weighted(data) if split == "val" else None),
            {},
            ConfigurationError,
            "val loader has a custom WeightedRandomSampler",
        ),
        (batched, {}, ConfigurationError, "train loader has a custom BatchSampler"),
        (batched, {"batch_size": 4}, ConfigurationError, "eval_batch_size"),
    ],
)
def test_loaders_that_cannot_be_divided(loader, options, error, name):
    with pytest.raises(error, match=re.escape(name)):
        partitioned(Sliced(("train", "val"), loader), TWO, **options)


@pytest.mark.parametrize(
    ("loader", "error", "name"),
    [
        (DataLoader(Stream()), ConfigurationError, "west: the train loader reads a Stream"),
        (DataLoader(DATA, sampler=weighted(DATA)), ConfigurationError, "west: the train loader has a custom Weighted"),
        (DataLoader(Subset(DATA, [])), DataError, "west: the train loader has no samples"),
    ],
)
def test_loaders_that_cannot_be_changed(loader, error, name):
    with pytest.raises(error, match=name):
        Silos([Loader(loader)], names=["west"], batch_size=2).client_data(0, "train")


class GroupedSplits(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Assays(["a", "a"]))

    def test_dataloader(self):
        return DataLoader(Assays(["a", "late"]))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ready({"train": numbered(10, torch.rand(10))}, stratified=True), "stratified"),
        (lambda: ready({"train": numbered(10)}, partitioner=Lists([0, 1], [])), "client 1 gets no"),
        (lambda: Given({"train": numbered(9)}, partitioner=Lists([0], [2])).num_clients, "call prepare_data()"),
        (lambda: Given({"train": numbered(9)}, partitioner=TWO)._data, "call prepare_data()"),
        (
            lambda: stratified_parts(LABELS, [60, 50], torch.Generator()),
            "sizes=[60, 50] need 110 of 100 samples",
        ),
        (lambda: check_classes(torch.zeros(4)), "targets of shape [4]"),
        (lambda: check_classes(torch.zeros(4, 2, dtype=torch.long)), "targets of shape [4, 2]"),
        (lambda: check_classes(torch.zeros(4) > 0), "torch.bool"),
        (lambda: Partitioned(DATA, TWO).client_data(0, "train"), "call prepare_data"),
        (lambda: Partitioned(Assays(list("ab")), GroupBy(column="assay")).num_clients, "call prepare_data"),
        (lambda: partitioned(DATA, IID(num_clients=101)), "train data: 100 samples for 101 clients"),
        (lambda: partitioned(GroupedSplits(), GroupBy(column="assay")), "such as late"),
        (lambda: Silos([Stream()]).num_samples("train"), "a Stream has no length"),
    ],
)
def test_data(make, name):
    with pytest.raises(DataError, match=re.escape(name)):
        make()
