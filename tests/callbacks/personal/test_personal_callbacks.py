"""Personal layers, local training, fine-tuning and late clients in a run."""

from functools import partial

import pytest
import torch
import two_kinds
from hooks import Cohorts, hooks
from lightning.pytorch import LightningModule
from records import same_values
from rounding import assert_equal_up_to_rounding
from tiny import TinyClients, TinyModule
from torch import nn
from torchmetrics import MinMetric

from lightning_fl.callbacks import (
    BestClientModels,
    Callback,
    ClientArrivals,
    CollaborationGraph,
    FineTuning,
    KMeans,
    LocalReference,
    LocalTraining,
    ModelCheckpoint,
    PersonalLayers,
    PFedGraph,
)
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.errors import TrainingError

SIZES = (24, 10, 18)
STEPS = 3 * 3  # of the largest client in three rounds


def trainer(*callbacks, root=None, max_rounds=3, **settings):
    kept = {"enable_checkpointing": root is not None}
    return two_kinds.trainer(*callbacks, rounds=max_rounds, root=root, **{**kept, **settings})


def parameters(module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def loaded(run, module, client) -> torch.Tensor:
    run.loop.flat.load(run.client_model(client))
    return parameters(module).clone()


def train_alone(module, data, client, rounds, learning_rate=0.05):
    for _ in range(rounds):
        optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
        x, y = data.sets[client, "train"].tensors
        for begin in range(0, len(x), data.batch_size):
            optimizer.zero_grad()
            part = slice(begin, begin + data.batch_size)
            torch.nn.functional.mse_loss(module(x[part]), y[part]).backward()
            optimizer.step()
    return module


def test_local_training_is_a_plain_loop_per_client():
    data, module = TinyClients(SIZES, shuffle=False), TinyModule()
    run = trainer(LocalTraining())
    run.fit(module, data)
    assert run.collaboration.num_models == len(SIZES)
    for client in range(len(SIZES)):
        alone = train_alone(TinyModule(), data, client, rounds=3)
        assert_equal_up_to_rounding(loaded(run, module, client), parameters(alone), steps=STEPS)


def plain_fedper(data, rounds):
    """FedPer (Algorithms 1 and 2): the weight is averaged by samples, the bias stays."""
    shared, biases = TinyModule().linear.weight.detach(), [TinyModule().linear.bias.detach()] * len(SIZES)
    for _ in range(rounds):
        average = torch.zeros_like(shared)
        for client, size in enumerate(SIZES):
            module = TinyModule()
            with torch.no_grad():
                module.linear.weight.copy_(shared)
                module.linear.bias.copy_(biases[client])
            train_alone(module, data, client, rounds=1)
            biases[client] = module.linear.bias.detach()
            average += size / sum(SIZES) * module.linear.weight.detach()
        shared = average
    return shared, biases


def test_personal_layers_are_fedper():
    data, module = TinyClients(SIZES, shuffle=False), TinyModule()
    run = trainer(PersonalLayers(layers=["linear.bias"]))
    run.fit(module, data)
    shared, biases = plain_fedper(data, 3)
    for client in range(len(SIZES)):
        loaded(run, module, client)
        assert_equal_up_to_rounding(module.linear.weight, shared, steps=STEPS)
        assert_equal_up_to_rounding(module.linear.bias, biases[client], steps=STEPS)


def test_personal_buffers_stay_local_too():
    module = TinyModule(norm=True)
    run = trainer(PersonalLayers(layers=["before.*"]))
    run.fit(module, TinyClients(SIZES))
    means = []
    for client in range(len(SIZES)):
        loaded(run, module, client)
        means.append(module.before[0].running_mean.clone())
    assert not torch.equal(means[0], means[1])
    assert not torch.equal(means[1], means[2])
    assert run.personal is not None
    assert "before.0.num_batches_tracked" in run.personal.names


def test_normalisation_is_found_by_its_kind():
    """FedBN: what is named ``before.0`` here, to the bit."""
    found = []
    for layers in ("normalization", ["before.0"]):
        run = trainer(PersonalLayers(layers=layers))
        run.fit(TinyModule(norm=True), TinyClients(SIZES))
        assert run.personal is not None
        assert {name.rpartition(".")[0] for name in run.personal.names} == {"before.0"}
        found.append([run.client_model(client) for client in range(len(SIZES))])
    assert all(one.equal(other) for one, other in zip(*found, strict=True))


def test_layers_of_normalisation_that_hold_nothing_are_passed_over():
    class Bare(TinyModule):
        def __init__(self, *beside):
            super().__init__()
            self.before = nn.Sequential(nn.BatchNorm1d(3, affine=False, track_running_stats=False), *beside)

    run = trainer(PersonalLayers(layers="normalization"))
    run.fit(Bare(nn.BatchNorm1d(3, affine=False)), TinyClients(SIZES))
    assert {name.rpartition(".")[0] for name in run.personal.names} == {"before.1"}


@pytest.mark.slow
def test_a_checkpoint_has_the_personal_models(tmp_path):
    data, module = TinyClients(SIZES), TinyModule()
    run = trainer(PersonalLayers(layers=["linear.bias"]), ModelCheckpoint(monitor="val_loss"), root=tmp_path)
    run.fit(module, data)
    tested = run.test(module, data, ckpt_path="best")["test_loss"].clients
    best = tmp_path / "version_0" / "checkpoints" / "best.ckpt"
    assert trainer(root=tmp_path).test(TinyModule(), data, ckpt_path=best)["test_loss"].clients == tested
    assert len(set(tested.values())) == len(SIZES)


@pytest.mark.slow
def test_a_longer_run_forgets_fine_tuned_models(tmp_path):
    data = TinyClients(SIZES)
    tuned = {"root": tmp_path / "tuned"}
    trainer(FineTuning(epochs=2), ModelCheckpoint(), **tuned).fit(TinyModule(), data)
    longer = trainer(FineTuning(epochs=2), ModelCheckpoint(), max_rounds=5, **tuned)
    longer.fit(TinyModule(), data, ckpt_path="last")
    whole = trainer(root=tmp_path / "plain", max_rounds=5)
    whole.fit(TinyModule(), data)
    assert longer.models[0].equal(whole.models[0])


@pytest.mark.slow
def test_a_finished_run_resumed_is_not_fine_tuned_again(tmp_path):
    class Blind(TinyModule):
        validation_step = LightningModule.validation_step

    first, again = (trainer(FineTuning(steps=2), ModelCheckpoint(), root=tmp_path) for _ in range(2))
    first.fit(Blind(), TinyClients(SIZES))
    again.fit(Blind(), TinyClients(SIZES), ckpt_path="last")
    for client in range(len(SIZES)):
        assert again.client_model(client).equal(first.client_model(client))
        assert not first.client_model(client).equal(first.models[0])


@pytest.mark.parametrize("how", ["NaN", "error"])
def test_fine_tuning_names_bad_settings_and_failures(how):
    class Fragile(TinyModule):
        def training_step(self, batch, batch_idx):
            if broken and how == "error":
                raise ValueError("three samples")
            loss = super().training_step(batch, batch_idx)
            return loss * float("nan") if broken else loss

    broken: list[int] = []
    for policy in ("fail", "skip"):
        broken.clear()
        run = trainer(hooks(on_fit_end=lambda run: broken.append(1)), FineTuning(), on_client_error=policy)
        if policy == "fail":
            with pytest.raises(TrainingError, match="fine-tuning of client 0 failed"):
                run.fit(Fragile(), TinyClients())
        else:
            with pytest.warns(UserWarning, match="fine-tuning of client 0 failed.*keeps its model"):
                run.fit(Fragile(), TinyClients())


class Fails(TinyModule):
    """From the second round on client 1's second batch raises an error, where ``fails``; the best loss counts."""

    fails = False

    def __init__(self):
        super().__init__(norm=True)
        self.best = MinMetric()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.best.update(loss.detach())
        if self.fails and self.trainer.client == 1 and self.current_epoch and batch_idx:
            raise ValueError("three samples")
        return loss * (1 + self.best.compute())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def fit_failing(callback, policy, *, turns: bool, extra: bool):
    """A run in which client 1 fails in its turns, and in what is trained besides them."""
    module = Fails()
    watching = hooks(
        on_round_start=lambda run: setattr(module, "fails", turns),
        on_aggregate_end=lambda run: setattr(module, "fails", extra),
    )
    run = trainer(watching, callback(), on_client_error=policy, optimizer_state="keep")
    run.fit(module, TinyClients(SIZES))
    return run


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (LocalReference, "the local model of client 1 failed in round 2: .*three samples"),
        (FineTuning, "fine-tuning of client 1 failed: .*three samples"),
        (partial(FineTuning, every_evaluation=True), r"fine-tuning of client 1 \(client_1\) failed: .*three samples"),
    ],
    ids=["reference", "at the end", "every evaluation"],
)
def test_a_client_that_fails_besides_its_turns_too_changes_no_other(callback, words):
    def of_others(run):
        found = {name: one.clients for name, one in run.metrics["val"].items()}
        found |= {name: run.client_store(name) for name in ("local_reference", "final_models", "metric_states")}
        assert len(found["metric_states"]) == 3
        kept = {name: {client: of[client] for client in (0, 2) if client in of} for name, of in found.items()}
        return {**kept, "model": run.models[0].state_dict()}

    with pytest.warns(UserWarning, match=words):
        run = fit_failing(callback, "skip", turns=True, extra=True)
    assert same_values(of_others(run), of_others(fit_failing(callback, "skip", turns=True, extra=False)))
    with pytest.raises(TrainingError, match=words):
        fit_failing(callback, "fail", turns=False, extra=True)


