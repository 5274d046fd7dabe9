"""The hooks of a module: all of them, in order, and what they see of ``self.trainer``."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_alone import NO_TRAINER
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from reference import (
    Clients,
    Fails,
    Linear,
    Validated,
    assert_same_weights,
    federated_trainer,
    fitted,
    leave_out,
    linear,
    make,
    step,
    train_both,
    watching,
)
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback, LastRounds, PersonalLayers
from lightning_fl.core.errors import TrainingError
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.module_trainer import make_module_trainer
from lightning_fl.strategies import FedAvg

_RECORDED = [
    "prepare_data",
    "setup",
    "configure_model",
    "configure_optimizers",
    "on_fit_start",
    "on_fit_end",
    "on_train_start",
    "on_train_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_model_zero_grad",
    *(
        f"on_{word}_{moment}"
        for word in ("validation", "test", "predict")
        for moment in (
            "model_eval",
            "model_train",
            "start",
            "epoch_start",
            "batch_start",
            "batch_end",
            "epoch_end",
            "end",
        )
        if (word, moment) != ("predict", "model_train")  # Lightning has no such hook
    ),
    "teardown",
]


def _recording(base: type[LightningModule]) -> type[Any]:
    """A class that notes every hook it overrides and calls what was there before."""

    def note(self: Any, name: str, *_: Any) -> None:
        client = getattr(self._trainer, "client", None)
        self.calls.append(name if client is None else f"{name} {client}")

    return watching(linear("Noting", base, build=lambda self: setattr(self, "calls", [])), _RECORDED, note)


class Complete(Linear):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls.append(f"training_step {self.trainer.client}")  # type: ignore[union-attr, operator]
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.calls.append(f"validation_step {self.trainer.client}")  # type: ignore[union-attr, operator]

    def test_step(self, batch: Any, batch_idx: int) -> None:
        assert not self.training
        self.calls.append(f"test_step {self.trainer.client}")  # type: ignore[union-attr, operator]

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert not self.training
        self.calls.append(f"predict_step {self.trainer.client}")  # type: ignore[union-attr, operator]
        return self.net(batch[0])


def _evaluation(word: str, client: int) -> list[str]:
    names = ["model_eval", "epoch_start", "batch_start", "STEP", "batch_end", "epoch_end", "model_train"]
    calls = [f"{word}_step {client}" if name == "STEP" else f"on_{word}_{name} {client}" for name in names]
    return calls[:-1] if word == "predict" else calls


def _turn(client: int) -> list[str]:
    return [
        f"{name} {client}"
        for name in (
            "configure_optimizers",
            "on_train_epoch_start",
            "on_train_batch_start",
            "training_step",
            "on_train_batch_end",
            "on_train_epoch_end",
        )
    ]


def test_the_whole_sequence_of_a_fit(tmp_path: Path) -> None:
    """Two clients with one batch each, two rounds."""
    module = _recording(Complete)()
    federated_trainer(tmp_path, max_rounds=2).fit(module, Clients((4, 4), eval_batch_size=5))
    validation = ["on_validation_start"]
    for client in (0, 1):
        validation += ["on_validation_model_zero_grad", *_evaluation("validation", client)]
    one_round = [*_turn(0), *_turn(1), *validation, "on_validation_end"]
    assert module.calls == [
        "prepare_data",
        "setup",
        "configure_model",
        "on_fit_start",
        "on_train_start",
        *one_round,
        *one_round,
        "on_train_end",
        "on_fit_end",
        "teardown",
    ]


@pytest.mark.parametrize(("method", "word"), [("validate", "validation"), ("test", "test"), ("predict", "predict")])
def test_the_whole_sequence_of_an_evaluation(method: str, word: str, tmp_path: Path) -> None:
    module = _recording(Complete)()
    getattr(federated_trainer(tmp_path), method)(module, Clients((4, 4), eval_batch_size=5))
    assert module.calls == [
        "prepare_data",
        "setup",
        "configure_model",
        f"on_{word}_start",
        *_evaluation(word, 0),
        *_evaluation(word, 1),
        f"on_{word}_end",
        "teardown",
    ]


@pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers")
def test_one_client_meets_the_hooks_that_lightning_calls(tmp_path: Path) -> None:
    """As many calls of each hook in two rounds as in two epochs, but for what is made anew every round."""
    own, _, reference, _ = train_both(_recording(Validated), tmp_path, epochs=2)
    counts = [
        {name: sum(call.split()[0] == name for call in calls) for name in _RECORDED}
        for calls in (own.calls, reference.calls)
    ]
    assert counts[0].pop("configure_optimizers") == 2  # one for each round
    assert counts[1].pop("configure_optimizers") == 1
    assert counts[0] == counts[1]
    assert_same_weights(own, reference, moved=False)


def test_what_a_step_returns_reaches_the_batch_end(tmp_path: Path) -> None:
    class Returns(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {"index": batch_idx, "made": self.net(batch[0])}

        def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.seen.append((outputs["index"], outputs["made"].shape, batch_idx, dataloader_idx))

    own, _, reference, _ = train_both(Returns, tmp_path, epochs=1)
    assert own.seen == reference.seen == [(0, (4, 1), 0, 0), (1, (1, 1), 1, 0)]


# -- setup and teardown ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fit", "validate", "test", "predict"])
def test_stages(method: str, tmp_path: Path) -> None:
    stages: list[Any] = []

    def note(self: Any, hook: str, *stage: str) -> None:
        t = self.trainer
        more = {"prepare_data": [type(t.datamodule).__name__], "setup": [t.state.fn, t.state.stage]}
        stages.append((hook, *stage, *more.get(hook, [])))

    notes = watching(Complete, ["prepare_data", "setup", "teardown"], note)
    notes.calls = []
    getattr(federated_trainer(tmp_path), method)(notes(), Clients((4,)))
    stage = {
        "fit": RunningStage.TRAINING,
        "validate": RunningStage.VALIDATING,
        "test": RunningStage.TESTING,
        "predict": RunningStage.PREDICTING,
    }[method]
    assert stages == [("prepare_data", "Clients"), ("setup", method, TrainerFn(method), stage), ("teardown", method)]


def test_layers_made_in_setup_or_configure_model(tmp_path: Path) -> None:
    """``setup`` comes first, as in Lightning, so that ``configure_model`` may use what it found out."""

    class Late(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net: nn.Module | None = None

        def setup(self, stage: str) -> None:
            self.width = self.trainer.datamodule.client_data(0, "train").tensors[0].shape[1]

        def configure_model(self) -> None:
            if self.net is None:
                torch.manual_seed(3)
                self.net = nn.Linear(self.width, 1)

        training_step = Linear.training_step
        loss = Linear.loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    class LateInLightning(Late):
        def setup(self, stage: str) -> None:
            self.width = 3

    own = Late()
    federated_trainer(tmp_path, max_rounds=2).fit(own, Clients((10,)))
    _, _, reference, _ = train_both(LateInLightning, tmp_path, epochs=2)
    assert_same_weights(own, reference, moved=False)


def test_no_error_is_told_of_in_a_good_run_or_where_a_client_is_left_out(tmp_path: Path) -> None:
    heard: list[Any] = []

    def note(self: Any, hook: str, *arguments: Any) -> None:
        heard.append(arguments)

    class FailsForOne(Complete):
        calls: list[str] = []  # noqa: RUF012

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if self.trainer.client == 1:  # type: ignore[union-attr]
                raise ValueError("no such thing")
            return self.loss(batch)

    watch = watching(Callback, ["on_exception"], note)()
    trainer = federated_trainer(tmp_path, max_rounds=2, callbacks=[watch], on_client_error="skip")
    module, data = FailsForOne(), watching(Clients, ["on_exception"], note)((4, 4))
    with pytest.warns(UserWarning, match="no such thing"):
        trainer.fit(module, data)
    for stage in (trainer.validate, trainer.test, trainer.predict):
        stage(module, data)
    assert heard == []


def test_nothing_ends_well_after_an_error(tmp_path: Path) -> None:
    """Neither a round nor a fit ends, for callbacks or the module; only the error and the teardown are told."""
    told: list[Any] = []

    def note(self: Any, hook: str, *arguments: Any) -> None:
        told.append((hook, *(type(one).__name__ if isinstance(one, Exception) else one for one in arguments[-1:])))

    ends = ["on_aggregate_end", "on_evaluate_end", "on_round_end", "on_fit_end", "on_exception"]
    watch = watching(Callback, ends, note)()
    module = watching(Fails, ["on_train_batch_end", "on_train_end", "on_fit_end", "teardown"], note)()
    data = watching(Clients, ["on_exception"], lambda self, hook, error: told.append(("data", str(error))))((4,))
    with pytest.raises(TrainingError, match="no such thing"):
        federated_trainer(tmp_path, max_rounds=1, callbacks=[watch]).fit(module, data)
    assert ("on_exception", "TrainingError") in told
    assert [hook for hook, *_ in told[:-1]] in (["on_exception", "data"], ["data", "on_exception"])
    assert "no such thing" in dict(told)["data"]
    assert told[-1] == ("teardown", "fit")


# -- self.trainer ---------------------------------------------------------------------------------------------------


def test_values_in_training(tmp_path: Path) -> None:
    """Two clients of 3 and 2 batches, three rounds; client 1 misses the second."""
    seen: list[tuple[Any, ...]] = []

    class Looks(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            t = self.trainer
            assert (t.training, t.evaluating, t.validating, t.testing, t.predicting) == (True,) + 4 * (False,)
            assert (t.state.fn, t.state.stage) == (TrainerFn.FITTING, RunningStage.TRAINING)
            assert (t.max_epochs, t.num_clients, t.is_global_zero, t.world_size) == (3, 2, True, 1)
            assert (t.global_rank, t.local_rank, t.node_rank, t.num_nodes, t.num_devices) == (0, 0, 0, 1, 1)
            assert t.current_epoch == self.current_epoch == t.current_round
            assert t.global_step == self.global_step
            assert t.optimizers[0].param_groups[0]["lr"] == self.lr
            assert t.lightning_module is t.model is t.strategy.lightning_module is self
            assert t.strategy.root_device == self.device == torch.device("cpu")
            assert t.datamodule.num_clients == 2
            assert self.logger is None
            assert self.all_gather(torch.ones(2)).tolist() == [1.0, 1.0]
            assert t.strategy.reduce(torch.tensor(3.0)) == t.strategy.broadcast(3.0) == 3.0
            t.strategy.barrier()
            seen.append((t.client, t.current_epoch, t.global_step, batch_idx, t.num_training_batches, t.is_last_batch))
            return self.loss(batch)

    fitted(tmp_path, Looks(), Clients((10, 8)), max_rounds=3, callbacks=[leave_out([[0, 1], [0], [0, 1]])])
    zero = [(0, r, 3 * r + i, i, 3, i == 2) for r in range(3) for i in range(3)]
    one = [(1, r, 2 * visit + i, i, 2, i == 1) for visit, r in enumerate((0, 2)) for i in range(2)]
    assert sorted(seen) == sorted(zero + one)


_COUNTED = """training_step on_train_epoch_start on_train_batch_end on_train_epoch_end validation_step
on_validation_epoch_end on_train_end"""


def _note_counters(self: Any, hook: str, *_: Any) -> None:
    self.seen.setdefault(hook, []).append((self.current_epoch, self.global_step))


def test_counters_are_lightnings(tmp_path: Path) -> None:
    counting = watching(
        linear("Counts", Validated, build=lambda self: setattr(self, "seen", {})), _COUNTED.split(), _note_counters
    )
    own, _, reference, _ = train_both(counting, tmp_path)
    assert own.seen == reference.seen


@pytest.mark.parametrize(
    ("method", "hook", "stage", "count"),
    [
        ("validate", "validation", RunningStage.VALIDATING, "num_val_batches"),
        ("test", "test", RunningStage.TESTING, "num_test_batches"),
        ("predict", "predict", RunningStage.PREDICTING, "num_predict_batches"),
    ],
)
def test_values_in_evaluation(method: str, hook: str, stage: RunningStage, count: str, tmp_path: Path) -> None:
    """After a fit of two rounds of three steps: 5 samples are two batches."""
    seen: list[Any] = []

    def look(self: Any, *_: Any) -> None:
        t = self.trainer
        if t.state.fn == TrainerFn.FITTING:
            return
        flags = (t.training, t.validating, t.testing, t.predicting)
        assert flags == tuple(stage == other for other in (RunningStage.TRAINING, *list(RunningStage)[2:5]))
        assert t.evaluating == (method != "predict")
        assert (t.state.fn, t.state.stage) == (TrainerFn(method), stage)
        seen.append((t.client, t.current_epoch, getattr(t, count)))

    def check_flags_between(self: Any) -> None:
        assert self.trainer.state.stage == stage
        assert self.trainer.client is None

    members = {f"{hook}_step": look, f"on_{hook}_start": check_flags_between, f"on_{hook}_end": check_flags_between}
    module = type("Looks", (Linear,), members)()
    trainer = federated_trainer(tmp_path, max_rounds=2)
    data = Clients((10, 10))
    trainer.fit(module, data)
    getattr(trainer, method)(module, data)
    assert seen == [(client, 2, [2]) for client in (0, 1) for _ in range(2)]


def test_settings_are_shown(tmp_path: Path) -> None:
    shown: dict[str, Any] = {}
    expected = {
        "gradient_clip_val": 0.5,
        "gradient_clip_algorithm": "value",
        "accumulate_grad_batches": 2,
        "check_val_every_n_epoch": 2,
        "precision": "bf16-mixed",
        "log_every_n_steps": 50,  # modules divide by it; the trainer's 0 means that no steps are logged
        "default_root_dir": str(tmp_path),
        "max_epochs": 4,
        "max_steps": -1,
        "sanity_checking": False,
        "barebones": False,
        "fast_dev_run": False,
        "scaler": None,
        "interrupted": False,
        "received_sigterm": False,
        "enable_validation": True,
        "num_sanity_val_batches": [],
        "limit_train_batches": 1.0,
        "early_stopping_callback": None,
        "early_stopping_callbacks": [],
        "progress_bar_callback": None,
        "callbacks": [],
        "checkpoint_callback": None,
        "checkpoint_callbacks": [],
        "min_epochs": 0,
        "min_steps": None,
        "device_ids": [0],
        "ckpt_path": None,
    }

    class Looks(Linear):
        def validation_step(self, batch: Any, batch_idx: int) -> None: ...

        def on_train_start(self) -> None:
            shown.update({name: getattr(self.trainer, name) for name in expected})
            with self.trainer.profiler.profile("a part of the step"):
                pass

    federated_trainer(
        tmp_path,
        max_rounds=4,
        gradient_clip_val=0.5,
        gradient_clip_algorithm="value",
        accumulate_grad_batches=2,
        check_val_every_n_rounds=2,
        precision="bf16-mixed",
    ).fit(Looks(), Clients((4,)))
    assert shown == expected


def test_should_stop_ends_the_run_after_the_round(tmp_path: Path) -> None:
    def act(self: Any) -> None:
        self.steps += 1
        if self.current_epoch == 1:
            self.trainer.should_stop = True

    module = linear("Stops", training_step=step(act), steps=0)()
    trainer = fitted(tmp_path, module, Clients((10, 10)), max_rounds=5)
    assert trainer.current_round == 2
    assert module.steps == 2 * 2 * 3


def test_ranks_without_a_logger_swallow_what_modules_log_to_it() -> None:
    """On other ranks than the first ``self.logger.experiment`` takes anything, as in Lightning."""
    fabric: Any = SimpleNamespace(
        _precision=None, is_global_zero=False, device=torch.device("cpu"), local_rank=1, node_rank=0, strategy=FedAvg()
    )
    module, unused = Linear(), (None, Settings(), Federation(), Processes(FedAvg(), torch.device("cpu")))
    make_module_trainer(module, fabric, *unused, federated=NO_TRAINER)
    assert isinstance(module.logger, DummyLogger)
    module.logger.experiment.add_scalar("name", 1.0, 0)
    fabric.is_global_zero = True
    make_module_trainer(module, fabric, *unused, federated=NO_TRAINER)
    assert module.logger is None


def test_modules_within_the_module_see_the_trainer(tmp_path: Path) -> None:
    class Inner(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)
            self.epochs: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.epochs.append(self.trainer.current_epoch)
            return self.linear(x)

    module = linear("Outer", build=lambda self: setattr(self, "net", Inner()))()
    federated_trainer(tmp_path, max_rounds=2).fit(module, Clients((4,)))
    assert module.net.epochs == [0, 1]


# -- the data module's hooks ----------------------------------------------------------------------------------------


def test_the_data_modules_hooks_come_first(tmp_path: Path) -> None:
    calls: list[str] = []
    hooks = ["prepare_data", "setup", "teardown"]
    data = watching(Clients, hooks, lambda self, *told: calls.append(" ".join(["data", *told])))
    module = watching(Linear, hooks, lambda self, *told: calls.append(" ".join(told)))
    federated_trainer(tmp_path, max_rounds=1).fit(module(), data((4,)))
    assert calls == [
        "data prepare_data",
        "prepare_data",
        "data setup fit",
        "setup fit",
        "data teardown fit",
        "teardown fit",
    ]


def test_module_after_the_run_holds_the_shared_model(tmp_path: Path) -> None:
    module = make(Linear)
    trainer = fitted(tmp_path, module, Clients((4, 8)), max_rounds=2)
    torch.testing.assert_close(
        torch.cat([parameter.flatten() for parameter in module.parameters()]),
        torch.cat([trainer.models[0].vectors[torch.float32][:3], trainer.models[0].vectors[torch.float32][16:17]]),
    )


# -- weights that hooks swap in for an evaluation ------------------------------------------------------------------


class Averaged(Linear):
    """Evaluates with an average over its steps, which hooks of the run swap in: by copying it, or by its memory."""

    copies = True
    own = ("net.weight", "average")

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(1, 3))

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.lerp_(self.net.weight.detach(), 0.1)

    def swap_in(self) -> None:
        weight = self.net.weight
        self.held = weight.data.clone() if self.copies else weight.data
        if self.copies:
            weight.data.copy_(self.average)
        else:
            weight.data = self.average.clone()

    def swap_out(self) -> None:
        if self.copies:
            self.net.weight.data.copy_(self.held)
        else:
            self.net.weight.data = self.held

    on_validation_start = on_test_start = on_predict_start = swap_in
    on_validation_end = on_test_end = on_predict_end = swap_out

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("weight", self.net.weight.sum())

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net.weight.sum()


class AveragedByMemory(Averaged):
    copies = False


class AveragedByTorch(Averaged):
    """Holds torch's ``AveragedModel`` of its net, which counts its updates."""

    own = (*Averaged.own, "swa")

    def __init__(self) -> None:
        super().__init__()
        self.swa = AveragedModel(self.net)

    def on_train_batch_end(self, *_: Any) -> None:
        self.swa.update_parameters(self.net)
        self.average.copy_(self.swa.module.weight.detach())


