"""Settings at which a callback is another one, FedAvg or local training: the same bits, or equal up to rounding."""

from typing import Any

import pytest
import torch
from corners import Greedy, Network, fit
from hooks import hooks
from rounding import assert_equal_up_to_rounding
from tiny import TinyClients, TinyModule
from two_kinds import TwoKinds

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import (
    CFL,
    FLSC,
    HCCT,
    IFCA,
    Callback,
    CollaborationGraph,
    DROClientSampling,
    FeSEM,
    KMeans,
    LocalMixup,
    LocalReference,
    LocalTraining,
    PFedGraph,
    ShapleyRewards,
    SoftAveraging,
    TierBidding,
    Tokens,
    UniformSampling,
)
from lightning_fl.callbacks.rewards.bidding import BiddingPolicy, BidView
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.functional import draw_cohort

pytestmark = pytest.mark.filterwarnings("ignore:.*the run ends at max_rounds.*", "ignore:TierBidding.tokens")


class Steady(BiddingPolicy):
    """Bids for both tiers in one order, whatever they brought."""

    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        return [1, 0]


def uniform_draws(run: FederatedTrainer) -> Cohort:
    counts = draw_cohort(torch.full((run.num_clients,), 1.0), 3, run.generator("cohort")).tolist()
    return Cohort(tuple(Participant(i, 0, float(count)) for i, count in enumerate(counts) if count))


def alike(run: FederatedTrainer) -> Cohort:
    return Cohort(tuple(Participant(client, 0, 1.0) for client in range(run.num_clients)))


def chooses(who: Any) -> Callback:
    return hooks(role="participation", select_clients=who)


VALUES: dict[str, Any] = {"split": "train", "num_samples": 4}
ONE_TIER: dict[str, Any] = {"num_tiers": 1, "policy": Greedy(), "num_best": 0, "num_random": 3, "num_samples": 6}
TWO_TIERS: dict[str, Any] = {"num_tiers": 2, "num_best": 2, "num_random": 1, "num_samples": 6}
NETWORK: dict[str, Any] = {"module": Network}
KINDS: dict[str, Any] = {"module": TinyModule, "data": TwoKinds, "local_epochs": 1, "local_steps": None}
NORM: dict[str, Any] = {**KINDS, "module": lambda: TinyModule(norm=True)}
TINY: dict[str, Any] = {"module": lambda: TinyModule(dropout=0.2), "data": TinyClients}
FULL: dict[str, Any] = {"data": lambda: TinyClients(batch_size=100, shuffle=False), "module": TinyModule}

