"""Gains over local training, measured inside the same fit or against a finished run."""

import json
import warnings
from pathlib import Path

import pandas as pd
import pytest
import torch
from hooks import hooks
from rich.console import Console
from tiny import TinyClients, TinyModule, quiet_trainer, with_optimizer

from lightning_fl.callbacks import (
    BestClientModels,
    Callback,
    ClientArrivals,
    FineTuning,
    LocalReference,
    LocalTraining,
    ModelCheckpoint,
)
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies import FedAvg
from lightning_fl.trainer.report import print_report

SIZES = (24, 10, 18)


def trainer(*callbacks, root=None, **settings):
    writes = root is not None
    defaults = {"max_rounds": 3, "local_epochs": 1, "logger": writes, "seed": 3, "enable_checkpointing": writes}
    return quiet_trainer(*callbacks, default_root_dir=root, **(defaults | settings))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, lr=0.05),
    ],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("state", ["auto", "average", "keep", "fresh"])
def test_the_reference_is_a_run_of_local_training_to_the_last_bit(state, optimizer):
    runs = [trainer(callback, optimizer_state=state) for callback in (LocalReference(), LocalTraining())]
    with_reference, alone = runs
    for run in runs:
        run.fit(with_optimizer(TinyModule, optimizer)(dropout=0.2), TinyClients(SIZES))
    for client in range(len(SIZES)):
        kept = with_reference.client_store("local_reference")[client]["weights"]
        assert Weights.from_state_dict(kept, torch.device("cpu")).equal(alone.client_model(client))
    assert with_reference.metrics["val"]["val/local/loss"].clients == (alone.metrics["val"]["val_loss"].clients)


def test_gains_are_differences_with_the_metrics_direction():
    run = trainer(LocalReference())
    run.fit(TinyModule(), TinyClients(SIZES))
    values, local = run.metrics["val"]["val_loss"].clients, run.metrics["val"]["val/local/loss"].clients
    gain = run.gains["val"]["val_loss"]
    differences = {client: local[client] - values[client] for client in values}  # a loss: lower is better
    assert gain.clients == pytest.approx(differences)
    assert gain.ipr == sum(value > 0 for value in differences.values()) / 3
    assert gain.harmed == sum(value < 0 for value in differences.values()) / 3
    assert gain.rsd == pytest.approx(
        float(torch.tensor(list(differences.values()), dtype=torch.float64).std(correction=0))
    )


def test_a_client_alone_gains_nothing():
    run = trainer(LocalTraining(), LocalReference())
    run.fit(TinyModule(dropout=0.2), TinyClients(SIZES))
    gain = run.gains["val"]["val_loss"]
    assert set(gain.clients.values()) == {0.0}
    assert (gain.ipr, gain.harmed, gain.rsd) == (0.0, 0.0, 0.0)


class Pull(FedAvg):
    """A proximal term that would show if it reached the local models."""

    name = "pull"

    def client_loss(self, loss, module):
        return loss + 10 * sum(p.square().sum() for p in module.parameters())


def test_a_proximal_term_does_not_touch_the_reference():
    pulled, plain = trainer(LocalReference(), strategy=Pull()), trainer(LocalReference())
    for run in (pulled, plain):
        run.fit(TinyModule(), TinyClients(SIZES))
    assert pulled.metrics["val"]["val/local/loss"] == plain.metrics["val"]["val/local/loss"]
    assert pulled.metrics["val"]["val_loss"] != plain.metrics["val"]["val_loss"]


@pytest.mark.slow
def test_what_is_written_and_shown(tmp_path):
    run = trainer(LocalReference(), ModelCheckpoint(monitor="val_loss"), root=tmp_path)
    module, data = TinyModule(), TinyClients(SIZES)
    run.fit(module, data)
    run.test(module, data, ckpt_path="best")
    summary = json.loads((tmp_path / "version_0" / "summary.json").read_text())
    record = summary["gains_over_local_training"]["test"]["loss"]
    assert set(record) == {"mean", "worst", "ipr", "rsd", "harmed", "clients"}
    metrics = summary["metrics"]["test"]
    for name, value in record["clients"].items():
        local = metrics["local/loss"]["clients"][name]
        assert value == pytest.approx(local - metrics["loss"]["clients"][name])
    table = pd.read_csv(tmp_path / "version_0" / "metrics.csv")
    assert {"val_loss/gain", "val_loss/ipr", "val_loss/rsd", "val_loss/harmed", "val/local/loss"} <= set(table.columns)
    assert "train/local/loss" in table.columns
    console = Console(record=True, width=160)
    print_report(run, console)
    text = console.export_text()
    assert "gain over local training" in text
    assert "of clients gain (IPR)" in text
    assert "local/loss" in text
    narrow = Console(record=True, width=40)
    print_report(run, narrow)
    text = narrow.export_text()
    # where it does not fit, a line says so, and those below the table compare
    assert "local/loss ↓: see them in summary.json" in " ".join(text.split())
    assert "gain over local training" in text
    assert all(name in text for name in data.client_names())


