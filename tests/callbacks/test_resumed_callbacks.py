"""A run that stops and resumes ends with the same bits, whatever callback sets its collaboration or its clients."""

import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from corners import CornerModule, FailingTurns, MixedClients, Network
from records import same_values
from tiny import TinyClients, TinyModule
from two_kinds import TwoKinds, trainer

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import (
    CFL,
    FLSC,
    HCCT,
    IFCA,
    Callback,
    ClientArrivals,
    CollaborationGraph,
    DROClientSampling,
    FedSoft,
    FeSEM,
    KMeans,
    KNNPer,
    LocalReference,
    LocalTraining,
    ModelCheckpoint,
    PersonalLayers,
    PFedGraph,
    RandomBidding,
    ShapleyRewards,
    SoftAveraging,
    TierBidding,
    Tokens,
    UniformSampling,
)
from lightning_fl.strategies import MaxFL

#: Callbacks, stops, rounds, module, data, settings.
Case = tuple[Callable[[], list[Callback]], list[int], int, Any, Any, dict[str, Any]]
Run = tuple[list[Callback], FederatedTrainer]


class LateTiers(Callback):
    """All tiers but the first are still the initial model after two rounds."""

    def on_client_start(self, trainer: FederatedTrainer, client: int) -> None:
        assert trainer.participant is not None
        if trainer.current_round < 2 and trainer.participant.model:
            raise RuntimeError("no disk")


def _others(rounds: dict[str, int], cohort: int | None, layer: str = "linear.bias") -> list[Callback]:
    return [
        *([ClientArrivals(rounds=rounds)] if rounds else []),
        *([UniformSampling(cohort_size=cohort)] if cohort else []),
        PersonalLayers(layers=[layer]),
    ]


LATE = {"client_2": 2, "client_5": 4}
STEPS: dict[str, Any] = {"local_epochs": None, "local_steps": 2, "seed": 4}
SELDOM = {**STEPS, "check_val_every_n_rounds": 2}
SKIPS = {**STEPS, "on_client_error": "skip", "optimizer_state": "keep"}
EVERY = ({"client_2": 2, "4": 5}, 3)
CORNERS, KINDS = (CornerModule, MixedClients), (TinyModule, TwoKinds)
CASES: dict[str, Case] = {
    "fedavg": (list, [2], 4, *CORNERS, STEPS),
    "local": (lambda: [LocalTraining()], [2], 4, *CORNERS, STEPS),
    "local reference": (
        lambda: [LocalReference()],
        [2],
        4,
        lambda: TinyModule(dropout=0.2),
        TinyClients,
        {"optimizer_state": "keep"},
    ),
    "robust": (lambda: [DROClientSampling(step_size=0.1)], [2], 4, *CORNERS, STEPS),
    "hcct": (lambda: [HCCT(every_n_rounds=2, memory=0.7, layer="auto"), *_others({"2": 3}, None)], [3], 5, *KINDS, {}),
    "hcct, sampled": (lambda: [HCCT(every_n_rounds=2), *_others(*EVERY)], [1, 3, 5], 7, *KINDS, {}),
    "hcct, alone": (lambda: [HCCT(relative_trade_off=0.0, every_n_rounds=2)], [2], 4, *CORNERS, STEPS),
    "cfl": (
        lambda: [CFL(mean_norm=1e9, client_norm=0.0, norms="absolute"), *_others({"2": 9}, 3)],
        [1, 4, 9],
        12,
        *KINDS,
        {},
    ),
    "kmeans": (lambda: [KMeans(num_clusters=2, warm_up_rounds=2), *_others({"2": 5}, 3)], [1, 2, 3, 6], 9, *KINDS, {}),
    "kmeans, nobody content": (  # the models are one object until there are clusters
        lambda: [KMeans(num_clusters=2, warm_up_rounds=2)],
        [1],
        4,
        Network,
        MixedClients,
        {**STEPS, "strategy": lambda: MaxFL(threshold=0.0, opt_out=True)},
    ),
    "fesem": (lambda: [FeSEM(num_clusters=2), *_others(*EVERY)], [1, 3, 5], 7, *KINDS, {}),
    "fesem, 3": (lambda: [FeSEM(num_clusters=3), *_others(LATE, 4)], [3], 6, *CORNERS, STEPS),
    "ifca": (lambda: [IFCA(num_clusters=2), *_others(*EVERY)], [1, 3, 5], 7, *KINDS, {}),
    "ifca, 3": (
        lambda: [IFCA(num_clusters=3, num_samples=5), *_others(LATE, 4, "linear.1")],
        [3],
        6,
        Network,
        MixedClients,
        SELDOM,
    ),
    "flsc": (
        lambda: [FLSC(num_clusters=3, num_best=2, num_samples=5), *_others(LATE, 4, "linear.1")],
        [3],
        6,
        Network,
        MixedClients,
        SELDOM,
    ),
    "pfedgraph": (lambda: [PFedGraph(lam=0.5), *_others({}, 4)], [3], 6, *CORNERS, STEPS),
    "graph": (lambda: [CollaborationGraph(budget=2, every_n_rounds=2, init_epochs=2)], [2], 5, *KINDS, {}),
    "graph, layers": (lambda: [CollaborationGraph(budget=2), *_others({}, None)], [2], 4, *CORNERS, STEPS),
    "soft": (
        lambda: [
            SoftAveraging(num_models=2, num_samples=5, personal_split="val", every_n_rounds=2),
            *_others(LATE, None),
        ],
        [3],
        5,
        *CORNERS,
        STEPS,
    ),
    "fedsoft": (
        lambda: [FedSoft(num_models=2, lam=0.3, clients_per_model=2, num_samples=5), *_others(LATE, 4)],
        [3],
        7,
        *CORNERS,
        SELDOM,
    ),
    "tiers": (
        lambda: [
            TierBidding(
                num_tiers=2,
                num_best=2,
                threshold=0.4,
                num_samples=5,
                policies={1: RandomBidding()},
                tokens=Tokens(initial_balance=4),
            ),
            ShapleyRewards(num_samples=3),
            FailingTurns(*((turn, client, 1) for turn in (2, 3, 5) for client in (1, 3))),
            *_others({"client_2": 2, "client_5": 4}, None),
        ],
        [3],
        6,
        *CORNERS,
        SKIPS,
    ),
    "tiers, late": (
        lambda: [
            TierBidding(num_tiers=3, num_best=1, num_random=0, num_samples=4),
            LateTiers(),
            ClientArrivals(rounds={"client_5": 3}),
        ],
        [2],
        4,
        *CORNERS,
        SKIPS,
    ),
    "neighbours": (
        lambda: [KNNPer(k=3, interpolation="validation"), *_others({}, None)],
        [2],
        4,
        *CORNERS,
        {**STEPS, "optimizer_state": "keep"},
    ),
    "values": (lambda: [ShapleyRewards(num_samples=4, every_n_rounds=2)], [2, 3], 4, *CORNERS, STEPS),
}


