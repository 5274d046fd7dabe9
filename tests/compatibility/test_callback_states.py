"""What a module's callbacks keep by Lightning's checkpoint hooks, averages of weights for one, is each client's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, WeightAveraging
from reference import (
    Clients,
    Linear,
    assert_same_weights,
    federated_trainer,
    fit_whole_and_resumed,
    fitted,
    leave_out,
    make,
    train_both,
)
from torch import Tensor

from lightning_fl.callbacks import BestClientModels, Callback, FineTuning
from lightning_fl.engine.client import LocalWork
from lightning_fl.strategies import APFL, Ditto

_DECAY = 0.8


class Counting(pl.Callback):
    """Counts batches in training and validations, of which it reports; only the first is in its state by itself."""

    def __init__(self) -> None:
        self.batches = self.validations = 0

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches = state_dict["batches"]

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["validations"] = {"so far": [self.validations]}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        (self.validations,) = checkpoint["validations"]["so far"]

    def on_train_batch_end(self, *_: Any) -> None:
        self.batches += 1

    def on_validation_start(self, *_: Any) -> None:
        self.validations += 1

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.log("seen", 100.0 * self.batches + self.validations)


class Shadow(pl.Callback):
    """Averages by itself, in a dict of its state, and swaps the average in for validation."""

    shadow: dict[str, Tensor]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.shadow = {name: one.detach().clone() for name, one in pl_module.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.shadow = state_dict["shadow"]

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        for name, one in pl_module.named_parameters():
            self.shadow[name].lerp_(one.detach(), 1 - _DECAY)

    def swap(self, trainer: Any, pl_module: Any) -> None:
        for name, one in pl_module.named_parameters():
            self.shadow[name], one.data = one.detach().clone(), self.shadow[name].clone()

    on_validation_start = on_validation_end = on_test_start = on_test_end = swap


#: Name -> makes a module's callbacks.
_BROUGHT: dict[str, Callable[[], Any]] = {
    "ema": lambda: EMAWeightAveraging(decay=_DECAY),
    "swa": WeightAveraging,
    "late": lambda: EMAWeightAveraging(decay=_DECAY, update_starting_at_step=4),
    "counting": Counting,
    "shadow": Shadow,
    "several": lambda: [Counting(), EMAWeightAveraging(decay=_DECAY), Counting()],
}


class Brings(Linear):
    """Notes the weights after each of a client's steps; logs those that are evaluated."""

    brought: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[int, list[Tensor]] = {}
        self.values: list[float] = []

    def configure_callbacks(self) -> Any:
        return [] if self.brought is None else _BROUGHT[self.brought]()

    def on_train_batch_end(self, *_: Any) -> None:
        client = getattr(self.trainer, "client", 0)
        self.steps.setdefault(client, []).append(self.net.weight.detach().clone())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("weight", self.net.weight.sum())
        self.values.append(float(self.net.weight.sum()))

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net.weight.sum()


def _module(brought: str | None) -> type[Brings]:
    return type("Brings", (Brings,), {"brought": brought})


@pytest.mark.parametrize("brought", _BROUGHT)
def test_one_client_is_lightnings_run(brought: str, tmp_path: Path) -> None:
    own, trainer, reference, theirs = train_both(_module(brought), tmp_path, epochs=3)
    assert own.values == reference.values
    assert_same_weights(own, reference, moved=False)  # of an average: its bits
    if "seen" in theirs.callback_metrics:
        assert trainer.metrics["val"]["seen"].mean == float(theirs.callback_metrics["seen"])


def _averages(steps: dict[int, list[Tensor]]) -> dict[int, float]:
    """By hand: the first step's weights, then moved towards those of each."""
    found = {}
    for client, weights in steps.items():
        average = weights[0].clone()
        for weight in weights[1:]:
            average = _DECAY * average + (1 - _DECAY) * weight
        found[client] = float(average.sum())
    return found


def test_a_clients_average_is_what_it_uses_and_the_shared_model_is_not(tmp_path: Path) -> None:
    """Client 2 takes part once, client 3 never: it has no average, and uses the shared model."""
    data, kind = Clients((8, 4, 12, 8)), _module("ema")
    cohorts = [[2, 0, 1], [1, 0], [0, 1]]
    settings: dict[str, Any] = {"max_rounds": 3, "callbacks": [leave_out(cohorts)], "enable_checkpointing": True}
    module, plain = make(kind), make(_module(None))
    trainer = fitted(tmp_path / "own", module, data, **settings)
    reference = fitted(tmp_path / "plain", plain, data, **settings)
    assert trainer.models[0].equal(reference.models[0])
    expected = _averages(module.steps) | {3: float(plain.net.weight.detach().sum())}
    assert trainer.metrics["val"]["weight"].clients == pytest.approx(expected, rel=1e-6)
    assert float(module.net.weight.detach().sum()) == pytest.approx(expected[0], rel=1e-6)  # client 0's
    assert trainer.test(module, data)["weight"].clients == pytest.approx(expected, rel=1e-6)
    assert trainer.validate(module, data)["weight"].clients == pytest.approx(expected, rel=1e-6)
    predicted = trainer.predict(module, data)
    assert {client: float(outputs[0]) for client, outputs in predicted.items()} == pytest.approx(expected, rel=1e-6)
    afresh = federated_trainer(tmp_path / "afresh")
    path = trainer.run_log.directory / "checkpoints" / "last.ckpt"
    assert afresh.test(make(kind), data, ckpt_path=path)["weight"].clients == pytest.approx(expected, rel=1e-6)
    best = trainer.checkpoint_callback.best_round
    afresh.test(make(kind), data, ckpt_path=path.with_name("best.ckpt"))
    for client, name in enumerate(trainer.client_names):
        exported = torch.load(trainer.run_log.directory / "models" / f"{name}.ckpt", weights_only=True)
        assert exported["epoch"] == best
        weight = float(exported["state_dict"]["net.weight"].sum())
        assert weight == pytest.approx(afresh.metrics["test"]["weight"].clients[client], rel=1e-6)


