"""The round loop against a plain one, and what the trainer refuses."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from rounding import assert_equal_up_to_rounding
from tiny import QUIET, TinyClients, TinyModule, same_bits, weights_of
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_fl import CheckpointError, Collaboration, FederatedTrainer, TrainingError
from lightning_fl.callbacks import (
    IFCA,
    BestClientModels,
    Calibration,
    Callback,
    ClientArrivals,
    Figures,
    LocalReference,
    ModelCheckpoint,
    PersonalLayers,
    PretrainedWeights,
    ShapleyRewards,
)
from lightning_fl.core.cohort import Cohort, Participant


def trainer(**settings: Any) -> FederatedTrainer:
    settings = {"max_rounds": 3, "enable_progress_bar": False, "logger": False, **settings}
    return FederatedTrainer(**settings)


def plain_fedavg(data: TinyClients, rounds: int, epochs: int) -> tuple[Tensor, Tensor]:
    """McMahan et al. 2017, Algorithm 1, with all clients, in float64."""
    module = TinyModule()
    w, b = module.linear.weight.double(), module.linear.bias.double()
    w, b = w.detach(), b.detach()
    total = sum(data.sizes)
    for _ in range(rounds):
        next_w, next_b = torch.zeros_like(w), torch.zeros_like(b)
        for client, size in enumerate(data.sizes):
            x, y = (tensor.double() for tensor in data.sets[client, "train"].tensors)  # type: ignore[attr-defined]
            own_w, own_b = w.clone(), b.clone()
            for _ in range(epochs):
                for begin in range(0, size, data.batch_size):
                    part = slice(begin, begin + data.batch_size)
                    residual = x[part] @ own_w.T + own_b - y[part]
                    own_w -= 0.05 * 2 * (residual.T @ x[part]) / len(residual)
                    own_b -= 0.05 * 2 * residual.mean(0)
            next_w += size / total * own_w
            next_b += size / total * own_b
        w, b = next_w, next_b
    return w, b


@pytest.mark.parametrize("epochs", [1, 2])
def test_fedavg_equals_a_plain_loop(epochs: int) -> None:
    data = TinyClients(shuffle=False)
    module = TinyModule()
    trainer(local_epochs=epochs).fit(module, data)
    w, b = plain_fedavg(data, rounds=3, epochs=epochs)
    assert_equal_up_to_rounding(module.linear.weight, w, steps=3 * 3 * epochs)
    assert_equal_up_to_rounding(module.linear.bias, b, steps=3 * 3 * epochs)


def test_one_client_and_one_step_is_sgd_to_the_bit() -> None:
    data = TinyClients((8,), shuffle=False)
    module, expected = TinyModule(), TinyModule()
    trainer(max_rounds=1, local_steps=1).fit(module, data)
    optimizer = expected.configure_optimizers()
    expected.training_step(list(data.sets[0, "train"].tensors), 0).backward()  # type: ignore[attr-defined]
    optimizer.step()
    assert same_bits(weights_of(module), weights_of(expected))


class Attacked(TinyModule):
    """Calls ``backward`` for the gradient by its inputs, as FGSM does, which leaves one by the weights too."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x = batch[0].clone().requires_grad_()
        super().training_step([x, batch[1]], batch_idx).backward()
        assert x.grad is not None
        return super().training_step([batch[0] + 0.1 * x.grad.sign(), batch[1]], batch_idx)


class LooksBack(TinyModule):
    """The larger the last step's gradient, the smaller the loss."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        last = self.linear.weight.grad
        loss = super().training_step(batch, batch_idx)
        return loss if last is None else loss / (1 + last.norm())


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", [Attacked, LooksBack])
def test_gradients_are_cleared_between_forward_and_backward_as_in_lightning(
    kind: type[TinyModule], accumulate: int
) -> None:
    module, expected, data = kind(), kind(), TinyClients((40,), shuffle=False)
    trainer(max_rounds=1, accumulate_grad_batches=accumulate).fit(module, data)
    plain = Trainer(max_epochs=1, accumulate_grad_batches=accumulate, enable_model_summary=False, **QUIET)
    plain.fit(expected, DataLoader(data.sets[0, "train"], batch_size=8))
    assert same_bits(weights_of(module), weights_of(expected))


def test_identical_clients_average_to_what_each_of_them_learns() -> None:
    alone, together = TinyModule(), TinyModule()
    one, three = TinyClients((16,), shuffle=False), TinyClients((16, 16, 16), shuffle=False)
    for client in (1, 2):
        three.sets[client, "train"] = one.sets[0, "train"]
    three.sets[0, "train"] = one.sets[0, "train"]
    trainer().fit(alone, one)
    trainer().fit(together, three)
    assert same_bits(weights_of(alone), weights_of(together))


class EndsWarmUp(TinyModule):
    """After its first step in a turn its norm keeps its statistics."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch_idx:
            self.before[0].eval()
        return super().training_step(batch, batch_idx)


