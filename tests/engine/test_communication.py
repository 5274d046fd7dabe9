"""What clients receive and send, against figures that are worked out by hand."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from corners import SIZES, FailingTurns, MixedClients, fit
from hypothesis import given
from hypothesis import strategies as st
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import (
    HCCT,
    IFCA,
    Callback,
    ClientArrivals,
    CollaborationGraph,
    DiscriminatorSettings,
    DROClientSampling,
    FedCollab,
    FeSEM,
    FineTuning,
    LocalMixup,
    LocalReference,
    LocalTraining,
    PersonalLayers,
    ShapleyRewards,
    TierBidding,
    Tokens,
    UniformSampling,
)
from lightning_fl.callbacks.collaboration import fedcollab
from lightning_fl.callbacks.collaboration.discriminators.distances import PairwiseDistances
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.engine.communication import CommunicationAccount
from lightning_fl.engine.weights.flat import Weights

N = len(SIZES)
#: Four classes of points in the plane: weight [4, 2] and bias [4] of four bytes each.
SIZE, BIAS = 48, 16


def received(run: FederatedTrainer, size: int = SIZE) -> list[float]:
    """In models."""
    return [run.communication.bytes_received[client] / size for client in range(run.num_clients)]


def sent(run: FederatedTrainer, size: int = SIZE) -> list[float]:
    """In models."""
    return [run.communication.bytes_sent[client] / size for client in range(run.num_clients)]


class Turns(Callback):
    """Counts every client's turns, and remembers in which rounds it had one."""

    def __init__(self) -> None:
        self.count: Counter[int] = Counter()
        self.rounds: dict[int, list[int]] = {}

    def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
        self.count[client] += 1
        self.rounds.setdefault(client, []).append(trainer.current_round + 1)

    def of_all(self) -> list[int]:
        return [self.count[client] for client in range(N)]


class Given(Callback):
    """A collaboration of the test's."""

    def __init__(self, collaboration: Collaboration) -> None:
        self.collaboration = collaboration

    def on_fit_start(self, trainer: FederatedTrainer) -> None:
        trainer.collaboration = self.collaboration


def coalitions(*labels: int) -> Given:
    return Given(Collaboration.coalitions(labels, SIZES))


# -- turns ---------------------------------------------------------------------------------------------------------


def test_every_turn_of_fedavg_receives_and_sends_a_model(tmp_path: Path) -> None:
    run = fit(default_root_dir=tmp_path, logger=True, max_rounds=3)
    assert received(run) == sent(run) == [3] * N
    summary = json.loads((tmp_path / "version_0" / "summary.json").read_text())["communication"]
    each = {"bytes_received": 3 * SIZE, "bytes_sent": 3 * SIZE}
    names = MixedClients().client_names()
    assert summary == {
        "bytes_received": 3 * N * SIZE,
        "bytes_sent": 3 * N * SIZE,
        "clients": dict.fromkeys(names, each),
    }
    curves = pd.read_csv(tmp_path / "version_0" / "metrics.csv")
    for way in ("received", "sent"):
        assert curves[f"communication/megabytes_{way}"].tolist() == pytest.approx(
            [i * N * SIZE / 1e6 for i in (1, 2, 3)]
        )


def test_half_precision_takes_half_the_bytes() -> None:
    run = fit(precision="bf16-true", module=TinyModule(), data=TinyClients(), max_rounds=1)
    assert received(run, 8) == sent(run, 8) == [1] * 3


class Ring(Callback):
    """Everybody mixes its model with its neighbour's."""

    traits = ("model_per_client",)

    def on_fit_start(self, trainer: FederatedTrainer) -> None:
        trainer.collaboration = Collaboration.local(N)

    def select_collaboration(self, trainer: FederatedTrainer, weights: Any) -> Collaboration:
        return Collaboration((torch.eye(N) + torch.eye(N).roll(1, 1)) / 2)


@pytest.mark.parametrize(
    ("callbacks", "size", "models"),
    [
        ([PersonalLayers(layers=["linear.bias"])], SIZE - BIAS, [3] * N),
        # who trains alone moves nothing, and its contributions take no gradient
        *(
            ([LocalTraining(), *more], SIZE, [0] * N)
            for more in (
                [],
                [UniformSampling(cohort_size=4)],
                [FineTuning(steps=1)],
                [LocalReference()],
                [ShapleyRewards(normalized=False)],
            )
        ),
        ([coalitions(0, 1, 0, 2, 1, 0), LocalReference(), FineTuning(steps=1)], SIZE, [3, 3, 3, 0, 3, 3]),
        # a newcomer receives a mixture as one model
        ([coalitions(0, 0, 0, 1, 1, 1), ClientArrivals(rounds={"client_5": 3})], SIZE, [3, 3, 3, 3, 3, 1]),
        ([IFCA(num_clusters=1)], SIZE, [3] * N),
        ([Ring()], SIZE, [3] * N),
    ],
)
def test_as_much_is_received_as_sent(callbacks: list[Callback], size: int, models: list[int]) -> None:
    run = fit(*callbacks)
    assert received(run, size) == sent(run, size) == models


