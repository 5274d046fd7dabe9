"""KMeans in a run: against a plain loop, its limits, who comes late, and what composes with it."""

import pytest
import torch
from hooks import Cohorts, hooks
from rounding import assert_equal_up_to_rounding
from tiny import TinyModule
from two_kinds import (
    KINDS,
    SIZES,
    TwoKinds,
    assert_clients_have,
    flat,
    fresh_models,
    share_average,
    train_all,
    trainer,
    weights_of,
)

from lightning_fl.callbacks import Callback, ClientArrivals, KMeans, LocalTraining

pytestmark = pytest.mark.filterwarnings("ignore:.*the run ends at max_rounds.*")


def plain_kmeans(rounds: int, warm_up: int) -> list[torch.Tensor]:
    """Alone, then in the two groups that there are, with torch alone."""
    data, models = TwoKinds(), fresh_models()
    for done in range(1, rounds + 1):
        ends = train_all(models, data)
        if done >= warm_up:
            for group in ([0, 1, 2], [3, 4]):
                share_average(models, ends, group)
    return [flat(model) for model in models]


@pytest.mark.parametrize("warm_up", [1, 3])
def test_a_run_is_the_papers_algorithm(warm_up):
    kmeans = KMeans(num_clusters=2, warm_up_rounds=warm_up)
    run = trainer(kmeans, rounds=5)
    run.fit(TinyModule(), TwoKinds())
    assert kmeans.assignment == KINDS
    assert kmeans.clustering_round == warm_up
    assert_clients_have(run, plain_kmeans(5, warm_up), steps=5 * 3)


def test_who_has_not_trained_yet_joins_the_cluster_whose_mean_update_is_most_similar(
    line_clients, line_module, make_trainer
):
    """Updates are -0.15 (w - slope), from w = 0 at first."""
    kmeans = KMeans(num_clusters=2, warm_up_rounds=2)
    cohorts = {1: [0, 1, 2], 2: [0, 1, 2, 3], 3: [0, 1, 2], 4: [0, 1, 2, 4], 5: [0, 1, 2, 4]}
    run = make_trainer(kmeans, Cohorts(cohorts, 5), max_rounds=5)
    watched = {}

    class Watch(Callback):
        def on_round_end(self, trainer):
            watched[trainer.current_round] = [
                float(trainer.shared_model(client).vectors[torch.float32][0]) for client in range(5)
            ]

    run.callbacks.append(Watch())
    run.fit(line_module(), line_clients([6.0, 6.0, -6.0, -6.0, 6.0]))
    assert kmeans.clustering_round == 2
    assert kmeans.assignments == [[-1] * 5, [0, 0, 1, 1, -1], [0, 0, 1, 1, -1], [0, 0, 1, 1, 0], [0, 0, 1, 1, 0]]
    assert watched[1] == pytest.approx([0.9, 0.9, -0.9, 0.0, 0.0])
    upper = 0.9 + 0.15 * (6.0 - 0.9)
    lower = -(upper + 0.9) / 2  # client 3 counts with its one turn
    assert watched[2] == pytest.approx([upper, upper, lower, lower, (2 * upper + 2 * lower) / 4])
    upper, lower = upper + 0.15 * (6.0 - upper), lower + 0.15 * (-6.0 - lower)
    middle = (2 * upper + 2 * lower) / 4
    assert watched[3] == pytest.approx([upper, upper, lower, lower, middle])
    upper, lower = upper + 0.15 * (6.0 - upper), lower + 0.15 * (-6.0 - lower)
    upper = (2 * upper + middle + 0.15 * (6.0 - middle)) / 3  # client 4 moves up, and counts from its first turn on
    assert watched[4] == pytest.approx([upper, upper, lower, lower, upper])


def test_clusters_are_formed_once_enough_clients_have_trained(line_clients, line_module, make_trainer):
    kmeans = KMeans(num_clusters=3)
    cohorts = {1: [0], 2: [0, 1], 3: [2, 0]}
    make_trainer(kmeans, Cohorts(cohorts, 3), max_rounds=4).fit(line_module(), line_clients([1.0, 2.0, 3.0]))
    assert kmeans.clustering_round == 3


def test_who_arrives_while_all_train_alone_goes_on_from_what_it_learned():
    kmeans, starts = KMeans(num_clusters=2, warm_up_rounds=4), []
    run = trainer(
        ClientArrivals(rounds={"client_2": 2}),
        kmeans,
        hooks(on_round_start=lambda trainer: starts.append(weights_of(trainer, 2).clone())),
        rounds=6,
    )
    run.fit(TinyModule(), TwoKinds())
    assert kmeans.assignment == KINDS
    alone = trainer(LocalTraining(), rounds=1)
    alone.fit(TinyModule(), TwoKinds())
    others = [0, 1, 3, 4]
    total = sum(SIZES[client] for client in others)
    mean = sum(SIZES[client] / total * weights_of(alone, client) for client in others)
    assert_equal_up_to_rounding(starts[1], mean, steps=3)
    assert not torch.equal(starts[2], starts[1])
    assert run.collaboration.model_of(2) == run.collaboration.model_of(0)


def test_who_arrives_in_the_round_that_forms_clusters_counts_with_what_it_learned():
    arrivals = {"client_2": 2}
    runs = [
        trainer(ClientArrivals(rounds=arrivals), callback, rounds=2)
        for callback in (KMeans(num_clusters=1, warm_up_rounds=2), LocalTraining())
    ]
    for run in runs:
        run.fit(TinyModule(), TwoKinds())
    total = sum(SIZES)
    mean = sum(SIZES[i] / total * runs[1].models[i].vectors[torch.float32] for i in range(5))
    assert_equal_up_to_rounding(weights_of(runs[0], 2), mean, steps=2 * 3)


def test_a_run_without_rounds_in_clusters_is_warned_of():
    with pytest.warns(UserWarning, match="KMeans.warm_up_rounds=3.*max_rounds=3"):
        trainer(KMeans(num_clusters=2, warm_up_rounds=3), rounds=3).fit(TinyModule(), TwoKinds())
