from itertools import chain
from pathlib import Path

import pytest
import torch
import yaml
from data_tiny import Loader, Recorder, Stream
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from lightning_fl.data.module import FederatedDataModule
from lightning_fl.data.silos import Silos

DATA = TensorDataset(torch.arange(20.0))


class FileSilo(LightningDataModule):
    """Reads a file of its own."""

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def setup(self, stage):
        numbers = [float(line) for line in Path(self.path).read_text().split()]
        self.dataset = TensorDataset(torch.tensor(numbers))

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=2)


def test_nothing_is_opened_until_its_client_is_asked_for():
    modules = [Recorder() for _ in range(3)]
    silos = Silos(modules, names=["north", "east", "west"])
    silos.prepare_data()
    silos.setup("fit")
    assert silos.pinned
    assert silos.num_clients == 3
    assert silos.client_sizes() is None
    assert silos.client_names() == ["north", "east", "west"]
    assert silos.describe() == {"source": "user", "num_clients": 3, "clients": ["north", "east", "west"]}
    assert [module.calls for module in modules] == [[], [], []]

    silos.client_data(1, "train")
    assert [module.calls for module in modules] == [[], ["prepare_data", "setup fit", "train_dataloader"], []]


def test_each_stage_is_opened_once_and_loaders_are_kept():
    module = Recorder()
    silos = Silos([module])
    loader = silos.client_data(0, "train")
    assert silos.client_data(0, "train") is loader
    assert silos.client_data(0, "val") is None
    test = silos.client_data(0, "test")
    assert silos.client_data(0, "test") is test
    assert silos.open(0) is module
    assert module.calls == ["prepare_data", "setup fit", "train_dataloader", "setup test", "test_dataloader"]
    assert (loader.batch_size, test.batch_size) == (4, 7)
    silos.teardown("fit")
    assert module.calls[-1] == "teardown fit"


def test_a_run_tears_down_what_it_set_up():
    often, once = Recorder(), Recorder()
    silos = Silos([often, once])
    for client in range(2):
        silos.client_data(client, "train")
    silos.teardown("fit")
    silos.client_data(0, "test")
    silos.teardown("test")
    fitted = ["prepare_data", "setup fit", "train_dataloader", "teardown fit"]
    assert often.calls == [*fitted, "setup test", "test_dataloader", "teardown test"]
    assert once.calls == fitted


def test_testing_alone_opens_no_training_stage():
    modules = [Recorder(), Recorder()]
    silos = Silos(modules)
    silos.client_data(0, "test")
    assert modules[0].calls == ["prepare_data", "setup test", "test_dataloader"]
    silos.teardown()
    assert modules[1].calls == []


def test_files_of_other_silos_are_never_touched(tmp_path):
    mine, theirs, gone = (tmp_path / f"{name}.txt" for name in ("mine", "theirs", "gone"))
    mine.write_text("1 2 3")
    theirs.mkdir()  # reading it fails, for an administrator too
    silos = Silos([FileSilo(path=str(path)) for path in (mine, theirs, gone)])
    silos.prepare_data()
    silos.setup("fit")
    silos.describe()
    silos.client_names()
    assert torch.cat([batch[0] for batch in silos.client_data(0, "train")]).tolist() == [1, 2, 3]
    with pytest.raises(IsADirectoryError):
        silos.client_data(1, "train")
    with pytest.raises(FileNotFoundError):
        silos.client_data(2, "train")


class RandomSilo(LightningDataModule):
    def setup(self, stage):
        self.parts = random_split(DATA, [10, 10])

    def train_dataloader(self):
        return DataLoader(self.parts[0])

    def test_dataloader(self):
        return DataLoader(self.parts[1])


def test_random_splits_are_the_same_in_every_stage_and_process():
    state = torch.get_rng_state()
    silos = Silos([RandomSilo(), RandomSilo()])
    held = [[sorted(silos.client_data(i, split).dataset.indices) for split in ("train", "test")] for i in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    for train, test in held:
        assert sorted(train + test) == list(range(20))
    assert held[0] != held[1]
    torch.rand(5)
    again = Silos([RandomSilo(), RandomSilo()])
    assert sorted(again.client_data(1, "train").dataset.indices) == held[1][0]


def test_given_settings_replace_the_loaders_own():
    silos = Silos([Recorder()], batch_size=5)
    assert silos.client_data(0, "train").batch_size == 5
    assert isinstance(silos.client_data(0, "train").sampler, RandomSampler)
    assert silos.client_data(0, "test").batch_size == 5
    silos = Silos([Recorder(size=22)], eval_batch_size=3, shuffle=False, drop_last=True)
    train = silos.client_data(0, "train")
    assert [batch[0].tolist() for batch in train][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [len(batch[0]) for batch in train] == [4] * 5
    test = silos.client_data(0, "test")
    assert isinstance(test.sampler, SequentialSampler)
    assert sum(len(batch[0]) for batch in test) == 22


def test_any_single_loader_is_taken_as_it_is():
    for loader in (DataLoader(Stream()), DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 20, 5))):
        assert Silos([Loader(loader)]).client_data(0, "train") is loader
    assert Silos([Loader(None)]).client_data(0, "train") is None
    several = Silos([Loader({"a": DataLoader(DATA), "b": DataLoader(DATA)})]).client_data(0, "train")
    assert isinstance(several, CombinedLoader)
    assert len(next(iter(several))[0]) == 2


