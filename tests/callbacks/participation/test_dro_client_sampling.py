"""DRFA against a plain loop written from the pseudocode, and its limits."""

from typing import Any

import pytest
import torch
from observers import AfterRounds
from tiny import TinyClients, TinyModule, quiet_trainer, weights_of
from torch import Tensor

from lightning_fl import FederatedTrainer, TrainingError
from lightning_fl.callbacks import Callback, ClientArrivals, DROClientSampling, PersonalLayers
from lightning_fl.functional import draw_cohort, draw_subset, project_simplex

STEPS, STEP_SIZE, RATE = 4, 0.05, 0.05


def run(
    *callbacks: Callback, rounds: int = 3, rate: float = RATE, **settings: Any
) -> tuple[FederatedTrainer, TinyModule]:
    data, module = settings.pop("data", None) or TinyClients(batch_size=100, shuffle=False), TinyModule(rate)
    trainer = quiet_trainer(*callbacks, max_rounds=rounds, **{"local_steps": STEPS, **settings})
    trainer.fit(module, data)
    return trainer, module


@pytest.mark.parametrize(("cohort", "personal"), [(2, False), ("all", False), (2, True)])
def test_equals_the_pseudocode(cohort: Any, personal: bool) -> None:
    """Full batches, so that the only draws are the cohort, t' and U; those are taken from the run's generators.

    With all clients, w is the mean by lambda, which ascends all losses at the mean of the snapshots. A personal bias
    is the client's own in its turns and losses.
    """
    data = TinyClients(batch_size=100, shuffle=False)
    size = {"cohort": "all"} if cohort == "all" else {"cohort_size": cohort}
    sampling = DROClientSampling(step_size=STEP_SIZE, **size)
    trainer, module = run(sampling, *[PersonalLayers(layers=["linear.bias"])] * personal, rounds=4)

    start = TinyModule()
    w = torch.cat([start.linear.weight.detach().double(), start.linear.bias.detach().double()[None]], 1)
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    shared, last = 3 if personal else 4, [w] * 3

    def received(client: int, w: Tensor) -> Tensor:
        return torch.cat([w[:, :shared], last[client][:, shared:]], 1)

    def gradient(client: int, w: Tensor) -> tuple[Tensor, float]:
        x, y = (tensor.double() for tensor in data.sets[client, "train"].tensors)  # type: ignore[attr-defined]
        x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
        residual = x @ w.T - y
        return 2 * residual.T @ x / len(x), float(residual.square().mean())

    for trainer.current_round in range(4):
        turns, asked = list(enumerate(weights.tolist())), list(range(3))
        if cohort != "all":
            counts = draw_cohort(weights, cohort, trainer.generator("cohort")).tolist()
            turns = [(client, 1 / cohort) for client, count in enumerate(counts) for _ in range(count)]
            asked = draw_subset(3, cohort, trainer.generator("loss clients")).tolist()
        t = int(torch.randint(1, STEPS + 1, (), generator=trainer.generator("snapshot")))
        ends, snapshots = torch.zeros_like(w), torch.zeros_like(w)
        for client, share in turns:
            own = received(client, w)
            for step in range(1, STEPS + 1):
                own = own - RATE * gradient(client, own)[0]
                if step == t:
                    snapshots += share * own
            ends += share * own
            last[client] = own
        v = torch.zeros(3, dtype=torch.float64)
        for client in asked:
            v[client] = 3 / len(asked) * gradient(client, received(client, snapshots))[1]
        w, weights = ends, project_simplex(weights + STEP_SIZE * STEPS * v)
    torch.testing.assert_close(sampling.weights, weights, rtol=1e-4, atol=1e-6)
    learned = torch.cat([module.linear.weight, module.linear.bias[None]], 1).detach().double()
    torch.testing.assert_close(learned[:, :shared], w[:, :shared], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("batch_size", "num_batches", "counted"),
    [(100, 1, (24, 10, 18)), (2, 12, (24, 10, 18)), (2, 1000, (24, 10, 18)), (2, 3, (6, 6, 6)), (2, 1, (2, 2, 2))],
    ids=["whole", "as many as there are", "more than there are", "some", "one"],
)
def test_losses_are_means_over_as_many_batches(batch_size: int, num_batches: int, counted: tuple[int, ...]) -> None:
    """Of clients in their samples' order, at a model that does not move."""
    data, module = TinyClients(batch_size=batch_size, shuffle=False), TinyModule()
    sampling = DROClientSampling(cohort="all", step_size=0.01, num_loss_batches=num_batches)
    run(sampling, rounds=1, rate=0.0, data=data)
    losses = []
    for client, count in enumerate(counted):
        x, y = (tensor[:count] for tensor in data.sets[client, "train"].tensors)  # type: ignore[attr-defined]
        losses.append((module(x) - y).square().mean().item())
    expected = project_simplex(1 / 3 + 0.01 * STEPS * torch.tensor(losses, dtype=torch.float64))
    assert 0 < expected.min() < expected.max() < 1
    torch.testing.assert_close(sampling.weights, expected, rtol=1e-5, atol=0.0)


