"""How a strategy is named: by its registered name, by its import path, with and without arguments of its own."""

from typing import Any

import pytest
import yaml
from lightning.fabric.strategies import STRATEGY_REGISTRY

from lightning_fl import FederatedTrainer
from lightning_fl.recipe.parser import with_strategy_class
from lightning_fl.strategies import FedAvg, FederatedStrategy

FEDAVG = "lightning_fl.strategies.fedavg.FedAvg"


class Passing(FedAvg):
    name = "passing"

    def __init__(self, rate: float = 0.1, **settings: Any) -> None:
        super().__init__(**settings)
        self.rate = rate


class Closed(FedAvg):
    name = "closed"

    def __init__(self, rate: float = 0.2) -> None:
        super().__init__()
        self.rate = rate


def made(strategy: Any) -> FederatedStrategy:
    return FederatedTrainer(strategy=strategy, accelerator="cpu", devices=1, logger=False).strategy


@pytest.mark.parametrize(
    ("name", "kind", "rate", "start_method"),
    [
        ("passing", Passing, 0.1, "popen"),
        ("Passing", Passing, 0.1, "popen"),
        ("passing_fork", Passing, 0.1, "fork"),
        ("closed", Closed, 0.2, "popen"),
        (f"{__name__}.Passing", Passing, 0.1, "popen"),
        (f"{__name__}.Closed", Closed, 0.2, "popen"),
    ],
)
def test_a_name_or_an_import_path_makes_the_strategy(name, kind, rate, start_method):
    strategy = made(name)
    assert type(strategy) is kind
    assert strategy.rate == rate
    assert strategy._start_method == start_method


def test_a_class_without_a_start_method_has_one_name():
    assert "closed" in STRATEGY_REGISTRY
    assert "closed_spawn" not in STRATEGY_REGISTRY


def test_a_class_that_is_defined_again_takes_its_name_over():
    def define():
        class Again(FedAvg):
            name = "again"

        return Again

    first, second = define(), define()
    assert first is not second
    assert type(made("again")) is second


def test_a_registered_name_is_a_class_path():
    entry = {"class_path": "fedavg_spawn", "init_args": {"process_group_backend": "gloo"}}
    settings = {"trainer": {"strategy": entry, "max_rounds": 3}, "model": {}}
    arguments = {"start_method": "spawn", "process_group_backend": "gloo"}
    spelt_out = {"trainer": {"strategy": {"class_path": FEDAVG, "init_args": arguments}, "max_rounds": 3}, "model": {}}
    assert with_strategy_class(settings) == spelt_out
    for unchanged in ({}, {"trainer": {"strategy": "fedavg"}}, {"trainer": {"strategy": {"class_path": "a.B"}}}):
        assert with_strategy_class(unchanged) is unchanged


WITHOUT = """
from lightning_fl.strategies import FedAvg

class Scaled(FedAvg):
    name = "scaled"

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--trainer.strategy=fedavg", "--trainer.strategy.start_method=fork"], (FEDAVG, {"start_method": "fork"})),
        (["--trainer.strategy.start_method=fork"], (FEDAVG, {"start_method": "fork"})),
        (["--trainer.strategy=mine.Scaled", "--trainer.strategy.scale=2"], ("mine.Scaled", {"scale": 2.0})),
        (["--config=named.yaml"], (FEDAVG, {"process_group_backend": "gloo"})),
        (["--config=dotted.yaml", "--trainer.strategy.scale=3"], ("mine.Scaled", {"scale": 3.0})),
    ],
)
def test_recipes_give_strategies_arguments(words, expected, tmp_path, start_warm):
    (tmp_path / "mine.py").write_text(WITHOUT)
    for name, class_path, arguments in (
        ("named", "fedavg", {"process_group_backend": "gloo"}),
        ("dotted", "mine.Scaled", {"scale": 2}),
    ):
        recipe = {"trainer": {"strategy": {"class_path": class_path, "init_args": arguments}}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    done = start_warm("-m", "lightning_fl", "fit", "--config=fedavg_digits", *words, "--print_config").end()
    assert done.code == 0, done.err
    strategy = yaml.safe_load(done.out)["trainer"]["strategy"]
    assert strategy["class_path"] == expected[0]
    assert strategy["init_args"].items() >= expected[1].items()
