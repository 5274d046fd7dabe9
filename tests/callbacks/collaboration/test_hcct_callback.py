"""HCCT in a run: against a plain loop written from the paper's algorithm, and what composes with it."""

import math
import re
import warnings

import pytest
import torch
from hooks import Cohorts, hooks
from tiny import TinyModule
from two_kinds import (
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

from lightning_fl.callbacks import HCCT, Callback, ClientArrivals, UniformSampling
from lightning_fl.functional.hcct import hierarchical_partition, partition_from_gram, partition_utility

OTHERS = [0, 1, 3, 4]


def plain_hcct(rounds: int, relative_trade_off: float) -> tuple[list[torch.Tensor], list[list[int]]]:
    """Algorithm 1 and 2, one client after another, with torch alone."""
    data, models, history = TwoKinds(), fresh_models(), []
    tradeoff = relative_trade_off * math.sqrt(sum(SIZES) / len(SIZES))
    for _ in range(rounds):
        starts = [flat(model) for model in models]
        ends = train_all(models, data)
        updates = torch.stack([end - start for end, start in zip(ends, starts, strict=True)])
        labels = hierarchical_partition(updates, SIZES, tradeoff)
        history.append(labels)
        for group in set(labels):
            share_average(models, ends, [client for client, label in enumerate(labels) if label == group])
    return [flat(model) for model in models], history


@pytest.mark.parametrize("relative_trade_off", [0.0, 0.13, 0.5, 13.0])
def test_a_run_is_the_papers_algorithm(relative_trade_off):
    expected, history = plain_hcct(4, relative_trade_off)
    hcct = HCCT(relative_trade_off=relative_trade_off, memory=0.0, hysteresis=0.0)
    run = trainer(hcct, rounds=4)
    run.fit(TinyModule(), TwoKinds())
    assert hcct.assignments == history
    assert hcct.rounds == [1, 2, 3, 4]
    assert_clients_have(run, expected, steps=4 * 3)


def test_it_separates_what_differs_and_joins_what_is_alike():
    hcct = HCCT(relative_trade_off=0.8)
    trainer(hcct, rounds=2).fit(TinyModule(), TwoKinds())
    assert hcct.assignments[-1] == [0, 0, 0, 1, 1]
    assert {tuple(sorted(merge.first + merge.second)) for merge in hcct.merges} >= {(0, 1, 2), (3, 4)}


def test_between_partitions_the_groups_stay():
    hcct, partitions = HCCT(relative_trade_off=0.8, hysteresis=0.0, every_n_rounds=3), []
    trainer(hcct, hooks(on_round_end=lambda run: partitions.append(hcct.partition_round)), rounds=5).fit(
        TinyModule(), TwoKinds()
    )
    assert partitions == [1, 1, 1, 4, 4]
    assert hcct.assignments[0] == hcct.assignments[1] == hcct.assignments[2]


def test_the_compared_layer_is_chosen_or_given():
    automatic, given = HCCT(relative_trade_off=0.8, layer="auto"), HCCT(relative_trade_off=0.8, layer="linear")
    for hcct in (automatic, given):
        trainer(hcct, rounds=2).fit(TinyModule(norm=True), TwoKinds())
    assert automatic.compared_layer in ("linear", "before.0")
    assert given.assignments[-1] == [0, 0, 0, 1, 1]


def test_who_took_no_part_keeps_its_model():
    whole, without = (HCCT(relative_trade_off=0.8, hysteresis=0.0) for _ in range(2))
    first, second = trainer(whole, rounds=1), trainer(without, Cohorts({2: OTHERS}, 5), rounds=2)
    for run in (first, second):
        run.fit(TinyModule(), TwoKinds())
    assert torch.equal(weights_of(second, 2), weights_of(first, 2))
    assert without.assignments[1][2] not in without.assignments[1][:2]  # its group has gone on without it


def test_who_has_never_taken_part_uses_the_average_of_the_groups():
    hcct = HCCT(relative_trade_off=0.8)
    run = trainer(hcct, Cohorts({1: OTHERS, 2: OTHERS}, 5), rounds=2)
    run.fit(TinyModule(), TwoKinds())
    assert hcct.assignments == [[0, 0, -1, 1, 1]] * 2
    assert run.collaboration.num_models == 2
    samples = [run.num_samples[client] for client in (0, 1, 3, 4)]
    shares = [sum(samples[:2]) / sum(samples), sum(samples[2:]) / sum(samples)]
    assert run.collaboration.personalisation[2].tolist() == pytest.approx(shares)
    hcct = HCCT(relative_trade_off=0.8)
    trainer(hcct, Cohorts({1: OTHERS, 2: OTHERS}, 5), rounds=3).fit(TinyModule(), TwoKinds())
    assert hcct.assignments[-1] == [0, 0, 0, 1, 1]


def test_the_absent_neither_train_nor_are_evaluated():
    run = trainer(HCCT(relative_trade_off=0.8), ClientArrivals(rounds={"client_2": 9}), rounds=2)
    run.fit(TinyModule(), TwoKinds())
    assert set(run.client_reports) == {0, 1, 3, 4}
    assert set(run.metrics["val"]["val_loss"].clients) == {0, 1, 3, 4}


@pytest.mark.parametrize(
    ("relative_trade_off", "said"),
    [
        (3.5, r"HCCT\.relative_trade_off=3\.5 .* opposed"),
        (0.05, r"HCCT\.relative_trade_off=0\.05 .* 0\.942"),
        (0.8, None),
    ],
)
def test_a_setting_that_settles_the_answer_is_warned_of(relative_trade_off, said):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(HCCT(relative_trade_off=relative_trade_off), rounds=1).fit(TinyModule(), TwoKinds())
    messages = [str(warning.message) for warning in caught if "HCCT" in str(warning.message)]
    assert len(messages) == (said is not None)
    assert all(re.search(said, message) for message in messages)


def test_the_same_trade_off_means_the_same_for_any_number_of_samples():
    histories = []
    for times in (1, 4):
        hcct = HCCT(relative_trade_off=0.8)
        run = trainer(hcct, rounds=1)
        run.fit(TinyModule(), TwoKinds(tuple(times * size for size in SIZES)))
        assert hcct.tradeoff == pytest.approx(0.8 * math.sqrt(times * sum(SIZES) / len(SIZES)))
        histories.append(hcct.assignments)
    assert histories[0] == histories[1] == [[0, 0, 0, 1, 1]]


class Grams(Callback):
    """Inner products of the updates of every round, taken beside HCCT."""

    def __init__(self, hcct):
        self.hcct, self.rounds, self.labels = hcct, [], []
        original = hcct.gram

        def gram(*arguments):
            self.rounds.append(original(*arguments))
            return self.rounds[-1]

        hcct.gram = gram

    def on_round_end(self, run):
        self.labels.append(list(self.hcct.assignment))


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize(("memory", "hysteresis"), [(1.0, 0.0), (0.5, 0.0), (0.0, 0.3), (1.0, 0.3), (1.0, 0.001)])
def test_the_mean_of_cosines_is_partitioned_and_the_old_partition_kept(memory, hysteresis, leave_one_out):
    """By hand from the rounds' inner products."""
    hcct = HCCT(relative_trade_off=0.9, memory=memory, hysteresis=hysteresis, leave_one_out=leave_one_out)
    grams = Grams(hcct)
    run = trainer(hcct, grams, rounds=6)
    run.fit(TinyModule(), TwoKinds())
    assert len(grams.rounds) == 6  # one product a round
    cosines, old = [], None
    for number, gram in enumerate(grams.rounds):
        lengths = gram.diagonal().sqrt()
        cosines.append(gram / torch.outer(lengths, lengths))
        shares = [memory ** (number - age) for age in range(number + 1)]
        mean = sum(share * c for share, c in zip(shares, cosines, strict=True)) / sum(shares)
        combined = mean * torch.outer(lengths, lengths)
        new = partition_from_gram(combined, SIZES, hcct.tradeoff, leave_one_out=leave_one_out)
        if old is not None:
            kept = partition_utility(combined, SIZES, hcct.tradeoff, old, leave_one_out=leave_one_out)
        if old is None or not hysteresis or new.utility - kept > hysteresis * len(SIZES):
            old = new.labels
        assert grams.labels[number] == old


def test_a_partition_that_is_hardly_better_is_not_taken():
    free, held = (
        HCCT(relative_trade_off=0.3, memory=0.0, hysteresis=0.0),
        HCCT(relative_trade_off=0.3, memory=0.0, hysteresis=2.0),
    )
    for hcct in (free, held):
        run = trainer(hcct, rounds=6)
        run.fit(TinyModule(), TwoKinds())
    assert len({tuple(labels) for labels in free.assignments}) > 1
    assert held.assignments == [free.assignments[0]] * 6
    assert held.partition_round == 1


def test_a_client_that_was_away_has_a_mean_of_its_own_rounds():
    hcct = HCCT(relative_trade_off=0.8)
    grams = Grams(hcct)
    trainer(hcct, Cohorts({2: OTHERS}, 5), grams, rounds=3).fit(TinyModule(), TwoKinds())

    def cosine(number, first, second):
        gram = grams.rounds[number]
        return float(gram[first, second] / (gram[first, first] * gram[second, second]).sqrt())

    assert float(hcct._cosines[0, 2]) == pytest.approx((cosine(0, 0, 2) + cosine(2, 0, 2)) / 2)
    everywhere = (cosine(0, 0, 1) + cosine(1, 0, 1) + cosine(2, 0, 1)) / 3
    assert float(hcct._cosines[0, 1]) == pytest.approx(everywhere)
    assert hcct._weights[0].tolist() == [3, 3, 2, 3, 3]


def test_a_newcomer_joins_the_partition_that_is_kept():
    hcct = HCCT(relative_trade_off=0.8, hysteresis=2.0)
    trainer(hcct, Cohorts({1: OTHERS, 2: OTHERS}, 5), rounds=4).fit(TinyModule(), TwoKinds())
    assert hcct.assignments[1] == [0, 0, -1, 1, 1]
    assert hcct.assignments[-1] == [0, 0, 0, 1, 1]
    assert hcct.partition_round == 1


def test_sampled_clients_are_warned_of():
    with pytest.warns(UserWarning, match="HCCT with UniformSampling"):
        trainer(HCCT(), UniformSampling(cohort_size=3), rounds=1).fit(TinyModule(), TwoKinds())
