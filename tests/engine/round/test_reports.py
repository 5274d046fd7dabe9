"""Clients that train several models in a round, some of whose turns fail."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TinyClients, TinyModule, quiet_trainer

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import TrainingError
from lightning_fl.core.metrics import LoggedValue
from lightning_fl.engine.client import ClientReport
from lightning_fl.engine.round.training import combine_reports

WEIGHTS = {0: 24.0, 1: 10.0, 2: 18.0}


class TwoModels(Callback):
    """Model 0 is trained by clients 0 and 1, model 1 by clients 1 and 2; some turns fail."""

    def __init__(self, failing: Sequence[tuple[int, int]] = ()) -> None:
        self.failing = list(failing)
        self.shares: list[dict[int, dict[int, float]]] = []
        self.learned: dict[tuple[int, int | None], Any] = {}

    def on_fit_start(self, trainer: FederatedTrainer) -> None:
        trainer.collaboration = Collaboration(torch.full((2, 3), 1 / 3), torch.full((3, 2), 0.5))

    def select_clients(self, trainer: FederatedTrainer) -> Cohort:
        turns = [(0, 0), (1, 0), (1, 1), (2, 1)]
        return Cohort(tuple(Participant(client, model, WEIGHTS[client]) for client, model in turns))

    def on_client_start(self, trainer: FederatedTrainer, client: int) -> None:
        assert trainer.participant is not None
        if (client, trainer.participant.model) in self.failing:
            raise RuntimeError(f"no disk for model {trainer.participant.model}")

    def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
        assert trainer.participant is not None
        self.learned[client, trainer.participant.model] = trainer.client_weights().clone()

    def on_aggregate_end(self, trainer: FederatedTrainer) -> None:
        self.shares.append(trainer.round.shares)


def fit(failing: Sequence[tuple[int, int]], **settings: Any) -> tuple[FederatedTrainer, TwoModels]:
    watched = TwoModels(failing)
    run = quiet_trainer(watched, max_rounds=1, local_steps=2, **{"on_client_error": "skip", **settings})
    run.fit(TinyModule(), TinyClients())
    return run, watched


def average(watched: TwoModels, model: int, clients: list[int]) -> torch.Tensor:
    total = sum(WEIGHTS[client] for client in clients)
    vectors = [
        watched.learned[client, model].vectors[torch.float32].cpu().double() * WEIGHTS[client] for client in clients
    ]
    return torch.stack(vectors).sum(0) / total


@pytest.mark.parametrize(
    ("failing", "members"),
    [((1, 1), {0: [0, 1], 1: [2]}), ((1, 0), {0: [0], 1: [1, 2]}), ((2, 1), {0: [0, 1], 1: [1]})],
)
def test_a_turn_that_fails_is_left_out_of_its_own_model_only(
    failing: tuple[int, int], members: dict[int, list[int]]
) -> None:
    with pytest.warns(UserWarning, match=rf"client {failing[0]} .* is left out of .*round 1: RuntimeError") as caught:
        run, watched = fit([failing])
    text = str(caught[0].message)
    assert (f"left out of model {failing[1]} in round 1" in text) == (failing[0] == 1)  # which has two turns
    for model, clients in members.items():
        torch.testing.assert_close(run.models[model].vectors[torch.float32].double(), average(watched, model, clients))
    (shares,) = watched.shares
    for model, clients in members.items():
        total = sum(WEIGHTS[client] for client in clients)
        assert shares[model] == pytest.approx({client: WEIGHTS[client] / total for client in clients})
    assert run.survivors == ({0, 1, 2} if failing[0] == 1 else {0, 1})
    assert set(run.client_reports) == {0, 1, 2}
    assert run.client_reports[1].error is None
    assert run.client_reports[1].num_samples == 10
    assert run.client_reports[1].num_steps == (2 if failing[0] == 1 else 4)


def test_a_client_all_of_whose_turns_fail_has_failed() -> None:
    with pytest.warns(UserWarning, match="left out of model"):
        run, watched = fit([(1, 0), (1, 1)])
    assert run.survivors == {0, 2}
    assert "no disk for model 0" in str(run.client_reports[1].error)
    assert watched.shares == [{0: {0: 1.0}, 1: {2: 1.0}}]


def test_a_model_whose_turns_all_failed_stays_as_it_is() -> None:
    start = torch.cat([value.flatten() for value in TinyModule().parameters()])
    with pytest.warns(UserWarning, match="left out of"):
        run, watched = fit([(1, 1), (2, 1)])
    assert watched.shares[0].keys() == {0}
    assert sorted(run.models[1].vectors[torch.float32][run.models[1].vectors[torch.float32] != 0].tolist()) == sorted(
        start[start != 0].tolist()
    )
    torch.testing.assert_close(run.models[0].vectors[torch.float32].double(), average(watched, 0, [0, 1]))


def test_all_turns_failing_stops_the_run() -> None:
    everything = [(0, 0), (1, 0), (1, 1), (2, 1)]
    with pytest.raises(TrainingError, match="every client of the round failed; the first: client 0 "):
        fit(everything)


def test_without_skipping_the_model_is_named() -> None:
    with pytest.raises(TrainingError, match="client 1 .* failed in the training of model 1 in round 1: RuntimeError"):
        fit([(1, 1)], on_client_error="fail")


def test_no_failure_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is left out of.*")
        run, watched = fit([])
    assert [list(shares) for shares in watched.shares[0].values()] == [[0, 1], [1, 2]]
    assert {client: report.num_steps for client, report in run.client_reports.items()} == {0: 2, 1: 4, 2: 2}


# -- several turns as one report --------------------------------------------------------------------------------------


def test_one_turn_is_its_own_report() -> None:
    for report in (ClientReport(5, 2, {"loss": LoggedValue(1.0, 5.0)}), ClientReport(error="no")):
        assert combine_reports([report]) is report


def test_turns_are_averaged_by_samples_and_their_steps_summed() -> None:
    first = ClientReport(10, 2, {"loss": LoggedValue(1.0, 30.0, False, steps=((0, 3.0),)), "a": LoggedValue(7.0, 1.0)})
    second = ClientReport(10, 3, {"loss": LoggedValue(4.0, 10.0, False, steps=((2, 5.0),))})
    found = combine_reports([first, ClientReport(error="failed"), second])
    assert (found.num_samples, found.num_steps, found.error) == (10, 5, None)
    assert found.metrics["loss"] == LoggedValue(1.75, 40.0, False, steps=((0, 3.0), (2, 5.0)))
    assert found.metrics["a"] == LoggedValue(7.0, 1.0)
    assert combine_reports([ClientReport(error="first"), ClientReport(error="second")]).error == "first"


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), min_size=2, max_size=5))
def test_the_mean_lies_among_the_turns(values: list[tuple[float, float]]) -> None:
    found = combine_reports([ClientReport(1, 1, {"x": LoggedValue(*pair)}) for pair in values]).metrics["x"].value
    numbers = [value for value, _ in values]
    assert min(numbers) - 1e-6 <= found <= max(numbers) + 1e-6
    assert math.isfinite(found)
