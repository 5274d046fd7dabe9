"""What a run does for each client follows its cohorts and the clients that it validates, not all there are."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TinyClients, TinyModule, regression_set, same_bits

from lightning_fl import FederatedTrainer, Partitioned
from lightning_fl.callbacks import LocalReference, UniformSampling
from lightning_fl.data import IID
from lightning_fl.data.division.division import split_indices
from lightning_fl.runtime.checkpoint import load_checkpoint
from lightning_fl.study.comparison_table import comparison_table
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.html_pages import write_run_page

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


def fit(folder: Any, data: Any, rounds: int = 2, ckpt_path: str | None = None, **settings: Any) -> FederatedTrainer:
    trainer = FederatedTrainer(
        max_rounds=rounds, callbacks=[UniformSampling(cohort_size=2)], default_root_dir=folder, **settings
    )
    trainer.fit(TinyModule(), data, ckpt_path)
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


def test_sizes_are_known_and_random_divisions_are_those_of_each_client_by_itself():
    data = Partitioned(regression_set(91, 0), IID(num_clients=7), split=(0.7, 0.2, 0.1), batch_size=4)
    data.setup()
    every = IID(num_clients=7)(data.data, data.partition_seed)
    for client, indices in enumerate(every):
        alone = split_indices(indices, (0.7, 0.2, 0.1), data.partition_seed, client)
        assert sorted(torch.cat(list(alone.values())).tolist()) == indices.tolist()
        for split, part in alone.items():
            assert data.client_data(client, split).indices == part.tolist()
            assert data.num_samples(split)[client] == len(part)


def test_files_of_many_clients_follow_those_that_take_part(monkeypatch, tmp_path):
    monkeypatch.setattr("lightning_fl.core.client_names._MOST_LISTED", 7)
    monkeypatch.setattr("lightning_fl.runtime.run_log._WORST", 3)
    data = Partitioned(regression_set(80, 0), IID(num_clients=8), batch_size=4)
    trainer = fit(tmp_path, data, rounds=1)
    metric = trainer.test(TinyModule(), data)["test_loss"]
    folder = Path(trainer.log_dir)
    assert not (folder / "splits.json").exists()
    assert load_checkpoint(folder / "checkpoints" / "last.ckpt")["client_names"] == []
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["client_names"] == summary["data"]["client_names"] == []
    assert summary["data"]["client_sizes"]["train"] == [8.0] * 101
    assert len(summary["communication"]["clients"]) == 2
    record = summary["metrics"]["test"]["loss"]
    worst = sorted(metric.clients, key=metric.clients.get, reverse=True)[:3]
    assert list(record["clients"]) == [trainer.client_names[client] for client in worst]
    assert record["percentiles"][::100] == [metric.best, metric.worst]
    run = FinishedRun.read(folder)
    assert run.client_names == trainer.client_names
    found = run.metric("loss")
    assert (found.num_clients, found.worst, len(found.sample)) == (8, metric.worst, 101)
    assert write_run_page(folder, tmp_path / "page.html").is_file()
    table = comparison_table({"a": [run], "b": [replace(run, folder=tmp_path)]}, ["loss"], reference=[run])
    assert table["num_clients"].tolist() == [8, 8]
    again = fit(tmp_path, data, rounds=2, ckpt_path="last")
    assert again.metrics["val"]["val_loss"].clients["client_3"]
    assert json.loads((Path(again.log_dir) / "summary.json").read_text())["rounds"] == 2


def test_a_reference_that_has_the_worst_clients_only_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr("lightning_fl.core.client_names._MOST_LISTED", 7)
    monkeypatch.setattr("lightning_fl.runtime.run_log._WORST", 3)
    reference = fit(tmp_path, TinyClients(SIZES), rounds=1)
    reference.test(TinyModule(), TinyClients(SIZES))
    quiet = {"max_rounds": 1, "default_root_dir": tmp_path, "enable_progress_bar": False}
    trainer = FederatedTrainer(callbacks=[LocalReference(run=reference.log_dir)], **quiet)
    trainer.fit(TinyModule(), TinyClients(SIZES))
    assert list(trainer.test(TinyModule(), TinyClients(SIZES))) == ["test_loss"]
    assert not trainer.gains.get("test")


def test_the_tested_clients_can_be_limited(tmp_path):
    trainer = fit(tmp_path, TinyClients(SIZES), rounds=1, limit_val_clients=3, limit_test_clients=2)
    validated = set(trainer.metrics["val"]["val_loss"].clients)
    tested = set(trainer.test(TinyModule(), TinyClients(SIZES))["test_loss"].clients)
    assert len(tested) == 2
    assert tested < validated


@pytest.mark.parametrize("limit", [0, -1])
def test_the_limit_is_a_number_of_clients(limit):
    for name in ("limit_val_clients", "limit_test_clients"):
        with pytest.raises(ValueError, match=name):
            FederatedTrainer(**{name: limit})


def test_a_partition_of_one_data_set_is_opened_where_it_is_needed(tmp_path):
    data = Partitioned(regression_set(80, 0), IID(num_clients=8), batch_size=4)
    trainer = fit(tmp_path, data, limit_val_clients=1)
    assert trainer.num_samples == data.num_samples("train")
