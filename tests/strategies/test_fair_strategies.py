"""Strategies that weigh clients by how well the received model does: q-FedAvg, MaxFL, FedFA."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bowls import TWO, Bowls, LossIsNaN, points, roll
from observers import Learned
from parabolas import SIZES, OneWeight, TwoParabolas, descend, loss_of, number, trainer
from tiny import TinyClients, TinyModule
from torch import Tensor

from lightning_fl import Collaboration, FederatedTrainer
from lightning_fl.callbacks import Callback, PersonalLayers
from lightning_fl.functional.fairness import (
    accuracy_weights,
    appeal_step,
    appeal_weight,
    fair_bound,
    loss_weight,
    participation_weights,
)
from lightning_fl.strategies import ClientTurn, FedAvg, FedFA, MaxFL, QFedAvg, Weights


def run(strategy: FedAvg | Any, *callbacks: Callback, module: Any = None, data: Any = None, **settings: Any) -> Any:
    made = trainer(*callbacks, strategy=strategy, **({"max_rounds": 1} | settings))
    made.fit(module or OneWeight(), data or TwoParabolas())
    return made


# -- q-FedAvg ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q", "expected"), [(0, 0.585), (1, 0.6510280915), (5, 0.8945194124)])
def test_qfedavg_has_the_reference_numbers(q: float, expected: float) -> None:
    assert number(run(QFedAvg(q)).models[0]) == pytest.approx(expected, abs=6e-11)


def test_qfedavg_of_a_large_power_goes_the_way_of_the_worst_client() -> None:
    """Client B's: its step alone, shortened to 1 / (1 + q L (x - y)² / F), though 6^400 is no float."""
    q, y = 400.0, descend(1, 1.0)
    shortened = 1 / (1 + q * 10 * (1 - y) ** 2 / 6)
    assert number(run(QFedAvg(q)).models[0]) == pytest.approx(1 + shortened * (y - 1), rel=1e-9)


def test_qfedavg_takes_the_curvature_that_it_is_given() -> None:
    assert number(run(QFedAvg(1.0, lipschitz=10.0)).models[0]) == pytest.approx(0.6510280915, abs=6e-11)
    average = (0.5 * 0.19 - 6 * 1.02) / 6.5
    step = 100 * 6.5 / (100**2 * (0.19**2 + 1.02**2) + 100 * 6.5)
    assert number(run(QFedAvg(1.0, lipschitz=100.0)).models[0]) == pytest.approx(1 + step * average, rel=1e-9)
    assert loss_weight(3.0, 3.0, 7.0) == 1.0
    assert fair_bound(0.0, 1.0, 2.0, 0.0) == 2.0


# -- MaxFL -------------------------------------------------------------------------------------------------------------


class Given(MaxFL):
    """Thresholds of 0.2 and 1."""

    def _threshold(self, turn: ClientTurn) -> float:
        return (0.2, 1.0)[turn.client]


def test_maxfl_has_the_reference_numbers() -> None:
    weights = [appeal_weight(0.5, 0.2), appeal_weight(6.0, 1.0)]
    assert weights == [pytest.approx(0.2444583117, abs=6e-11), pytest.approx(0.0066480567, abs=6e-11)]
    assert weights[0] / sum(weights) == pytest.approx(0.9735249380, abs=6e-11)
    assert number(run(Given(threshold=0.0, eps=1e-14)).models[0]) == pytest.approx(1.1579651750, abs=6e-11)


def test_maxfl_s_weights() -> None:
    """Those of a client that is content and of one that is hopeless tend to zero, however far they are."""
    assert appeal_weight(5.0, 3.0) == appeal_weight(3.0, 5.0) == pytest.approx(math.exp(-2) / (1 + math.exp(-2)) ** 2)
    assert appeal_weight(1e6, 0.0) == appeal_weight(0.0, 1e6) == 0.0
    assert appeal_step([0.0, 0.0], server_rate=1.0, eps=0.01) == 0.0