def test_what_counts_as_the_same() -> None:
    nan = float("nan")
    state = {"a": [torch.tensor([nan, 1.0]), nan], "b": (torch.tensor([True]), "x")}
    assert same_values(state, {"b": [torch.tensor([True]), "x"], "a": [torch.tensor([nan, 1.0]), nan]})
    for changed in (
        {"a": [torch.tensor([nan, 1.0]), 0.0]},
        {"a": [torch.tensor([-1.0, 1.0]), nan]},
        {"a": [torch.tensor([nan, 1.0], dtype=torch.float64), nan]},
        {"a": [torch.tensor([[nan, 1.0]]), nan]},
        {"a": [torch.tensor([nan, 1.0])]},
        {"a": {0: torch.tensor([nan, 1.0]), 1: nan}},
        {"a": None},
        {"c": None},
    ):
        assert not same_values(state, {**state, **changed})
        assert not same_values({**state, **changed}, state)
    assert not same_values(state, {"a": state["a"], "c": state["b"]})


def run(name: str, folder: Path, rounds: int, **resume: Any) -> Run:
    make, _, _, module, data, settings = CASES[name]
    callbacks = make()
    if "strategy" in settings:
        settings = {**settings, "strategy": settings["strategy"]()}
    made = trainer(
        *callbacks,
        ModelCheckpoint(every_n_rounds=1),
        rounds=rounds,
        root=folder,
        **{"enable_checkpointing": True, "logger": True, **settings},
    )
    made.fit(module(), data(), **resume)
    return callbacks, made


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Each case's run without a stop, once for all of its stops."""
    return cache(lambda name: run(name, tmp_path_factory.mktemp("whole"), CASES[name][2]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out of.*", "ignore:TierBidding.tokens")
@pytest.mark.parametrize(("name", "stop"), [(name, stop) for name, case in CASES.items() for stop in case[1]])
def test_a_run_that_stops_ends_with_the_same_bits(
    name: str, stop: int, tmp_path: Path, uninterrupted: Callable[[str], Run]
) -> None:
    whole, expected = uninterrupted(name)
    first, _ = run(name, tmp_path, stop)
    resumed, found = run(name, tmp_path, CASES[name][2], ckpt_path="last")
    if name == "cfl" and stop == 1:
        assert -1 in first[0].clusters  # type: ignore[attr-defined]
    for one, other in zip(resumed, whole, strict=True):
        assert same_values(one.state_dict(), other.state_dict()), type(one).__name__
    assert found.collaboration == expected.collaboration
    assert all(a.equal(b) for a, b in zip(expected.models, found.models, strict=True))
    for client in range(expected.num_clients):
        assert found.client_model(client).equal(expected.client_model(client))
    assert found.metrics == expected.metrics
    assert found.gains == expected.gains
    assert found.communication.bytes_received == expected.communication.bytes_received
    assert found.communication.bytes_sent == expected.communication.bytes_sent
    curves = [pd.read_csv(Path(one.log_dir) / "metrics.csv") for one in (expected, found)]
    columns = ["communication/megabytes_received", "communication/megabytes_sent"]
    pd.testing.assert_frame_equal(curves[0][columns], curves[1][columns], check_exact=True)


class Interrupts(Callback):
    only_shows = True

    def on_round_end(self, trainer: Any) -> None:
        if trainer.current_round == 4:
            os.kill(os.getpid(), signal.SIGINT)


def test_tiers_of_a_run_that_is_interrupted_between_validations(tmp_path: Path) -> None:
    tables = []
    settings = {**STEPS, "check_val_every_n_rounds": 3, "enable_checkpointing": True, "logger": True}
    for name, more in (("whole", []), ("resumed", [Interrupts()])):
        root = tmp_path / name
        if more:
            first = trainer(TierBidding(num_tiers=2, num_samples=5), *more, rounds=6, root=root, **settings)
            with pytest.raises(KeyboardInterrupt):
                first.fit(CornerModule(), MixedClients())
        last = trainer(TierBidding(num_tiers=2, num_samples=5), rounds=6, root=root, **settings)
        last.fit(CornerModule(), MixedClients(), ckpt_path="last" if more else None)
        tables.append((Path(last.log_dir) / "tiers.csv").read_text())
    assert tables[0] == tables[1]
