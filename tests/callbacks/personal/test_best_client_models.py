"""Every client's own best round."""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hooks import hooks
from observers import AfterRounds
from tiny import TinyClients, TinyModule, quiet_trainer
from two_kinds import SIZES, TwoKinds, trainer

from lightning_fl.callbacks import (
    BestClientModels,
    Callback,
    CollaborationGraph,
    FineTuning,
    LocalReference,
    ModelCheckpoint,
)

CLIENTS = range(len(SIZES))


class History(Callback):
    """What each round's validation was and which models it was of."""

    def __init__(self):
        self.values, self.models = [], []

    def on_evaluate_end(self, trainer, split, metrics):
        if trainer.fitting and split == "val":
            self.values.append(dict(metrics["val_loss"].clients))
            self.models.append([trainer.client_model(k).clone() for k in CLIENTS])


def unsteady():
    return TinyModule(learning_rate=0.55)  # too large for some clients: their loss goes up and down


@pytest.mark.parametrize("callback", [FineTuning(steps=3), BestClientModels()], ids=["fine-tuning", "best models"])
def test_a_run_that_goes_on_without_it_validates_what_it_trains(callback, tmp_path):
    runs = {"enable_checkpointing": True, "default_root_dir": tmp_path, "local_epochs": 1}
    first = quiet_trainer(callback, max_rounds=2, **runs)
    first.fit(TinyModule(), TinyClients())
    whole, history = History(), History()
    quiet_trainer(whole, max_rounds=4, **runs).fit(TinyModule(), TinyClients())
    more = quiet_trainer(history, max_rounds=4, **runs)
    more.fit(TinyModule(), TinyClients(), ckpt_path=Path(first.log_dir) / "checkpoints" / "last.ckpt")
    assert history.values == whole.values[2:]


@pytest.mark.slow
@pytest.mark.parametrize("collaborate", [[], [CollaborationGraph(budget=2)]])
def test_each_client_ends_with_the_model_of_its_best_round(collaborate, tmp_path):
    history = History()
    run = trainer(*collaborate, history, BestClientModels(), rounds=6, enable_checkpointing=True, root=tmp_path)
    data = TwoKinds()
    run.fit(unsteady(), data)
    best = {k: min(range(6), key=lambda turn: history.values[turn][k]) for k in CLIENTS}
    assert len(set(best.values())) > 1
    for k in CLIENTS:
        assert run.client_model(k).equal(history.models[best[k]][k])
        assert run.client_store("best_models")[k]["round"] == best[k] + 1
    assert run.trained_checkpoint is None
    validated = run.validate(unsteady(), data, ckpt_path=tmp_path / "version_0" / "checkpoints" / "last.ckpt")
    assert validated["val_loss"].clients == {k: history.values[best[k]][k] for k in CLIENTS}
    for k in CLIENTS:
        exported = TinyModule.load_from_checkpoint(tmp_path / "version_0" / "models" / f"client_{k}.ckpt")
        run.loop.flat.load(history.models[best[k]][k])
        assert torch.equal(exported.linear.weight, run.module.linear.weight)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "checkpoints"),
    [
        ([], False),
        ([], True),
        ([LocalReference], True),
        ([LocalReference, BestClientModels], True),
        ([BestClientModels], False),
        ([partial(FineTuning, epochs=2)], True),
    ],
)
def test_the_summary_has_the_validation_of_the_models_that_are_kept(kinds, checkpoints, tmp_path):
    """Trained in one go and resumed after the best round; the test leaves it."""

    def summary_of(run):
        return json.loads((Path(run.log_dir) / "summary.json").read_text())

    means = AfterRounds(lambda run: (run.current_round, run.metrics["val"]["val_loss"].mean))
    found, data = [], TwoKinds()
    for root, rounds in (("whole", [6]), ("parts", [5, 6])):
        for number in rounds:
            settings = {"rounds": number, "enable_checkpointing": checkpoints, "root": tmp_path / root}
            run = trainer(*(kind() for kind in kinds), means, **settings)
            run.fit(module := unsteady(), data, ckpt_path="last" if checkpoints and number != rounds[0] else None)
        summary = summary_of(run)
        record, gains = summary["metrics"]["val"]["loss"], summary.get("gains_over_local_training")
        found.append((record, gains))
        final = run.federation.models_are_final
        if not final:
            kept = summary["best_round"] if checkpoints else 6
            assert record["mean"] == dict(means.found)[kept]
            assert (kept < 5) == checkpoints
        if gains:
            local = summary["metrics"]["val"]["local/loss"]["clients"]
            expected = {name: local[name] - value for name, value in record["clients"].items()}
            assert gains["val"]["loss"]["clients"] == pytest.approx(expected)
        run.test(module, data, ckpt_path=run.trained_checkpoint)
        assert summary_of(run)["metrics"]["val"]["loss"] == record
        evaluated = run.validate(module, data, ckpt_path=run.trained_checkpoint)["val_loss"].clients
        assert list(record["clients"].values()) == [evaluated[k] for k in CLIENTS]
    assert found[0] == found[1]


