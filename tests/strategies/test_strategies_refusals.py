"""What strategies refuse, by the type of the error and the option or thing at fault."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from math import inf, nan
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from parabolas import OneWeight, TwoParabolas, trainer
from tiny import ManualModule, TinyClients, TinyModule, with_optimizer
from torch import Tensor, nn

from lightning_fl import ConfigurationError, FederatedTrainer, TrainingError
from lightning_fl.callbacks import (
    FLSC,
    Callback,
    CollaborationGraph,
    DROClientSampling,
    PooledTraining,
    SoftAveraging,
    TierBidding,
)
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.engine.batches.client import parts_of
from lightning_fl.engine.client import ClientUpdate
from lightning_fl.strategies import (
    APFL,
    SCAFFOLD,
    Ditto,
    FedAvg,
    FedFA,
    FedNova,
    FedRep,
    MaxFL,
    PerFedAvg,
    PFedMe,
    QFedAvg,
)

# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, -1, nan, inf, "90", timedelta(0)])
def test_a_timeout_out_of_range(timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"FedAvg\.timeout="):
        FedAvg(timeout=timeout)


@pytest.mark.parametrize(
    ("strategy", "arguments", "names"),
    [
        (FedAvg, {"find_unused_parameters": True, "mu": 1}, ["FedAvg", "'find_unused_parameters'", "'mu'"]),
        (MaxFL, {"threshold": 1.0, "warm_up_steps": 3}, ["MaxFL.threshold", "MaxFL.warm_up_steps"]),
        (MaxFL, {"opt_out": True, "eps": 0.1}, ["MaxFL.opt_out", "eps"]),
        (MaxFL, {"opt_out": True, "server_rate": 1.0}, ["MaxFL.opt_out", "server_rate"]),
    ],
)
def test_arguments_that_do_not_go_together(strategy: type, arguments: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        strategy(**arguments)
    assert all(name in str(refused.value) for name in names)


@pytest.mark.parametrize("kind", ["fedavg", "Mine"])
def test_a_name_that_is_taken_or_not_lower_case(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"Other\.name='{kind}'"):
        type("Other", (FedAvg,), {"name": kind})


class Needing(FedAvg):
    name = "needing"

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate


@pytest.mark.parametrize(
    ("strategy", "fault"),
    [
        ("fedvg", r"'fedvg' .*'fedavg'\?.*fedavgm, "),
        ("ddp", "'ddp'"),
        ("torch.nn.Linear", "'torch.nn.Linear'.*with its module"),
        ("no_such.Thing", "'no_such.Thing'.*'no_such'"),
        (f"{__name__}.Nothing", "'Nothing'"),
        ("needing", r"'needing': .*'rate'.*class_path"),
        (3, "trainer.strategy"),
    ],
)
def test_what_names_no_strategy(strategy: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        FederatedTrainer(strategy=strategy, accelerator="cpu", devices=1, logger=False)


def test_a_trainer_starts_no_function() -> None:
    with pytest.raises(ConfigurationError, match="start_method='spawn'"):
        FederatedTrainer(strategy="fedavg_spawn", accelerator="cpu", devices=2, logger=False)


# -- callbacks that do not go with a strategy --------------------------------------------------------------------------

CALLBACKS: dict[str, Callable[[], Callback]] = {
    "CollaborationGraph": lambda: CollaborationGraph(budget=1),
    "SoftAveraging": lambda: SoftAveraging(num_models=2),
    "FLSC": lambda: FLSC(num_clusters=3, num_best=2),
    "TierBidding": lambda: TierBidding(num_tiers=2),
    "DROClientSampling": DROClientSampling,
    "PooledTraining": PooledTraining,
}


@pytest.mark.parametrize(
    ("strategy", "callback"),
    [
        *((SCAFFOLD, name) for name in CALLBACKS),
        *((FedNova, name) for name in ("CollaborationGraph", "SoftAveraging", "FLSC", "DROClientSampling")),
        *((strategy, "CollaborationGraph") for strategy in (Ditto, APFL, PFedMe)),
        *(
            (strategy, name)
            for strategy in (QFedAvg, MaxFL, FedFA)
            for name in ("CollaborationGraph", "DROClientSampling")
        ),
    ],
)
def test_a_callback_that_does_not_go_with_a_strategy(strategy: type[FedAvg], callback: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"strategy={strategy.__name__} .*{callback}"):
        trainer(CALLBACKS[callback](), strategy=strategy())
    run = trainer(strategy=strategy())
    run.callbacks.append(CALLBACKS[callback]())
    with pytest.raises(ConfigurationError, match=callback):
        run.fit(OneWeight(), TwoParabolas())


def test_fedrep_needs_a_head() -> None:
    with pytest.raises(ConfigurationError, match=r"strategy=FedRep: .*PersonalLayers\(layers="):
        trainer(strategy=FedRep())


@pytest.mark.parametrize(
    ("arguments", "settings", "option"),
    [
        ({"method": "agnostic"}, {}, "DROClientSampling.method='agnostic'"),
        ({"method": "afl", "cohort_size": 2}, {}, "cohort_size=2"),
        ({"method": "afl"}, {"local_steps": 2}, "trainer.local_steps"),
        ({"method": "afl"}, {"local_steps": None}, "trainer.local_steps"),
    ],
)
def test_what_is_not_afl(arguments: dict[str, Any], settings: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigurationError, match=option):
        trainer(DROClientSampling(**arguments), **settings).fit(OneWeight(), TwoParabolas())


# -- modules -----------------------------------------------------------------------------------------------------------


WithAdam = with_optimizer(OneWeight, partial(torch.optim.Adam, lr=0.1))
WithLBFGS = with_optimizer(OneWeight, partial(torch.optim.LBFGS, lr=0.1))
Nesterov = with_optimizer(OneWeight, partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True))
Maximizing = with_optimizer(OneWeight, partial(torch.optim.SGD, lr=0.1, maximize=True))


@pytest.mark.parametrize(
    ("strategy", "module", "fault"),
    [
        (SCAFFOLD, WithAdam, "SCAFFOLD .*Adam"),
        (SCAFFOLD, Nesterov, "nesterov"),
        (FedNova, Nesterov, "nesterov"),
        (SCAFFOLD, Maximizing, "SCAFFOLD .*maximize"),
    ],
)
def test_an_optimiser_with_unknown_steps(strategy: type[FedAvg], module: type[OneWeight], fault: str) -> None:
    """Before training starts, though clients that fail would be left out."""
    run = trainer(strategy=strategy(), on_client_error="skip")
    with pytest.raises(ConfigurationError, match=fault):
        run.fit(module(), TwoParabolas())
    assert not run.client_reports
    assert not any(state.global_step for state in run.client_states.values())


@pytest.mark.parametrize(
    ("strategy", "state"), [(FedNova, "keep"), (FedNova, "average"), (SCAFFOLD, "keep"), (SCAFFOLD, "average")]
)
def test_momentum_that_goes_on(strategy: type[FedAvg], state: Any) -> None:
    run = trainer(strategy=strategy(), optimizer_state=state, on_client_error="skip")
    with pytest.raises(ConfigurationError, match=rf"trainer\.optimizer_state={state}.*{strategy.__name__}"):
        run.fit(OneWeight(momentum=0.9), TwoParabolas())
    assert not run.client_reports
    trainer(strategy=strategy(), optimizer_state=state).fit(OneWeight(), TwoParabolas())  # there is no momentum


def test_fednova_counts_the_steps_of_other_optimisers() -> None:
    trainer(strategy=FedNova()).fit(WithAdam(), TwoParabolas())


class Scaled(FedAvg):
    def client_loss(self, loss: Tensor, module: nn.Module) -> Tensor:
        return 2 * loss


@pytest.mark.parametrize("strategy", [APFL, PerFedAvg, PFedMe, QFedAvg, MaxFL, Scaled])
def test_modules_that_optimise_manually(strategy: type[FedAvg]) -> None:
    class Early(ManualModule):
        def on_train_start(self) -> None:
            raise AssertionError("training has begun")

    with pytest.raises(ConfigurationError, match=rf"{strategy.__name__} .*Early"):
        trainer(strategy=strategy()).fit(Early(), TinyClients())


def test_per_fedavg_without_adaptation_takes_modules_that_optimise_manually() -> None:
    trainer(strategy=PerFedAvg(adaptation_rate=0.0)).fit(ManualModule(), TinyClients())


# -- in a round --------------------------------------------------------------------------------------------------------


def strategy_with(name: str, step: Any, base: type[FedAvg] = FedAvg) -> FedAvg:
    """A strategy named Mine with one step or attribute of its own."""
    return type("Mine", (base,), {"__module__": __name__, name: step, "name": None})()


def keep_at_server(value: Any) -> Callable[..., Any]:
    def aggregate(strategy: FedAvg, update: Any) -> Any:
        update.state["thing"] = value
        return update.average

    return aggregate


class Blind(OneWeight):
    validation_step = LightningModule.validation_step


class Later(OneWeight):
    """Switches to Nesterov momentum in its turn."""

    def on_train_epoch_start(self) -> None:
        self.optimizers().param_groups[0].update(momentum=0.9, nesterov=True)


def scaling(scale: float) -> FedAvg:
    return strategy_with("client_update", lambda strategy, turn, weights: ClientUpdate(weights, scale))


@pytest.mark.parametrize(
    ("make", "module", "error", "fault"),
    [
        (QFedAvg, lambda: OneWeight(sign=-1.0), TrainingError, "QFedAvg .*client 0"),
        (QFedAvg, lambda: OneWeight(rate=0.0), TrainingError, "QFedAvg .*lipschitz"),
        (QFedAvg, lambda: OneWeight(sign=nan), TrainingError, "loss of client 0 .*nan"),
        (FedFA, Blind, TrainingError, "FedFA .*validation_step.* Blind"),
        (lambda: FedFA(monitor="nothing"), OneWeight, TrainingError, "nothing"),
        (SCAFFOLD, Later, TrainingError, "nesterov"),
        (FedNova, Later, TrainingError, "nesterov"),
        (APFL, WithLBFGS, TrainingError, "APFL .*LBFGS"),
        *((lambda s=scale: scaling(s), OneWeight, TrainingError, f"scale={scale}") for scale in (-1.0, nan, inf)),
        (
            lambda: strategy_with("client_update", lambda s, turn, weights: weights),
            OneWeight,
            TrainingError,
            "Mine.client_update .*Weights",
        ),
        (
            lambda: strategy_with("client_update", lambda s, t, w: ClientUpdate(w, vectors={"another": w}), SCAFFOLD),
            OneWeight,
            TrainingError,
            "Mine.client_update .*'another'.*'control'",
        ),
        (
            lambda: strategy_with("extra_vectors", ("control",)),
            OneWeight,
            TrainingError,
            "Mine.client_update .*'control'",
        ),  # type: ignore[arg-type]
        (lambda: strategy_with("aggregate", lambda s, u: None), OneWeight, ConfigurationError, "Mine.aggregate"),
        *(
            (
                lambda v=value: strategy_with("begin_client", lambda s, turn: turn.kept.update(thing=v)),
                OneWeight,
                TrainingError,
                f"'thing', a {type(value).__name__}",
            )
            for value in (object(), {"deep": [object()]}, {1, 2})
        ),
        *(
            (
                lambda v=value: strategy_with("aggregate", keep_at_server(v)),
                OneWeight,
                ConfigurationError,
                f"'thing', a {type(value).__name__}",
            )
            for value in (object(), {"deep": [object()]}, {1, 2})
        ),
        (
            lambda: strategy_with("begin_client", lambda s, turn: turn.step_gradient(turn.start)),
            OneWeight,
            TrainingError,
            "turn.step_gradient",
        ),
    ],
)
def test_what_ends_a_round(make: Any, module: Any, error: type[Exception], fault: str) -> None:
    with pytest.raises(error, match=fault):
        trainer(strategy=make()).fit(module(), TwoParabolas())


@pytest.mark.parametrize(
    ("callbacks", "settings", "fault"),
    [
        (
            [CollaborationGraph(graph="full")],
            {"strategy": strategy_with("extra_vectors", ("control",))},
            "Mine .*control",
        ),
        ([], {"strategy": PFedMe(), "stacked_clients": 2}, "PFedMe .*correct_gradient_"),
    ],
)
def test_what_a_fit_refuses(callbacks: list[Callback], settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        trainer(*callbacks, **settings).fit(TinyModule(), TinyClients())


@pytest.mark.parametrize(
    ("cohort", "fault"),
    [
        ([0, 1], "list"),
        (None, "NoneType"),
        (Cohort.of([0, 7]), "client 7 and model None"),
        (Cohort((Participant(1, 3),)), "client 1 and model 3"),
    ],
)
def test_a_cohort_of_another_run(cohort: Any, fault: str) -> None:
    class Chooses(Callback):
        def select_clients(self, run: FederatedTrainer) -> Cohort:
            return cohort

    with pytest.raises(ConfigurationError, match=rf"Chooses\.select_clients .*{fault}"):
        trainer(Chooses()).fit(OneWeight(), TwoParabolas())


def test_a_batch_that_cannot_be_divided() -> None:
    with pytest.raises(ConfigurationError, match="Who .*str"):
        parts_of("abcd", 4, 2, 1, "Who")


# -- placing clients, and a custom loop --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [({"pinned": True, "block": 2}, "stacked_clients=2"), ({"sizes": [1, 2, 3]}, "3 client sizes for 4 clients")],
)
def test_clients_that_cannot_be_placed(arguments: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        type("OnTwo", (FedAvg,), {"world_size": 2})().place_clients(4, **arguments)


@pytest.mark.parametrize(
    ("num_samples", "weight", "error", "fault"),
    [
        (-1, 0.0, ConfigurationError, "num_samples=-1.0 on rank 0"),
        (nan, 0.0, ConfigurationError, "num_samples=nan on rank 0"),
        (inf, 0.0, ConfigurationError, "num_samples=inf on rank 0"),
        (0, 0.0, ConfigurationError, "num_samples"),
        (1, nan, TrainingError, "rank 0: "),
    ],
)
def test_what_cannot_be_averaged(num_samples: float, weight: float, error: type[Exception], fault: str) -> None:
    fabric = Fabric(strategy="fedavg", accelerator="cpu", devices=1)
    fabric.launch()
    module = nn.Linear(1, 1)
    nn.init.constant_(module.weight, weight)
    with pytest.raises(error, match=fault):
        fabric.strategy.average(module, num_samples=num_samples)
