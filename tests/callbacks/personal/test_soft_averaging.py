"""Soft averaging in a run: its matrices, its first parts, and what composes with it."""

from typing import Any

import pytest
import torch
from corners import SIZES, Leaving, MixedClients, fit
from hooks import StopAfter
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback, SoftAveraging
from lightning_fl.callbacks.personal.soft_averaging import smallest_loss_shares
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.engine.turn.gradients import HeldOutLoss


def losses_of(run: FederatedTrainer, data: MixedClients, client: int, split: str = "train") -> Tensor:
    """Every sample's cross-entropy under every model, [S, n]."""
    x, y = data.sets[client, split].tensors
    rows = []
    for model in run.models:
        run.loop.flat.load(model)
        with torch.no_grad():
            rows.append(cross_entropy(run.module(x), y, reduction="none"))  # type: ignore[misc]
    return torch.stack(rows)


def explained(losses: Tensor) -> list[float]:
    """FedSoft's counts by a plain loop; no two are equal."""
    best = [min(range(len(losses)), key=lambda model: float(losses[model, n])) for n in range(losses.shape[1])]
    return [best.count(model) / len(best) for model in range(len(losses))]


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=6))
def test_models_share_the_samples_that_they_explain_equally_well(rows: list[list[int]]) -> None:
    shares = smallest_loss_shares(torch.tensor(rows, dtype=torch.float32).T)
    expected = [sum((row[s] == min(row)) / row.count(min(row)) for row in rows) / len(rows) for s in range(3)]
    assert shares.tolist() == pytest.approx(expected)


def test_a_batch_counts_by_its_samples() -> None:
    losses = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert smallest_loss_shares(losses, torch.tensor([30, 10])).tolist() == [0.75, 0.25]


def test_clients_are_dealt_out_then_weigh_the_models_by_the_samples_that_they_explain_best() -> None:
    data, soft = MixedClients(), SoftAveraging(num_models=2, num_samples=None)
    run = fit(soft, data=data, max_rounds=1)
    assert not run.models[0].equal(run.models[1])
    expected = torch.tensor([explained(losses_of(run, data, i)) for i in range(6)], dtype=torch.float64)
    assert 0 < float(expected.min()) < float(expected.max()) < 1
    torch.testing.assert_close(soft.importance[0], expected)
    torch.testing.assert_close(run.collaboration.personalisation, expected)
    weights = expected.T * torch.tensor(SIZES)
    torch.testing.assert_close(run.collaboration.aggregation, weights / weights.sum(1, keepdim=True))


def test_models_are_compared_on_samples_of_a_round_in_the_same_order() -> None:
    data = MixedClients()
    found: dict[int, tuple[list[float], list[float], list[float]]] = {}

    class Asks(Callback):
        def on_aggregate_end(self, trainer: FederatedTrainer) -> None:
            loss = HeldOutLoss(trainer.loop, "train", 5, "test")
            model = trainer.models[0]
            once, again = loss.of_samples(0, model)[0], loss.of_samples(0, model)[0]
            every = HeldOutLoss(trainer.loop, "train", None, "test").of_samples(0, model)[0]
            found[trainer.current_round] = (once.tolist(), again.tolist(), every.tolist())

    run = fit(Asks(), data=data, max_rounds=2)
    for once, again, every in found.values():
        assert once == again
        assert len(once) == 5
        assert set(once) < set(every)
    expected = losses_of(run, data, 0)[0].tolist()
    assert sorted(found[1][2]) == pytest.approx(sorted(expected), rel=1e-5)


def test_pure_clients_that_start_apart_are_clusters() -> None:
    """Their samples are explained best by their own kind's model; a few noisy ones lie between the kinds."""
    data, soft, kinds = MixedClients(pure=True), SoftAveraging(num_models=2, num_samples=None), [0, 1] * 3

    class Sorted(Callback):
        def on_fit_start(self, trainer: FederatedTrainer) -> None:
            trainer.collaboration = Collaboration.coalitions(kinds, trainer.num_samples)

    fit(soft, Sorted(), data=data, max_rounds=5)
    for shares in soft.importance:
        assert all(row[kind] > 0.9 for row, kind in zip(shares.tolist(), kinds, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 1, 2])