def test_a_resumed_run_remembers_the_best_and_trains_the_last(tmp_path):
    whole = trainer(BestClientModels(), rounds=6, enable_checkpointing=True, root=tmp_path / "whole")
    whole.fit(unsteady(), TwoKinds())
    trainer(BestClientModels(), rounds=3, enable_checkpointing=True, root=tmp_path / "parts").fit(
        unsteady(), TwoKinds()
    )
    rest = trainer(BestClientModels(), rounds=6, enable_checkpointing=True, root=tmp_path / "parts")
    rest.fit(unsteady(), TwoKinds(), ckpt_path="last")
    assert rest.models[0].equal(whole.models[0])
    assert all(rest.client_model(k).equal(whole.client_model(k)) for k in CLIENTS)
    kept, expected = (run.client_store("best_models") for run in (rest, whole))
    assert {k: kept[k]["round"] for k in CLIENTS} == {k: expected[k]["round"] for k in CLIENTS}


def test_the_mode_may_be_turned():
    history = History()
    run = trainer(history, BestClientModels(monitor="val_loss", mode="max"), rounds=4)
    run.fit(TinyModule(), TwoKinds())
    for k in CLIENTS:
        worst = max(range(4), key=lambda turn: history.values[turn][k])
        assert run.client_model(k).equal(history.models[worst][k])


def test_what_local_training_leaves_is_judged_too():
    """Models of two kinds of clients, all averaged: alone after local training they are better for a while."""

    class Trained(Callback):
        def on_client_end(self, trainer, client):
            model = trainer.client_weights().clone()
            found[client].append(
                (trainer.loop.evaluator.evaluate(client, model, "val").metrics["val_loss"].value, model)
            )

    found, history = {k: [] for k in CLIENTS}, History()
    graph = CollaborationGraph(graph="full")
    run = trainer(graph, Trained(), history, BestClientModels(before_averaging=True), rounds=5)
    run.fit(unsteady(), TwoKinds())
    before = 0
    for k in CLIENTS:
        averaged = [(values[k], models[k]) for values, models in zip(history.values, history.models, strict=True)]
        value, model = min(found[k] + averaged, key=lambda pair: pair[0])
        assert run.client_store("best_models")[k]["value"] == value
        assert run.client_model(k).equal(model)
        before += any(value == trained for trained, _ in found[k])
    assert before


def test_fine_tuning_may_keep_each_clients_best_epoch():
    """The start counts as epoch 0, so that more epochs are never worse by validation."""
    values, data = [], TwoKinds()
    for epochs in (None, 1, 2, 4):
        tuning = [] if epochs is None else [FineTuning(epochs=epochs, best_epoch=True)]
        run = trainer(*tuning, rounds=2)
        run.fit(unsteady(), data)
        values.append(run.validate(run.module, data)["val_loss"].clients)
        assert epochs is None or f"at most {epochs} epoch" in run.evaluated_model
    start, *_, last = values
    assert all(after[k] <= before[k] for before, after in pairwise(values) for k in CLIENTS)
    assert any(last[k] < start[k] for k in CLIENTS)
    assert any(one[k] == last[k] for one in values[:-1] for k in CLIENTS)


