"""pFedGraph in a run: against a plain loop written from the paper's equations, limits, and what composes with it."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bowls import Bowl, Bowls, descend, points, roll
from corners import FailingTurns, fit
from hooks import hooks
from torch import Tensor

from lightning_fl.callbacks import Callback, ClientArrivals, PersonalLayers, PFedGraph
from lightning_fl.core.cohort import Cohort
from lightning_fl.strategies import FedProx

START = (1.0, -0.5)
BOWLS: tuple[Bowl, ...] = ((10, 1.0, (2.0, 1.0)), (30, 3.0, (-1.0, 0.5)), (20, 2.0, (1.5, -2.0)))


def projected(values: Tensor) -> Tensor:
    """On the simplex, by bisection of what is taken off."""
    low, high = float(values.min()) - 1, float(values.max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float((values - middle).clamp(min=0).sum()) > 1 else (low, middle)
    return (values - (low + high) / 2).clamp(min=0)


def plain(
    bowls: tuple[Bowl, ...], rounds: int, alpha: float, lam: float, sign: float = -1.0, mu: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The models and the graph after some rounds; the pull's gradient by torch's own cosine."""
    first = torch.tensor(START, dtype=torch.float64)
    count = len(bowls)
    models, graph, learned = [first] * count, torch.eye(count, dtype=torch.float64), []
    shares = torch.tensor([float(one[0]) for one in bowls], dtype=torch.float64)
    shares /= shares.sum()

    def pull(w: Tensor, anchor: Tensor, others: list[Tensor], row: Tensor) -> Tensor:
        total = mu * (w - anchor)
        if others:
            at = w.clone().requires_grad_()
            (row * torch.cosine_similarity(at.expand(count, -1), torch.stack(others))).sum().backward()
            total = total + sign * lam * at.grad
        return total

    for _ in range(rounds):
        learned = [
            descend(bowls[k], models[k], pull=partial(pull, anchor=models[k], others=learned, row=graph[k]))
            for k in range(count)
        ]
        updates = torch.stack(learned) - first
        cosines = torch.stack([torch.cosine_similarity(one.expand(count, -1), updates) for one in updates])
        cosines[cosines > 0.9] = 1.0
        graph = torch.stack([projected(shares + row / (2 * alpha)) for row in cosines])
        models = [row @ torch.stack(learned) for row in graph]
    return torch.stack(models), graph


@pytest.mark.parametrize(
    ("alpha", "lam", "sign"), [(0.8, 0.01, "pull"), (0.8, 0.0, "pull"), (0.3, 0.7, "push"), (2.0, 0.7, "pull")]
)
@pytest.mark.parametrize("bowls", [BOWLS, BOWLS[:2]])
def test_a_run_is_the_papers_algorithm(
    bowls: tuple[Bowl, ...], alpha: float, lam: float, sign: Any, tmp_path: Path
) -> None:
    run = roll(Bowls(*bowls), PFedGraph(alpha=alpha, lam=lam, sign=sign), root=tmp_path, start=START, max_rounds=3)
    models, graph = plain(bowls, 3, alpha, lam, -1.0 if sign == "pull" else 1.0)
    torch.testing.assert_close(points(run), models, rtol=0, atol=1e-10)
    torch.testing.assert_close(run.collaboration.aggregation, graph, rtol=0, atol=1e-10)


def test_the_strategys_own_pull_comes_first(tmp_path: Path) -> None:
    """FedProx in it: the anchor is the client's own averaged model."""
    run = roll(Bowls(*BOWLS), PFedGraph(lam=0.3), root=tmp_path, start=START, max_rounds=3, strategy=FedProx(mu=0.5))
    models, _ = plain(BOWLS, 3, 0.8, 0.3, mu=0.5)
    torch.testing.assert_close(points(run), models, rtol=0, atol=1e-10)


def test_only_the_named_layers_are_compared(tmp_path: Path) -> None:
    """Rows of a run in which one layer is compared are those of that layer's cosines."""

    class Learned(Callback):
        def on_client_end(self, trainer: Any, client: int) -> None:
            self.of = {**getattr(self, "of", {}), client: trainer.client_weights().clone()}

    learned = Learned()
    run = fit(PFedGraph(layers=["linear.b*"]), learned, max_rounds=1)
    span = next(span for span in run.loop.flat.spans() if span.name == "linear.bias")
    updates = torch.stack([learned.of[k].vectors[span.dtype][span.begin : span.end].cpu().double() for k in range(6)])
    cosines = torch.stack([torch.cosine_similarity(one.expand(6, -1), updates) for one in updates])
    cosines[cosines > 0.9] = 1.0
    shares = torch.tensor(run.num_samples, dtype=torch.float64) / sum(run.num_samples)
    expected = torch.stack([projected(shares + row / 1.6) for row in cosines])
    torch.testing.assert_close(run.collaboration.aggregation, expected, rtol=0, atol=1e-9)


def test_who_takes_no_part_keeps_its_model_and_gives_none(tmp_path: Path) -> None:
    run = roll(
        Bowls(*BOWLS),
        PFedGraph(lam=0.5),
        hooks(select_clients=lambda trainer: Cohort.of([0, 2])),
        root=tmp_path,
        start=START,
        max_rounds=3,
    )
    models, _ = plain((BOWLS[0], BOWLS[2]), 3, 0.8, 0.5)
    found = points(run)
    torch.testing.assert_close(found[[0, 2]], models, rtol=0, atol=1e-10)
    assert found[1].tolist() == list(START)
    assert run.communication.bytes_received[1] == 0


@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_failing_clients_and_newcomers(tmp_path: Path) -> None:
    run = fit(
        PFedGraph(lam=0.5),
        ClientArrivals(rounds={"client_5": 3}),
        PersonalLayers(layers=["linear.bias"]),
        FailingTurns((2, 0, None)),
        max_rounds=4,
        on_client_error="skip",
    )
    assert all(float(model.vectors[torch.float32].abs().sum()) > 0 for model in run.models)
