"""Every strategy through everything that happens to it in a run, against a plain loop written from its paper."""

import json
from functools import cache
from inspect import isabstract
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import SUPPORT, WarmPython, nothing_left, succeed_as_two_ranks
from strategy_references import REFERENCES, Plan, after_rounds
from strategy_runs import RUNS, STRATEGIES, bits, fit

import lightning_fl.strategies

TWO, OTHER, NUMBERED = (0, 1, 0, 1, 1), (0, 0, 1, 1, 0), (1, 1, 0, 0, 1)
#: Other members, the same under other numbers, one more model, and back.
CHANGES = (TWO, TWO, OTHER, NUMBERED, NUMBERED, (0, 1, 2, 1, 0), TWO)
SOME = {0: [0, 2, 3], 1: [1, 4], 2: [0, 1, 3], 3: [2]}
#: What a run has in a column of the battery.
PLANS = {
    "unequal sizes": Plan(),
    "sampled cohort": Plan(cohorts=SOME, rounds=4),
    "two coalitions": Plan(labels=(TWO,), cohorts={1: [0, 1, 3], 3: [2, 3]}, rounds=4),
    "regrouped": Plan(labels=CHANGES, cohorts={2: [0, 1, 3], 5: [1, 2, 4]}, rounds=7),
    "regrouped after training": Plan(labels=CHANGES, rounds=7, chosen=True),
    "failing client": Plan(failing={0: [1], 1: [4], 2: [2, 0]}, rounds=4),
    "schedule": Plan(decay=0.3),
    "BatchNorm": Plan(norm=True),
    "accumulation": Plan(accumulate=2),
    "all of these": Plan(
        labels=(TWO, TWO, OTHER),
        cohorts=SOME,
        failing={0: [2], 1: [4], 2: [0]},
        decay=0.1,
        accumulate=2,
        norm=True,
        rounds=5,
    ),
}


def test_every_strategy_has_a_reference() -> None:
    found = {getattr(lightning_fl.strategies, name) for name in lightning_fl.strategies.__all__}
    strategies = {one for one in found if isinstance(one, type) and getattr(one, "name", None) and not isabstract(one)}
    assert {type(make()) for make in STRATEGIES.values()} >= strategies
    assert STRATEGIES.keys() == REFERENCES.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out of")
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_against_the_reference(name: str, plan: str, tmp_path: Path) -> None:
    """Shared models, what clients are evaluated with and what loss that has, after every round."""
    found = fit(STRATEGIES[name](), PLANS[plan], tmp_path)
    for number, (seen, expected) in enumerate(
        zip(found, after_rounds(REFERENCES[name], PLANS[plan]), strict=True), start=1
    ):
        for what, one, other in zip(("shared models", "evaluated models", "losses"), seen, expected, strict=True):
            torch.testing.assert_close(
                torch.as_tensor(one),
                torch.as_tensor(other),
                rtol=1e-9,
                atol=1e-11,
                msg=lambda text, where=f"{what} after round {number}": f"{where}: {text}",
            )


@cache
def whole(name: str, root: Path) -> Any:
    """The run in one process that is not interrupted."""
    return bits(name, root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where whole runs keep their files."""
    return tmp_path_factory.mktemp("whole")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out of")
@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_has_the_same_bits(name: str, root: Path, tmp_path: Path) -> None:
    bits(name, tmp_path, rounds=2)
    resumed = bits(name, tmp_path, ckpt_path="last")
    assert resumed == whole(name, root)


@pytest.fixture(scope="module")
def ranks(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes, started once, found of all strategies."""
    folder = tmp_path_factory.mktemp("ranks")
    with nothing_left():
        succeed_as_two_ranks(warm_python.start, SUPPORT / "strategy_runs.py", folder)
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*left out of")
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_give_the_bits_of_one(name: str, root: Path, ranks: list[dict[str, Any]]) -> None:
    one, parts = whole(name, root), [rank[name] for rank in ranks]
    assert sorted(map(len, (part["clients"] for part in parts))) == [2, 3]
    for part in parts:
        assert part == {**one, "clients": part["clients"]}
    assert {**parts[0]["clients"], **parts[1]["clients"]} == one["clients"]
