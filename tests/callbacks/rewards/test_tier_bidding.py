"""PI-FL in a run: against a plain loop written from its algorithms, its limits, and what composes with it."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from corners import (
    SIZES,
    CornerModule,
    FailingTurns,
    Greedy,
    Leaving,
    MixedClients,
    Silent,
    accuracy,
    fit,
    plain_training,
)
from hooks import StopAfter, hooks
from tiny import with_optimizer
from torch import Tensor, nn

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import BiddingPolicy, Callback, ClientArrivals, HonestBidding, ShapleyRewards, TierBidding
from lightning_fl.callbacks.rewards.bidding import BidView
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.functional import schedule

ALL: Any = {"num_samples": None}
#: Averaged states, and a server's: both belong to the model of a tier.
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def vector(run: FederatedTrainer, model: Any) -> Tensor:
    run.loop.flat.load(model)
    return nn.utils.parameters_to_vector(run.module.parameters()).detach().double()  # type: ignore[union-attr]


def plain_accuracy(module: nn.Module, data: MixedClients, client: int, split: str) -> float:
    x, y = data.sets[client, split].tensors
    with torch.no_grad():
        return float((module(x).argmax(1) == y).double().mean())


# -- against plain computations ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("at_least_one", [True, False])
def test_a_run_is_the_papers_algorithms(at_least_one: bool) -> None:
    """Algorithms 1 and 3 with torch alone; who is drawn at random is taken from the run."""
    policy = HonestBidding(at_least_one=at_least_one)
    tiers = TierBidding(num_tiers=2, num_best=2, num_random=1, threshold=0.4, policy=policy, **ALL)
    data = MixedClients()
    run = fit(tiers, data=data, max_rounds=5)
    models: list[nn.Module] = [CornerModule(), CornerModule()]
    importance = [[0.0, 0.0]] * 6
    for turn in range(5):
        if turn == 0:
            bids: dict[int, list[int]] = {}
            assert all(not cohort["best"] and len(cohort["random"]) == 3 for cohort in tiers.rounds[0].cohorts.values())
            assert sorted(i for cohort in tiers.rounds[0].cohorts.values() for i in cohort["random"]) == list(range(6))
        else:
            wanted = {i: [k for k in (0, 1) if importance[i][k] > 0.4] for i in range(6)}
            if at_least_one:
                wanted = {i: of or [0 if importance[i][0] >= importance[i][1] else 1] for i, of in wanted.items()}
            bids = {i: sorted(of, key=lambda k, i=i: -importance[i][k]) for i, of in wanted.items() if of}  # type: ignore[misc]
            for k, cohort in tiers.rounds[turn].cohorts.items():
                bidders = {i for i, of in bids.items() if k in of}
                assert len(cohort["best"]) == min(2, len(bidders))
                assert set(cohort["best"]) <= bidders
                assert len(cohort["random"]) == 1
                assert not set(cohort["random"]) & set(cohort["best"])
        assert tiers.rounds[turn].bids == bids
        for k in (0, 1):
            cohort = tiers.rounds[turn].cohorts[k]
            members = sorted(cohort["best"] + cohort["random"])
            trained = {i: plain_training(models[k], data, i, 2) for i in members}
            total = sum(SIZES[i] for i in members)
            average = sum(
                SIZES[i] / total * nn.utils.parameters_to_vector(trained[i].parameters()).double() for i in members
            )
            models[k] = CornerModule()
            nn.utils.vector_to_parameters(average.detach().float(), models[k].parameters())  # type: ignore[union-attr]
            expected = sum(plain_accuracy(models[k], data, i, "train") for i in members) / len(members)
            assert tiers.rounds[turn].accuracies[k] == pytest.approx(expected)
        importance = [[plain_accuracy(model, data, i, "train") for model in models] for i in range(6)]
        torch.testing.assert_close(tiers.rounds[turn].importance, torch.tensor(importance, dtype=torch.float64))
        goals = torch.tensor([[plain_accuracy(model, data, i, "val") for model in models] for i in range(6)]).double()
        torch.testing.assert_close(
            tiers.rounds[turn].personalisation, goals / goals.sum(1, keepdim=True), rtol=1e-6, atol=1e-7
        )
    for model, expected in zip(run.models, models, strict=True):  # type: ignore[assignment]
        plain = nn.utils.parameters_to_vector(expected.parameters()).detach().double()  # type: ignore[attr-defined]
        torch.testing.assert_close(vector(run, model), plain, rtol=1e-4, atol=1e-5)
    for i in range(6):
        mixture = sum(float(tiers.rounds[-1].personalisation[i, k]) * vector(run, run.models[k]) for k in (0, 1))
        torch.testing.assert_close(vector(run, run.client_model(i)), mixture, rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]


class Drawn(Callback):
    """FedAvg with clients drawn as PI-FL draws its random ones."""

    def __init__(self, number: int) -> None:
        self.number = number

    def select_clients(self, trainer: FederatedTrainer) -> Cohort:
        everybody = list(range(trainer.num_clients))
        bidders = dict.fromkeys(everybody, 1) if trainer.current_round else {}
        drawn = schedule(bidders, {}, 0, self.number, trainer.generator("cohort", 0), available=everybody)
        return Cohort(tuple(Participant(client) for client in drawn.clients))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "strategy"),
    [(CornerModule, "fedavg"), (with_optimizer(CornerModule, MOMENTUM), "fedavg"), (CornerModule, "fedavgm")],
    ids=["SGD", "momentum", "FedAvgM"],
)
def test_one_tier_for_which_all_bid_is_fedavg_to_the_bit(module: type[nn.Module], strategy: str) -> None:
    tiers = TierBidding(num_tiers=1, num_best=0, num_random=3, policy=Greedy())
    settings: dict[str, Any] = {"max_rounds": 5, "local_steps": 3, "strategy": strategy}
    run, plain = fit(tiers, module=module(), **settings), fit(Drawn(3), module=module(), **settings)
    assert run.models[0].equal(plain.models[0])
    assert run.metrics == plain.metrics
    assert [one.bids for one in tiers.rounds[1:]] == [{client: [0] for client in range(6)}] * 4


@pytest.mark.slow
def test_tiers_of_one_kind_of_clients_each_stay_apart() -> None:
    tiers = TierBidding(num_tiers=2, num_best=3, num_random=0, threshold=0.6, **ALL)

    class Sorted(Callback):
        def on_fit_start(self, trainer: FederatedTrainer) -> None:
            tiers.first_tiers = {0: [0, 2, 4], 1: [1, 3, 5]}

    run = fit(tiers, Sorted(), data=MixedClients(pure=True), max_rounds=6, local_steps=8)
    cohorts = [set(cohort["best"]) for cohort in tiers.rounds[-1].cohorts.values()]
    assert sorted(map(sorted, cohorts)) == [[0, 2, 4], [1, 3, 5]]
    shares = run.collaboration.aggregation
    for k, cohort in enumerate(cohorts):
        total = sum(SIZES[i] for i in cohort)
        assert shares[k].tolist() == pytest.approx([SIZES[i] / total if i in cohort else 0.0 for i in range(6)])


# -- contributions, policies -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bidders_who_prefer_a_tier_train_it_and_of_these_the_ones_that_stand_highest() -> None:
    """First the place of the tier among the bids, then ranks of contributions in their rounds, times 0.8 a round."""
    rewards = ShapleyRewards(split="train", num_samples=None)
    tiers = TierBidding(num_tiers=2, num_best=1, num_random=2, threshold=0.0, contribution_decay=0.8, **ALL)
    fit(tiers, rewards, max_rounds=6)
    chosen_by_standing = 0
    for turn in range(1, 6):
        for k in (0, 1):
            standing: dict[int, float] = {}
            for done, models in enumerate(rewards.by_model[:turn], start=1):
                order = sorted(models.get(k, {}), key=lambda i: models[k][i])
                for rank, i in enumerate(order):
                    of_round = 2 * rank / (len(order) - 1) - 1 if len(order) > 1 else 0.0
                    standing[i] = of_round * 0.8 ** (turn - done)
            keys = {i: (of.index(k), -standing.get(i, 0.0)) for i, of in tiers.rounds[turn].bids.items() if k in of}
            (best,) = tiers.rounds[turn].cohorts[k]["best"]
            assert keys[best] == pytest.approx(min(keys.values()))
            chosen_by_standing += len({key[0] for key in keys.values()}) < len(keys)
    assert chosen_by_standing


class Watching(BiddingPolicy):
    """Bids for fixed tiers and keeps what it saw."""

    def __init__(self, *tiers: int) -> None:
        self.tiers = list(tiers)
        self.views: list[BidView] = []

    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        self.views.append(view)
        return self.tiers


def test_every_client_bids_by_its_own_policy_with_its_own_view() -> None:
    first, silent = Watching(1, 0), Silent()
    tiers = TierBidding(num_tiers=2, policy=Greedy(), policies={0: first, 3: silent}, threshold=0.3, **ALL)
    fit(tiers, max_rounds=3)
    assert [view.round for view in first.views] == [2, 3]
    for turn, view in enumerate(first.views):
        assert view == BidView(0, turn + 2, tuple(tiers.rounds[turn].importance[0].tolist()), (0, 0), 0.3, None, 0)
    bids = [one.bids for one in tiers.rounds[1:]]
    assert [of_round[0] for of_round in bids] == [[1, 0]] * 2
    assert all(3 not in of_round and len(of_round) == 5 for of_round in bids)
    assert all(len(of_round[1]) == 2 for of_round in bids)


@pytest.mark.parametrize("bids", [(2,), (-1,), (0, 0)])
def test_a_policy_that_names_no_such_tier_is_named(bids: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="client 0: Watching bids"):
        fit(TierBidding(num_tiers=2, policy=Watching(*bids)))


def test_a_policy_that_fails_is_named() -> None:
    class Broken(BiddingPolicy):
        def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
            raise KeyError("lost")

    with pytest.raises(TrainingError, match="client 2: KeyError: 'lost'"):
        fit(TierBidding(num_tiers=2, policies={2: Broken()}))


def test_a_round_without_bids_needs_random_clients() -> None:
    silent = Silent()
    run = fit(TierBidding(num_tiers=2, policy=silent, num_random=1), max_rounds=3)
    assert len(run.survivors) in (1, 2)
    with pytest.raises(TrainingError, match="round 2: .*TierBidding.threshold"):
        fit(TierBidding(num_tiers=2, policy=silent, num_random=0))


def test_a_tier_without_a_cohort_stays_as_it_is() -> None:
    tiers = TierBidding(num_tiers=2, policy=Watching(1), num_random=0, **ALL)
    models: list[Any] = []
    run = fit(
        tiers,
        hooks(on_round_end=lambda trainer: models.append((trainer.models[0], trainer.collaboration.aggregation[0]))),
        max_rounds=3,
    )
    assert models[0][0].equal(models[2][0])
    assert torch.equal(models[0][1], models[2][1])
    assert tiers.rounds[1].cohorts[0] == {"best": [], "random": []}
    assert math.isnan(tiers.rounds[2].accuracies[0])
    assert not math.isnan(tiers.rounds[2].accuracies[1])
    assert "tier/0/accuracy" not in run.round_metrics
    assert run.round_metrics["tier/0/clients"] == 0
    assert run.round_metrics["tier/1/bidders"] == 6


# -- the first tiers ---------------------------------------------------------------------------------------------------


def test_clients_that_are_away_at_first_have_no_first_tier() -> None:
    tiers = TierBidding(num_tiers=2)
    fit(tiers, ClientArrivals(rounds={"client_0": 2, "client_5": 3}), max_rounds=3, local_steps=4)
    first = {i for cohort in tiers.rounds[0].cohorts.values() for of in cohort.values() for i in of}
    assert first == {1, 2, 3, 4}
    assert tiers.rounds[0].importance.isnan().any(1).tolist() == [True, False, False, False, False, True]
    assert tiers.rounds[1].importance.isnan().any(1).tolist() == [False] * 5 + [True]


def test_clients_stay_in_their_first_tiers_for_some_rounds() -> None:
    tiers = TierBidding(num_tiers=2, num_best=1, num_random=1, initial_rounds=3, threshold=0.0)
    fit(tiers, ClientArrivals(rounds={"client_5": 2}), max_rounds=4)
    assert sorted(i for clients in tiers.first_tiers.values() for i in clients) == list(range(6))
    for turn in range(3):
        assert not tiers.rounds[turn].bids
        for k, cohort in tiers.rounds[turn].cohorts.items():
            assert len(cohort["random"]) == 2
            assert set(cohort["random"]) <= set(tiers.first_tiers[k])
    assert tiers.rounds[3].bids
    assert not any(5 in of for cohort in tiers.rounds[0].cohorts.values() for of in cohort.values())


# -- what composes with it ---------------------------------------------------------------------------------------------


def test_a_client_without_samples_for_its_goals_goes_by_those_of_its_bids() -> None:
    tiers = TierBidding(num_tiers=2, **ALL)
    fit(tiers, data=MixedClients(with_val={1}), max_rounds=2)
    bid_shares = tiers.rounds[-1].importance / tiers.rounds[-1].importance.sum(1, keepdim=True)
    others = [0, 2, 3, 4, 5]
    torch.testing.assert_close(tiers.rounds[-1].personalisation[others], bid_shares[others])
    assert not torch.equal(tiers.rounds[-1].personalisation[1], bid_shares[1])
    same = TierBidding(num_tiers=2, personal_split="train", **ALL)
    fit(same, max_rounds=2)
    torch.testing.assert_close(same.rounds[-1].personalisation, bid_shares)


class Constant(CornerModule):
    """The same class everywhere: right for none of the clients of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear.weight.requires_grad_(False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "strategy"),
    [(with_optimizer(Constant, MOMENTUM), "fedavg"), (Constant, "fedavgm")],
    ids=["momentum", "FedAvgM"],
)
def test_evaluations_have_no_part_in_the_training(module: type[nn.Module], strategy: str) -> None:
    """Tiers go on alike whether or not clients have left them in their mixtures meanwhile."""
    runs = []
    for every in (0, 1, 3):
        tiers = TierBidding(num_tiers=2, num_best=3, num_random=1, initial_rounds=2, **ALL)
        kinds = hooks(on_fit_start=lambda run, tiers=tiers: setattr(tiers, "first_tiers", {0: [0, 2, 4], 1: [1, 3, 5]}))
        settings: dict[str, Any] = {"max_rounds": 6, "strategy": strategy, "check_val_every_n_rounds": every}
        runs.append(fit(tiers, kinds, data=MixedClients(pure=True), module=module(), **settings))
        assert torch.equal(tiers.rounds[-1].importance[:2].ne(0).long(), torch.eye(2, dtype=torch.long))
    first, *others = runs
    for run in others:
        assert all(a.equal(b) for a, b in zip(run.models, first.models, strict=True))
        assert run.collaboration == first.collaboration


