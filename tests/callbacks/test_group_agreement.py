"""Coalitions against known groups: values known beforehand, the mean over rounds, resumption, refusals."""

import csv

import pytest
from sklearn.metrics import adjusted_rand_score
from tiny import TinyModule
from two_kinds import TwoKinds, trainer

from lightning_fl import ConfigurationError
from lightning_fl.callbacks import HCCT, ClientArrivals, GroupAgreement, LocalTraining
from lightning_fl.data import ImageDomains

KINDS = ["a", "a", "a", "b", "b"]


def summary(run):
    return run.run_log.summary.get("group_agreement")


def agreement(*callbacks, groups=KINDS, num=10, rounds=3, **settings):
    callback = GroupAgreement(groups=groups, num=num)
    run = trainer(*callbacks, callback, rounds=rounds, **settings)
    run.fit(TinyModule(), TwoKinds())
    return callback, run


def test_the_true_groups_are_1_and_everybody_alone_or_together_0():
    found, run = agreement(HCCT(relative_trade_off=0.8))
    assert found.history == [1.0] * 3
    assert summary(run) == {"adjusted_rand_index": 1.0, "last_round": 1.0, "rounds": 3}
    for other in ([LocalTraining()], []):
        assert agreement(*other)[0].history == pytest.approx([0.0] * 3, abs=1e-6)


def test_every_round_is_compared_and_the_last_ones_averaged():
    hcct = HCCT(relative_trade_off=0.3, memory=0.0, hysteresis=0.0)
    found, run = agreement(hcct, num=4, rounds=6)
    expected = [adjusted_rand_score(KINDS, labels) for labels in hcct.assignments]
    assert len(set(expected)) > 1
    assert found.history == pytest.approx(expected, abs=1e-6)
    assert summary(run)["adjusted_rand_index"] == pytest.approx(sum(expected[-4:]) / 4, abs=1e-6)
    assert summary(run)["rounds"] == 4


def test_the_index_is_among_the_curves_of_the_run(tmp_path):
    found, run = agreement(
        HCCT(relative_trade_off=0.3, memory=0.0, hysteresis=0.0), rounds=4, root=tmp_path, logger=True
    )
    with open(f"{run.log_dir}/metrics.csv", newline="", encoding="utf-8") as file:
        curve = [float(row["coalitions/ari"]) for row in csv.DictReader(file) if row["coalitions/ari"]]
    assert curve == pytest.approx(found.history)


def test_who_is_not_there_is_not_compared():
    found, _ = agreement(
        HCCT(relative_trade_off=0.8), ClientArrivals(rounds={"client_2": 9}), groups=["a", "a", "?", "b", "b"]
    )
    assert found.history == [1.0] * 3


def test_data_without_groups_are_not_compared():
    found, run = agreement(HCCT(), groups=None)
    assert found.history == []
    assert summary(run) is None


def test_the_domains_of_images_are_groups():
    data = ImageDomains(
        domains=["mnist", "usps", "svhn"], clients_per_domain=[1, 3, 2], samples_per_client=40, source="standin", size=8
    )
    data.prepare_data()
    data.setup("fit")
    assert data.client_groups() == ["mnist", "usps", "usps", "usps", "svhn", "svhn"]
    assert TwoKinds().client_groups() is None


def test_a_resumed_run_has_the_same_mean(tmp_path):
    def make(root, rounds, ckpt=None):
        hcct = HCCT(relative_trade_off=0.3, memory=0.0, hysteresis=0.0)
        run = trainer(
            hcct, GroupAgreement(groups=KINDS), rounds=rounds, root=tmp_path / root, enable_checkpointing=True
        )
        run.fit(TinyModule(), TwoKinds(), ckpt_path=ckpt)
        return run

    whole = make("whole", 5)
    make("parts", 3)
    assert summary(make("parts", 5, "last")) == summary(whole)


def test_bad_input_is_refused():
    with pytest.raises(ConfigurationError, match=r"GroupAgreement\.groups has 2 entries for 5 clients"):
        agreement(groups=["a", "b"])