@pytest.mark.parametrize("eps", [1e-14, 0.3])
def test_maxfl_by_samples(eps: float) -> None:
    """q_i m_i over the mean number, 20."""
    w, thresholds = 1.0, [0.2, 1.0]
    for _ in range(3):
        z = [loss_of(i, w) - thresholds[i] for i in (0, 1)]
        q = [SIZES[i] / 20 / (1 + math.exp(-z[i])) / (1 + math.exp(z[i])) for i in (0, 1)]
        w += sum(q[i] * (descend(i, w) - w) for i in (0, 1)) / (sum(q) + eps)
    made = Given(threshold=0.0, eps=eps, weights="samples")
    assert number(run(made, max_rounds=3).models[0]) == pytest.approx(w, rel=1e-10)


@pytest.mark.parametrize("weights", ["clients", "samples"])
def test_maxfl_without_a_difference_counts_clients_alike_or_is_fedavg_by_samples(weights: Any) -> None:
    class Alike(MaxFL):
        def _threshold(self, turn: ClientTurn) -> float:
            return float(turn.kept["loss"])

    found = run(Alike(threshold=0.0, eps=1e-14, weights=weights), max_rounds=3).models[0]
    plain = run(
        FedAvg(), data=Bowls(*((30, *bowl[1:]) for bowl in TWO)) if weights == "clients" else None, max_rounds=3
    )
    assert number(found) == pytest.approx(number(plain.models[0]), rel=1e-10)


def test_maxfl_where_those_who_opt_in_count_alike() -> None:
    found = run(MaxFL(threshold=100.0, opt_out=True, weights="clients")).models[0]
    assert number(found) == pytest.approx((1.19 - 0.02) / 2, rel=1e-12)
    assert run(MaxFL(threshold=100.0, opt_out=True, weights="samples")).models[0].equal(run(FedAvg()).models[0])


def test_maxfl_warms_up_for_as_long_as_it_is_told() -> None:
    trainer = run(MaxFL(warm_up_steps=7))
    kept = trainer.client_store("strategy")
    for client in (0, 1):
        assert kept[client]["threshold"] == pytest.approx(loss_of(client, descend(client, 1.0, 7)), rel=1e-12)


def test_maxfl_of_clients_who_all_want_in_is_fedavg_and_of_none_stays() -> None:
    everybody, plain = run(MaxFL(threshold=100.0, opt_out=True), max_rounds=3), run(FedAvg(), max_rounds=3)
    assert everybody.models[0].equal(plain.models[0])
    assert number(run(MaxFL(threshold=0.0, opt_out=True), max_rounds=3).models[0]) == 1.0


class TwoKinds(Callback):
    """Two groups of two clients, each with a small share of the other's model."""

    role, traits = "collaboration", ("soft_assignment",)

    def __init__(self, share: float) -> None:
        self.share = share

    def on_fit_start(self, run: Any) -> None:
        own, other = 1 - self.share, self.share
        mixture = torch.tensor([[own, other]] * 2 + [[other, own]] * 2, dtype=torch.float64)
        run.collaboration = Collaboration.from_shares(mixture, run.num_samples)


@pytest.mark.parametrize(
    ("strategy", "rel"),
    [
        (lambda: QFedAvg(1.0), 1e-2),  # weights of less than 1e-6 of the largest are raised to that
        (lambda: MaxFL(threshold=0.0, eps=0.5), 1e-5),
        (lambda: MaxFL(threshold=0.0, eps=0.5, weights="samples"), 1e-5),
    ],
    ids=["qfedavg", "maxfl", "maxfl by samples"],
)
def test_who_hardly_uses_a_model_hardly_changes_its_step(strategy: Callable[[], Any], rel: float) -> None:
    bowls = [(10, 1.0, (2.0,)), (10, 1.0, (1.5,)), (10, 1.0, (1.2,)), (10, 8.0, (-9.0,))]
    hard, soft = (
        number(run(strategy(), TwoKinds(share), data=Bowls(*bowls), local_steps=2).models[0]) for share in (0.0, 1e-9)
    )
    assert soft == pytest.approx(hard, rel=rel)