@pytest.mark.slow
def test_the_best_rounds_local_models_are_compared_also_from_a_checkpoint(tmp_path):
    run = trainer(LocalReference(), ModelCheckpoint(monitor="val_loss"), root=tmp_path)
    module, data = TinyModule(), TinyClients(SIZES)
    run.fit(module, data)
    tested = run.test(module, data, ckpt_path="best")
    fresh = trainer(LocalReference(), root=tmp_path)
    checkpoint = tmp_path / "version_0" / "checkpoints" / "best.ckpt"
    again = fresh.test(TinyModule(), data, ckpt_path=checkpoint)
    assert again["test/local/loss"] == tested["test/local/loss"]
    assert fresh.gains["test"]["test_loss"] == run.gains["test"]["test_loss"]
    without = trainer(root=tmp_path / "other", max_rounds=1)
    without.fit(TinyModule(), data)
    other = tmp_path / "other" / "version_0" / "checkpoints" / "last.ckpt"
    with pytest.warns(UserWarning, match="the checkpoint contains no local models"):
        assert "test/local/loss" not in trainer(LocalReference()).test(TinyModule(), data, ckpt_path=other)


class BesideAnEmptyRank(FedAvg):
    """Plays a second process that hosts no client: it has nothing to tell but that it has no local models."""

    name = "beside an empty rank"

    def exchange(self, values):
        everyone = super().exchange(values)
        return {**everyone, 1: 0} if everyone == {0: len(SIZES)} else everyone


def test_a_process_without_clients_does_not_stand_for_the_checkpoint():
    run = trainer(LocalReference(), strategy=BesideAnEmptyRank())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="LocalReference: the checkpoint contains no local models")
        run.fit(TinyModule(), TinyClients(SIZES))
    assert set(run.gains["val"]["val_loss"].clients) == {0, 1, 2}


def test_who_is_not_there_has_no_local_model_and_no_gain():
    class Watched(TinyModule):
        def training_step(self, batch, batch_idx):
            steps[self.trainer.client] += 1
            return super().training_step(batch, batch_idx)

    steps = dict.fromkeys(range(3), 0)
    run = trainer(LocalReference(), ClientArrivals(rounds={"client_1": 99}))
    run.fit(Watched(), TinyClients(SIZES))
    assert steps == {0: 2 * 3 * 3, 1: 0, 2: 2 * 3 * 3}  # own and local model, rounds, batches
    assert set(run.gains["val"]["val_loss"].clients) == set(run.metrics["val"]["val/local/loss"].clients) == {0, 2}


@pytest.mark.slow
def test_a_finished_run_serves_as_the_reference(tmp_path):
    module, data = TinyModule(), TinyClients(SIZES)
    local = trainer(LocalTraining(), root=tmp_path / "local")
    local.fit(module, data)
    local.test(module, data)
    inside = trainer(LocalReference(), root=tmp_path / "inside")
    outside = trainer(LocalReference(run=str(tmp_path / "local" / "version_0")), root=tmp_path / "outside")
    for run in (inside, outside):
        run.fit(module := TinyModule(), data)
        run.test(module, data)
        assert not run.gains["test"]["test_loss"].ipr > 1
    assert outside.gains["test"]["test_loss"].clients == pytest.approx(inside.gains["test"]["test_loss"].clients)
    with pytest.raises(ConfigurationError, match="LocalReference.run=.*num_clients"):
        trainer(LocalReference(run=str(tmp_path / "local" / "version_0"))).fit(TinyModule(), TinyClients((8, 8)))
    with pytest.raises(ConfigurationError, match="LocalReference.run="):
        trainer(LocalReference(run=str(tmp_path / "nowhere"))).fit(TinyModule(), data)


def test_fine_tuned_models_are_compared(tmp_path):
    run = trainer(LocalReference(), FineTuning(epochs=2), root=tmp_path)
    module, data = TinyModule(), TinyClients(SIZES)
    run.fit(module, data)
    run.test(module, data)
    assert set(run.gains["test"]["test_loss"].clients) == {0, 1, 2}


def test_tests_compare_with_each_local_model_of_its_own_best_round():
    data = TinyClients(SIZES)
    references = LocalReference(own_best_round=True), LocalReference(), BestClientModels()
    own_best, same_round, alone = (
        trainer(reference, *others, max_rounds=6)
        for reference, others in zip(references, ([], [], [LocalTraining()]), strict=True)
    )
    for run in (own_best, same_round, alone):
        run.fit(TinyModule(learning_rate=0.55), data)  # too large for some clients
    rounds = {client: best["round"] for client, best in alone.client_store("best_models").items()}
    assert min(rounds.values()) < 6
    in_fit = [run.metrics["val"]["val/local/loss"] for run in (own_best, same_round)]
    assert in_fit[0] == in_fit[1]
    for run in (own_best, alone):
        run.test(run.module, data)
    assert own_best.metrics["test"]["test/local/loss"].clients == alone.metrics["test"]["test_loss"].clients


