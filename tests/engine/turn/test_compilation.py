import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_compiler
from lightning.pytorch import LightningModule
from tiny import ManualModule, TinyClients, TinyModule, quiet_trainer, same_bits, weights_of
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torchmetrics import MeanAbsoluteError, MeanSquaredError, MetricCollection

from lightning_fl import ConfigurationError, FederatedTrainer, TrainingError, federate
from lightning_fl.callbacks import LocalMixup
from lightning_fl.engine.turn.compilation import CompiledSteps


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Backend:
    """Runs graphs as they are and keeps how many operations each has."""

    def __init__(self) -> None:
        self.graphs: list[int] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.graphs.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward


class Logging(TinyModule):
    """Logs in the middle of a step, from a method that steps share, now and then."""

    def shared(self, batch: list[Tensor], name: str) -> Tensor:
        loss = nn.functional.mse_loss(self.linear(self.before(batch[0])), batch[1])
        self.log(f"{name}_loss", loss)
        self.log_dict({f"{name}_root": loss.sqrt()})
        return loss * 2

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = self.shared(batch, "train")
        if batch_idx % 2:
            self.log("odd", loss)
        return {"loss": loss, "note": "odd" if batch_idx % 2 else "even"}


class Measuring(TinyModule):
    def __init__(self) -> None:
        super().__init__()
        self.error = MeanAbsoluteError()
        self.errors = MetricCollection([MeanSquaredError(), MeanAbsoluteError()])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        prediction = self(batch[0])
        self.error(prediction, batch[1])
        self.log("error", self.error)
        self.log_dict(self.errors(prediction, batch[1]))
        return nn.functional.mse_loss(prediction, batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.error.update(self(batch[0]), batch[1])
        self.log("val_error", self.error)


def trainer_in(folder: Path, **settings: Any) -> FederatedTrainer:
    return quiet_trainer(**({"max_rounds": 2, "seed": 5, "default_root_dir": folder} | settings))


def fitted(
    folder: Path, module: LightningModule, sizes: tuple[int, ...] = (24, 10, 18), **settings: Any
) -> tuple[list[Tensor], dict[str, float]]:
    trainer = trainer_in(folder, **settings)
    trainer.fit(module, TinyClients(sizes))
    logged = {name: value.mean for split in trainer.metrics.values() for name, value in split.items()}
    return weights_of(module), logged


# -- results -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "settings"),
    [
        (lambda: TinyModule(norm=True), {}),
        (lambda: TinyModule(dropout=0.3), {}),
        (Logging, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
        (Measuring, {}),
        (ManualModule, {}),
        (TinyModule, {"callbacks": "mixup"}),
        (TinyModule, {"precision": "bf16-mixed"}),
        (TinyModule, {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "fused_optimizers": True}),
        (TinyModule, {"precision": "bf16-true", "accumulate_grad_batches": 2}),
    ],
)
def test_compiled_steps_compute_the_same(module: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    def settled() -> dict[str, Any]:
        return settings | ({"callbacks": [LocalMixup()]} if "callbacks" in settings else {})

    plain, logged = fitted(tmp_path, module(), **settled())
    compiled, also_logged = fitted(tmp_path, module(), **settled(), compile={"backend": "aot_eager"})
    assert same_bits(plain, compiled)
    assert logged == also_logged


@pytest.mark.slow
def test_inductor_computes_the_same_up_to_rounding(tmp_path: Path) -> None:
    # Batches of one size only: each further one is compiled anew, which is torch's affair and takes seconds.
    settings = {"sizes": (24, 8), "check_val_every_n_rounds": 0}
    plain, logged = fitted(tmp_path, TinyModule(), **settings)
    try:
        compiled, also_logged = fitted(tmp_path, TinyModule(), **settings, compile=True)
    except ConfigurationError as error:  # there is no compiler
        pytest.skip(str(error))
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)
    assert also_logged == pytest.approx(logged, rel=1e-5)


class FixedMemory:
    """A backend whose backward graphs leave gradients at places of their own, as a captured CUDA graph does."""

    def __init__(self) -> None:
        self.compile = aot_autograd(fw_compiler=make_boxed_compiler(_plainly), bw_compiler=make_boxed_compiler(_fixed))

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        return self.compile(graph, inputs)


def _plainly(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
    return graph.forward


def _fixed(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
    places: list[Tensor | None] = []

    def run(*args: Any) -> list[Tensor | None]:
        found = graph.forward(*args)
        if not places:
            places.extend(None if one is None else torch.empty_like(one) for one in found)
        for place, one in zip(places, found, strict=True):
            if place is not None:
                place.copy_(one)
        return [None if place is None else place.detach() for place in places]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("accumulated", [1, 2])
def test_gradients_that_the_next_backward_pass_overwrites(accumulated: int, tmp_path: Path) -> None:
    settings = {"accumulate_grad_batches": accumulated}
    plain, _ = fitted(tmp_path, TinyModule(), sizes=(24, 16), **settings)
    compiled, _ = fitted(tmp_path, TinyModule(), sizes=(24, 16), **settings, compile={"backend": FixedMemory()})
    assert same_bits(plain, compiled)


@pytest.mark.slow
def test_evaluations_are_the_same(tmp_path: Path) -> None:
    plain, compiled = trainer_in(tmp_path), trainer_in(tmp_path, compile={"backend": "aot_eager"})
    for stage in ("validate", "test"):
        first, second = (getattr(trainer, stage)(TinyModule(), TinyClients()) for trainer in (plain, compiled))
        assert first == second
    first, second = (trainer.predict(TinyModule(), TinyClients()) for trainer in (plain, compiled))
    assert all(same_bits(first[client], second[client]) for client in range(3))


@pytest.mark.slow
def test_a_compiled_module_is_taken_as_it_is(tmp_path: Path) -> None:
    plain, _ = fitted(tmp_path, TinyModule())
    module, backend = TinyModule(), Backend()
    compiled: Any = torch.compile(module, backend=backend)
    trainer = trainer_in(tmp_path)
    trainer.fit(compiled, TinyClients())
    assert same_bits(plain, weights_of(module))
    assert len(backend.graphs) == 3  # batches of 8, of any size, and validation
    trained = [model.clone() for model in trainer.models]
    trainer.test(compiled, TinyClients())  # goes on from the fit
    assert trainer.module is module
    assert trainer.models[0].equal(trained[0])
    assert len(backend.graphs) == 4


@pytest.mark.slow
def test_federate_takes_a_compiled_module(tmp_path: Path) -> None:
    compiled: Any = torch.compile(TinyModule(), backend="eager")
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}
    trainer = federate(compiled, TinyClients(), max_rounds=1, default_root_dir=tmp_path, accelerator="cpu", **quiet)
    assert "test_loss" in trainer.metrics["test"]


@pytest.mark.slow
def test_evaluating_nothing_names_the_module(tmp_path: Path) -> None:
    class Untested(TinyModule):
        test_step = LightningModule.test_step

    compiled: Any = torch.compile(Untested(), backend="eager")
    with pytest.warns(UserWarning, match="Untested defines no test step"):
        trainer_in(tmp_path).test(compiled, TinyClients())


# -- how often -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "graphs"),
    [
        ((24, 8, 16), [2, 2]),  # one for training, one for validation
        ((24, 10, 18), [2, 2, 2]),  # a smaller last batch
        ((24, 10, 19, 13, 14), [2, 2, 2]),  # others of other sizes
    ],
)
def test_one_compilation_serves_clients_and_rounds(sizes: tuple[int, ...], graphs: list[int], tmp_path: Path) -> None:
    backend = Backend()
    trainer_in(tmp_path, compile={"backend": backend}).fit(TinyModule(), TinyClients(sizes))
    assert backend.graphs == graphs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "graphs"),
    [
        (Logging, [2, 1, 1, 2]),  # linear and loss, before what is logged; the root; twice the loss; validation
        (Measuring, [1, 1, 1]),  # linear; loss; validation's linear: metrics count outside
        (ManualModule, [1, 2]),  # forward; validation
    ],
)
def test_graphs_of_a_module(module: Any, graphs: list[int], tmp_path: Path) -> None:
    backend = Backend()
    trainer_in(tmp_path, compile={"backend": backend}).fit(module(), TinyClients((24, 8)))
    assert backend.graphs == graphs


