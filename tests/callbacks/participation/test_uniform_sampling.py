from collections import Counter

import pytest
import torch
from corners import SIZES, CornerModule, Leaving, MixedClients, fit

from lightning_fl.callbacks import Callback, CollaborationGraph, UniformSampling


class Record(Callback):
    def __init__(self):
        self.cohorts = []

    def on_aggregate_end(self, trainer):
        self.cohorts.append(sorted(trainer.survivors))


def test_a_round_is_fedavg_over_those_drawn():
    record = Record()
    run = fit(UniformSampling(cohort_size=2), record, max_rounds=1)
    [drawn] = record.cohorts
    assert len(drawn) == 2
    data, ends = MixedClients(), []
    for client in drawn:
        module = CornerModule()
        optimizer = module.configure_optimizers()
        x, y = data.sets[client, "train"].tensors
        for step in range(2):
            optimizer.zero_grad()
            module.training_step([x[6 * step : 6 * step + 6], y[6 * step : 6 * step + 6]], 0).backward()
            optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]).double())
    total = sum(SIZES[client] for client in drawn)
    expected = sum(SIZES[client] / total * end for client, end in zip(drawn, ends, strict=True))
    found = torch.cat([p.detach().flatten() for p in run.module.parameters()])
    torch.testing.assert_close(found, expected.float())


@pytest.mark.slow
def test_every_client_has_the_same_chance():
    record = Record()
    fit(UniformSampling(cohort_size=0.5), record, max_rounds=120, local_steps=1, check_val_every_n_rounds=0)
    assert {len(cohort) for cohort in record.cohorts} == {3}
    counts = Counter(client for cohort in record.cohorts for client in cohort)
    # 120 draws with probability a half: a standard deviation of 5.5, four of them are 22.
    assert all(38 <= counts[client] <= 82 for client in range(len(SIZES)))
    again = Record()
    fit(UniformSampling(cohort_size=3), again, max_rounds=5, local_steps=1, check_val_every_n_rounds=0)
    assert again.cohorts == record.cohorts[:5]


def test_a_share_is_rounded_and_is_one_client_at_least():
    sizes = [UniformSampling(cohort_size=size).num_participants(10) for size in (0.01, 0.24, 0.26, 1, 7)]
    assert sizes == [1, 2, 3, 1, 7]


def test_who_is_away_is_not_drawn():
    record = Record()
    fit(Leaving({0: {1, 2}, 1: {1}, 2: {1}}), UniformSampling(cohort_size=5), record)
    assert record.cohorts[0] == [3, 4, 5]  # fewer are there than are wanted
    assert record.cohorts[1] == [1, 2, 3, 4, 5]
    assert len(record.cohorts[2]) == 5


def test_models_of_their_own():
    record, graph = Record(), CollaborationGraph(graph="full")
    fit(UniformSampling(cohort_size=2), graph, record)
    assert [sorted(chosen) for chosen in graph.chosen] == record.cohorts


def test_more_than_there_are_is_warned_of():
    record = Record()
    with pytest.warns(UserWarning, match="cohort_size=50: .* 6 clients"):
        fit(UniformSampling(cohort_size=50), record, max_rounds=1, local_steps=1)
    assert record.cohorts == [list(range(len(SIZES)))]