@pytest.mark.slow
def test_personal_models_are_made_when_they_are_evaluated_and_at_the_end() -> None:
    tiers = TierBidding(num_tiers=2, **ALL)
    fit(tiers, max_rounds=4, check_val_every_n_rounds=2)
    assert torch.equal(tiers.rounds[0].personalisation, torch.full((6, 2), 0.5, dtype=torch.float64))
    assert torch.equal(tiers.rounds[2].personalisation, tiers.rounds[1].personalisation)
    assert not torch.equal(tiers.rounds[3].personalisation, tiers.rounds[2].personalisation)

    early, never = TierBidding(num_tiers=2, **ALL), TierBidding(num_tiers=2, **ALL)
    run = fit(early, StopAfter(2), max_rounds=4, check_val_every_n_rounds=0)
    fit(never, max_rounds=2, check_val_every_n_rounds=0)
    torch.testing.assert_close(early.rounds[-1].personalisation, tiers.rounds[1].personalisation)
    torch.testing.assert_close(never.rounds[-1].personalisation, tiers.rounds[1].personalisation)
    assert torch.equal(run.collaboration.personalisation, early.rounds[-1].personalisation)


def test_who_is_away_neither_bids_nor_trains_nor_is_drawn() -> None:
    tiers = TierBidding(num_tiers=2, num_best=2, num_random=4, policy=Greedy())
    away = {0: {1, 2}, 4: {3}}
    run = fit(tiers, Leaving(away), max_rounds=4)
    for turn in range(4):
        gone = {client for client, turns in away.items() if turn + 1 in turns}
        trained = {i for cohort in tiers.rounds[turn].cohorts.values() for of in cohort.values() for i in of}
        assert not trained & gone
        assert not set(tiers.rounds[turn].bids) & gone
        assert tiers.rounds[turn].importance.isnan().any(1).tolist() == [i in gone for i in range(6)]
        if turn:
            assert trained == set(range(6)) - gone
    assert set(run.client_reports) == set(range(6))


