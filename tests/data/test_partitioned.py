import pytest
import torch
from data_tiny import DATA, Assays, Sliced, partitioned
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as GraphLoader

from lightning_fl.core.errors import DataError
from lightning_fl.data.module import SPLITS, FederatedDataModule
from lightning_fl.data.partition import IID, Dirichlet, GroupBy, Quantity
from lightning_fl.data.partitioned import Partitioned


class OnlyTraining(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(DATA, batch_size=5, shuffle=True, drop_last=True)


class Random(LightningDataModule):
    """Splits at random in every stage, as many data modules do."""

    def setup(self, stage):
        self.parts = random_split(DATA, [60, 20, 20])

    def train_dataloader(self):
        return DataLoader(self.parts[0], batch_size=4, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], batch_size=16)

    def test_dataloader(self):
        return DataLoader(self.parts[2], batch_size=16)


def _values(dataset):
    dataset = dataset.dataset if isinstance(dataset, DataLoader) else dataset
    return [] if dataset is None else [int(dataset[i][0]) for i in range(len(dataset))]


def _all(data):
    return {(i, split): _values(data.client_data(i, split)) for i in range(data.num_clients) for split in SPLITS}


def test_a_data_set_is_shared_out_and_split_inside_each_client():
    data = partitioned(DATA, Quantity(ratios=[7, 2, 1]))
    held = _all(data)
    assert sorted(value for values in held.values() for value in values) == list(range(100))
    assert [data.num_samples(split) for split in SPLITS] == [[56, 16, 8], [7, 2, 1], [7, 2, 1]]
    assert {key: len(values) for key, values in held.items() if key[0] == 1} == {
        (1, "train"): 16, (1, "val"): 2, (1, "test"): 2,
    }  # fmt: skip
    assert data.client_sizes() == [56, 16, 8]
    assert Partitioned(DATA, IID(num_clients=2)).client_sizes() is None  # before setup
    assert data.num_clients == 3
    assert (data.batch_size, data.eval_batch_size, data.shuffle, data.drop_last) == (32, 128, True, False)
    assert data.client_names() == ["client_0", "client_1", "client_2"]
    zero = partitioned(DATA, IID(num_clients=4), split=(1.0, 0.0, 0.0))
    assert zero.client_data(0, "val") is None
    assert (zero.num_samples("train"), zero.num_samples("test")) == ([25] * 4, [0] * 4)
    # A client's union is what the partitioner gave it.
    parts = Quantity(ratios=[7, 2, 1])(DATA, 1)
    assert sorted(held[2, "train"] + held[2, "val"] + held[2, "test"]) == parts[2].tolist()


def test_clients_hold_views_of_the_one_data_set():
    data = partitioned(DATA, IID(num_clients=4))
    for client in range(4):
        for split in SPLITS:
            part = data.client_data(client, split)
            assert type(part) is Subset
            assert part.dataset is DATA
            assert data.client_data(client, split) is part


def test_setup_again_changes_nothing():
    inner = Sliced(("train", "test"))
    data = partitioned(inner, IID(num_clients=4))
    held = _all(data)
    data.setup("test")
    data.setup()
    assert _all(data) == held
    assert inner.calls == ["prepare_data", "setup fit", "setup test"]
    data.teardown("fit")
    data.setup("test")
    assert _all(data) == held
    assert inner.calls[3:] == ["teardown fit", "setup fit", "setup test"]
    data.teardown("test")
    inner.size -= 1
    with pytest.raises(DataError, match="Sliced gave other numbers of samples"):
        data.setup("test")


@pytest.mark.parametrize(
    ("splits", "sizes"),
    [
        (("train",), [20, 3, 2]),  # 25 in 8:1:1 = 20, 2.5, 2.5, the tie to the first
        (("train", "val"), [22, 25, 3]),  # 25 in 8:1 = 22.2, 2.8
        (("train", "test"), [22, 3, 25]),
        (("train", "val", "test"), [25, 25, 25]),
    ],
)
def test_a_data_module_gives_its_own_splits_and_lacking_ones_are_cut(splits, sizes):
    data = partitioned(Sliced(splits), IID(num_clients=4))
    for client in range(4):
        assert [len(data.client_data(client, split)) for split in SPLITS] == sizes
    held = _all(data)
    for split, offset in zip(SPLITS, (0, 1000, 2000), strict=True):
        values = [value for client in range(4) for value in held[client, split]]
        if split in splits and split != "train":
            assert sorted(values) == list(range(offset, offset + 100))
        else:
            assert all(value < 100 for value in values)
    everything = [value for values in held.values() for value in values]
    assert sorted(everything) == sorted(set(everything))


def test_settings_come_from_the_loaders_or_the_arguments():
    data = partitioned(OnlyTraining(), IID(num_clients=2))
    assert (data.batch_size, data.eval_batch_size, data.shuffle, data.drop_last) == (5, 20, True, True)
    data = partitioned(OnlyTraining(), IID(num_clients=2), batch_size=7, shuffle=False, drop_last=False)
    assert (data.batch_size, data.eval_batch_size, data.shuffle, data.drop_last) == (7, 28, False, False)
    data = partitioned(Random(), IID(num_clients=2))
    assert (data.batch_size, data.eval_batch_size) == (4, 16)
    assert partitioned(Random(), IID(num_clients=2), eval_batch_size=3).eval_batch_size == 3


