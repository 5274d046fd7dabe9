"""What a run does for each client follows its cohorts and the clients that it validates, not all there are."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TinyClients, TinyModule, regression_set, same_bits

from lightning_fl import FederatedTrainer, Partitioned
from lightning_fl.callbacks import UniformSampling
from lightning_fl.data import IID
from lightning_fl.data.division.random import split_clients, split_indices
from lightning_fl.runtime.checkpoint import load_checkpoint

SIZES = (10, 24, 18, 8, 9, 12, 30, 11)


class Watched(TinyClients):
    """Notes whose data are opened, and how often names are asked for."""

    def __init__(self) -> None:
        super().__init__(SIZES)
        self.opened: Counter[int] = Counter()
        self.named = 0

    def client_data(self, client: int, split: Any) -> Any:
        self.opened[client] += 1
        return super().client_data(client, split)

    def client_names(self) -> list[str]:
        self.named += 1
        return super().client_names()


def fit(folder: Any, data: Any, rounds: int = 2, **settings: Any) -> FederatedTrainer:
    trainer = FederatedTrainer(
        max_rounds=rounds, callbacks=[UniformSampling(cohort_size=2)], default_root_dir=folder, **settings
    )
    trainer.fit(TinyModule(), data)
    return trainer


def test_a_fit_validates_a_sample_that_the_seed_draws(tmp_path):
    trainer = fit(tmp_path, TinyClients(SIZES), limit_val_clients=3, seed=5)
    validated = set(trainer.metrics["val"]["val_loss"].clients)
    assert len(validated) == 3
    again = fit(tmp_path, TinyClients(SIZES), rounds=1, limit_val_clients=3, seed=5)
    assert set(again.metrics["val"]["val_loss"].clients) == validated
    other = [fit(tmp_path, TinyClients(SIZES), rounds=1, limit_val_clients=3, seed=seed) for seed in range(3)]
    assert any(set(one.metrics["val"]["val_loss"].clients) != validated for one in other)
    assert len(trainer.validate(TinyModule(), TinyClients(SIZES))["val_loss"].clients) == len(SIZES)
    assert same_bits(*([*fit(tmp_path, TinyClients(SIZES), **kwargs).models[0].vectors.values()] for kwargs in (
        {"limit_val_clients": 3}, {"limit_val_clients": None}
    )))  # fmt: skip


def test_only_the_cohorts_and_the_validated_are_opened(tmp_path):
    data = Watched()
    trainer = fit(tmp_path, data, rounds=1, limit_val_clients=2)
    taken_part = set(trainer.client_reports) | set(trainer.metrics["val"]["val_loss"].clients)
    assert set(data.opened) == taken_part != set(range(len(SIZES)))
    assert trainer.num_samples == list(SIZES)
    assert set(trainer.data_digests) == set(trainer.metrics["val"]["val_loss"].clients)


def test_names_are_asked_for_once_a_run_whatever_the_rounds(tmp_path):
    asked = []
    for rounds in (1, 4):
        data = Watched()
        fit(tmp_path, data, rounds=rounds)
        asked.append(data.named)
    assert asked[0] == asked[1] < len(SIZES)


def test_a_checkpoint_keeps_names_as_one_text_and_reads_a_list(tmp_path):
    fit(tmp_path, TinyClients(SIZES))
    path = tmp_path / "version_0" / "checkpoints" / "last.ckpt"
    held, names = torch.load(path, weights_only=True), TinyClients(SIZES).client_names()
    assert isinstance(held["client_names"], str)
    assert load_checkpoint(path)["client_names"] == names
    torch.save({**held, "client_names": names}, path)
    assert load_checkpoint(path)["client_names"] == names


def test_clients_of_a_shared_model_have_links_up_to_a_number(monkeypatch, tmp_path):
    for most, files in ((8, 9), (7, 1)):
        monkeypatch.setattr("lightning_fl.runtime.model_file._MOST_LINKS", most)
        trainer = fit(tmp_path, TinyClients(SIZES))
        assert len(list((Path(trainer.log_dir) / "models").iterdir())) == files


def test_clients_are_split_together_as_each_by_itself():
    draws = torch.Generator().manual_seed(0)
    samples = [torch.randperm(100, generator=draws)[:count] for count in (1, 2, 3, 10, 37)]
    together = split_clients(samples, (0.7, 0.2, 0.1), 3, [4, 0, 1, 2, 9])
    for client, indices, found in zip([4, 0, 1, 2, 9], samples, together, strict=True):
        alone = split_indices(indices, (0.7, 0.2, 0.1), 3, client)
        assert [part.tolist() for part in alone.values()] == [part.tolist() for part in found.values()]
        assert sorted(torch.cat(list(found.values())).tolist()) == sorted(indices.tolist())


@pytest.mark.parametrize("limit", [0, -1])
def test_the_limit_is_a_number_of_clients(limit):
    with pytest.raises(ValueError, match="limit_val_clients"):
        FederatedTrainer(limit_val_clients=limit)


def test_a_partition_of_one_data_set_is_opened_where_it_is_needed(tmp_path):
    data = Partitioned(regression_set(80, 0), IID(num_clients=8), batch_size=4)
    trainer = fit(tmp_path, data, limit_val_clients=1)
    assert trainer.num_samples == data.num_samples("train")
