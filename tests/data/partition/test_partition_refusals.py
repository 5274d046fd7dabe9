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

nan, inf = float("nan"), float("inf")
LABELS = torch.arange(10).repeat_interleave(60)
ZEROS = torch.zeros(10).long()
TEN = TensorDataset(LABELS)


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (partition.apportion, (-1, [1]), "total=-1"),
        (partition.apportion, (3, [0, 0]), "ratios"),
        (partition.apportion, (3, [-1, 2]), "ratios"),
        (partition.apportion, (3, [nan]), "ratios"),
        *[
            (partition.split_indices, (torch.arange(10), fractions, 0, 0), "split=")
            for fractions in ([0.8, 0.1], [0.8, 0.1, 0.2], [0.0, 0.5, 0.5], [1.2, -0.1, -0.1])
        ],
    ],
)
def test_arguments_of_functions(function, arguments, name):
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        function(*arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "name"),
    [
        (IID, {"num_clients": 0}, "IID.num_clients=0"),
        (Quantity, {"ratios": [1, -1]}, "Quantity.ratios[1]=-1"),
        (Quantity, {"ratios": [1, 0]}, "Quantity.ratios[1]=0"),
        (Quantity, {"ratios": []}, "Quantity.ratios=[]"),
        (Quantity, {}, "Quantity.ratios=None"),
        (Quantity, {"num_clients": 3}, "alpha=None"),
        (Quantity, {"ratios": [1.0], "min_samples": 3}, "min_samples=3"),
        (Quantity, {"ratios": [1.0], "num_clients": 1, "alpha": 1.0}, "alpha=1.0"),
        (Sizes, {"train": [1, 0]}, "Sizes.train[1]=0"),
        (Sizes, {"train": []}, "Sizes.train=[]"),
        (Dirichlet, {"num_clients": 2, "alpha": 0}, "Dirichlet.alpha=0"),
        (Dirichlet, {"num_clients": 2, "alpha": nan}, "Dirichlet.alpha=nan"),
        (Dirichlet, {"num_clients": 2, "alpha": 1, "num_bins": 0}, "Dirichlet.num_bins=0"),
        (Dirichlet, {"num_clients": 2, "alpha": 1, "min_samples": 0}, "Dirichlet.min_samples=0"),
        (Dirichlet, {"num_clients": 0, "alpha": 1}, "Dirichlet.num_clients=0"),
        (Pathological, {"num_clients": 2, "classes_per_client": 0}, "Pathological.classes_per_client=0"),
        (LabelTypes, {"shares": [[0.5, 0.5]], "clients_per_type": 0}, "LabelTypes.clients_per_type=0"),
        (LabelTypes, {"shares": []}, "shares=[]"),
        (LabelTypes, {"shares": [[]]}, "shares=[[]]"),
        (LabelTypes, {"shares": [[0.5, 0.5], [0.5]]}, "shares=[[0.5, 0.5], [0.5]]"),
        (LabelTypes, {"shares": [[0.5, 1.2]]}, "LabelTypes.shares[0][1]=1.2"),
        (LabelTypes, {"shares": [[0.5, 0.5], [-0.1, 0.1]]}, "LabelTypes.shares[1][0]=-0.1"),
        (LabelTypes, {"shares": [[0.5, nan]]}, "LabelTypes.shares[0][1]=nan"),
        (LabelTypes, {"shares": [[0.5, 0.5], [0.0, 0.0]]}, "shares[1]=[0.0, 0.0]"),
        (LabelTypes, {"shares": [[0.5, 0.7], [0.2, 0.4]]}, "shares of class 1, [0.7, 0.4], sum to 1.1"),
        (OneClassShards, {"num_clients": 0}, "OneClassShards.num_clients=0"),
        (OneClassShards, {"num_clients": 11, "num_shards": 10}, "num_shards=10 for num_clients=11"),
        (OneClassShards, {"scale": 0.0}, "OneClassShards.scale=0.0"),
        (OneClassShards, {"scale": inf}, "OneClassShards.scale=inf"),
        (OneClassShards, {"shard_size": 0}, "OneClassShards.shard_size=0"),
        (OneClassShards, {"num_bins": 0}, "OneClassShards.num_bins=0"),
        (GroupBy, {"column": "assay", "num_clients": 0}, "GroupBy.num_clients=0"),
        (GroupBy, {"column": "assay", "ratios": [1, 2]}, "num_clients=None"),
        (GroupBy, {"column": "assay", "num_clients": 3, "ratios": [1, 2]}, "GroupBy.ratios=[1, 2]"),
        (GroupBy, {"column": "assay", "num_groups": 0}, "GroupBy.num_groups=0"),
        (GroupBy, {"column": "assay", "num_groups": 2, "num_clients": 3}, "num_groups=2 with num_clients=3"),
        (GroupBy, {"column": "assay", "min_samples": -1}, "GroupBy.min_samples=-1"),
        (Scaffold, {"num_clients": 0}, "Scaffold.num_clients=0"),
        (Scaffold, {"num_clients": 2, "ratios": [1, 2, 3]}, "ratios=[1, 2, 3]"),
        (Scaffold, {"num_clients": 2, "ratios": [1, 0]}, "Scaffold.ratios[1]=0"),
        (ScaffoldLDA, {"num_clients": 2, "alpha": 0}, "ScaffoldLDA.alpha=0"),
        (Mixture, {"num_clients": 0}, "Mixture.num_clients=0"),
        *[
            (Mixture, {"num_clients": 2} | arguments, name)
            for arguments, name in (
                ({"mixture": "10:80"}, "mixture='10:80'"),
                ({"mixture": "-10:110"}, "mixture='-10:110'"),
                ({"mixture": "nan:100"}, "mixture='nan:100'"),
                ({"mixture": "half"}, "mixture='half'"),
                ({"mixture": "10:20:70"}, "mixture='10:20:70'"),
                ({"samples_per_client": 0}, "Mixture.samples_per_client=0"),
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


def test_mixtures_of_the_function():
    with pytest.raises(ConfigurationError, match="mixture='half'"):
        partition.mixture_shares("half", 2, 0)


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (partition.murcko_scaffolds, (["C", "C("],), "smiles[1]='C('"),
        (partition.split_indices, (torch.arange(0), [0.8, 0.1, 0.1], 0, 4), "client 4"),
        (by_mixture, (torch.ones(5).long(), torch.tensor([0.5]), 0), "distribution A"),
        (by_mixture, (torch.tensor([0, 0, 2, 2]), torch.tensor([0.5]), 0), "distribution B"),
    ],
)
def test_data_of_functions(function, arguments, name):
    with pytest.raises(DataError, match=re.escape(name)):
        function(*arguments)


@pytest.mark.parametrize("classes_per_client", [11, 2])
def test_classes_per_client_fit_the_classes(classes_per_client):
    with pytest.raises(ConfigurationError, match=f"Pathological.classes_per_client={classes_per_client}"):
        Pathological(num_clients=3, classes_per_client=classes_per_client)(TEN, 0)


def test_mixtures_count_what_they_need():
    of_b, shares = torch.tensor([0] * 10 + [1] * 100), partition.mixture_shares("10:90", 2, 0)
    with pytest.raises(DataError, match="20 samples of distribution A and 20 of B, there are 10 and 100.*samples_per_"):
        by_mixture(of_b, shares, 0, size=20)
    with pytest.raises(DataError, match="200 clients with 1 samples each need 100 .*there are 10 and 100"):
        by_mixture(of_b, partition.mixture_shares("10:90", 200, 0), 0)


TWO_TYPES = LabelTypes(shares=[[0.5, 0.5], [0.5, 0.5]], clients_per_type=1)
TWO_COLUMNS = TensorDataset(torch.stack([torch.arange(40) % 2, torch.arange(40) % 4], dim=1))
FEW = TensorDataset(torch.arange(10).repeat(9))
BROKEN = Molecules(MOLECULES.smiles[1:])
BROKEN.tensors = MOLECULES.tensors


@pytest.mark.parametrize(
    ("partitioner", "data", "name"),
    [
        (Quantity(ratios=[1000, 1]), TensorDataset(ZEROS), "client 1 without any of the 10 samples"),
        (Sizes(train=[5, 6], stratified=False), TensorDataset(ZEROS), "need 11 samples together, there are 10"),
        (Sizes(train=[5, 6]), TensorDataset(ZEROS), "need 11 samples together, there are 10"),
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
        (ScaffoldLDA(num_clients=3, alpha=0.001), Molecules(["C1CC1"] * 10), "alpha=0.001"),
        (ScaffoldLDA(num_clients=3, alpha=1.0, min_samples=5), Molecules(["C1CC1"] * 10), "at most 2 clients"),
        (TWO_TYPES, labelled(4, 4, 4), "LabelTypes has shares for the classes 0..1, the data have labels up to 2"),
        (TWO_TYPES, labelled(4), "none of class 1"),
        (FedCollabLabelShift(), labelled(9, 9, 9, 0, 9, 9, 9, 9, 9, 9), "FedCollabLabelShift"),
        (OneClassShards(), FEW, "num_shards=100 of 1 samples of one class each, but the 90 samples make only 90"),
        (OneClassShards(num_shards=20, shard_size=6), FEW, "num_shards=20 of 6"),
        (GroupBy(column="assay", min_samples=6, num_groups=4), ASSAYS, "3 of 6 groups have min_samples=6"),
        (GroupBy(column="assay", min_samples=9), ASSAYS, "0 of 6 groups have min_samples=9"),
        (Dirichlet(num_clients=2, alpha=1.0), TWO_COLUMNS, "target=0..1"),
        (Dirichlet(num_clients=2, alpha=1.0, target=2), TWO_COLUMNS, "target=2"),
        (IID(num_clients=2, stratified=True), TWO_COLUMNS, "stratified"),
        (Scaffold(num_clients=2), LABELLED, "TensorDataset has no attribute smiles"),
        (Scaffold(num_clients=2), BROKEN, "12 samples but 11 keys"),
        (Scaffold(num_clients=5), MOLECULES, "num_clients=5, but only 4 scaffolds"),
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