def test_the_best_of_epochs_is_of_two_where_rounds_are_counted_in_steps():
    class Counts(TinyModule):
        def training_step(self, batch, batch_idx):
            steps.append(self.trainer.client)
            return super().training_step(batch, batch_idx)

    steps = []
    tuning = FineTuning(best_epoch=True)
    run = trainer(hooks(on_fit_end=lambda run: steps.clear()), tuning, rounds=1, local_epochs=None, local_steps=7)
    run.fit(Counts(), data := TwoKinds())
    assert [steps.count(k) for k in CLIENTS] == [2 * (size // data.batch_size) for size in SIZES]
    assert run.evaluated_model == "the shared model, fine-tuned by at most 2 epochs"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", "/worst"])
@pytest.mark.parametrize(("name", "sign", "mode"), [("val_fitness", -1, "max"), ("val_acc", 1, "min")])
def test_what_decides_on_the_best_round_decides_for_each_client(name, sign, mode, suffix, tmp_path):
    """The error falls throughout; the names and the loss say the opposite of ``mode``."""

    class Judged(TinyModule):
        def validation_step(self, batch, batch_idx):
            error = torch.nn.functional.mse_loss(self(batch[0]), batch[1])
            self.log_dict({name: sign * error, "val_loss": -error})

    names = name, f"val/local/{name.removeprefix('val_')}"
    rounds = AfterRounds(lambda run: [run.metrics["val"][one].clients for one in names])
    checkpoint = ModelCheckpoint(monitor=name + suffix, mode=mode, save_models=False)
    callbacks = FineTuning(epochs=1, best_epoch=True), LocalReference(own_best_round=True), rounds, checkpoint
    run = trainer(*callbacks, rounds=2, enable_checkpointing=True, root=tmp_path)
    run.fit(Judged(), data := TwoKinds())
    assert checkpoint.best_round == 2
    started, _ = rounds.found[-1]
    tuned = run.metrics["val"][name].clients
    assert tuned == run.validate(run.module, data)[name].clients
    assert all(sign * tuned[k] < sign * started[k] for k in CLIENTS)
    for k in CLIENTS:
        best = min((1, 2), key=lambda turn: sign * rounds.found[turn - 1][1][k])
        assert run.client_store("local_reference_best")[k]["round"] == best == 2


def test_who_has_no_validation_data_is_fine_tuned_from_the_shared_model():
    class NoValidation(TwoKinds):
        def client_data(self, client, split):
            return None if (client, split) == (1, "val") else super().client_data(client, split)

    best, plain = (trainer(*kept, FineTuning(steps=1), rounds=2) for kept in ([BestClientModels()], []))
    for run in (best, plain):
        run.fit(TinyModule(), NoValidation())
        assert not run.client_model(1).equal(run.models[0])
    assert best.client_model(1).equal(plain.client_model(1))


@pytest.mark.parametrize("first", [True, False])
def test_fine_tuning_starts_from_them(first):
    history, callbacks = History(), [BestClientModels(), FineTuning(steps=1)]
    run = trainer(history, *(callbacks if first else reversed(callbacks)), rounds=6)
    data = TwoKinds()
    run.fit(unsteady(), data)
    best = [min(range(6), key=lambda turn: history.values[turn][k]) for k in CLIENTS]
    assert len(set(best)) > 1
    for k in CLIENTS:
        module = unsteady()
        run.loop.flat.load(history.models[best[k]][k])
        module.load_state_dict(run.module.state_dict())
        batches = list(run.loop.batches(k, "train").shuffled((run.seed, run.current_round, k, "fine-tuning"), 1))
        (x, y), _ = batches[0]
        optimizer = torch.optim.SGD(module.parameters(), lr=0.55)
        torch.nn.functional.mse_loss(module(x.cpu()), y.cpu()).backward()
        optimizer.step()
        run.loop.flat.load(run.client_model(k))
        torch.testing.assert_close(run.module.linear.weight, module.linear.weight)


@pytest.mark.parametrize("best_epoch", [False, True])
def test_fine_tuning_keeps_the_modes_of_submodules(best_epoch):
    """A norm that a hook switched off for good in the first round."""
    seen = []

    class Switched(TinyModule):
        def on_train_epoch_start(self):
            if self.current_epoch == 0 and self.global_step == 0:
                self.before[0].eval()

        def training_step(self, batch, batch_idx):
            seen.append(self.before[0].training)
            return super().training_step(batch, batch_idx)

    run = quiet_trainer(FineTuning(epochs=1, best_epoch=best_epoch), max_rounds=2, local_epochs=1, logger=False)
    run.fit(Switched(norm=True), TinyClients())
    assert seen
    assert not any(seen)
