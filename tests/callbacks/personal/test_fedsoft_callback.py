"""FedSoft in a run: a plain loop written from the paper, its limits, its draws, and what composes with it."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bowls import Bowl, descend, points, roll
from corners import CornerModule, fit
from torch import Tensor
from torch.utils.data import TensorDataset

from lightning_fl import FederatedDataModule
from lightning_fl.callbacks import Callback, FedSoft, PersonalLayers
from lightning_fl.core.seeding import generator
from lightning_fl.functional import draw_contributors
from lightning_fl.runtime.model_file import load_model_checkpoint
from lightning_fl.strategies import FedAvg, FedFA, FedProx, MaxFL, QFedAvg

#: Samples of a client, each a bowl of its own with the curvature 1: its mean is what the client descends.
CENTRES = ((1.0, 1.2, 0.8, -1.0), (-1.0, -1.2, -0.9, 0.9), (1.1, 0.7), (-1.5, -0.8, 0.9, -0.7, -1.1, -1.3))


class Mixed(FederatedDataModule):
    """Clients with samples of two kinds."""

    def __init__(self, *centres: tuple[float, ...]) -> None:
        super().__init__(batch_size=1000, shuffle=False)
        self.centres = centres

    @property
    def num_clients(self) -> int:
        return len(self.centres)

    def client_data(self, client: int, split: str) -> TensorDataset:
        return TensorDataset(torch.tensor([[1.0, centre] for centre in self.centres[client]], dtype=torch.float64))


class Watches(Callback):
    """Who fed what, and the models of every round."""

    def __init__(self) -> None:
        self.cohorts: list[dict[int, Any]] = []
        self.models: list[Tensor] = []

    def on_round_start(self, trainer: Any) -> None:
        self.cohorts.append({})
        self.models.append(points(trainer))

    def on_client_start(self, trainer: Any, client: int) -> None:
        self.cohorts[-1][client] = trainer.participant


def own(run: Any) -> list[float]:
    return [float(run.client_model(client).vectors[torch.float64][0]) for client in range(run.num_clients)]


def bowl(client: int) -> Bowl:
    centres = CENTRES[client]
    return len(centres), 1.0, (sum(centres) / len(centres),)


def plain(
    labels: list[int], rounds: int, lam: float, every: int, sigma: float, number: int | None = None, mu: float = 0.0
) -> tuple[Tensor, list[Tensor]]:
    """Cluster models and the clients' own after some rounds, the first in parts; draws are the run's own (seed 0)."""
    sizes = torch.tensor([len(one) for one in CENTRES], dtype=torch.float64)
    count, own = len(CENTRES), [torch.ones(1, dtype=torch.float64)] * len(CENTRES)
    centres, u = torch.ones(2, 1, dtype=torch.float64), torch.zeros(count, 2, dtype=torch.float64)
    v = torch.tensor([[float(label == s) for label in labels] for s in range(2)]).double() * sizes

    def pull(w: Tensor, k: int, centres: Tensor, anchor: Tensor, strength: float) -> Tensor:
        return strength * sum(u[k, s] * (w - centres[s]) for s in range(2)) + mu * (w - anchor)

    for turn in range(rounds):
        drawn = [list(range(count))] * 2
        if turn and number:
            drawn = [draw_contributors(v[s] / v[s].sum(), number, generator(0, turn, "fedsoft", s)) for s in range(2)]
        now = centres.clone()
        for k in sorted({*drawn[0], *drawn[1]}):
            strength = lam if turn else 0.0

            own[k] = descend(bowl(k), own[k], pull=partial(pull, k=k, centres=now, anchor=own[k], strength=strength))
        for s in range(2):
            shares = torch.zeros(count, dtype=torch.float64)
            shares[drawn[s]] = 1.0 if turn and number else v[s][drawn[s]]
            centres[s] = (shares / shares.sum()) @ torch.stack(own)
        if turn % every == 0:
            for k, mine in enumerate(CENTRES):
                nearest = [min(range(2), key=lambda s: abs(float(centres[s]) - c)) for c in mine]
                for s in range(2):
                    u[k, s] = nearest.count(s) / len(mine) or sigma
            v = (u * sizes[:, None]).T
    return centres, own


@pytest.mark.parametrize("number", [None, 1, 2])
@pytest.mark.parametrize(("lam", "every"), [(0.0, 1), (0.5, 1), (0.5, 2)])
def test_a_run_is_the_papers_algorithm(lam: float, every: int, number: int | None, tmp_path: Path) -> None:
    soft = FedSoft(num_models=2, lam=lam, every_n_rounds=every, sigma=0.05, clients_per_model=number)
    watches = Watches()
    run = roll(Mixed(*CENTRES), soft, watches, root=tmp_path, max_rounds=4, seed=0)
    labels = first_parts(watches, run)
    centres, models = plain(labels, 4, lam, every, 0.05, number)
    torch.testing.assert_close(points(run), centres, rtol=0, atol=1e-10)
    assert own(run) == pytest.approx([float(model) for model in models], abs=1e-10)
    assert soft.rounds == list(range(1, 5, every))


def first_parts(watches: Watches, run: Any) -> list[int]:
    """Whose mean each model was after the first round."""
    learned = [descend(bowl(k), torch.ones(1, dtype=torch.float64)) for k in range(4)]
    sizes = [len(one) for one in CENTRES]
    for code in range(16):
        labels = [code >> k & 1 for k in range(4)]
        if 0 < sum(labels) < 4:
            means = [
                sum(sizes[k] * float(learned[k]) for k in range(4) if labels[k] == s)
                / sum(sizes[k] for k in range(4) if labels[k] == s)
                for s in range(2)
            ]
            if means == pytest.approx(watches.models[1][:, 0].tolist(), abs=1e-10):
                return labels
    raise AssertionError("no parts of the clients have these means")


def test_fedprox_in_it_is_pulled_to_the_clients_own_start(tmp_path: Path) -> None:
    watches = Watches()
    run = roll(
        Mixed(*CENTRES),
        FedSoft(num_models=2, lam=0.5, every_n_rounds=1),
        watches,
        root=tmp_path,
        max_rounds=3,
        strategy=FedProx(mu=0.5),
    )
    learned = watches.models[1][:, 0].tolist()  # with a proximal term in the first round, too
    for code in range(1, 15):
        labels = [code >> k & 1 for k in range(4)]
        centres, models = plain(labels, 1, 0.5, 1, 1e-4, mu=0.5)
        if centres[:, 0].tolist() == pytest.approx(learned, abs=1e-10):
            break
    centres, models = plain(labels, 3, 0.5, 1, 1e-4, mu=0.5)
    torch.testing.assert_close(points(run), centres, rtol=0, atol=1e-10)
    assert own(run) == pytest.approx([float(model) for model in models], abs=1e-10)


def test_everybody_is_evaluated_with_its_own_model(tmp_path: Path) -> None:
    run = roll(Mixed(*CENTRES), FedSoft(num_models=2, lam=0.5), root=tmp_path, max_rounds=3)
    losses = [
        sum((w - centre) ** 2 / 2 for centre in centres) / len(centres)
        for w, centres in zip(own(run), CENTRES, strict=True)
    ]
    found = run.metrics["val"]["val_loss"].clients
    assert [found[k] for k in range(4)] == pytest.approx(losses, abs=1e-6)


def test_everybodys_file_has_its_own_model(tmp_path: Path) -> None:
    """Also where a client uses one of the shared models alone."""
    run = roll(Mixed(*CENTRES), FedSoft(num_models=2, lam=0.5), root=tmp_path, max_rounds=3)
    assert 1.0 in run.collaboration.personalisation
    files = [Path(run.log_dir) / "models" / f"client_{client}.ckpt" for client in range(4)]
    assert [float(load_model_checkpoint(file)["state_dict"]["w"]) for file in files] == own(run)


def test_the_drawn_alone_train_once_and_feed_what_they_are_drawn_for(tmp_path: Path) -> None:
    watches = Watches()
    run = roll(
        Mixed(*CENTRES), FedSoft(num_models=2, lam=0.1, clients_per_model=2), watches, root=tmp_path, max_rounds=6
    )
    for cohort in watches.cohorts[1:]:
        assert sorted(model for one in cohort.values() for model in one.feeds) == [0, 0, 1, 1]
        assert all(one.own and one.weight == 1.0 for one in cohort.values())
    sent = [8 * sum(client in cohort for cohort in watches.cohorts) for client in range(4)]
    assert [run.communication.bytes_sent[client] for client in range(4)] == sent


def test_personal_layers_are_no_part_of_the_shared_models() -> None:
    run = fit(FedSoft(num_models=2, lam=0.1), PersonalLayers(layers=["linear.bias"]))
    linear = run.module.linear  # type: ignore[union-attr]
    for model in run.models:
        run.loop.flat.load(model)
        assert torch.equal(linear.bias, CornerModule().linear.bias)
        assert not torch.equal(linear.weight, CornerModule().linear.weight)
    for client in range(run.num_clients):
        run.loop.flat.load(run.client_model(client))
        assert linear.bias.all()


@pytest.mark.parametrize("strategy", [FedAvg(), MaxFL(), QFedAvg(), FedFA(momentum=0.0)])
def test_who_has_no_sample_of_a_model_has_no_weight_in_it(strategy: FedAvg, tmp_path: Path) -> None:
    """Also where the strategy decides how much clients weigh."""
    pure = ((2.0, 1.9), (-2.0, -2.1, -1.9), (1.8, 2.2, 2.1), (-2.2, -1.8))
    soft = FedSoft(num_models=2, lam=0.0, every_n_rounds=1)
    run = roll(Mixed(*pure), soft, root=tmp_path, max_rounds=2, local_steps=40, strategy=strategy)
    used = soft.importance[0].argmax(1).tolist()
    assert used in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert soft.importance[0].sort(1).values.tolist() == [[0.0, 1.0]] * 4
    for model in (0, 1):
        outside = [share for client, share in run.round.shares[model].items() if used[client] != model]
        assert len(outside) == 2
        assert sum(outside) < 1e-3
    assert points(run)[used[0]] > 1 > -1 > points(run)[used[1]]


def test_who_is_drawn_weighs_by_the_strategy_alone(tmp_path: Path) -> None:
    """Its importance of the models is what it was drawn by."""
    soft = FedSoft(num_models=2, lam=0.0, every_n_rounds=1, clients_per_model=4)
    run = roll(Mixed(*CENTRES), soft, root=tmp_path, max_rounds=3, strategy=MaxFL())
    assert len(set(soft.importance[-1][:, 0].tolist())) > 2
    assert run.round.shares[0] == pytest.approx(run.round.shares[1])
    assert len(run.round.shares[0]) == 4