def test_hooks_around_an_evaluation_are_in_eval_mode_without_gradients() -> None:
    seen = []

    class Prototype(TinyModule):
        def on_validation_start(self) -> None:
            seen.append((self.training, self.linear(torch.ones(1, 3)).requires_grad))

        on_validation_end = on_test_start = on_test_end = on_validation_start

    run = trainer(max_rounds=2)
    run.fit(Prototype(), TinyClients())
    run.test(run.module, TinyClients())
    assert seen == [(False, False)] * 6
    assert run.module.training


class EndsItOnce(TinyModule):
    """From its second epoch on the norm keeps its statistics."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.before[0].eval()


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_modes_of_submodules_last_as_in_lightning() -> None:
    module, expected, data = EndsItOnce(norm=True), EndsItOnce(norm=True), TinyClients((40,), shuffle=False)
    trainer(max_rounds=3, optimizer_state="keep").fit(module, data)
    plain = Trainer(max_epochs=3, enable_model_summary=False, **QUIET)
    plain.fit(expected, DataLoader(data.sets[0, "train"], batch_size=8))
    assert same_bits(weights_of(module), weights_of(expected))


@pytest.mark.parametrize("kind", [TinyModule, EndsWarmUp])
def test_a_client_does_not_depend_on_who_trained_before_it(kind: type[TinyModule]) -> None:
    class Only(Callback):
        """Clients 2, then 0: the order of turns is not that of clients."""

        role = "participation"

        def __init__(self, order: list[int]) -> None:
            self.order = order

        def select_clients(self, trainer: FederatedTrainer) -> Cohort:
            return Cohort(tuple(Participant(client) for client in self.order))

    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        module = kind(dropout=0.3, norm=True)
        trainer(callbacks=[Only(order)]).fit(module, TinyClients())
        results.append(weights_of(module))
    assert same_bits(*results)


@pytest.mark.slow
def test_equal_seeds_give_equal_bits_and_others_do_not() -> None:
    results = []
    for seed in (0, 0, 1):
        module = TinyModule(dropout=0.3)
        trainer(seed=seed).fit(module, TinyClients())
        results.append(weights_of(module))
    assert same_bits(results[0], results[1])
    assert not same_bits(results[0], results[2])


def test_the_callers_random_state_is_left_alone() -> None:
    module, data = TinyModule(dropout=0.5), TinyClients()
    before = torch.get_rng_state()
    trainer().fit(module, data)
    assert torch.equal(before, torch.get_rng_state())


def test_the_callers_threads_are_left_alone() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trainer(accelerator="cpu", devices=1).fit(TinyModule(), TinyClients())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("precision", "dtype"), [(32, torch.float32), (64, torch.float64)])
def test_a_precision_may_be_a_number(precision: int, dtype: torch.dtype) -> None:
    weights = []
    for name in (precision, str(precision)):
        run = trainer(precision=name, max_rounds=1)
        run.fit(TinyModule(), TinyClients())
        weights.append(run.models[0])
    assert list(weights[0].vectors) == [dtype]
    assert weights[0].equal(weights[1])


class SetCoalitions(Callback):
    """Clients 0 and 2 together, client 1 alone."""

    role = "collaboration"

    def on_fit_start(self, trainer: FederatedTrainer) -> None:
        trainer.collaboration = Collaboration.coalitions([0, 1, 0], trainer.num_samples)


@pytest.mark.slow
def test_coalitions_train_as_if_the_others_were_not_there() -> None:
    data = TinyClients(shuffle=False)
    run = trainer(callbacks=[SetCoalitions()])
    run.fit(TinyModule(), data)
    alone = TinyClients((10,), shuffle=False)
    alone.sets = {(0, split): data.sets[1, split] for split in ("train", "val", "test")}
    single = trainer()
    single.fit(TinyModule(), alone)
    assert run.models[1].equal(single.models[0])
    pair = TinyClients((24, 18), shuffle=False)
    pair.sets = {(i, split): data.sets[c, split] for i, c in enumerate((0, 2)) for split in ("train", "val", "test")}
    both = trainer()
    both.fit(TinyModule(), pair)
    assert run.models[0].equal(both.models[0])


def test_each_client_is_tested_on_its_own_model_right_after_fit_without_checkpoints() -> None:
    data, module = TinyClients(), TinyModule()
    run = trainer(callbacks=[SetCoalitions()], enable_checkpointing=False)
    run.fit(module, data)
    assert run.trained_checkpoint is None
    tested = run.test(module, data, ckpt_path=run.trained_checkpoint)["test_loss"].clients
    for client, model in enumerate((0, 1, 0)):
        x, y = data.sets[client, "test"].tensors  # type: ignore[attr-defined]
        run.loop.flat.load(run.models[model])
        with torch.no_grad():
            assert tested[client] == pytest.approx(float(nn.functional.mse_loss(module(x), y)))


def test_a_client_that_uses_a_mixture_starts_from_it_and_is_evaluated_on_it() -> None:
    class Mixture(Callback):
        role = "collaboration"

        def on_fit_start(self, trainer: FederatedTrainer) -> None:
            eye = torch.eye(3, dtype=torch.float64)
            mixing = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])
            trainer.collaboration = Collaboration(eye, mixing)

    run = trainer(callbacks=[Mixture()], max_rounds=2)
    run.fit(TinyModule(), TinyClients())
    vectors = [model.vectors[torch.float32] for model in run.models]
    torch.testing.assert_close(run.client_model(0).vectors[torch.float32], (vectors[0] + vectors[1]) / 2)
    expected = vectors[0] / 4 + vectors[1] / 4 + vectors[2] / 2
    torch.testing.assert_close(run.client_model(2).vectors[torch.float32], expected)


def test_metrics_are_mean_and_worst_over_clients(tmp_path: Path) -> None:
    run = FederatedTrainer(max_rounds=2, enable_progress_bar=False, default_root_dir=tmp_path)
    module, data = TinyModule(), TinyClients()
    run.fit(module, data)
    tested = run.test(module, data)["test_loss"]
    by_hand = {}
    for client in range(3):
        x, y = data.sets[client, "test"].tensors  # type: ignore[attr-defined]
        with torch.no_grad():
            by_hand[client] = float(nn.functional.mse_loss(module(x), y))
    assert tested.clients == pytest.approx(by_hand)
    assert tested.mean == pytest.approx(sum(by_hand.values()) / 3)
    assert tested.worst == pytest.approx(max(by_hand.values()))
    summary = json.loads((Path(run.log_dir) / "summary.json").read_text())
    record = summary["metrics"]["test"]["loss"]
    assert record["mean"] == pytest.approx(tested.mean)
    assert record["clients"]["client_1"] == pytest.approx(by_hand[1])
    assert summary["rounds"] == 2
    assert summary["data_source"] == "user"
    assert summary["seed"] == 0
    assert set(summary["versions"]) >= {"torch", "lightning", "lightning-fl"}


class FailsAt(TinyModule):
    """A module whose step fails for one client."""

    def __init__(self, client: int, how: str) -> None:
        super().__init__()
        self.client, self.how = client, how

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.trainer.client == self.client:  # type: ignore[attr-defined]
            if self.how == "raise":
                raise ValueError("no such assay")
            return loss * float(self.how)
        return loss


@pytest.mark.parametrize(
    ("how", "reason"),
    [("raise", "ValueError: no such assay"), ("nan", "training loss is nan at local batch 1 of 2. Lower the learning")],
)
def test_a_failing_client_is_named_and_nothing_is_lost(how: str, reason: str, tmp_path: Path) -> None:
    run = FederatedTrainer(max_rounds=2, enable_progress_bar=False, default_root_dir=tmp_path)
    with pytest.raises(TrainingError, match=r"client 1 \(client_1\) failed in round 1: .*") as caught:
        run.fit(FailsAt(1, how), TinyClients())
    assert reason in str(caught.value)
    assert "on_client_error=skip" in str(caught.value)


def test_weights_that_leave_all_bounds_are_refused() -> None:
    module = TinyModule(learning_rate=1e30)
    with pytest.raises(TrainingError, match="client 0 .* failed in round 1: "):
        trainer().fit(module, TinyClients())


def test_a_skipped_client_is_left_out_and_the_rest_renormalised() -> None:
    data = TinyClients(shuffle=False)
    module = FailsAt(1, "nan")
    with pytest.warns(UserWarning, match=r"client 1 \(client_1\) is left out of round 1"):
        trainer(on_client_error="skip").fit(module, data)
    others = TinyClients((24, 18), shuffle=False)
    others.sets = {(i, split): data.sets[c, split] for i, c in enumerate((0, 2)) for split in ("train", "val", "test")}
    expected = TinyModule()
    trainer().fit(expected, others)
    torch.testing.assert_close(weights_of(module), weights_of(expected), rtol=1e-6, atol=1e-7)


def test_what_a_skipped_client_did_to_the_module_is_undone() -> None:
    class Widens(TinyModule):
        def on_train_epoch_end(self) -> None:
            if self.trainer.client == 1:
                self.linear.weight = torch.nn.Parameter(torch.zeros(1, 9))

    module, expected = Widens(), FailsAt(1, "nan")
    with pytest.warns(UserWarning, match=r"client 1 \(client_1\) is left out of round 3: 'linear.weight'"):
        trainer(on_client_error="skip").fit(module, TinyClients())
    with pytest.warns(UserWarning, match="left out of round 1"):
        trainer(on_client_error="skip").fit(expected, TinyClients())
    assert all(torch.equal(own, other) for own, other in zip(weights_of(module), weights_of(expected), strict=True))


def test_a_module_without_a_test_step_says_so() -> None:
    class TrainsOnly(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return self.linear(batch[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    run, module = trainer(), TrainsOnly()
    run.fit(module, TinyClients())
    assert not run.metrics.get("val")
    with pytest.warns(UserWarning, match="nothing was evaluated: TrainsOnly defines no test step"):
        assert run.test(module, TinyClients()) == {}


def with_data(split: str, *clients: int) -> TinyClients:
    """Clients of which these have such data."""
    data = TinyClients()
    for client in set(range(3)) - set(clients):
        data.sets[client, split] = None  # type: ignore[assignment]
    return data


@pytest.mark.parametrize("clients", [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize(("split", "word"), [("val", "validation"), ("test", "test")])
def test_an_evaluation_begins_and_ends_where_a_client_has_such_data(
    split: str, word: str, clients: tuple[int, ...]
) -> None:
    called: list[str] = []
    hooks = {f"on_{word}_{moment}": lambda self, moment=moment: called.append(moment) for moment in ("start", "end")}
    module, data, run = type("Hooked", (TinyModule,), hooks)(), with_data(split, *clients), trainer(max_rounds=1)
    run.fit(module, data)
    run.test(module, data)
    assert called == (["start", "end"] if clients else [])


def test_a_prediction_without_data_says_so() -> None:
    module, run = TinyModule(), trainer()
    with pytest.warns(UserWarning, match="nothing was predicted: no client has test data"):
        assert run.predict(module, with_data("test")) == {0: [], 1: [], 2: []}


@pytest.mark.parametrize(
    ("data", "settings"), [(with_data("val"), {}), (TinyClients(), {"check_val_every_n_rounds": 0})]
)
def test_a_monitor_without_a_validation_says_so(data: TinyClients, settings: dict[str, Any], tmp_path: Path) -> None:
    run = trainer(callbacks=[ModelCheckpoint(monitor="val_loss")], default_root_dir=tmp_path, **settings)
    with pytest.warns(UserWarning, match="ModelCheckpoint.monitor='val_loss' had no effect"):
        run.fit(TinyModule(), data)


@pytest.mark.filterwarnings("error:ModelCheckpoint.monitor")
def test_a_monitor_that_is_validated_once_says_nothing(tmp_path: Path) -> None:
    monitor = ModelCheckpoint(monitor="val_loss")
    run = trainer(callbacks=[monitor], default_root_dir=tmp_path, check_val_every_n_rounds=3)
    run.fit(TinyModule(), with_data("val", 1))
    assert monitor.best_round == 3


def test_weights_that_were_changed_after_a_fit_are_said_not_to_be_evaluated() -> None:
    run, module, data = trainer(), TinyModule(), TinyClients()
    run.fit(module, data)
    tested = run.test(module, data)
    with torch.no_grad():
        module.linear.weight.zero_()
    with pytest.warns(UserWarning, match=r"TinyModule may have changed since the last run.*copy.deepcopy"):
        assert run.test(module, data) == tested


@pytest.mark.filterwarnings("error:.*has changed since the last run")
def test_a_module_that_is_not_trained_is_evaluated_as_it_is_for_any_clients() -> None:
    run, module = trainer(), TinyModule()
    run.test(module, TinyClients())
    with torch.no_grad():
        module.linear.weight.zero_()
    others = TinyClients((8, 8), seed=1)
    assert run.test(module, others) == trainer().test(copy.deepcopy(module), others)


@pytest.mark.filterwarnings("error:.*has changed since the last run")
@pytest.mark.parametrize("layers", [[], ["linear.bias"]])
def test_what_runs_change_in_a_module_is_not_said(layers: list[str], tmp_path: Path) -> None:
    personal = [PersonalLayers(layers=layers)] if layers else []
    run, module, data = trainer(default_root_dir=tmp_path, callbacks=personal), TinyModule(norm=True), TinyClients()
    run.fit(module, data)
    for path in (None, "best", "last", None):
        for evaluate in (run.validate, run.test, run.predict):
            evaluate(module, data, ckpt_path=path)
    run.max_rounds = 4
    run.fit(module, data, ckpt_path="last")
    run.test(module, data)


@pytest.mark.parametrize(
    ("rounds", "best", "callbacks", "said"),
    [
        (
            20,
            19,
            [],
            r"\(best in round 19 of 20\): raise trainer.max_rounds; .*EarlyStopping of val_loss ends",
        ),
        (
            20,
            19,
            [EarlyStopping("val_loss", patience=99)],
            r"\(best in round 19 of 20\): raise trainer.max_rounds\.$",
        ),
        (20, 18, [], None),
        (2, 2, [], r"\(best in round 2 of 2\)"),
        (1, 1, [], None),
    ],
)
def test_a_run_that_was_still_improving_says_so(
    rounds: int, best: int, callbacks: list[Any], said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Valley(TinyModule):
        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.log("val_loss", float(abs(self.trainer.current_epoch + 1 - best)))

    lines: list[str] = []
    monkeypatch.setattr("lightning_fl.trainer.trainer.rank_zero_info", lines.append)
    run = trainer(max_rounds=rounds, callbacks=callbacks, default_root_dir=tmp_path)
    run.fit(Valley(), TinyClients((4, 4)))
    assert len(lines) == (said is not None)
    assert said is None or re.search(said, lines[0])


def test_a_run_that_stops_early_says_so_in_one_line_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("lightning_fl.trainer.trainer.rank_zero_info", lines.append)
    stopping = EarlyStopping("val_loss", stopping_threshold=1e9)
    trainer(max_rounds=9, callbacks=[stopping], default_root_dir=tmp_path).fit(TinyModule(), TinyClients((4, 4)))
    (line,) = lines
    assert line.startswith("stopped after round 1 of 9. ")
    assert "val_loss" in line


def test_hooks_are_called_by_role_in_any_order_of_the_callbacks() -> None:
    made = [
        ClientArrivals(rounds={"client_1": 2}),
        PretrainedWeights(path="weights.pt"),
        PersonalLayers(layers=["linear.bias"]),
        ShapleyRewards(),
        IFCA(num_clusters=2),
        BestClientModels(),
        LocalReference(),
        Calibration(),
        Figures(),
        ModelCheckpoint(),
    ]
    for order in (made, made[::-1], [*made[1::2], *made[::2]]):
        assert trainer(callbacks=order).callbacks == made


def test_predictions_are_those_of_the_clients_own_model() -> None:
    run, module, data = trainer(), TinyModule(), TinyClients()
    run.fit(module, data)
    outputs = run.predict(module, data)
    x, _ = data.sets[2, "test"].tensors  # type: ignore[attr-defined]
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(outputs[2]), module(x))


def files_of(folder):
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_a_second_fit_of_one_trainer_writes_into_a_folder_of_its_own(tmp_path):
    def trainer_in(folder):
        return FederatedTrainer(max_rounds=2, accelerator="cpu", devices=1, default_root_dir=tmp_path / folder, seed=3)

    twice, once = trainer_in("twice"), trainer_in("once")
    twice.fit(TinyModule(), TinyClients())
    twice.test(twice.module, TinyClients())
    first, kept = Path(twice.log_dir), files_of(Path(twice.log_dir))
    twice.fit(TinyModule(0.01), TinyClients(seed=1))
    once.fit(TinyModule(0.01), TinyClients(seed=1))
    assert [first.name, Path(twice.log_dir).name] == ["version_0", "version_1"]
    assert files_of(first) == kept
    for name in ("checkpoints/last.ckpt", "checkpoints/best.ckpt", "metrics.csv", "summary.json"):
        assert (Path(twice.log_dir) / name).is_file()
    assert twice.models[0].equal(once.models[0])
    summaries = [json.loads((Path(one.log_dir) / "summary.json").read_text()) for one in (twice, once)]
    for summary in summaries:
        del summary["wall_time_seconds"]
    assert summaries[0] == summaries[1]
    tables = [pandas.read_csv(Path(one.log_dir) / "metrics.csv") for one in (twice, once)]
    pandas.testing.assert_frame_equal(*tables, check_exact=True)

    twice.max_rounds = 3
    twice.fit(TinyModule(0.01), TinyClients(seed=1), ckpt_path="last")  # the second fit's, not the first's
    assert twice.current_round == 3
    assert twice.ckpt_path == str(tmp_path / "twice" / "version_1" / "checkpoints" / "last.ckpt")
    assert Path(twice.log_dir).name == "version_2"


def test_an_evaluation_before_a_fit_leaves_the_fit_its_folder_and_no_fit_overwrites_another(tmp_path):
    for folders in (["version_0", "version_1"], ["version_2", "version_3"]):
        run = trainer(max_rounds=1, default_root_dir=tmp_path)
        run.validate(TinyModule(), TinyClients())
        for folder in folders:
            run.fit(TinyModule(), TinyClients())
            assert run.log_dir == str(tmp_path / folder)


def test_who_watches_a_client_s_start_sees_what_it_starts_from():
    class Watcher(Callback):
        def __init__(self):
            self.seen = []

        def on_client_start(self, trainer, client):
            here = trainer.client_weights().clone()
            assert here.equal(trainer.client_model(client))
            held = torch.cat([parameter.detach().flatten() for parameter in trainer.module.parameters()])
            self.seen.append((trainer.current_round, client, held))
            with torch.no_grad():  # undone before the first step
                for parameter in trainer.module.parameters():
                    parameter.fill_(torch.nan)

    def fit(*callbacks):
        run = trainer(max_rounds=2, callbacks=[PersonalLayers(layers=["linear.bias"]), *callbacks])
        run.fit(TinyModule(), TinyClients())
        return run

    watcher = Watcher()
    watched, alone = fit(watcher), fit()
    assert [seen[:2] for seen in watcher.seen] == [(r, c) for r in range(2) for c in range(3)]
    assert not any(torch.equal(seen[2], watcher.seen[3][2]) for seen in watcher.seen[4:])  # personal layers differ
    assert watched.models[0].equal(alone.models[0])


def test_the_best_round_is_this_run_s_and_not_another_s_in_the_same_folder(tmp_path):
    """Without validation there is none; the model that another run found best is another model."""
    data, other = TinyClients(), trainer(default_root_dir=tmp_path)
    other.fit(TinyModule(), data)
    assert (Path(other.log_dir) / "checkpoints" / "best.ckpt").is_file()
    run = trainer(default_root_dir=tmp_path, check_val_every_n_rounds=0)
    run.fit(TinyModule(0.01), data)
    for evaluate in (run.validate, run.test, run.predict):
        with pytest.raises(CheckpointError, match=r"best\.ckpt"):
            evaluate(run.module, data, ckpt_path="best")
    last = run.test(run.module, data, ckpt_path="last")["test_loss"].mean
    assert last == run.test(run.module, data)["test_loss"].mean
    fresh = trainer(default_root_dir=tmp_path)  # has not trained: the folder's
    best = fresh.test(TinyModule(), data, ckpt_path="best")["test_loss"].mean
    assert best == other.test(other.module, data, ckpt_path="best")["test_loss"].mean