@pytest.mark.parametrize("kept", [[], [BestClientModels(monitor="val_loss")]], ids=["last", "best of each"])
def test_who_never_came_is_not_fine_tuned(kept):
    class Watched(TinyModule):
        def training_step(self, batch, batch_idx):
            steps.append(self.trainer.client)
            return super().training_step(batch, batch_idx)

    steps: list[int] = []
    run = trainer(
        hooks(on_fit_end=lambda run: steps.clear()), ClientArrivals(rounds={"client_1": 99}), *kept, FineTuning(steps=2)
    )
    run.fit(Watched(), TinyClients(SIZES))
    assert steps == [0, 0, 2, 2]
    assert set(run.client_store("final_models")) == {0, 2}


def test_who_is_not_there_has_no_part_in_the_average():
    late, without = trainer(ClientArrivals(rounds={"1": 4})), trainer(ClientArrivals(rounds={"1": 9}))
    for run in (late, without):
        run.fit(TinyModule(), TinyClients(SIZES))
    assert late.models[0].equal(without.models[0])
    assert set(late.client_reports) == {0, 2}
    third = trainer(ClientArrivals(rounds={"1": 3}))
    third.fit(TinyModule(), TinyClients(SIZES))
    assert not third.models[0].equal(late.models[0])
    assert set(third.client_reports) == {0, 1, 2}


