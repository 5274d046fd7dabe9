"""What partitions refuse: the exception and the option or thing at fault."""

import re

import pytest
import torch
from partition_tiny import ASSAYS, LABELLED, MOLECULES, REAL, Molecules, interleaved, labelled
from torch.utils.data import Subset, TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data import partition
from lightning_fl.data.partition import (
    IID,
    Dirichlet,
    FedCollabLabelShift,
    GroupBy,
    LabelTypes,
    Mixture,
    OneClassShards,
    Pathological,
    Quantity,
    Scaffold,
    ScaffoldLDA,
    Sizes,
)
from lightning_fl.data.partition.mixtures import by_mixture

nan = float("nan")
LABELS = torch.arange(10).repeat_interleave(60)
ZEROS = torch.zeros(10).long()
TEN = TensorDataset(LABELS)
BY_ASSAY = {"column": "assay"}


ARGUMENTS = [
    *[(partition.apportion, (total, ratios), "ratios=") for total, ratios in ((-1, [1]), (3, [0, 0]), (3, [-1, 2]))],
    (partition.apportion, (3, [nan]), "ratios"),
    (partition.mixture_shares, ("half", 2, 0), "mixture='half'"),
]


@pytest.mark.parametrize(("function", "arguments", "name"), ARGUMENTS)
def test_arguments_of_functions(function, arguments, name):
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        function(*arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "name"),
    [
        (Quantity, {"ratios": [1, 0]}, "Quantity.ratios[1]=0"),
        (Quantity, {"ratios": []}, "Quantity.ratios=[]"),
        (Quantity, {}, "Quantity.ratios=None"),
        (Quantity, {"num_clients": 3}, "alpha=None"),
        (Quantity, {"ratios": [1.0], "min_samples": 3}, "min_samples=3"),
        (Quantity, {"ratios": [1.0], "num_clients": 1, "alpha": 1.0}, "alpha=1.0"),
        (Sizes, {"train": [1, 0]}, "Sizes.train[1]=0"),
        (Sizes, {"train": []}, "Sizes.train=[]"),
        (LabelTypes, {"shares": []}, "shares=[]"),
        (LabelTypes, {"shares": [[]]}, "shares=[[]]"),
        (LabelTypes, {"shares": [[0.5, 0.5], [0.5]]}, "shares=[[0.5, 0.5], [0.5]]"),
        (LabelTypes, {"shares": [[0.5, 1.2]]}, "LabelTypes.shares[0][1]=1.2"),
        (LabelTypes, {"shares": [[0.5, 0.5], [0.0, 0.0]]}, "shares[1]=[0.0, 0.0]"),
        (LabelTypes, {"shares": [[0.5, 0.7], [0.2, 0.4]]}, "shares of class 1, [0.7, 0.4], sum to 1.1"),
        (OneClassShards, {"num_clients": 11, "num_shards": 10}, "num_shards=10: must be at least num_clients=11"),
        (GroupBy, BY_ASSAY | {"ratios": [1, 2]}, "num_clients=None"),
        (GroupBy, BY_ASSAY | {"num_clients": 3, "ratios": [1, 2]}, "GroupBy.ratios=[1, 2]"),
        (GroupBy, BY_ASSAY | {"num_groups": 2, "num_clients": 3}, "num_groups=2 with num_clients=3"),
        (Scaffold, {"num_clients": 2, "ratios": [1, 2, 3]}, "ratios=[1, 2, 3]"),
        (Scaffold, {"num_clients": 2, "ratios": [1, 0]}, "Scaffold.ratios[1]=0"),
        *[
            (Mixture, {"num_clients": 2, "mixture": mixture}, f"mixture={mixture!r}")
            for mixture in ("10:80", "-10:110", "nan:100", "half", "10:20:70")
        ],
        *[
            (Mixture, {"num_clients": 2} | arguments, name)
            for arguments, name in (
                ({"column": "target"}, "column='target', values_a=None"),
                ({"values_a": ["x"]}, "column=None, values_a=['x']"),
                ({"values_b": ["x"]}, "column=None, values_a=None, values_b=['x']"),
                ({"column": "c", "values_a": ["x"], "classes_a": [1]}, "column='c' with classes_a=[1]"),
                ({"classes_a": []}, "classes_a=[]"),
                ({"classes_a": [1], "classes_b": []}, "classes_b=[]"),
                ({"classes_b": [1]}, "classes_a=None, classes_b=[1]"),
                ({"classes_a": [1, 2], "classes_b": [2]}, "classes_a=[1, 2], classes_b=[2]"),
                ({"column": "c", "values_a": ["x"], "values_b": ["x"]}, "values_a=['x'], values_b=['x']"),
            )
        ],
    ],
)
def test_arguments_of_classes(kind, arguments, name):
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        kind(**arguments)


