"""FeSEM in a run: against a plain loop written from the paper's algorithm, and what composes with it."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from corners import SIZES, CornerModule, FailingTurns, MixedClients, fit, plain_training
from hooks import hooks
from observers import Resting
from rounding import assert_equal_up_to_rounding

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import (
    ClientArrivals,
    CoalitionFigure,
    FeSEM,
    ModelCheckpoint,
    ShapleyRewards,
    UniformSampling,
)
from lightning_fl.core.seeding import derive_seed
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional import kmeans_from_gram

N = len(SIZES)


def plain_fesem(data: MixedClients, num_clusters: int, rounds: int) -> tuple[list[torch.Tensor], list[list[int]]]:
    """Algorithm 1 with samples as weights, one client after another; two steps of six samples a turn."""
    start = torch.nn.utils.parameters_to_vector(CornerModule().parameters()).detach()
    centres, labels, history = [start] * num_clusters, [0] * N, []
    for turn in range(rounds):
        learned = []
        for client in range(N):
            module: torch.nn.Module = CornerModule()
            torch.nn.utils.vector_to_parameters(centres[labels[client]].clone(), module.parameters())
            module = plain_training(module, data, client)
            learned.append(torch.nn.utils.parameters_to_vector(module.parameters()).detach())
        if turn == 0:
            changes = torch.stack(learned) - start
            seed = derive_seed(4, "first centres")
            labels = kmeans_from_gram(changes @ changes.T, num_clusters, seed, weights=SIZES)
        else:
            labels = [
                min(range(num_clusters), key=lambda k, own=own: float((own - centres[k]).norm()))  # type: ignore[misc]
                for own in learned
            ]
        history.append(labels)
        centres = list(centres)
        for k in set(labels):
            members = [client for client in range(N) if labels[client] == k]
            total = sum(SIZES[client] for client in members)
            centres[k] = sum((SIZES[client] / total * learned[client] for client in members), torch.zeros(len(start)))
    return [centres[label] for label in labels], history


def vector(run: FederatedTrainer, client: int) -> torch.Tensor:
    module = copy.deepcopy(run.module)
    run.loop.flat.load(run.client_model(client))
    module.load_state_dict({name: value.clone() for name, value in run.module.state_dict().items()})  # type: ignore[union-attr]
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach()  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("num_clusters", [1, 2, 3, 6])
def test_a_run_is_the_papers_algorithm(num_clusters: int) -> None:
    data, fesem = MixedClients(), FeSEM(num_clusters=num_clusters)
    expected, history = plain_fesem(data, num_clusters, 4)
    run = fit(fesem, data=data, max_rounds=4)
    assert fesem.assignments == history
    assert fesem.rounds == [1, 2, 3, 4]
    for client in range(N):
        assert_equal_up_to_rounding(vector(run, client), expected[client], steps=4 * 2)


def test_sampled_clients_leave_the_others_where_they_are() -> None:
    fesem = FeSEM(num_clusters=2)
    seen: list[list[int]] = []
    run = fit(
        fesem,
        hooks(on_aggregate_end=lambda trainer: seen.append(sorted(trainer.survivors))),
        UniformSampling(cohort_size=3),
        data=MixedClients(pure=True),
        max_rounds=6,
    )
    for turn in range(6):
        before = fesem.assignments[turn - 1] if turn else [-1] * N
        for client in range(N):
            if client not in seen[turn]:
                assert fesem.assignments[turn][client] == before[client]
            else:
                assert fesem.assignments[turn][client] >= 0
    assert run.collaboration.num_clients == N


def test_the_first_clusters_are_of_the_first_round_that_somebody_takes_part_in() -> None:
    later, fesem = FeSEM(num_clusters=2), FeSEM(num_clusters=2)
    with pytest.warns(UserWarning, match="no client takes part in round 1"):
        waited = fit(later, Resting(1), data=MixedClients(pure=True), max_rounds=4)
    run = fit(fesem, data=MixedClients(pure=True), max_rounds=3)
    assert later.assignments == [[-1] * N, *fesem.assignments]
    assert len(set(fesem.assignments[0])) == 2
    for client in range(N):
        assert torch.equal(vector(waited, client), vector(run, client))


def test_who_has_no_cluster_yet_uses_the_average_of_the_centres() -> None:
    fesem, figure = FeSEM(num_clusters=2), CoalitionFigure()
    run = fit(fesem, ClientArrivals(rounds={"client_4": 9}), figure, data=MixedClients(pure=True))
    assert fesem.assignments[-1][4] == -1
    assert figure.assignments[-1] == [0, 1, 0, 1, 2 + 4, 1]  # drawn as a client alone
    total = sum(SIZES) - SIZES[4]
    expected = [(SIZES[0] + SIZES[2]) / total, (SIZES[1] + SIZES[3] + SIZES[5]) / total]
    assert run.collaboration.personalisation[4].tolist() == pytest.approx(expected)
    later = FeSEM(num_clusters=2)
    fit(later, ClientArrivals(rounds={"client_4": 3}), data=MixedClients(pure=True))
    assert [labels[4] for labels in later.assignments] == [-1, -1, 0]


class Scripted(FeSEM):
    """Clients that end their turns where the test puts them: a number in every entry."""

    def __init__(self, places: list[list[float]]) -> None:
        super().__init__(num_clusters=2)
        self.places = places
        self.centres: list[list[float]] = []

    def select_collaboration(self, trainer: FederatedTrainer, weights: Mapping[int, Weights]) -> Any:
        self.centres.append([float(one.vectors[torch.float32][0]) for one in self._centres(trainer)])
        places = self.places[trainer.current_round]
        for client, own in weights.items():
            own.vectors[torch.float32].fill_(places[client])
        return super().select_collaboration(trainer, weights)


@pytest.mark.slow
def test_a_centre_without_clients_waits_where_it_is_and_may_win_some_back(tmp_path: Path) -> None:
    """Two clients: one leaves its cluster in the second round and comes back in the last, also after a stop."""
    places = [[1.0, 9.0], [1.0, 2.0], [1.0, 1.0], [1.0, 8.0]]

    def go(root: str, rounds: int, ckpt: Any = None) -> Scripted:
        fesem = Scripted(places)
        settings: dict[str, Any] = {"enable_checkpointing": True, "default_root_dir": tmp_path / root}
        keep = ModelCheckpoint(every_n_rounds=1)
        go.run = fit(fesem, keep, data=MixedClients((6, 12)), max_rounds=rounds, ckpt=ckpt, **settings)  # type: ignore[attr-defined]
        return fesem

    whole = go("whole", 4)
    assert whole.assignments == [[0, 1], [0, 0], [0, 0], [0, 1]]
    assert whole.centres[1:] == [[1.0, 9.0], [pytest.approx(5 / 3), 9.0], [1.0, 9.0]]
    last = [go.run.client_model(i) for i in range(2)]  # type: ignore[attr-defined]
    assert [float(one.vectors[torch.float32][0]) for one in last] == [1.0, 8.0]
    go("parts", 3)
    path = Path(go.run.log_dir) / "checkpoints" / "last.ckpt"  # type: ignore[attr-defined]
    resumed = go("parts", 4, path)
    assert resumed.assignments == whole.assignments
    assert resumed.centres == whole.centres[3:]
    assert all(go.run.client_model(i).equal(last[i]) for i in range(2))  # type: ignore[attr-defined]


def test_who_fails_is_not_assigned() -> None:
    fesem, rewards = FeSEM(num_clusters=2), ShapleyRewards(num_samples=4)
    failing = FailingTurns((1, 3, None), (2, 0, None))
    with pytest.warns(UserWarning, match="left out of"):
        fit(fesem, failing, rewards, data=MixedClients(pure=True), on_client_error="skip")
    assert [labels[3] for labels in fesem.assignments] == [-1, 1, 1]
    assert [labels[0] for labels in fesem.assignments] == [0, 0, 0]