class AveragedByEpoch(Averaged):
    on_validation_start = on_test_start = on_predict_start = LightningModule.on_validation_start
    on_validation_end = on_test_end = on_predict_end = LightningModule.on_validation_end
    on_validation_epoch_start = on_test_epoch_start = on_predict_epoch_start = Averaged.swap_in
    on_validation_epoch_end = on_test_epoch_end = on_predict_epoch_end = Averaged.swap_out


class AveragedByCallback(AveragedByEpoch):
    on_validation_epoch_start = on_test_epoch_start = on_predict_epoch_start = LightningModule.on_validation_start
    on_validation_epoch_end = on_test_epoch_end = on_predict_epoch_end = LightningModule.on_validation_end

    def configure_callbacks(self) -> Any:
        hooks: dict[str, Any] = {}
        for word in ("validation", "test", "predict"):
            hooks[f"on_{word}_start"] = lambda trainer, module: module.swap_in()
            hooks[f"on_{word}_end"] = lambda trainer, module: module.swap_out()
        return LambdaCallback(**hooks)


@pytest.mark.parametrize("module", [Averaged, AveragedByMemory, AveragedByTorch, AveragedByEpoch, AveragedByCallback])
def test_weights_that_a_hook_swaps_in_are_evaluated_and_swapped_out_again(
    module: type[Averaged], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Each client has weights, and an average, of its own; training knows nothing of it."""

    class Plain(module if module is AveragedByTorch else Averaged):  # type: ignore[misc]
        swap_in = swap_out = LightningModule.on_validation_start
        on_validation_start = on_test_start = on_predict_start = LightningModule.on_validation_start
        on_validation_end = on_test_end = on_predict_end = LightningModule.on_validation_end

    def run(kind: type[Averaged]) -> FederatedTrainer:
        callbacks = [PersonalLayers(layers=list(module.own)), LastRounds(num=1)]
        return fitted(tmp_path / kind.__name__, make(kind), Clients((8, 4, 12)), max_rounds=2, callbacks=callbacks)

    trainer, plain = run(module), run(Plain)
    assert not [warning for warning in recwarn if "is lost" in str(warning.message)]
    span = next(one for one in trainer.loop.flat.spans() if one.name == "average")
    for client in range(3):
        model = trainer.client_model(client)
        assert model.equal(plain.client_model(client))
        average = float(model.vectors[span.dtype][span.begin : span.end].sum())
        assert trainer.metrics["val"]["weight"].clients[client] == pytest.approx(average, rel=1e-6)
        assert plain.metrics["val"]["weight"].clients[client] != pytest.approx(average, rel=1e-3)
    expected = trainer.metrics["val"]["weight"].clients
    (last,) = trainer.run_log.summary["last_rounds"]["test"].values()
    assert list(last["clients"].values()) == pytest.approx(list(expected.values()))
    trained = trainer.module
    assert trainer.test(trained, Clients((8, 4, 12)))["weight"].clients == pytest.approx(expected)
    predicted = trainer.predict(trained, Clients((8, 4, 12)))
    assert {client: float(outputs[0]) for client, outputs in predicted.items()} == pytest.approx(expected)