def test_a_model_of_ones_own_that_others_use_is_sent() -> None:
    """Client 0 makes model 0 alone, and client 1 uses it besides its own; the others share model 2."""
    aggregation = torch.zeros(3, N)
    aggregation[0, 0] = aggregation[1, 1] = 1.0
    aggregation[2, 2:] = 1 / (N - 2)
    personalisation = torch.zeros(N, 3)
    personalisation[0, 0] = 1.0
    personalisation[1, :2] = 0.5
    personalisation[2:, 2] = 1.0
    run = fit(Given(Collaboration(aggregation, personalisation)))
    # client 1 is at first no different from the others, since all models are one; then it starts from mixtures
    assert received(run) == [0, 3, 3, 3, 3, 3]
    assert sent(run) == [3, 0, 3, 3, 3, 3]


@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_a_failed_turn_has_received_but_not_sent_and_an_unchanged_model_is_not_received_again() -> None:
    failing = [FailingTurns((1, 2, None), (1, 3, None), (2, 0, None))]  # type: ignore[arg-type]
    run = fit(coalitions(0, 0, 1, 1, 0, 0), *failing, on_client_error="skip")
    assert received(run) == [3, 3, 2, 2, 3, 3]  # the model of 2 and 3 is in round 2 what it was
    assert sent(run) == [2, 3, 2, 2, 3, 3]


def test_a_client_may_train_several_models_in_a_round() -> None:
    class Both(Callback):
        def on_fit_start(self, trainer: FederatedTrainer) -> None:
            trainer.collaboration = Collaboration(torch.full((2, N), 1 / N), torch.full((N, 2), 0.5))

        def select_clients(self, trainer: FederatedTrainer) -> Cohort:
            return Cohort(
                (Participant(0, 0, 1.0), Participant(0, 1, 1.0), Participant(1, 1, 2.0), Participant(2, 0, 0.0))
            )

    run = fit(Both(), max_rounds=3)
    # at first both models are one; the turn of client 2 counts in no average
    assert received(run) == [1 + 2 + 2, 3, 3, 0, 0, 0]
    assert sent(run) == [6, 3, 0, 0, 0, 0]


# -- what callbacks add --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_robust_sampling_sends_snapshots_and_asks_for_losses(steps: int) -> None:
    expected: dict[str, Counter[int]] = {"received": Counter(), "sent": Counter()}

    class Watch(Callback):
        def __init__(self) -> None:
            self.holders: set[int] = set()  # of the present model
            self.turns: Counter[int] = Counter()

        def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
            self.turns[client] += 1

        def on_aggregate_end(self, trainer: FederatedTrainer) -> None:
            turns, asked = self.turns, set(sampling._loss_clients)
            self.turns = Counter()
            assert turns.total() == 4
            expected["received"].update(set(turns) - self.holders)
            expected["sent"].update(turns)
            expected["received"].update(asked)
            if sampling.snapshot_step < steps:
                expected["sent"].update(turns)
            self.holders = asked if sampling.snapshot_step == steps else set()

    sampling = DROClientSampling(cohort_size=4, step_size=0.1)
    run = fit(sampling, LocalMixup(), Watch(), max_rounds=6, local_steps=steps)
    assert received(run) == [expected["received"][client] for client in range(N)]
    assert sent(run) == [expected["sent"][client] for client in range(N)]
    assert sum(received(run)) < 6 * 8 if steps == 1 else sum(sent(run)) > 6 * 3


def test_who_bids_receives_all_tiers_and_then_holds_what_it_trains() -> None:
    tiers, turns = TierBidding(num_tiers=2, num_best=2, num_samples=4), Turns()
    run = fit(tiers, turns, ShapleyRewards(num_samples=4, every_n_rounds=3), max_rounds=3)
    first = {client for cohort in tiers.rounds[0].cohorts.values() for clients in cohort.values() for client in clients}
    trained = [
        sum(any(cohort.values()) for cohort in of_round.values()) for of_round in (one.cohorts for one in tiers.rounds)
    ]
    assert trained[0] == 2
    valued: Counter[int] = Counter()  # gradients of the third round; of a tier of one there is none
    for cohort in tiers.rounds[2].cohorts.values():
        clients = [*cohort["best"], *cohort["random"]]
        valued.update(clients if len(clients) > 1 else [])
    assert received(run) == [(client in first) + sum(trained) for client in range(N)]
    assert sent(run) == [turns.count[client] + valued[client] for client in range(N)]