#: The same bits: callbacks, the other ones, settings.
EQUAL: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "FeSEM, 1": (lambda: [FeSEM(num_clusters=1)], list, {}),
    "FeSEM, N, one round": (lambda: [FeSEM(num_clusters=6)], lambda: [LocalTraining()], {"max_rounds": 1}),
    "IFCA, 1": (lambda: [IFCA(num_clusters=1)], list, NETWORK),
    "FLSC, 1": (lambda: [FLSC(num_clusters=1, num_best=1)], list, NETWORK),
    "FLSC, 1 best": (
        lambda: [FLSC(num_clusters=3, num_best=1), UniformSampling(cohort_size=4)],
        lambda: [IFCA(num_clusters=3), UniformSampling(cohort_size=4)],
        {**NETWORK, "max_rounds": 4},
    ),
    "CFL, no split": (lambda: [CFL(mean_norm=1e-9)], list, KINDS),
    "HCCT, alone": (lambda: [HCCT(relative_trade_off=0.0)], lambda: [LocalTraining()], KINDS),
    "KMeans, N": (lambda: [KMeans(num_clusters=5)], lambda: [LocalTraining()], {**KINDS, "max_rounds": 4}),
    "pFedGraph, small alpha": (
        lambda: [PFedGraph(alpha=1e-3, lam=0.0, threshold=1.0)],
        lambda: [LocalTraining()],
        KINDS,
    ),
    "graph, no budget": (lambda: [CollaborationGraph(budget=0)], lambda: [LocalTraining()], NORM),
    "soft averaging, 1": (lambda: [SoftAveraging(num_models=1)], list, {}),
    "tokens of one tier": (
        lambda: [TierBidding(**ONE_TIER, tokens=Tokens(initial_balance=10)), ShapleyRewards(**VALUES)],
        lambda: [TierBidding(**ONE_TIER)],
        {"max_rounds": 4},
    ),
    "tokens enough for all bids": (
        lambda: [TierBidding(**TWO_TIERS, policy=Steady(), tokens=Tokens()), ShapleyRewards(**VALUES)],
        lambda: [TierBidding(**TWO_TIERS, policy=Steady()), ShapleyRewards(**VALUES)],
        {"max_rounds": 4},
    ),
    "reference": (lambda: [LocalReference()], list, TINY),
    "DRFA without ascent": (lambda: [DROClientSampling(step_size=0.0)], lambda: [chooses(uniform_draws)], FULL),
    "DRFA of all without ascent": (
        lambda: [DROClientSampling(cohort="all", step_size=0.0)],
        lambda: [chooses(alike)],
        FULL,
    ),
    "DRFLM without mixing": (
        lambda: [DROClientSampling(step_size=0.05), LocalMixup(alpha=0.0)],
        lambda: [DROClientSampling(step_size=0.05)],
        FULL,
    ),
}
#: Equal up to rounding, which comparisons of updates, or another order of sums, bring.
NEARLY: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "HCCT, together": (lambda: [HCCT(relative_trade_off=1e6)], list, KINDS),
    "KMeans, 1": (lambda: [KMeans(num_clusters=1)], list, {**KINDS, "max_rounds": 4}),
    "pFedGraph, large alpha": (lambda: [PFedGraph(alpha=1e12, lam=0.0)], list, KINDS),
    "graph, full": (lambda: [CollaborationGraph(graph="full")], list, NORM),
}


def both(first: Any, second: Any, settings: dict[str, Any]) -> list[FederatedTrainer]:
    made = ("module", "data")
    return [
        fit(*make(), **{name: value() if name in made else value for name, value in settings.items()})
        for make in (first, second)
    ]


@pytest.mark.parametrize("name", EQUAL)
def test_the_same_bits(name: str) -> None:
    one, other = both(*EQUAL[name])
    for client in range(one.num_clients):
        assert one.client_model(client).equal(other.client_model(client))
    own, others = one.metrics["val"], other.metrics["val"]
    assert {metric: own[metric].clients for metric in others} == {metric: others[metric].clients for metric in others}


def test_flsc_of_one_best_model_assigns_and_sends_like_ifca() -> None:
    one, other = both(*EQUAL["FLSC, 1 best"])
    assert one.callbacks[0].assignments == other.callbacks[0].assignments
    assert one.collaboration == other.collaboration
    assert one.communication.bytes_received == other.communication.bytes_received
    assert one.communication.bytes_sent == other.communication.bytes_sent


def test_clients_of_a_cluster_each_send_the_first_update_only() -> None:
    run = fit(KMeans(num_clusters=5), **{**KINDS, "module": TinyModule(), "data": TwoKinds()}, max_rounds=4)
    assert run.communication.bytes_sent == dict.fromkeys(range(5), run.communication.model_bytes)


@pytest.mark.parametrize("name", NEARLY)
def test_equal_up_to_rounding(name: str) -> None:
    one, other = both(*NEARLY[name])
    for client in range(one.num_clients):
        for dtype, vector in one.client_model(client).vectors.items():
            expected = other.client_model(client).vectors[dtype]
            if dtype.is_floating_point:
                assert_equal_up_to_rounding(vector, expected, steps=4 * 3)
            else:
                assert torch.equal(vector, expected)