# -- FedFA -------------------------------------------------------------------------------------------------------------


def test_fedfa_has_the_reference_numbers() -> None:
    accuracies = accuracy_weights(torch.tensor([0.9, 0.6, 0.3], dtype=torch.float64))
    turns = participation_weights(torch.tensor([5, 3, 2], dtype=torch.float64))
    assert accuracies.tolist() == pytest.approx([0.1934264036, 0.3065735964, 0.5], abs=6e-11)
    assert turns.tolist() == pytest.approx([0.5445136454, 0.2801921141, 0.1752942405], abs=6e-11)
    assert (0.5 * accuracies + 0.5 * turns).tolist() == pytest.approx([0.3689700, 0.2933829, 0.3376471], abs=6e-8)


@pytest.mark.parametrize("values", [[0.0, 0.0], [1.0, 1.0]])
def test_fedfa_s_weights_have_no_holes(values: list[float]) -> None:
    assert accuracy_weights(torch.tensor(values, dtype=torch.float64)).tolist() == [0.5, 0.5]
    assert accuracy_weights(torch.tensor([0.4], dtype=torch.float64)).tolist() == [1.0]
    assert participation_weights(torch.tensor([4.0], dtype=torch.float64)).tolist() == [1.0]
    assert accuracy_weights(torch.tensor([0.0, 0.7], dtype=torch.float64))[0] > 0.99


class OneEachRound(Callback):
    """Takes turns: 0; 0 and 1; 0 and 1."""

    def select_clients(self, trainer: Any) -> Any:
        from lightning_fl.core.cohort import Cohort

        return Cohort.of([0] if trainer.current_round == 0 else [0, 1])


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("alpha", "momentum"), [(1.0, 0.0), (0.5, 0.9), (0.0, 0.5)])
def test_fedfa_is_a_plain_loop(alpha: float, momentum: float, moment: Any) -> None:
    """A score is exp(-loss); whoever is alone has all the weight."""
    w, m, turns = 1.0, 0.0, [0, 0]
    for number_of_round in range(3):
        cohort = [0] if number_of_round == 0 else [0, 1]
        for client in cohort:
            turns[client] += 1
        total = sum(turns[i] for i in cohort)
        scored = {i: w if moment == "before" else descend(i, w) for i in cohort}
        scores = {i: math.exp(-loss_of(i, at)) for i, at in scored.items()}
        told = {i: -math.log2(score / sum(scores.values())) for i, score in scores.items()}
        often = {i: -math.log2(1 - turns[i] / total) for i in cohort} if len(cohort) > 1 else {0: 1.0}
        told = told if len(cohort) > 1 else {0: 1.0}
        weights = {
            i: alpha * told[i] / sum(told.values()) + (1 - alpha) * often[i] / sum(often.values()) for i in cohort
        }
        change = sum(weights[i] * (descend(i, w) - w) for i in cohort)
        m = momentum * m + (1 - momentum) * change
        w += m
    trainer = run(FedFA(alpha=alpha, momentum=momentum, moment=moment), OneEachRound(), max_rounds=3)
    assert number(trainer.models[0]) == pytest.approx(w, rel=1e-10)


def test_fedfa_scores_what_the_turn_will_make(tmp_path: Path) -> None:
    """To the bit, though batches are shuffled and the module draws: those of the turn itself."""
    learned = Learned()
    rehearsed: dict[int, Weights] = {}

    class Rehearses(FedFA):
        def measure_client(self, turn: ClientTurn) -> dict[str, float]:
            rehearsed[turn.client] = turn.train(turn.start, "train")
            return super().measure_client(turn)

    module = TinyModule(dropout=0.2, norm=True)
    run(Rehearses(moment="after"), learned, module=module, data=TinyClients(), max_rounds=2)
    assert learned.weights.keys() == rehearsed.keys() == {0, 1, 2}
    assert all(learned.weights[client].equal(rehearsed[client]) for client in rehearsed)