@pytest.mark.slow
def test_payments_move_no_models() -> None:
    values: dict[str, Any] = {"num_samples": 4, "method": "permutations"}
    tiers, turns = TierBidding(num_tiers=2, num_samples=4, tokens=Tokens()), Turns()
    run = fit(tiers, turns, ShapleyRewards(**values), max_rounds=1)
    free = fit(TierBidding(num_tiers=2, num_samples=4), ShapleyRewards(**values), max_rounds=1)
    assert sent(run) == sent(free) == turns.of_all()
    assert received(run) == received(free)


@pytest.mark.parametrize(("method", "models"), [("first_order", 1), ("exact", 7), ("permutations", 7)])
def test_contributions_take_gradients_or_models_of_coalitions(method: str, models: int) -> None:
    """Of 2^3 coalitions nobody's is the model before; everybody's, the average, is what the next turn starts from."""
    arguments: dict[str, Any] = {"module": TinyModule(norm=True), "data": TinyClients(), "max_rounds": 2}
    run = fit(ShapleyRewards(method=method), **arguments)  # type: ignore[arg-type]
    assert received(run, 72) == [1 + 2 * models] * 3
    gradients = 2 * 40 if method == "first_order" else 0  # 4 + 2 x 3 trainable parameters
    assert sent(run, 1) == [2 * 72 + gradients] * 3


@pytest.mark.slow
def test_hcct_sees_all_updates_and_a_group_of_one_receives_nothing() -> None:
    alone, together = fit(HCCT(relative_trade_off=0.0)), fit(HCCT(relative_trade_off=30.0))
    assert received(alone) == [1] * N
    assert sent(alone) == sent(together) == received(together) == [3] * N
    rarely = fit(HCCT(relative_trade_off=0.0, every_n_rounds=3))  # all known to be alone in rounds 2 and 3
    assert received(rarely) == sent(rarely) == [1] * N


def test_who_takes_part_receives_the_models_that_changed_since_it_had_them_and_sends_one() -> None:
    ifca, turns = IFCA(num_clusters=3), Turns()
    run = fit(ifca, turns, UniformSampling(cohort_size=3), max_rounds=5)
    held: dict[int, set[tuple[int, int]]] = {client: set() for client in range(N)}  # models by number and version
    expected, versions = [0] * N, [0] * 3
    for done, labels in zip(ifca.rounds, ifca.assignments, strict=True):
        present = set(enumerate(versions))
        cohort = [client for client in range(N) if done in turns.rounds.get(client, [])]
        for client in cohort:
            expected[client] += len(present - held[client])
            held[client] |= present
        for model in {labels[client] for client in cohort}:
            versions[model] += 1
    assert max(versions) < sum(versions)  # not always the same model
    assert received(run) == expected
    assert sent(run) == turns.of_all()


@pytest.mark.slow
def test_nearest_centres_are_found_by_what_everybody_sends() -> None:
    run = fit(FeSEM(num_clusters=N), max_rounds=1)
    assert received(run) == sent(run) == [1] * N
    few = fit(FeSEM(num_clusters=2))
    assert sent(few) == [3] * N
    assert max(received(few)) == 3


def test_who_is_left_alone_receives_what_it_starts_from() -> None:
    class Parting(Callback):
        def on_round_start(self, trainer: FederatedTrainer) -> None:
            if trainer.current_round == 1:
                trainer.collaboration = Collaboration.local(N)

    run = fit(Parting(), max_rounds=4)  # the first round's average, in round 2
    assert received(run) == [2] * N
    assert sent(run) == [1] * N


@pytest.mark.parametrize(
    "arguments", [{"budget": 2}, {"budget": 2, "graph": "random"}, {"graph": "full", "loners": [3]}]
)
def test_a_graph_moves_what_its_record_says(arguments: dict[str, Any]) -> None:
    graph = CollaborationGraph(**arguments)
    run = fit(graph, PersonalLayers(layers=["linear.bias"]), UniformSampling(cohort_size=4))
    rows = [row for one in graph.received for row in one.tolist()]
    assert rows
    assert received(run, SIZE - BIAS) == [sum(count for k, _, count in rows if k == i) for i in range(N)]
    assert sent(run, SIZE - BIAS) == [sum(count for _, j, count in rows if j == i) for i in range(N)]