def test_clients_are_evaluated_with_what_they_want_and_train_from_what_they_have(every: int) -> None:
    """As many rounds by training samples alone give the same models: goals have no part in the training."""
    settings = {"max_rounds": 4, "check_val_every_n_rounds": every}
    data = MixedClients()
    wants = SoftAveraging(num_models=2, num_samples=None, personal_split="val")
    run = fit(wants, data=data, **settings)
    plain = fit(SoftAveraging(num_models=2, num_samples=None), data=data, **settings)
    assert all(a.equal(b) for a, b in zip(run.models, plain.models, strict=True))
    expected = torch.tensor([explained(losses_of(run, data, i, "val")) for i in range(6)], dtype=torch.float64)
    torch.testing.assert_close(run.collaboration.personalisation, expected)
    assert not torch.equal(run.collaboration.personalisation, plain.collaboration.personalisation)


def test_a_run_that_ends_early_uses_what_clients_want() -> None:
    data = MixedClients()
    soft = SoftAveraging(num_models=2, num_samples=None, personal_split="val")
    run = fit(soft, StopAfter(3), data=data, max_rounds=9, check_val_every_n_rounds=0)
    expected = torch.tensor([explained(losses_of(run, data, i, "val")) for i in range(6)], dtype=torch.float64)
    torch.testing.assert_close(run.collaboration.personalisation, expected)


def test_a_run_that_ends_early_after_an_evaluation_keeps_the_mixtures_that_were_evaluated() -> None:
    class Ends(Callback):
        def on_evaluate_end(self, trainer: FederatedTrainer, split: Any, metrics: Any) -> None:
            self.evaluated = trainer.collaboration
            trainer.should_stop = True

    ends = Ends()
    soft = SoftAveraging(num_models=2, num_samples=5, personal_split="val")  # other samples in every round
    run = fit(soft, ends, max_rounds=9, check_val_every_n_rounds=2)
    assert run.current_round == 2
    assert run.collaboration == ends.evaluated


def test_who_is_away_when_mixtures_are_set_goes_by_its_last_estimate() -> None:
    soft = SoftAveraging(num_models=2, every_n_rounds=2, num_samples=None, personal_split="val")
    run = fit(soft, Leaving({3: {2}}), max_rounds=2)
    own = (run.collaboration.personalisation == soft.importance[-1]).all(1)
    assert own.tolist() == [client == 3 for client in range(6)]


def test_initial_rounds_pass_before_the_first_estimate() -> None:
    soft = SoftAveraging(num_models=2, initial_rounds=2, every_n_rounds=2)
    run = fit(soft, max_rounds=2)
    parts = Collaboration.coalitions([0] * 6, run.num_samples)
    assert soft.rounds == [2]
    assert run.collaboration != parts
    later = SoftAveraging(num_models=2, initial_rounds=2, every_n_rounds=2)
    fit(later, max_rounds=5)
    assert later.rounds == [2, 4]


class Fetched(Dataset[Any]):
    """Samples that must be fetched one by one."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def test_data_from_a_loader_are_compared_batch_by_batch() -> None:
    class Loaded(MixedClients):
        def client_data(self, client: int, split: Any) -> Any:
            return Fetched(self.sets[client, split])

    data, soft = MixedClients((10, 10)), SoftAveraging(num_models=2, num_samples=None)  # of 6 and 4 samples
    run = fit(soft, data=Loaded((10, 10)), max_rounds=1)
    for client in range(2):
        losses = losses_of(run, data, client)
        best = [int(losses[:, part].mean(1).argmin()) for part in (slice(0, 6), slice(6, 10))]
        expected = [(6 * (best[0] == s) + 4 * (best[1] == s)) / 10 for s in range(2)]
        assert soft.importance[0][client].tolist() == pytest.approx(expected)


def test_estimates_are_made_every_n_rounds() -> None:
    soft = SoftAveraging(num_models=2, every_n_rounds=2)
    run = fit(soft, max_rounds=4)
    assert soft.rounds == [1, 3]
    assert torch.equal(run.collaboration.personalisation, soft.importance[-1])
