"""A run that stops and resumes ends with the same bits, whatever callback sets its collaboration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from corners import CornerModule, MixedClients, Network
from tiny import TinyModule
from two_kinds import TwoKinds, trainer

from lightning_fl.callbacks import (
    CFL,
    FLSC,
    HCCT,
    IFCA,
    Callback,
    ClientArrivals,
    FeSEM,
    KMeans,
    PersonalLayers,
    PFedGraph,
    UniformSampling,
)

#: Name -> callback, stops, rounds, further callbacks, module, data, settings.
Case = tuple[Callable[[], Callback], list[int], int, Callable[[], list[Callback]], Any, Any, dict[str, Any]]


def _others(rounds: dict[str, int], cohort: int | None, layer: str = "linear.bias") -> Callable[[], list[Callback]]:
    return lambda: [
        *([ClientArrivals(rounds=rounds)] if rounds else []),
        *([UniformSampling(cohort_size=cohort)] if cohort else []),
        PersonalLayers(layers=[layer]),
    ]


LATE = {"client_2": 2, "client_5": 4}
STEPS: dict[str, Any] = {"local_epochs": None, "local_steps": 2, "seed": 4}
SELDOM = {**STEPS, "check_val_every_n_rounds": 2}
EVERY = _others({"client_2": 2, "4": 5}, 3)
CASES: dict[str, Case] = {
    "hcct": (lambda: HCCT(every_n_rounds=2), [3], 5, _others({"2": 3}, None), TinyModule, TwoKinds, {}),
    "hcct, sampled": (lambda: HCCT(every_n_rounds=2), [1, 3, 5], 7, EVERY, TinyModule, TwoKinds, {}),
    "cfl": (
        lambda: CFL(mean_norm=1e9, client_norm=0.0, norms="absolute"),
        [1, 4, 9],
        12,
        _others({"2": 9}, 3),
        TinyModule,
        TwoKinds,
        {},
    ),
    "kmeans": (
        lambda: KMeans(num_clusters=2, warm_up_rounds=2),
        [1, 2, 3, 6],
        9,
        _others({"2": 5}, 3),
        TinyModule,
        TwoKinds,
        {},
    ),
    "fesem": (lambda: FeSEM(num_clusters=2), [1, 3, 5], 7, EVERY, TinyModule, TwoKinds, {}),
    "fesem, 3": (lambda: FeSEM(num_clusters=3), [3], 6, _others(LATE, 4), CornerModule, MixedClients, STEPS),
    "ifca": (lambda: IFCA(num_clusters=2), [1, 3, 5], 7, EVERY, TinyModule, TwoKinds, {}),
    "ifca, 3": (
        lambda: IFCA(num_clusters=3, num_samples=5),
        [3],
        6,
        _others(LATE, 4, "linear.1"),
        Network,
        MixedClients,
        SELDOM,
    ),
    "flsc": (
        lambda: FLSC(num_clusters=3, num_best=2, num_samples=5),
        [3],
        6,
        _others(LATE, 4, "linear.1"),
        Network,
        MixedClients,
        SELDOM,
    ),
    "pfedgraph": (lambda: PFedGraph(lam=0.5), [3], 6, _others({}, 4), CornerModule, MixedClients, STEPS),
}


def _assert_same(first: Any, second: Any) -> None:
    """Equality of plain values and tensors, with NaN equal to NaN."""
    if isinstance(first, torch.Tensor):
        assert torch.equal(first.nan_to_num(-1.0), second.nan_to_num(-1.0))
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            _assert_same(first[key], second[key])
    else:
        assert first == second


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stop"), [(name, stop) for name, case in CASES.items() for stop in case[1]])
def test_a_run_that_stops_ends_with_the_same_bits(name: str, stop: int, tmp_path: Path) -> None:
    make, _, last, others, module, data, settings = CASES[name]

    def run(folder: str, rounds: int, **resume: Any) -> tuple[Callback, Any]:
        callback = make()
        made = trainer(
            callback, *others(), rounds=rounds, root=tmp_path / folder, enable_checkpointing=True, **settings
        )
        made.fit(module(), data(), **resume)
        return callback, made

    whole, expected = run("whole", last)
    first, _ = run("parts", stop)
    resumed, found = run("parts", last, ckpt_path="last")
    if name == "cfl" and stop == 1:
        assert -1 in first.clusters  # type: ignore[attr-defined]
    _assert_same(resumed.state_dict(), whole.state_dict())
    assert found.collaboration == expected.collaboration
    assert all(a.equal(b) for a, b in zip(expected.models, found.models, strict=True))
    for client in range(expected.num_clients):
        assert found.client_model(client).equal(expected.client_model(client))
    assert found.communication.bytes_received == expected.communication.bytes_received
    assert found.communication.bytes_sent == expected.communication.bytes_sent