@pytest.mark.parametrize("classes_per_client", [11, 2])
def test_classes_per_client_fit_the_classes(classes_per_client):
    with pytest.raises(ConfigurationError, match=f"Pathological.classes_per_client={classes_per_client}"):
        Pathological(num_clients=3, classes_per_client=classes_per_client)(TEN, 0)


OF_B, TWO = torch.tensor([0] * 10 + [1] * 100), partition.mixture_shares("10:90", 2, 0)


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (partition.murcko_scaffolds, (["C", "C("],), "smiles\\[1\\]='C\\('"),
        (by_mixture, (torch.ones(5).long(), torch.tensor([0.5]), 0), "distribution A"),
        (by_mixture, (torch.tensor([0, 0, 2, 2]), torch.tensor([0.5]), 0), "distribution B"),
        (
            lambda: by_mixture(OF_B, TWO, 0, size=20),
            (),
            "20 of distribution A and 20 of B, there are 10 and 100.*samples_per_",
        ),
        (
            by_mixture,
            (OF_B, partition.mixture_shares("10:90", 200, 0), 0),
            "200 clients with 1 samples need 100 .*there are 10 and 100",
        ),
    ],
)
def test_data_of_functions(function, arguments, name):
    with pytest.raises(DataError, match=name):
        function(*arguments)


TWO_TYPES = LabelTypes(shares=[[0.5, 0.5], [0.5, 0.5]], clients_per_type=1)
TWO_COLUMNS = TensorDataset(torch.stack([torch.arange(40) % 2, torch.arange(40) % 4], dim=1))
FEW = TensorDataset(torch.arange(10).repeat(9))
RING = Molecules(["C1CC1"] * 10)
BROKEN = Molecules(MOLECULES.smiles[1:])
BROKEN.tensors = MOLECULES.tensors