def test_random_splits_in_setup_never_overlap_and_are_the_same_in_every_process():
    state = torch.get_rng_state()
    held = _all(partitioned(Random(), IID(num_clients=2)))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)  # another process may have drawn other numbers before
    assert _all(partitioned(Random(), IID(num_clients=2))) == held
    assert sorted(value for values in held.values() for value in values) == list(range(100))
    part = partitioned(Random(), IID(num_clients=2)).client_data(0, "test")
    assert part.dataset is DATA  # views of views are one view of the data set below


def test_a_subset_sampler_is_honoured():
    def loader(data, split):
        return DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(list(range(10, 40))))

    data = partitioned(Sliced(("train",), loader), IID(num_clients=3))
    assert sorted(value for values in _all(data).values() for value in values) == list(range(10, 40))
    assert data.shuffle


def test_graph_loaders_are_plain():
    graphs = [Data(x=torch.ones(n % 3 + 1, 2), y=torch.tensor([float(n)])) for n in range(30)]

    class Graphs(LightningDataModule):
        def train_dataloader(self):
            return GraphLoader(graphs, batch_size=6, shuffle=True)

    data = partitioned(Graphs(), Dirichlet(num_clients=2, alpha=5.0, num_bins=3))
    assert data.batch_size == 6
    part = data.client_data(0, "train")
    assert type(part) is Subset
    assert part.dataset is graphs
    assert type(partitioned(graphs, IID(num_clients=2)).client_data(1, "val")) is Subset


def double(samples):
    return torch.stack([sample[0] for sample in samples]) * 2


def test_a_custom_collation_is_kept_in_one_loader_per_client():
    def loader(data, split):
        return DataLoader(data, batch_size=8, shuffle=split == "train", drop_last=True, collate_fn=double)

    data = partitioned(Sliced(("train", "val"), loader), IID(num_clients=4))
    train, val = data.client_data(0, "train"), data.client_data(0, "val")
    assert isinstance(train, DataLoader)
    assert data.client_data(0, "train") is train
    assert [len(batch) for batch in train] == [8, 8]  # 22 samples, the rest dropped
    assert [len(batch) for batch in val] == [8, 8, 8, 1]  # evaluation drops nothing
    assert sorted(torch.cat(list(val)).tolist()) == sorted(2 * value for value in _values(val))
    # A split cut from the training data is collated like them.
    assert sorted(torch.cat(list(data.client_data(0, "test"))).tolist()) == sorted(
        2 * value for value in _values(data.client_data(0, "test"))
    )
    # The only batch is never dropped.
    few = partitioned(Sliced(("train",), loader, size=12), IID(num_clients=4))
    assert [len(batch) for batch in few.client_data(0, "train")] == [1]


def test_workers_are_kept():
    options = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True}
    data = Sliced(("train",), lambda data, split: DataLoader(data, batch_size=8, **options))
    kept = partitioned(data, IID(num_clients=4)).client_data(0, "train")
    assert {name: getattr(kept, name) for name in options} == options
    assert isinstance(kept.sampler, SequentialSampler)


def test_groups_are_named_clients_known_after_setup():
    data = Partitioned(Assays(list("bbbbaaacca")), GroupBy(column="assay"), split_seed=0)
    data.setup("fit")
    assert data.client_names() == ["a", "b", "c"]
    assert data.describe() == {
        "source": "measured",
        "num_clients": 3,
        "partitioner": {
            "name": "GroupBy",
            "num_clients": None,
            "ratios": None,
            "column": "assay",
            "num_groups": None,
            "min_samples": 0,
        },
        "split": [0.8, 0.1, 0.1],
        "split_seed": 0,
        "stratified": False,
        "train_shares": None,
        "client_names": ["a", "b", "c"],
        "client_sizes": {"train": [2, 2, 2], "val": [1, 1, 0], "test": [1, 1, 0]},
    }


def test_batch_hooks_of_the_data_module_are_taken_over():
    class Hooked(Sliced):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return "changed"

    assert Partitioned(Hooked(), IID(num_clients=2)).on_after_batch_transfer("batch", 0) == "changed"
    assert Partitioned(Sliced(), IID(num_clients=2)).on_after_batch_transfer("batch", 0) == "batch"


def _in_two(loader, **kwargs):
    return partitioned(Sliced(("train", "val"), loader), IID(num_clients=2), **kwargs)


def test_a_list_of_one_loader_is_that_loader():
    assert _in_two(lambda data, split: [DataLoader(data)]).num_samples("val") == [50, 50]


def test_own_samplers_are_replaced_on_demand():
    def weighted(data, split):
        return DataLoader(data, sampler=WeightedRandomSampler([1.0] * 100, 100) if split == "train" else None)

    def batched(data, split):
        sampler = BatchSampler(SequentialSampler(data), 4, False)
        return DataLoader(data, batch_sampler=sampler) if split == "train" else DataLoader(data, batch_size=None)

    assert _in_two(weighted, shuffle=True).shuffle
    assert _in_two(batched, batch_size=4, eval_batch_size=6).eval_batch_size == 6


def test_recipe():
    parser = ArgumentParser()
    parser.add_subclass_arguments(FederatedDataModule, "data")
    init_args = {
        "data": {"class_path": f"{OnlyTraining.__module__}.OnlyTraining"},
        "partitioner": {"class_path": "lightning_fl.data.IID", "init_args": {"num_clients": 3}},
        "split": [0.6, 0.2, 0.2],
    }
    data = parser.instantiate_classes(
        parser.parse_object({"data": {"class_path": "lightning_fl.data.Partitioned", "init_args": init_args}})
    ).data
    data.setup("fit")
    assert [sum(data.num_samples(split)) for split in SPLITS] == [60, 21, 19]
