"""The base of callbacks that form clusters: whatever the clusters, who is in which, what is logged, what is kept."""

from collections.abc import Mapping, Sequence

import pytest
import torch
from hooks import Cohorts
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TinyModule
from two_kinds import KINDS, SIZES, TwoKinds, trainer, weights_of

from lightning_fl.callbacks import (
    CFL,
    HCCT,
    IFCA,
    Callback,
    ClientArrivals,
    ClientClusters,
    FeSEM,
    KMeans,
    PersonalLayers,
    UniformSampling,
)
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.gram import in_order
from lightning_fl.runtime.surface import TrainerSurface

pytestmark = pytest.mark.filterwarnings("ignore:.*the run ends at max_rounds.*")
N = len(SIZES)


class Scripted(ClientClusters):
    """Clusters that the test says: round -> client -> cluster."""

    def __init__(self, script: dict[int, dict[int, int]], num_clusters: int | None = None) -> None:
        self.script = script
        super().__init__(num_clusters=num_clusters)

    def assign(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]
    ) -> dict[int, int] | None:
        assert clients == sorted(clients)
        return self.script.get(trainer.current_round + 1)


class Logged(Callback):
    """What was logged in every round."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []

    def on_round_end(self, run: TrainerSurface) -> None:
        self.rounds.append({name: value for name, value in run.round_metrics.items() if "scripted" in name})


def test_labels_are_numbered_as_they_appear_and_who_is_left_out_stays() -> None:
    clusters, logged = Scripted({1: dict.fromkeys(range(N), 9), 3: {0: 30, 3: 7, 4: 7}, 4: {4: -1}}), Logged()
    run = trainer(clusters, logged, rounds=4)
    run.fit(TinyModule(), TwoKinds())
    assert clusters.rounds == [1, 2, 3, 4]
    assert clusters.assignments == [[0] * 5, [0] * 5, [0, 1, 1, 2, 2], [0, 1, 1, 2, 2]]
    assert clusters.clusters == [30, 9, 9, 7, 7]
    assert clusters.assignment == clusters.assignments[-1]
    assert [one["scripted/clusters"] for one in logged.rounds] == [1, 1, 3, 3]
    assert not any("scripted/moved" in one for one in logged.rounds)
    assert [run.collaboration.model_of(client) for client in range(N)] == [0, 1, 1, 2, 2]


def test_a_fixed_number_of_clusters_keeps_its_labels() -> None:
    first = dict.fromkeys(range(N), 3) | {4: 1}
    clusters, logged = Scripted({1: first, 2: {0: 1, 3: 1}, 3: {0: 0}}, num_clusters=4), Logged()
    run = trainer(clusters, logged, rounds=3)
    run.fit(TinyModule(), TwoKinds())
    assert clusters.assignments == [[3, 3, 3, 3, 1], [1, 3, 3, 1, 1], [0, 3, 3, 1, 1]]
    assert [one["scripted/clusters"] for one in logged.rounds] == [2, 2, 3]
    assert [one["scripted/moved"] for one in logged.rounds] == [0, 2, 1]
    assert [run.collaboration.model_of(client) for client in range(N)] == [0, 2, 2, 1, 1]  # models in their order


def test_who_belongs_to_none_uses_the_average_of_the_clusters_until_it_takes_part() -> None:
    script = {1: {0: 0, 3: 1}, 3: {1: 0}}
    clusters = Scripted(script)
    cohorts = {1: [0, 3], 2: [0, 3], 3: [0, 1, 3], 4: [2], 5: [0, 3, 4]}
    run = trainer(clusters, Cohorts(cohorts, N), rounds=3)
    run.fit(TinyModule(), TwoKinds())
    assert clusters.assignments == [[0, -1, -1, 1, -1]] * 2 + [[0, 0, -1, 1, -1]]
    zero, three = sum(run.num_samples[client] for client in (0, 1)), run.num_samples[3]
    assert run.collaboration.personalisation[2].tolist() == pytest.approx(
        [zero / (zero + three), three / (zero + three)]
    )
    assert not run.collaboration.aggregation[:, [2, 4]].any()
    run = trainer(clusters, Cohorts(cohorts, N), rounds=5)
    run.fit(TinyModule(), TwoKinds())
    assert clusters.assignments[3] == [0, 0, -1, 1, -1]  # client 2 took part with nobody that it could join
    assert clusters.assignments[4] == [0, 0, -1, 1, 1]  # by its update, client 4 is of client 3's kind


ALGORITHMS = {
    "hcct": lambda: HCCT(relative_trade_off=0.8, every_n_rounds=2),
    "cfl": lambda: CFL(mean_norm=1e9, client_norm=0.0, norms="absolute"),
    "kmeans": lambda: KMeans(num_clusters=2, warm_up_rounds=2),
    "fesem": lambda: FeSEM(num_clusters=2),
    "ifca": lambda: IFCA(num_clusters=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
@settings(deadline=None, max_examples=4)
@given(st.permutations(range(N)))
def test_the_order_of_clients_only_renames_the_clusters(name: str, order: list[int]) -> None:
    found = []
    for own in (list(range(N)), order):
        data = TwoKinds()
        sets = {(place, split): data.sets[client, split] for place, client in enumerate(own) for _, split in data.sets}
        data.sets = sets
        clusters = ALGORITHMS[name]()
        trainer(clusters, rounds=4).fit(TinyModule(), data)
        places = [own.index(client) for client in range(N)]
        found.append([in_order([labels[place] for place in places]) for labels in clusters.assignments])
    assert found[0] == found[1]


def test_nobody_in_any_cluster_trains_one_model():
    class Nobody(ClientClusters):
        def assign(self, run, weights, clients):
            return {}

    run, plain = trainer(Nobody()), trainer()
    for one in (run, plain):
        one.fit(TinyModule(), TwoKinds())
    assert run.models[0].equal(plain.models[0])
    assert run.callbacks[0].assignments == [[-1] * 5] * 3


@pytest.mark.parametrize(
    ("clusters", "rounds", "expected"),
    [
        (lambda: HCCT(relative_trade_off=1e6), 2, [0] * 5),
        (CFL, 8, KINDS),
        (lambda: KMeans(num_clusters=2), 3, KINDS),
        (lambda: FeSEM(num_clusters=2), 2, KINDS),
    ],
)
def test_personal_layers_are_not_compared_and_not_shared(clusters, rounds, expected):
    run = trainer(found := clusters(), PersonalLayers(layers=["linear.bias"]), rounds=rounds)
    run.fit(TinyModule(), TwoKinds())
    assert found.assignments[-1] == expected
    span = next(span for span in run.loop.flat.spans() if span.name == "linear.bias")
    vectors = [weights_of(run, client) for client in range(N)]
    assert len({float(vector[span.begin]) for vector in vectors}) == N
    others = [torch.cat([vector[: span.begin], vector[span.end :]]) for vector in vectors]
    for i in range(N):
        assert [torch.equal(others[i], others[j]) for j in range(N)] == [expected[i] == own for own in expected]


LATE = {"client_2": 8, "4": 9}


@pytest.mark.parametrize(
    ("clusters", "others", "rounds"),
    [
        (lambda: HCCT(relative_trade_off=0.8), [ClientArrivals(rounds=LATE)], 10),
        (lambda: HCCT(relative_trade_off=0.8, every_n_rounds=10), [ClientArrivals(rounds=LATE)], 10),
        (CFL, [ClientArrivals(rounds=LATE)], 10),
        (CFL, [UniformSampling(cohort_size=4)], 20),
        *(
            (
                lambda warm_up=warm_up: KMeans(num_clusters=2, warm_up_rounds=warm_up),
                [ClientArrivals(rounds={"client_2": 4, "4": 6}), UniformSampling(cohort_size=4)],
                12,
            )
            for warm_up in (1, 2)
        ),
    ],
)
def test_clients_that_arrive_or_are_drawn_find_their_cluster(clusters, others, rounds):
    for callbacks in ([clusters(), *others], [*others[::-1], clusters()]):
        run = trainer(*callbacks, rounds=rounds, log_per_client=True)
        run.fit(TinyModule(), TwoKinds())
        found = run.callback(ClientClusters)
        assert found.assignments[-1] == KINDS
        assert run.collaboration.num_models == 2
        if isinstance(others[0], ClientArrivals):
            assert found.assignments[others[0].rounds["4"] - 2][4] == -1  # not there yet
            assert run.absent_clients == set()