@pytest.mark.slow
def test_a_test_of_the_best_round_has_each_local_model_of_its_own_best_round(tmp_path):
    """The federation is best in round 1; local training goes on improving."""

    def spoil(run):
        for _, vector in run.models[0].floating():
            vector.add_(run.current_round)

    run = trainer(hooks(on_round_start=spoil), LocalReference(own_best_round=True), ModelCheckpoint(), root=tmp_path)
    module, data = TinyModule(), TinyClients(SIZES)
    run.fit(module, data)
    rounds = {client: best["round"] for client, best in run.client_store("local_reference_best").items()}
    assert run.checkpoint_callback.best_round == 1 < min(rounds.values())
    without, of_best = (run.test(module, data, ckpt_path=path) for path in (None, run.trained_checkpoint))
    assert of_best["test_loss"] != without["test_loss"]
    assert of_best["test/local/loss"] == without["test/local/loss"]


@pytest.mark.slow
def test_a_resumed_run_is_tested_with_the_same_local_models(tmp_path):
    """The federation is best in round 1, the local models in the last."""

    def spoil(run):
        for _, vector in run.models[0].floating():
            vector.add_(run.current_round)

    found = []
    for stops in ((4,), (2, 4)):
        for number, stop in enumerate(stops):
            callbacks = hooks(on_round_start=spoil), LocalReference(own_best_round=True), ModelCheckpoint()
            run = trainer(*callbacks, root=tmp_path / str(len(stops)), max_rounds=stop)
            module = TinyModule()
            run.fit(module, TinyClients(SIZES), ckpt_path="last" if number else None)
        found.append(run.test(module, TinyClients(SIZES), ckpt_path=run.trained_checkpoint))
    assert run.checkpoint_callback.best_round == 1
    assert found[0] == found[1]


def test_a_checkpoint_of_another_run_has_its_own_best_local_models(tmp_path):
    module, data, runs = TinyModule(), TinyClients(SIZES), []
    for seed in (1, 2):
        run = trainer(LocalReference(own_best_round=True), ModelCheckpoint(), root=tmp_path / str(seed), seed=seed)
        run.fit(TinyModule(), data)
        runs.append(run)
    fresh = trainer(LocalReference(own_best_round=True), root=tmp_path / "test", seed=2)
    path = Path(runs[1].log_dir) / "checkpoints" / "last.ckpt"
    expected, found = (run.test(module, data, ckpt_path=path)["test/local/loss"] for run in (fresh, runs[0]))
    assert found == expected


def test_a_client_without_a_metric_in_the_finished_run_has_no_gain(tmp_path):
    class Undefined(TinyModule):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", torch.tensor(float("nan") if self.trainer.client == 1 else 2.0))

    data = TinyClients(SIZES)
    local = trainer(LocalTraining(), root=tmp_path, max_rounds=1)
    local.fit(Undefined(), data)
    run = trainer(LocalReference(run=local.log_dir), max_rounds=1)
    run.fit(TinyModule(), data)
    losses = run.metrics["val"]["val_loss"].clients
    assert run.gains["val"]["val_loss"].clients == {client: 2.0 - losses[client] for client in (0, 2)}


def test_local_models_of_the_evaluated_clients_are_compared():
    run = trainer(LocalReference(), limit_val_clients=2, limit_test_clients=1)
    module, data = TinyModule(), TinyClients(SIZES)
    run.fit(module, data)
    run.test(module, data)
    for split, count in (("val", 2), ("test", 1)):
        own, local = (run.metrics[split][f"{split}{name}"] for name in ("_loss", "/local/loss"))
        assert len(own.clients) == count
        assert local.clients.keys() == own.clients.keys()
        assert run.gains[split][f"{split}_loss"].mean == pytest.approx(local.mean - own.mean)
    data.client_data = lambda client, split: None if split == "test" else TinyClients.client_data(data, client, split)
    with pytest.warns(UserWarning, match="nothing was evaluated"):
        assert not run.test(module, data)
    assert not run.gains.get("test")


@pytest.mark.parametrize("how", ["NaN", "error"])
def test_a_failing_local_model_is_named(how):
    class Diverge(Callback):
        def on_aggregate_end(self, run):
            broken.append(1)

    class Fragile(TinyModule):
        def training_step(self, batch, batch_idx):
            if broken and how == "error":
                raise ValueError("three samples")
            return super().training_step(batch, batch_idx) * (float("nan") if broken else 1.0)

    broken: list[int] = []
    with pytest.raises(TrainingError, match="the local model of client 0 failed in round 1.*LocalReference"):
        trainer(Diverge(), LocalReference()).fit(Fragile(), TinyClients(SIZES))
    broken = []
    with pytest.warns(UserWarning, match="the local model of client 1 failed in round 1"):
        trainer(Diverge(), LocalReference(), on_client_error="skip", max_rounds=1).fit(Fragile(), TinyClients(SIZES))
