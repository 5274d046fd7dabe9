"""The shipped strategies: numbers worked out for two parabolas, plain loops from the equations, neutral values."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from bowls import FOUR, TWO, Assigned, Bowls, Coalitions, Regrouped, points, roll
from parabolas import (
    CURVES,
    RATE,
    START,
    OneWeight,
    TwoParabolas,
    Watched,
    descend,
    exactly,
    number,
    parabolas,
    tiny_run,
    trainer,
)
from tiny import TinyClients, TinyModule, digest

from lightning_fl import Collaboration, ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import (
    Callback,
    ClientArrivals,
    CollaborationGraph,
    DROClientSampling,
    FedCollab,
    SoftAveraging,
    UniformSampling,
)
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.strategies import SCAFFOLD, Ditto, FedAdagrad, FedAdam, FedAvg, FedAvgM, FedNova, FedProx, FedYogi
from lightning_fl.strategies.local_sgd import accumulated_steps, distance


def unequal(strategy: FedAvg, rounds: int) -> list[float]:
    """In an epoch the first client takes two steps and the second five, each on its whole loss."""
    watched = Watched()
    run = trainer(watched, strategy=strategy, max_rounds=rounds, local_steps=None, local_epochs=1)
    run.fit(
        OneWeight(), Bowls(*((count, *curve) for count, (_, *curve) in zip((60, 150), TWO, strict=True)), batch_size=30)
    )
    return watched.weights


# -- numbers, and loops from the equations -----------------------------------------------------------------------------


def test_accumulated_steps() -> None:
    assert accumulated_steps(7, 0.0) == 7
    assert accumulated_steps(2, 0.9) == pytest.approx(2.9)
    assert accumulated_steps(5, 0.9) == pytest.approx(13.1441)
    assert distance([0.2, 0.1, 0.4], 0.5) == pytest.approx(0.2 + 0.1 * 1.5 + 0.4 * 1.75)
    assert distance([0.25] * 7, 0.0) == 0.25 * 7


def test_scaffold_goes_to_the_optimum_with_unequal_steps() -> None:
    """That of all clients' losses, weighted by their samples, which FedAvg misses."""
    shares = np.array([60, 150]) / 210
    curvatures, centres = np.array(CURVES).T
    optimum = (shares * curvatures) @ centres / (shares @ curvatures)
    assert unequal(SCAFFOLD(), 200)[-1] == pytest.approx(optimum, abs=1e-9)
    assert abs(unequal(FedAvg(), 200)[-1] - optimum) > 0.01


class OtherWeights(Assigned):
    def collaboration(self, run: FederatedTrainer) -> Collaboration:
        return Collaboration.fedavg([1, 1, 1, 1] if run.current_round < 3 else run.num_samples)


@pytest.mark.parametrize("second", [[0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 1], [0, 1, 2, 2]])
@pytest.mark.parametrize("how", [Assigned, Regrouped])
def test_scaffold_goes_to_the_optimum_of_new_coalitions(
    how: type[Coalitions], second: list[int], tmp_path: Any
) -> None:
    run = roll(Bowls(*FOUR), how([0, 0, 1, 1], second), root=tmp_path, strategy=SCAFFOLD(), max_rounds=90)
    for label in set(second):
        members = [bowl for bowl, own in zip(FOUR, second, strict=True) if own == label]
        slope = sum(count * curvature * centre for count, curvature, (centre,) in members)
        optimum = slope / sum(count * curvature for count, curvature, _ in members)
        assert float(points(run)[label]) == pytest.approx(optimum, abs=1e-6)


@pytest.mark.parametrize("who", [ClientArrivals(rounds={"1": 3, "3": 5}), OtherWeights([], [])])
def test_scaffold_goes_to_the_optimum_of_who_is_there(who: Callback, tmp_path: Any) -> None:
    draw = UniformSampling(cohort_size=3)
    run = roll(Bowls(*FOUR), who, draw, root=tmp_path, strategy=SCAFFOLD(), max_rounds=150)
    optimum = sum(m * a * c for m, a, (c,) in FOUR) / sum(m * a for m, a, _ in FOUR)
    assert float(points(run)) == pytest.approx(optimum, abs=1e-6)


def test_scaffold_in_a_coalition_is_a_run_of_its_own(tmp_path: Any) -> None:
    coalitions = Assigned([0, 0, 1, 1], [0, 0, 1, 1])
    beside = roll(Bowls(*FOUR), coalitions, root=tmp_path, strategy=SCAFFOLD(), max_rounds=3)
    alone = roll(Bowls(*TWO), root=tmp_path, strategy=SCAFFOLD(), max_rounds=3)
    torch.testing.assert_close(points(beside)[0], points(alone)[0], rtol=1e-12, atol=0)


def test_scaffold_needs_the_weights_of_the_collaboration(tmp_path: Any) -> None:
    class Reweighs(Callback):
        def select_clients(self, run: FederatedTrainer) -> Cohort:
            return Cohort((Participant(0, weight=0.5), Participant(1, weight=0.5)))

    with pytest.raises(ConfigurationError, match="client 0"):
        roll(Bowls(*TWO), Reweighs(), root=tmp_path, strategy=SCAFFOLD(), max_rounds=1)


def fednova_with_momentum(rounds: int, momentum: float) -> list[float]:
    """Equations 6 to 8 with clients that take two steps each, whose momentum begins at zero in every round."""
    shares, w, weights = [10 / 40, 30 / 40], START, []
    for _ in range(rounds):
        change = 0.0
        for share, (curvature, centre) in zip(shares, CURVES, strict=True):
            y, velocity = w, 0.0
            for _ in range(2):
                velocity = momentum * velocity + curvature * (y - centre)
                y -= RATE * velocity
            change += share * (y - w)  # all clients have the same a_i, which is tau_eff
        w += change
        weights.append(w)
    return weights