def test_a_newcomer_starts_from_the_average_of_the_others_models():
    starts = {}

    class Watch(Callback):
        def on_client_start(self, run, client):
            starts[run.current_round, client] = run.shared_model(client).vectors[torch.float32].clone()

    run = trainer(ClientArrivals(rounds={"1": 2}), LocalTraining(), Watch(), max_rounds=2)
    run.fit(TinyModule(), TinyClients(SIZES))
    weights = torch.tensor([SIZES[0], SIZES[2]], dtype=torch.float64) / (SIZES[0] + SIZES[2])
    expected = (weights[0] * starts[1, 0].double() + weights[1] * starts[1, 2].double()).float()
    assert_equal_up_to_rounding(starts[1, 1], expected, steps=1)


@pytest.mark.parametrize(
    ("callback", "since"),
    [
        (lambda: KMeans(num_clusters=2, warm_up_rounds=3), 2),  # it uses what the others have learned meanwhile
        (lambda: CollaborationGraph(graph="full"), 1),
        (PFedGraph, 1),
    ],
    ids=["KMeans", "CollaborationGraph", "PFedGraph"],
)
def test_a_newcomer_that_waits_for_its_turn_has_the_average_of_the_others_models(callback, since):
    """Client 1 arrives in the second round and is drawn in the third."""
    models, losses = [], []

    def watch(run):
        models.append([run.shared_model(client).clone() for client in range(len(SIZES))])

    def watch_losses(run):
        losses.append(run.metrics["val"]["val_loss"].clients)

    run = trainer(
        callback(),
        ClientArrivals(rounds={"1": 2}),
        Cohorts({1: [0, 2], 2: [0, 2]}, len(SIZES)),
        hooks(on_round_start=watch, on_round_end=watch_losses),
        max_rounds=4,
    )
    module, data = TinyModule(), TinyClients(SIZES)
    run.fit(module, data)
    shares = {client: SIZES[client] / (SIZES[0] + SIZES[2]) for client in (0, 2)}
    average = sum(share * models[since][client].vectors[torch.float32] for client, share in shares.items())
    assert_equal_up_to_rounding(models[2][1].vectors[torch.float32], average, steps=1)
    run.loop.flat.load(models[2][1])
    x, y = data.sets[1, "val"].tensors
    with torch.no_grad():
        assert losses[1][1] == pytest.approx(float(nn.functional.mse_loss(module(x), y)), rel=1e-5)
    assert not models[3][1].equal(models[2][1])


def test_who_arrives_where_all_train_alone_goes_on_with_its_own_model():
    starts, ends = {}, {}

    class Watch(Callback):
        def on_client_start(self, run, client):
            starts[run.current_round, client] = run.shared_model(client).clone().to_(torch.device("cpu"))

        def on_client_end(self, run, client):
            ends[run.current_round, client] = run.client_weights().clone().to_(torch.device("cpu"))

    run = trainer(ClientArrivals(rounds={"1": 2}), LocalTraining(), Watch(), max_rounds=4)
    run.fit(TinyModule(), TinyClients(SIZES))
    for turn in (2, 3):
        assert starts[turn, 1].equal(ends[turn - 1, 1])
    assert run.client_model(1).equal(ends[3, 1])


def test_a_round_without_anybody_leaves_all_models():
    module = TinyModule()
    with pytest.warns(UserWarning, match="no client takes part in round 1"):
        trainer(ClientArrivals(rounds={"2": 3}), hooks(select_clients=lambda run: Cohort.of([2])), max_rounds=1).fit(
            module, TinyClients(SIZES)
        )
    assert all(
        torch.equal(own, first) for own, first in zip(module.parameters(), TinyModule().parameters(), strict=True)
    )