# -- afterwards ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_the_module_is_as_before(fails: bool, tmp_path: Path) -> None:
    class Failing(Measuring):
        def on_train_epoch_end(self) -> None:
            if fails:
                raise TrainingError("on purpose")

    def own_step(batch: list[Tensor]) -> Tensor:
        return module(batch[0])

    module = Failing()
    module.predict_step = own_step  # type: ignore[method-assign, assignment]
    before = {id(part): {*vars(part)} for part in module.modules()}
    trainer = trainer_in(tmp_path, compile={"backend": "eager"})
    if fails:
        with pytest.raises(TrainingError, match="on purpose"):
            trainer.fit(module, TinyClients())
    else:
        trainer.fit(module, TinyClients())
    after = {id(part): {*vars(part)} for part in module.modules()}
    assert all(after[part] - before[part] <= {"_trainer", "_current_fx_name"} for part in before)
    assert module.predict_step is own_step
    assert module.training_step.__func__ is Measuring.training_step


def test_a_copy_of_a_metric_counts_by_itself() -> None:
    module = Measuring()
    steps = CompiledSteps(module, {"backend": "eager"})
    steps.begin()
    ones = torch.ones(2)
    for metric in (module.error, module.errors):
        copy = metric.clone()
        copy(ones, 0 * ones)
        copy.update(ones, 0 * ones)
    assert not module.error.update_called
    assert not module.errors["MeanSquaredError"].update_called
    steps.end()


