"""Three lines: an existing module, existing data, a federation."""

import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningDataModule
from tiny import FolderSilo, TinyClients, TinyModule, quiet_trainer, regression_set, same_bits, weights_of
from torch.utils.data import DataLoader

import lightning_fl
from lightning_fl.core.seeding import seeded_as
from lightning_fl.data import IID, Partitioned, Quantity, Silos

QUIET = {"max_rounds": 2, "enable_progress_bar": False, "logger": False}


class Whole(LightningDataModule):
    """An ordinary data module of a user's own."""

    def setup(self, stage: str) -> None:
        self.train, self.held_out = regression_set(40, seed=1), regression_set(12, seed=2)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=4, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.held_out, batch_size=4)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.held_out, batch_size=4)


def test_one_data_module_is_cut_into_clients() -> None:
    trainer = lightning_fl.federate(TinyModule(), Whole(), num_clients=4, **QUIET)
    assert trainer.num_clients == 4
    assert sorted(trainer.metrics["test"]["test_loss"].clients) == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_partitioner_and_a_bare_data_set_work_alike() -> None:
    results = []
    for arguments in ({"num_clients": 3}, {"partitioner": IID(num_clients=3)}):
        module = TinyModule()
        lightning_fl.federate(module, regression_set(30, seed=1), **arguments, **QUIET)  # type: ignore[arg-type]
        results.append(weights_of(module))
    assert same_bits(*results)
    trainer = lightning_fl.federate(
        TinyModule(), regression_set(100, seed=1), partitioner=Quantity(ratios=[7, 2, 1]), **QUIET
    )
    assert sum(trainer.num_samples) == 80
    assert trainer.num_samples[0] > trainer.num_samples[1] > trainer.num_samples[2]


def test_one_data_module_per_silo(tmp_path: Path) -> None:
    silos = []
    for silo in range(2):
        x, y = regression_set(12 + silo, seed=silo).tensors
        torch.save({"x": x, "y": y}, tmp_path / f"silo_{silo}.pt")
        silos.append(FolderSilo(str(tmp_path / f"silo_{silo}.pt")))
    trainer = lightning_fl.federate(TinyModule(), silos, **QUIET)
    assert trainer.num_samples == [12, 13]


def test_federated_data_are_taken_as_they_are() -> None:
    assert lightning_fl.federate(TinyModule(), TinyClients(), **QUIET).num_samples == [24, 10, 18]


def test_one_loader_or_data_set_per_silo() -> None:
    """By name, too; a data set is cut inside its client, a loader has training samples alone."""
    loaders = {"north": DataLoader(regression_set(12, seed=1), batch_size=4), "south": regression_set(20, seed=2)}
    trainer = lightning_fl.federate(TinyModule(), loaders, **QUIET)
    assert trainer.datamodule is not None
    assert trainer.datamodule.client_names() == ["north", "south"]
    assert trainer.num_samples == [12, 16]
    assert list(trainer.metrics["test"]["test_loss"].clients) == [1]

    trainer = lightning_fl.federate(
        TinyModule(), list(loaders.values()), num_samples=[3, 1], batch_size=2, collate_fn=_stacked, **QUIET
    )
    assert trainer.num_samples == [3, 1]


def _stacked(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def test_lists_of_samples_and_of_silos_are_told_apart() -> None:
    rows = list(regression_set(30, seed=1))
    trainer = lightning_fl.federate(TinyModule(), rows, num_clients=2, **QUIET)
    assert trainer.num_samples == [12, 12]
    trainer = lightning_fl.federate(TinyModule(), [rows[:10], rows[10:]], **QUIET)
    assert trainer.num_samples == [8, 16]
    trainer = lightning_fl.federate(TinyModule(), [list(row) for row in rows], num_clients=2, **QUIET)
    assert trainer.num_samples == [12, 12]


def test_a_collation_for_one_data_set() -> None:
    """With one of one's own the same as with torch's."""
    results = []
    for collate in (None, _stacked):
        module = TinyModule()
        lightning_fl.federate(module, regression_set(30, seed=1), num_clients=2, collate_fn=collate, **QUIET)
        results.append(weights_of(module))
    assert results[0][0].shape == results[1][0].shape


@pytest.mark.parametrize(
    "make", [lambda rows: Partitioned(rows, IID(num_clients=2)), lambda rows: Silos([rows, regression_set(12, seed=2)])]
)
def test_the_seed_of_a_trainer_divides_the_data_as_that_of_the_run_does(make) -> None:
    def tested(data, **seed):
        lightning_fl.federate(TinyModule(), data, **seed, **QUIET)
        return [list(data.client_data(client, "test").indices) for client in range(2)]

    rows = regression_set(30, seed=1)
    with seeded_as(1):
        expected = tested(make(rows))
    assert tested(make(rows), seed=1) == expected != tested(make(rows), seed=0)


@pytest.mark.parametrize(("split_seed", "told"), [(None, ["the data stay divided by seed 0, not 1"]), (0, [])])
def test_data_that_were_divided_by_another_seed_are_told_in_training(split_seed, told) -> None:
    data, module = Partitioned(regression_set(30, seed=1), IID(num_clients=2), split_seed=split_seed), TinyModule()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet_trainer(max_rounds=1, seed=0).fit(module, data)
        quiet_trainer(seed=1).test(module, data)
        assert not [one for one in caught if "divided" in str(one.message)]
        quiet_trainer(max_rounds=1, seed=1).fit(module, data)
    found = [str(one.message).partition(":")[0] for one in caught]
    assert [text for text in found if "divided" in text] == told