@pytest.mark.parametrize(
    ("partitioner", "data", "name"),
    [
        (Quantity(ratios=[1000, 1]), TensorDataset(ZEROS), "leave client 1 no sample"),
        (Sizes(train=[5, 6], stratified=False), TensorDataset(ZEROS), "need 11 samples, there are 10"),
        (Sizes(train=[5, 6]), TensorDataset(ZEROS), "need 11 samples, there are 10"),
        (Sizes(train=[1]), TensorDataset(ZEROS - 1), "minimum of -1"),
        (Dirichlet(num_clients=2, alpha=0.5), TensorDataset(ZEROS - 1), "minimum of -1"),
        (Dirichlet(num_clients=601, alpha=0.5), TEN, "at most 600 clients"),
        (Dirichlet(num_clients=4, alpha=0.5, min_samples=200), TEN, "at most 3 clients"),
        (Dirichlet(num_clients=4, alpha=0.5), TensorDataset(LABELS[:0]), "labels of shape [0]"),
        # Ten classes of one owner each cannot feed 20 clients.
        (Dirichlet(num_clients=20, alpha=1e-4), TEN, "min_samples=1 samples (at best, one client had 0)"),
        (Quantity(num_clients=9, alpha=0.01), TensorDataset(torch.zeros(100)), "alpha=0.01"),
        (Quantity(num_clients=11, alpha=1.0), TensorDataset(torch.zeros(100)), "at most 10 clients"),
        (Pathological(num_clients=3, classes_per_client=2), labelled(3, 1), "class 1 has 1 samples for 3 clients"),
        (GroupBy(column="assay"), Molecules(["C"] * 3, ["a", None, nan]), "2 samples have no group, the first at"),
        (GroupBy(column="assay"), Molecules([]), "no samples"),
        (GroupBy(column="assay", num_clients=4), Molecules(["C"] * 4, "abab"), "num_clients=4, but only 2 groups"),
        (Scaffold(num_clients=3), Molecules(["CC", "CCC", "C1CC1"]), "num_clients=3, but only 2 scaffolds"),
        (ScaffoldLDA(num_clients=3, alpha=0.001), RING, "alpha=0.001"),
        (ScaffoldLDA(num_clients=3, alpha=1.0, min_samples=5), RING, "at most 2 clients"),
        (TWO_TYPES, labelled(4, 4, 4), "LabelTypes has shares for classes 0..1, the data have labels up to 2"),
        (TWO_TYPES, labelled(4), "none of class 1"),
        (FedCollabLabelShift(), labelled(9, 9, 9, 0, 9, 9, 9, 9, 9, 9), "FedCollabLabelShift"),
        (OneClassShards(), FEW, "num_shards=100 of 1 samples of one class, but the data make only 90"),
        (OneClassShards(num_shards=20, shard_size=6), FEW, "num_shards=20 of 6"),
        (GroupBy(column="assay", min_samples=6, num_groups=4), ASSAYS, "3 groups have min_samples=6"),
        (GroupBy(column="assay", min_samples=9), ASSAYS, "0 groups have min_samples=9"),
        (Dirichlet(num_clients=2, alpha=1.0), TWO_COLUMNS, "target=0..1"),
        (Dirichlet(num_clients=2, alpha=1.0, target=2), TWO_COLUMNS, "target=2"),
        (IID(num_clients=2, stratified=True), TWO_COLUMNS, "stratified"),
        (Scaffold(num_clients=2), LABELLED, "TensorDataset has no attribute smiles"),
        (Scaffold(num_clients=2), BROKEN, "12 samples but 11 keys"),
        (ScaffoldLDA(num_clients=2, alpha=1.0), LABELLED, "TensorDataset has no attribute smiles"),
        (GroupBy(column="assay"), LABELLED, "TensorDataset has no method column(name) that returns the 'assay'"),
        (Mixture(num_clients=2, classes_a=[10]), interleaved(5), "classes_a: the data have no 10"),
        (Mixture(num_clients=2, classes_a=[1], classes_b=[11]), interleaved(5), "classes_b: the data have no 11"),
        (Mixture(num_clients=2, classes_a=[99]), interleaved(2, 30), "19 and 10 more"),
        (Mixture(num_clients=2), TensorDataset(ZEROS), "train data: distribution A"),
        (Mixture(num_clients=2), TensorDataset(ZEROS[:0]), "distribution A has none of the 0 samples"),
        (Mixture(num_clients=2, column="target", values_a=["x"]), interleaved(5), "'target'"),
        (Mixture(num_clients=2), TensorDataset(torch.rand(10, 2)), "values_a"),
    ],
)
def test_data_of_classes(partitioner, data, name):
    with pytest.raises(DataError, match=re.escape(name)):
        partitioner(data, 0)


@pytest.mark.parametrize(
    ("partitioner", "splits", "name"),
    [
        (Sizes(train=[100, 1]), {"train": LABELLED, "test": labelled(*[6] * 5)}, "train data: .*need 101"),
        (Sizes(train=[1] * 31), {"train": LABELLED, "test": labelled(*[6] * 5)}, "test data: .*31 clients"),
        (IID(num_clients=60), {"train": LABELLED, "val": Subset(REAL, range(50))}, "val data: .*60 clients"),
        (OneClassShards(shard_size=1), {"train": TensorDataset(LABELS), "test": FEW}, r"test data: class \d"),
        (Mixture(num_clients=20), {"train": interleaved(40), "test": interleaved(1)}, "test data: 20 clients"),
    ],
)
def test_errors_name_the_split(partitioner, splits, name):
    with pytest.raises(DataError, match=name):
        partitioner.partition_splits(splits, 0)