def test_a_graph_without_edges_moves_nothing_but_what_a_newcomer_starts_from() -> None:
    run = fit(CollaborationGraph(budget=0, graph="random"), ClientArrivals(rounds={"client_2": 2}))
    assert received(run) == [0, 0, 1, 0, 0, 0]
    assert sent(run) == [0] * N


@pytest.mark.usefixtures("few_draws")
def test_distances_cost_the_weights_of_discriminators(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, measure = [], fedcollab.pairwise_distances

    def watched(*arguments: Any, **named: Any) -> PairwiseDistances:
        measured.append(measure(*arguments, **named))
        return measured[-1]

    monkeypatch.setattr(fedcollab, "pairwise_distances", watched)
    small = DiscriminatorSettings(hidden=3, max_rounds=10)
    run = fit(FedCollab(capacity=1e4, discriminator=small, warm_up_rounds=1, layer="linear"), max_rounds=3)
    (found,) = measured
    # the warm-up's model is the encoder: in round 2 everybody holds it
    assert run.communication.bytes_received == {i: 3 * SIZE + int(found.bytes_each_way[i]) for i in range(N)}
    assert run.communication.bytes_sent == {i: 3 * SIZE + int(found.bytes_each_way[i]) for i in range(N)}
    assert min(found.bytes_each_way.tolist()) > 0


def test_a_callback_declares_other_vectors() -> None:
    class Controls(Callback):
        def on_aggregate_end(self, trainer: FederatedTrainer) -> None:
            trainer.communication.add({0: 5}, {1: 7})
            trainer.communication.send([2], 11)

    run = fit(Controls(), max_rounds=2)
    assert run.communication.bytes_received == {i: 2 * SIZE + (10 if i == 0 else 0) for i in range(N)}
    assert run.communication.bytes_sent == {i: 2 * SIZE + {1: 14, 2: 22}.get(i, 0) for i in range(N)}


# -- the account itself --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FederatedTrainer:
    return fit(max_rounds=1, default_root_dir=tmp_path_factory.mktemp("account"))


@given(groups=st.lists(st.lists(st.integers(0, N - 1), max_size=N, unique=True), min_size=1, max_size=6))
def test_a_model_is_received_once_by_each(run: FederatedTrainer, groups: list[list[int]]) -> None:
    run.communication.load_state_dict({}, run.models)
    model = run.models[0].clone()
    for clients in groups:
        run.communication.receive(clients, [model, model])
    everybody = set().union(*groups)
    assert received(run) == [client in everybody for client in range(N)]
    run.communication.receive([0], [model.clone()])
    assert received(run)[0] == (0 in everybody) + 1


def test_a_new_model_at_an_old_ones_address_is_received(run: FederatedTrainer) -> None:
    before = received(run)[0]
    addresses = set()
    for _ in range(50):
        model = Weights({torch.float32: torch.zeros(1)})
        addresses.add(id(model))
        run.communication.receive([0], [model])
        del model
    assert len(addresses) < 50
    assert received(run)[0] == before + 50


def test_a_checkpoint_without_an_account_starts_at_zero(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"default_root_dir": tmp_path, "enable_checkpointing": True}
    first = fit(max_rounds=2, **settings)
    path = Path(first.log_dir) / "checkpoints" / "last.ckpt"
    state = torch.load(path, weights_only=True)
    del state["communication"]
    torch.save(state, path)
    resumed = fit(max_rounds=5, ckpt=path, **settings)
    assert received(resumed) == sent(resumed) == [3] * N


def test_models_that_were_one_object_are_one_again_if_they_are_alike() -> None:
    one, other = (Weights({torch.float32: torch.full((1,), value)}) for value in (0.0, 1.0))
    account = CommunicationAccount()
    account.receive([0], [one])
    state = account.state_dict([one, other, one, one])
    loaded = [one.clone(), other.clone(), one.clone(), other.clone()]
    expected = [model.clone() for model in loaded]
    account.load_state_dict(state, loaded)
    assert loaded[2] is loaded[0]
    assert len({id(model) for model in loaded}) == 3
    assert all(model.equal(before) for model, before in zip(loaded, expected, strict=True))
    alike = [one.clone(), one.clone()]
    account.load_state_dict(account.state_dict([one, other]), alike)
    assert alike[0] is not alike[1]  # they were two


def test_an_evaluation_after_the_fit_moves_nothing_and_keeps_the_account(tmp_path: Path) -> None:
    run = fit(max_rounds=2, default_root_dir=tmp_path)
    run.test(run.module, MixedClients())  # type: ignore[arg-type]
    assert received(run) == sent(run) == [2] * N
    summary = json.loads((tmp_path / "version_0" / "summary.json").read_text())
    assert summary["communication"]["bytes_sent"] == 2 * N * SIZE