def test_weights_are_logged() -> None:
    sampling = DROClientSampling(step_size=STEP_SIZE)
    trainer, _ = run(sampling)
    logged = [trainer.round_metrics[f"sampling_weight/client_{client}"] for client in range(3)]
    assert logged == sampling.weights.tolist()


class LossLost(DROClientSampling):
    """The second client's loss is no number."""

    def _finite(self, trainer: Any, losses: Any) -> dict[int, float]:
        return super()._finite(trainer, {**losses, 1: float("nan")})


def test_a_loss_that_is_no_number_names_the_client() -> None:
    with pytest.raises(TrainingError, match="DROClientSampling: .* client_1 "):
        run(LossLost(cohort_size=3, step_size=STEP_SIZE))


def test_a_loss_that_is_no_number_is_left_out_where_failing_clients_are() -> None:
    sampling = LossLost(cohort_size=3, step_size=STEP_SIZE)
    with pytest.warns(UserWarning, match="DROClientSampling: .* client_1 "):
        trainer, module = run(sampling, on_client_error="skip")
    assert trainer.current_round == 3
    assert all(weight.isfinite().all() for weight in weights_of(module))
    assert sampling.weights.sum().item() == pytest.approx(1)
    assert sampling.weights.min() >= 0
    assert sampling.weights[1] < sampling.weights[[0, 2]].max()


@pytest.mark.parametrize(
    ("options", "steps", "floor"),
    [({}, STEPS, 0.3), ({"cohort": "all"}, STEPS, 0.0), ({"cohort": "all"}, STEPS, 0.3), ({"method": "afl"}, 1, 0.0)],
)
def test_who_has_not_arrived_keeps_its_weight(options: dict[str, Any], steps: int, floor: float) -> None:
    """The two others divide the rest as in a run without it, down to the same floor; then all three ascend."""

    def weights(sizes: tuple[int, ...], floor: float, *arrivals: Callback) -> Tensor:
        """After each round, [rounds, N]."""
        sampling = DROClientSampling(step_size=0.01, floor=floor, **options)
        watch = AfterRounds(lambda trainer: sampling.weights.clone())
        data = TinyClients(sizes, batch_size=100, shuffle=False)
        run(sampling, *arrivals, watch, data=data, local_steps=steps)
        return torch.stack(watch.found)

    late = weights((24, 10, 18), floor, ClientArrivals(rounds={"client_2": 3}))
    assert late.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert late.min() >= floor - 1e-12
    assert late[:2, 2].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert late[2, 2] != pytest.approx(1 / 3)
    if options:  # the draws of a cohort depend on the number of clients
        torch.testing.assert_close(late[:2, :2], 2 / 3 * weights((24, 10), 1.5 * floor)[:2])