def test_fedfa_measures_after_the_turn_with_what_that_makes_of_the_client_s_layers() -> None:
    found: list[tuple[float, float]] = []

    class Compared(FedFA):
        def end_client(self, turn: ClientTurn, weights: Weights) -> None:
            loss = turn.training_metrics(weights)["val_loss"].value
            found.append((turn.measured[turn.client]["score"], math.exp(-loss)))

    layers = PersonalLayers(layers=["linear.bias"])
    run(Compared(moment="after"), layers, module=TinyModule(norm=True), data=TinyClients(), max_rounds=2)
    assert len(found) == 6
    assert all(before == after for before, after in found)


class Moody(OneWeight):
    """Its loss is 1 in training mode, and 4 or 16 in evaluation mode."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss - loss.detach() + (1.0 if self.training else 4.0 ** (1 + float(batch[0][0, 0] > 1)))


class Added(Callback):
    """Adds a million to every loss of a step."""

    def around_training_step(self, trainer: Any, batch: Any, compute: Any, generator: torch.Generator) -> Any:
        return compute(batch) + 1e6


@pytest.mark.parametrize("strategy", [QFedAvg, MaxFL])
def test_losses_of_a_model_are_those_in_evaluation_mode_on_bare_batches(strategy: Any) -> None:
    found: list[dict[str, Any]] = []

    class Heard(strategy):
        def client_update(self, turn: ClientTurn, weights: Weights) -> Any:
            found.append(dict(turn.measured.get(turn.client, {})) | turn.kept)
            assert turn.services.module.training  # type: ignore[attr-defined]
            return super().client_update(turn, weights)

    run(Heard(), Added(), module=Moody())
    losses = [{name: kept[name] for name in ("loss", "threshold") if name in kept} for kept in found]
    assert losses == [dict.fromkeys(losses[0], value) for value in (4.0, 16.0)]


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [QFedAvg, FedFA])
def test_who_cannot_measure_is_left_out_where_failing_clients_are(make: Callable[[], Any]) -> None:
    class Fails(OneWeight):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            return loss * (math.nan if len(batch[0]) == 30 else 1.0)

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            if len(batch[0]) == 30:
                raise ValueError("not these")
            super().validation_step(batch, batch_idx)

    settings: dict[str, Any] = {"on_client_error": "skip", "check_val_every_n_rounds": 0}
    strategy = make() if make is QFedAvg else FedFA(momentum=0.0)
    with pytest.warns(UserWarning, match="client 1 .*is left out of round 1"):
        trainer = run(strategy, module=Fails(), **settings)
    alone = descend(0, 1.0)
    if make is QFedAvg:
        alone = 1 + (alone - 1) / (1 + 10 * (1 - alone) ** 2 / 0.5)
    assert number(trainer.models[0]) == pytest.approx(alone, rel=1e-8)


@pytest.mark.parametrize(
    "strategy", [QFedAvg(q=0.0), FedFA(alpha=0.0, momentum=0.0), MaxFL(1e9, opt_out=True, weights="clients")]
)
def test_weights_are_the_strategy_s_own_whatever_the_collaboration_says(strategy: Any, tmp_path: Path) -> None:
    class Weighs(Callback):
        def on_fit_start(self, run: FederatedTrainer) -> None:
            run.collaboration = Collaboration(torch.tensor([[0.9, 0.1]], dtype=torch.float64))

    run = roll(Bowls(*TWO), Weighs(), root=tmp_path, strategy=strategy, max_rounds=1)
    assert float(points(run)) == pytest.approx((1.19 - 0.02) / 2, rel=1e-12)


def test_fedfa_compares_those_who_arrived(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"root": tmp_path, "on_client_error": "skip", "max_rounds": 1}
    with pytest.warns(UserWarning, match="client 2 .* is left out of round 1"):
        run = roll(Bowls(*TWO, (20, 2.0, (0.9,))), LossIsNaN(2), strategy=FedFA(momentum=0.0), **settings)
    alone = roll(Bowls(*TWO), strategy=FedFA(momentum=0.0), **settings)
    torch.testing.assert_close(points(run), points(alone))