def test_scaffold_with_momentum_goes_to_the_optimum_with_unequal_steps() -> None:
    """Optimisers are fresh by default: averaged momentum would be taken for the client's own gradients."""
    bowls = [(10, 1 + 0.5 * (i % 5), ((-1) ** i * (i + 1) * 0.3,)) for i in range(10)] + [(100, 1.0, (3.3,))]
    run = trainer(strategy=SCAFFOLD(), max_rounds=60, local_epochs=1, local_steps=None)
    run.fit(OneWeight(rate=0.01, momentum=0.9), Bowls(*bowls, batch_size=10))
    optimum = sum(n * a * c for n, a, (c,) in bowls) / sum(n * a for n, a, _ in bowls)
    assert number(run.models[0]) == pytest.approx(optimum, abs=1e-5)


def test_fednova_s_momentum_begins_at_zero_by_default() -> None:
    found = []
    for settings in ({}, {"optimizer_state": "fresh"}):
        watched = Watched()
        run = trainer(watched, strategy=FedNova(), max_rounds=4, **settings)
        run.fit(OneWeight(momentum=0.9), TwoParabolas())
        found.append(watched.weights)
    assert found[0] == found[1] == exactly(*fednova_with_momentum(4, 0.9))


def test_fednova_s_lone_client_without_a_step_keeps_its_model() -> None:
    class Idle(OneWeight):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if self.trainer.client == 1 else None

    run = trainer(Coalitions([0, 1]), strategy=FedNova())
    run.fit(Idle(), TwoParabolas())
    assert [number(run.client_model(client)) for client in (0, 1)] == exactly(descend(0, START, steps=4), START)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (FedAvgM(), (0.2825, -0.772225)),
        (FedAdagrad(server_rate=0.1), (0.9001392757, 0.8317118697)),
        (FedAdam(server_rate=0.1), (0.9013839219, 0.7683151658)),
        (FedYogi(server_rate=0.1), (0.9013840163, 0.7686651906)),
    ],
)
def test_servers_with_an_optimiser(strategy: FedAvg, expected: tuple[float, float]) -> None:
    assert parabolas(strategy)[1].weights == exactly(*expected)


def test_yogi_leaves_a_variance_that_is_the_squared_change() -> None:
    values = torch.tensor([4.0, 4.0, 4.0], dtype=torch.float64)
    squared = torch.tensor([4.0, 1.0, 9.0], dtype=torch.float64)
    assert FedYogi(beta2=0.5).variance(values, squared).tolist() == [4.0, 3.5, 8.5]
    assert FedAdam(beta2=0.5).variance(values, squared).tolist() == [4.0, 2.5, 6.5]
    assert FedAdagrad().variance(values, squared).tolist() == [8.0, 5.0, 13.0]


def test_dittos_personal_work_is_its_own() -> None:
    _, watched = parabolas(Ditto(strength=0.75, personal_steps=3), max_rounds=1)
    for client, (a, c) in enumerate(CURVES):
        v = START
        for _ in range(3):
            v -= RATE * (a * (v - c) + 0.75 * (v - START))
        assert watched.own(0)[client] == pytest.approx(v, rel=1e-12)


# -- neutral values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (FedProx(mu=0.0), {}),
        (FedProx(mu=7.0), {"local_steps": 1}),  # the first step starts where it is pulled to
        (FedNova(), {}),  # two steps each: a power of two rounds nothing
        (SCAFFOLD(), {"max_rounds": 1}),
        (FedAvgM(momentum=0.0), {}),
        (Ditto(), {}),
    ],
)
def test_neutral_values_are_fedavg_to_the_bit(strategy: FedAvg, settings: dict[str, Any]) -> None:
    assert digest(tiny_run(strategy, **settings).models[0]) == digest(tiny_run(FedAvg(), **settings).models[0])


# -- what they cost, and what they refuse ------------------------------------------------------------------------------


def test_optimisers_are_checked_as_a_turn_makes_them() -> None:
    class Asks(OneWeight):
        asked: ClassVar[list[Any]] = []

        def configure_optimizers(self) -> torch.optim.Optimizer:
            shim = self.trainer
            self.asked.append((shim.client, shim.num_training_batches, shim.estimated_stepping_batches))
            return super().configure_optimizers()

    run = trainer(strategy=SCAFFOLD())
    run.fit(Asks(), TwoParabolas())
    assert Asks.asked[0] == Asks.asked[1]  # before training, and in the first turn
    assert run.client_reports.keys() == {0, 1}


@pytest.mark.parametrize("strategy", [FedAvgM, FedAdagrad, FedAdam, FedYogi])
def test_a_server_s_optimiser_for_a_model_each_is_warned_of(strategy: type[FedAvg]) -> None:
    with pytest.warns(UserWarning, match=f"{strategy.__name__} with CollaborationGraph"):
        trainer(CollaborationGraph(budget=1), strategy=strategy())


@pytest.mark.parametrize(
    "callback",
    [
        lambda: CollaborationGraph(budget=1),
        lambda: SoftAveraging(num_models=2),
        DROClientSampling,
        FedCollab,
        lambda: UniformSampling(cohort_size=2),
    ],
)
def test_fedprox_goes_with_everything(callback: Any) -> None:
    run = trainer(callback(), strategy=FedProx(mu=0.5))
    run.fit(TinyModule(), TinyClients())
    plain = trainer(callback(), strategy=FedAvg())
    plain.fit(TinyModule(), TinyClients())
    assert digest(run.models[0]) != digest(plain.models[0])