@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_only_those_whose_updates_arrived_count_in_a_tier(tmp_path: Path) -> None:
    data, tiers = MixedClients(), TierBidding(num_tiers=2, num_best=3, num_random=3, policy=Greedy(), **ALL)
    run = fit(tiers, FailingTurns((2, 1, 1), (2, 4, 1)), data=data, on_client_error="skip", max_rounds=2)
    total = sum(SIZES[i] for i in (0, 2, 3, 5))
    expected = [0.0 if i in (1, 4) else SIZES[i] / total for i in range(6)]
    assert run.collaboration.aggregation[1].tolist() == pytest.approx(expected)
    mean = sum(accuracy(run, data, i, run.models[1]) for i in (0, 2, 3, 5)) / 4
    assert tiers.rounds[1].accuracies[1] == pytest.approx(mean)
    assert len(run.collaboration.aggregation[0].nonzero()) == 6


def test_what_a_run_leaves_behind(tmp_path: Path) -> None:
    tiers = TierBidding(num_tiers=2, num_best=1, num_random=1, threshold=0.2)
    run = fit(tiers, max_rounds=3, default_root_dir=tmp_path, logger=True)
    table = pd.read_csv(Path(run.log_dir) / "tiers.csv", keep_default_na=False)
    assert list(table) == ["round", "client", "tier", "importance", "share", "bid", "unaffordable", "role"]
    assert not table["unaffordable"].any()  # nothing is paid
    assert len(table) == 3 * 6 * 2
    for _, row in table.iterrows():
        turn, client, tier = row["round"] - 1, int(row["client"].removeprefix("client_")), row["tier"]
        bids = tiers.rounds[turn].bids.get(client, [])
        assert row["bid"] == (bids.index(tier) + 1 if tier in bids else 0)
        assert row["importance"] == pytest.approx(float(tiers.rounds[turn].importance[client, tier]))
        cohort = tiers.rounds[turn].cohorts[tier]
        assert (row["role"] == "best") == (client in cohort["best"])
        assert (row["role"] == "random") == (client in cohort["random"])
    summary = json.loads((Path(run.log_dir) / "summary.json").read_text())["tiers"]
    assert [tier["rounds_trained"] for tier in summary["tiers"]] == [3, 3]
    assert summary["tiers"][0]["best_accuracy"] == pytest.approx(max(one.accuracies[0] for one in tiers.rounds))
    assert summary["clients"]["client_2"]["shares"] == pytest.approx(tiers.rounds[-1].personalisation[2].tolist())
    turns = sum(sum(of["turns"]) for of in summary["clients"].values())
    assert turns == sum(len(of) for one in tiers.rounds for cohort in one.cohorts.values() for of in cohort.values())
    metrics = pd.read_csv(Path(run.log_dir) / "metrics.csv")
    assert {"tier/0/accuracy", "tier/1/clients", "tier/1/bidders"} <= set(metrics)


# -- what is refused ---------------------------------------------------------------------------------------------------