def test_a_copy_of_the_module_uses_its_own_weights() -> None:
    module = TinyModule()
    steps = CompiledSteps(module, {"backend": "eager"})
    steps.begin()
    twin, x = copy.deepcopy(module), torch.ones(1, 3)
    with torch.no_grad():
        twin.linear.weight.zero_()
    assert module(x) != 0
    assert twin(x) == twin.predict_step([x], 0) == 0
    steps.end()


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speed": 3}, r"trainer\.compile=.*speed"),
        ({"mode": "faster"}, r"trainer\.compile=.*mode.*reduce-overhead"),
        ({"backend": "nvcc"}, r"trainer\.compile=.*backend.*nvcc"),
        ({"fullgraph": "yes"}, r"trainer\.compile\.fullgraph='yes'"),
        ({"mode": 3}, r"trainer\.compile=.*mode"),
        ({"recompile_limit": 0}, r"trainer\.compile\.recompile_limit=0"),
        ({"options": {"speed": 1}}, r"trainer\.compile=.*option speed"),
        ({"options": {"max_autotune": "x"}}, r"trainer\.compile=.*max_autotune"),
        ({"options": 3}, r"trainer\.compile=.*options"),
        ({"mode": "default", "options": {}}, r"trainer\.compile=.*mode or options"),
        ("fast", "trainer.compile='fast'"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FederatedTrainer(compile=settings)


@pytest.mark.slow
def test_settings_are_left_as_they_are_and_null_is_the_default(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"backend": "eager", "mode": None, "dynamic": None}
    module = TinyModule()
    fitted(tmp_path, module, compile=settings, max_rounds=1)
    assert settings == {"backend": "eager", "mode": None, "dynamic": None}


def test_compiling_twice_is_refused(tmp_path: Path) -> None:
    compiled: Any = torch.compile(TinyModule(), backend="eager")
    with pytest.raises(ConfigurationError, match="trainer.compile"):
        trainer_in(tmp_path, compile=True).fit(compiled, TinyClients())


@pytest.mark.slow
def test_a_machine_that_cannot_compile_is_told_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", no_compiler)
    monkeypatch.setattr("torch._inductor.config.force_disable_caches", True)
    with pytest.raises(
        ConfigurationError,
        match=r"backend inductor .*nothing to compile with\.",
    ):
        trainer_in(tmp_path, compile=True).fit(TinyModule(), TinyClients())


def no_compiler(*args: object, **kwargs: object) -> str:
    raise RuntimeError("nothing to compile with")