def test_each_client_s_batches_go_through_its_own_hooks():
    class Hooked(Recorder):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch

    hooked = Hooked()
    silos = Silos([Recorder(), hooked, DataLoader(DATA)])
    assert [silos.transfer_hooks(client) for client in range(3)] == [silos.datamodules[0], hooked, silos]


def test_recipe():
    parser = ArgumentParser()
    parser.add_subclass_arguments(FederatedDataModule, "data")
    one = {"class_path": f"{Recorder.__module__}.Recorder", "init_args": {"size": 3}}
    recipe = {"data": {"class_path": "lightning_fl.data.silos.Silos", "init_args": {"datamodules": [one, one]}}}
    silos = parser.instantiate_classes(parser.parse_string(yaml.safe_dump(recipe))).data
    assert silos.num_samples("train") == [3, 3]


# -- what else a client may bring -----------------------------------------------------------------------------------


def test_a_data_set_is_cut_inside_its_client():
    silos = Silos([DATA, TensorDataset(torch.arange(10.0))], split=(0.6, 0.2, 0.2))
    parts = [[silos.client_data(c, split).indices for split in ("train", "val", "test")] for c in range(2)]
    assert [[len(part) for part in of_client] for of_client in parts] == [[12, 4, 4], [6, 2, 2]]
    assert sorted(chain(*parts[0])) == list(range(20))
    again = Silos([TensorDataset(torch.arange(7.0)), TensorDataset(torch.arange(10.0))], split=(0.6, 0.2, 0.2))
    assert again.client_data(1, "train").indices == parts[1][0]  # whatever the others have
    other = Silos([DATA], split=(0.6, 0.2, 0.2), split_seed=5)
    assert other.client_data(0, "train").indices != parts[0][0]


def test_a_loader_and_a_stream_are_training_data_alone():
    loader, stream = DataLoader(DATA, batch_size=4), Stream()
    silos = Silos([loader, stream])
    assert [silos.client_data(client, "train") for client in range(2)] == [loader, stream]
    assert [silos.client_data(client, split) for client in range(2) for split in ("val", "test")] == 4 * [None]


def test_data_by_split():
    loader = DataLoader(DATA, batch_size=4)
    silos = Silos({"north": {"train": DATA, "validation": loader, "test": None}, "south": {"train": loader}})
    assert silos.client_names() == ["north", "south"]
    assert silos.client_data(0, "train") is DATA
    assert silos.client_data(0, "val") is loader
    assert silos.client_data(0, "test") is None
    assert silos.client_data(1, "val") is None
    several = Silos([{"train": DATA, "val": [loader, DATA]}], eval_batch_size=5).client_data(0, "val")
    assert [part.batch_size for part in several.flattened] == [5, 5]


def test_a_collation_of_one_s_own():
    silos = Silos([list("abcdefghij"), DataLoader(DATA)], batch_size=4, shuffle=False, collate_fn="".join)
    train = silos.client_data(0, "train")
    letters = "".join("abcdefghij"[index] for index in train.dataset.indices)
    assert list(train) == [letters[:4], letters[4:]]


def test_numbers_of_samples_are_those_of_the_data():
    silos = Silos([DataLoader(DATA), {"train": [DATA, DataLoader(DATA)]}, Recorder(size=3)])
    assert silos.num_samples("train") == [20, 40, 3]


def test_an_error_of_a_data_module_names_its_client():
    class Fails(Recorder):
        def setup(self, stage):
            raise FileNotFoundError("scans.csv")

    with pytest.raises(FileNotFoundError, match=r"scans.csv\nThis came from Fails.setup of west"):
        Silos([Recorder(), Fails()], names=["east", "west"]).client_data(1, "train")
