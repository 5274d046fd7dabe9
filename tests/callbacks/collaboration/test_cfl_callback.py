"""CFL in a run: against a plain loop written from the paper's algorithm, its tree, and what composes with it."""

import math

import pytest
import torch
from hooks import Cohorts
from tiny import TinyModule
from two_kinds import KINDS, SIZES, TwoKinds, assert_clients_have, flat, fresh_models, share_average, train_all, trainer

from lightning_fl.callbacks import CFL, Callback
from lightning_fl.functional import optimal_bipartition


def plain_cfl(rounds: int, eps1: float, eps2: float) -> tuple[list[torch.Tensor], list[list[int]]]:
    """One client after another, with torch alone; clusters are lists of clients."""
    data, models, clusters, history = TwoKinds(), fresh_models(), [list(range(5))], []
    for _ in range(rounds):
        starts = [flat(model) for model in models]
        ends = train_all(models, data)
        updates = torch.stack(ends) - torch.stack(starts)
        after = []
        for cluster in clusters:
            own = updates[cluster]
            shares = torch.tensor([SIZES[client] for client in cluster], dtype=torch.float32)
            mean = (shares / shares.sum()) @ own
            if len(cluster) > 1 and mean.norm() < eps1 and own.norm(dim=1).max() > eps2:
                unit = own / own.norm(dim=1, keepdim=True)
                sides = optimal_bipartition(unit @ unit.T).labels
                after += [[c for c, side in zip(cluster, sides, strict=True) if side == one] for one in (0, 1)]
            else:
                after.append(cluster)
        clusters = after
        labels = [next(k for k, cluster in enumerate(clusters) if client in cluster) for client in range(5)]
        order = list(dict.fromkeys(labels))
        history.append([order.index(label) for label in labels])
        for cluster in clusters:
            share_average(models, ends, cluster)
    return [flat(model) for model in models], history


@pytest.mark.slow
@pytest.mark.parametrize(("eps1", "eps2", "clusters"), [(0.2, 0.2, 3), (0.5, 0.01, 5), (0.2, 0.5, 2), (1e-9, 0.0, 1)])
def test_a_run_is_the_papers_algorithm(eps1, eps2, clusters):
    expected, history = plain_cfl(8, eps1, eps2)
    assert max(history[-1]) + 1 == clusters
    cfl = CFL(norms="absolute", mean_norm=eps1, client_norm=eps2)
    run = trainer(cfl, rounds=8)
    run.fit(TinyModule(), TwoKinds())
    assert cfl.assignments == history
    assert cfl.rounds == list(range(1, 9))
    assert len(cfl.splits) == clusters - 1
    assert_clients_have(run, expected, steps=8 * 3)


@pytest.mark.slow
def test_relative_norms_do_not_depend_on_the_step_size():
    found = []
    for rate, rounds in ((0.05, 8), (0.005, 80)):
        cfl = CFL()
        run = trainer(cfl, rounds=rounds, check_val_every_n_rounds=0)
        run.fit(TinyModule(learning_rate=rate), TwoKinds())
        found.append(cfl.splits)
    for splits in found:
        assert len(splits) == 1
        assert splits[0].cross_similarity < -0.4
    assert cfl.assignments[-1] == KINDS


def test_the_first_splits_wait_for_the_warm_up():
    cfl = CFL(mean_norm=1e9, norms="absolute", warm_up_rounds=2)
    trainer(cfl, rounds=4).fit(TinyModule(), TwoKinds())
    assert cfl.assignments[:2] == [[0] * 5] * 2
    assert [split.round for split in cfl.splits] == [3, 4, 4, 4][: len(cfl.splits)]
    assert cfl.splits[0].cluster == 0
    assert cfl.splits[0].sides == (1, 2)


@pytest.mark.slow
def test_gamma_max_keeps_what_is_not_opposed_together():
    cfl = CFL(mean_norm=1e9, norms="absolute", client_norm=0.0, gamma_max=0.71)
    trainer(cfl, rounds=6).fit(TinyModule(), TwoKinds())
    for split in cfl.splits:
        assert math.sqrt((1 - split.cross_similarity) / 2) > 0.71
    assert len(cfl.splits) < 4


def test_who_took_no_part_in_a_split_joins_the_cluster_whose_mean_update_is_most_similar(
    line_clients, line_module, make_trainer
):
    """Updates are -0.15 (w - slope): they point to the clients' slopes, so that the signs decide."""
    slopes, late = [4.0, 4.0, 16.0, 16.0, 16.0, 4.0], {22: [0, 1, 2, 4], 25: [2, 3, 5], 26: [0, 2, 3, 5]}
    cfl = CFL(norms="absolute", mean_norm=0.1, client_norm=0.2)
    cohorts = {number: late.get(number, [0, 1, 2, 3]) for number in range(1, 27)}
    run = make_trainer(cfl, Cohorts(cohorts, 6), max_rounds=26, log_every_n_steps=0)
    watched = {}

    class Watch(Callback):
        def on_round_end(self, trainer):
            watched[trainer.current_round] = [
                float(trainer.shared_model(client).vectors[torch.float32][0]) for client in range(6)
            ]

    run.callbacks.append(Watch())
    run.fit(line_module(), line_clients(slopes))

    # The mean of all is 10: its update 1.5 * 0.85**t is below 0.1 first with t = 17, in round 18.
    models, labels, expected = [0.0] * 6, [0] * 6, {}
    for number, cohort in cohorts.items():
        learned = {client: models[client] - 0.15 * (models[client] - slopes[client]) for client in cohort}
        if number == 18:
            labels = [0, 0, 1, 1, -1, -1]
        for client in cohort:  # below their slopes clients move up, above them down: so do the two clusters
            label = 0 if slopes[client] < models[client] else 1
            if labels[client] < 0 and label in [labels[other] for other in cohort]:
                labels[client] = label
        groups = [[client for client in range(6) if labels[client] == label] for label in range(max(labels) + 1)]
        for group in groups:
            arrived = [learned[client] for client in group if client in learned]
            for client in group:
                models[client] = sum(arrived) / len(arrived) if arrived else models[client]
        for client in range(6):
            if labels[client] < 0:
                models[client] = sum(len(group) * models[group[0]] for group in groups) / sum(map(len, groups))
        expected[number] = list(models), list(labels)

    assert [(split.round, split.cluster, split.sides) for split in cfl.splits] == [(18, 0, (1, 2))]
    assert cfl.splits[0].cross_similarity == pytest.approx(-1.0)
    assert cfl.assignments == [own for _, own in expected.values()]
    assert cfl.assignments[21] == [0, 0, 1, 1, 1, -1]
    assert cfl.assignments[24] == [0, 0, 1, 1, 1, -1]  # only the upper cluster takes part, which it opposes
    assert cfl.assignments[25] == [0, 0, 1, 1, 1, 0]
    for number, (own, _) in expected.items():
        assert watched[number] == pytest.approx(own, rel=1e-5), number