@pytest.mark.parametrize("brought", ["ema", "shadow", "several"])
def test_a_resumed_run_continues_with_the_same_bits(brought: str, tmp_path: Path) -> None:
    (whole, first, second), (one, _, two) = fit_whole_and_resumed(
        _module(brought), tmp_path, stop=True, optimizer_state="keep"
    )
    assert [*first.values, *second.values] == whole.values
    assert all(two.client_model(client).equal(one.client_model(client)) for client in range(2))
    assert two.metrics["val"].keys() == one.metrics["val"].keys()
    for name, metric in one.metrics["val"].items():
        assert two.metrics["val"][name].clients == metric.clients


@pytest.mark.parametrize("path", [None, "last"])
def test_an_evaluation_by_itself_loads_states(path: str | None, tmp_path: Path) -> None:
    """Into callbacks that the module holds, or from a checkpoint."""

    class Holds(Brings):
        def __init__(self) -> None:
            super().__init__()
            self.callback = Shadow()

        def configure_callbacks(self) -> Any:
            return self.callback

    module, data = make(Holds), Clients((8, 4, 12))
    trainer = fitted(tmp_path, module, data, max_rounds=2, enable_checkpointing=True)
    expected = trainer.metrics["val"]["weight"].clients
    evaluated = module if path is None else make(Holds)
    assert trainer.test(evaluated, data, ckpt_path=path)["weight"].clients == expected
    assert trainer.validate(evaluated, data, ckpt_path=path)["weight"].clients == expected


@pytest.mark.parametrize("brought", ["ema", "swa"])
def test_an_evaluation_by_itself_fine_tunes_beside_averages_as_the_fit(brought: str, tmp_path: Path) -> None:
    module, data = make(_module(brought)), Clients((8, 4))
    tuning = FineTuning(steps=2, every_evaluation=True)
    trainer = fitted(tmp_path, module, data, max_rounds=3, callbacks=[tuning])
    expected = trainer.metrics["val"]["weight"].clients
    assert trainer.validate(module, data)["weight"].clients == expected
    assert trainer.test(module, data)["weight"].clients == expected


@pytest.mark.parametrize("brought", ["ema", "counting"])
def test_a_failed_turn_and_what_callbacks_of_the_run_do_change_nothing(brought: str, tmp_path: Path) -> None:
    class Fails(_module(brought)):  # type: ignore[misc]
        in_turn = True

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.trainer.client == 0 and self.current_epoch == 1 and batch_idx == 1 and self.in_turn:
                raise ValueError("no")
            return self.loss(batch)

    class Looks(Callback):
        def on_round_end(self, trainer: Any) -> None:
            trainer.module.in_turn = False
            weight = float(trainer.models[0].vectors[torch.float32][:3].sum())
            for client in (1, 0):
                report = trainer.loop.evaluator.evaluate(client, trainer.models[0], "val")
                assert report.metrics["weight"].value == pytest.approx(weight)  # not the client's average
                trainer.loop.train_aside(client, trainer.models[0], "aside", LocalWork(2, 1))
            trainer.module.in_turn = True

    runs = []
    for cohorts, module, watching in (
        ([[0, 1], [0, 1], [0, 1]], Fails, [Looks()]),
        ([[0, 1], [1], [0, 1]], _module(brought), []),
    ):
        callbacks = [leave_out(cohorts), *watching]
        trainer = federated_trainer(tmp_path, max_rounds=3, on_client_error="skip", callbacks=callbacks)
        trainer.fit(make(module), Clients((8, 8)))
        metrics = {name: metric.clients for name, metric in trainer.metrics["val"].items()}
        runs.append((metrics, [trainer.client_model(client).state_dict()["float32"].tolist() for client in (0, 1)]))
    assert runs[0] == runs[1]


def test_each_clients_best_model_is_its_average(tmp_path: Path) -> None:
    module, data = make(_module("ema")), Clients((8, 4))
    best = BestClientModels(monitor="weight", mode="min")  # that of the last round
    trainer = fitted(tmp_path, module, data, max_rounds=2, callbacks=[best], local_steps=2)
    assert trainer.test(module, data)["weight"].clients == pytest.approx(_averages(module.steps), rel=1e-6)


@pytest.mark.parametrize("strategy", [Ditto, APFL])
def test_a_strategy_that_evaluates_other_weights_goes_on_doing_so(strategy: Any, tmp_path: Path) -> None:
    found = []
    for brought in ("ema", None):
        trainer = fitted(tmp_path, make(_module(brought)), Clients((8, 4)), max_rounds=2, strategy=strategy())
        found.append(trainer.metrics["val"]["weight"].clients)
    assert found[0] == found[1]
