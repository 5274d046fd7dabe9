"""Contributions in a run: against plain autograd and enumeration, their limits and sums, and what composes with it."""

import json
import math
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import two_kinds
from corners import FailingTurns
from hooks import hooks
from tiny import TinyClients, TinyModule, same_bits, weights_of
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics import MeanSquaredError
from two_kinds import TwoKinds

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import (
    HCCT,
    Callback,
    DiscriminatorSettings,
    DROClientSampling,
    FedCollab,
    LocalMixup,
    PersonalLayers,
    ShapleyRewards,
)
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.strategies import FedAvg, FedAvgM

SIZES = (24, 10, 18)


def trainer(*callbacks: Callback, rounds: int = 2, **settings: Any) -> FederatedTrainer:
    return two_kinds.trainer(*callbacks, rounds=rounds, **{"local_epochs": None, "local_steps": 3, **settings})


def fit(*callbacks: Callback, data: Any = None, module: Any = None, **settings: Any) -> FederatedTrainer:
    run = trainer(*callbacks, **settings)
    run.fit(module or TinyModule(), data or TinyClients())
    return run


class Watched(Callback):
    """What participants of each model learned, the models before and after the average, and the shares of it."""

    def __init__(self) -> None:
        self.learned: list[dict[tuple[int, int], Tensor]] = []
        self.starts: list[list[Tensor]] = []
        self.models: list[list[Tensor]] = []
        self.shares: list[dict[int, dict[int, float]]] = []
        self.turns: dict[tuple[int, int | None], Tensor] = {}

    def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
        learned, part = vector(trainer, trainer.client_weights()), trainer.participant
        key = (client, None if part is None else part.model)
        if part is not None and part.draw:  # the mean of the turns of a client that was drawn several times
            learned = (self.turns[key] * part.draw + learned) / (part.draw + 1)
        self.turns[key] = learned

    def on_aggregate_end(self, trainer: FederatedTrainer) -> None:
        self.starts.append([vector(trainer, model) for model in trainer.round.starts])
        self.models.append([vector(trainer, model) for model in trainer.models])
        self.shares.append({model: dict(of_model) for model, of_model in trainer.round.shares.items()})
        learned, turns = {}, self.turns
        for model, of_model in self.shares[-1].items():
            for client in of_model:
                learned[client, model] = turns[client, model] if (client, model) in turns else turns[client, None]
        self.learned.append(learned)
        turns.clear()


def vector(trainer: FederatedTrainer, weights: Any) -> Tensor:
    spans = [span for span in trainer.loop.flat.spans() if span.trainable]
    return torch.cat([weights.vectors[span.dtype][span.begin : span.end] for span in spans]).double().cpu()


def held_out_loss(data: TinyClients, clients: Any, weights: Tensor, split: str = "val") -> Tensor:
    """The mean over clients of their mean squared errors; bias is the last weight."""
    losses = []
    for client in clients:
        x, y = (tensor.double() for tensor in data.sets[client, split].tensors)  # type: ignore[attr-defined]
        losses.append((x @ weights[:3, None] + weights[3] - y).square().mean())
    return torch.stack(losses).mean()


def gradient(data: TinyClients, clients: Any, weights: Tensor, split: str = "val") -> Tensor:
    weights = weights.clone().requires_grad_()
    return torch.autograd.grad(held_out_loss(data, clients, weights, split), weights)[0]


class OneWrong(TinyClients):
    """Five clients with one target function, one of them with the opposite sign in training and validation."""

    def __init__(self, wrong: int, seed: int) -> None:
        super().__init__((24,) * 5, seed=seed)
        draws = torch.Generator().manual_seed(seed)
        for (client, split), dataset in list(self.sets.items()):
            x = dataset.tensors[0] - 0.3 * client  # type: ignore[attr-defined]
            y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.1 * torch.randn(len(x), 1, generator=draws)
            self.sets[client, split] = TensorDataset(x, -y if client == wrong else y)


# -- against plain computations ----------------------------------------------------------------------------------------


class Frozen(TinyModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear.bias.requires_grad_(False)
        self.unused = nn.Linear(2, 2)


class Shifted(FedAvg):
    def client_loss(self, loss: Tensor, module: nn.Module) -> Tensor:
        return loss + 0.1 * sum(parameter.square().sum() for parameter in module.parameters())


class Tiers(Callback):
    """Two models; one client trains both."""

    role = "collaboration"

    def on_fit_start(self, trainer: FederatedTrainer) -> None:
        trainer.collaboration = Collaboration(torch.full((2, 3), 1 / 3), torch.full((3, 2), 0.5))

    def select_clients(self, trainer: FederatedTrainer) -> Cohort:
        parts = [(0, 0), (1, 0), (1, 1), (2, 1)]
        return Cohort(tuple(Participant(client, model, 1.0 + client) for client, model in parts))

    on_aggregate_end = on_fit_start  # the next round's, before or after valuation


#: Other callbacks, and settings of ``fit``.
FIRST_ORDER: dict[str, tuple[Any, dict[str, Any]]] = {
    "FedAvg": (list, {"rounds": 3}),
    "drawn clients": (lambda: [DROClientSampling(cohort_size=2)], {"rounds": 6}),
    "coalitions of the round": (lambda: [HCCT(relative_trade_off=0.5)], {"rounds": 4, "data": TwoKinds}),
    "two models": (lambda: [Tiers()], {}),
    "frozen and unused parameters": (list, {"module": Frozen}),
    "proximal term and mixup": (lambda: [LocalMixup(alpha=0.4)], {"strategy": Shifted}),
    "server step": (list, {"strategy": lambda: FedAvgM(momentum=0.0, server_rate=0.5)}),
}


def fit_one(name: str, rewards: ShapleyRewards) -> tuple[TinyClients, Watched]:
    others, settings = FIRST_ORDER[name]
    made = {key: value() if callable(value) else value for key, value in ({"data": TinyClients} | settings).items()}
    watched = Watched()
    fit(*others(), rewards, watched, **made)
    return made["data"], watched


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(
    ("name", "split", "leave_own_out"),
    [
        *((name, "val", False) for name in FIRST_ORDER),
        ("FedAvg", "train", False),
        ("FedAvg", "train", True),
        ("server step", "val", True),
    ],
)
def test_first_order_is_the_papers_algorithm(name: str, split: Any, leave_own_out: bool, normalized: bool) -> None:
    rewards = ShapleyRewards(normalized=normalized, split=split, leave_own_out=leave_own_out)
    data, watched = fit_one(name, rewards)
    size = 3 if name.startswith("frozen") else 4
    for models, learned, starts, ends, shares in zip(
        rewards.by_model, watched.learned, watched.starts, watched.models, watched.shares, strict=True
    ):
        assert {(client, model) for model, values in models.items() for client in values} == learned.keys()
        for model, values in models.items():
            assert sum(shares[model].values()) == pytest.approx(1)
            after, start = (one[model][:size] for one in (ends, starts))
            average = sum(shares[model][client] * learned[client, model][:size] for client in values)
            reference = average if normalized else start  # before the server's step
            full = torch.cat([after, torch.zeros(4 - size)])
            for client, value in values.items():
                judges = [other for other in values if other != client] if leave_own_out else list(values)
                slope = gradient(data, judges, full, split)[:size]
                update = learned[client, model][:size] - reference
                assert value == pytest.approx(-shares[model][client] * float(slope @ update), rel=1e-4, abs=1e-6)
            if not leave_own_out:  # 0, or the loss's drop to first order
                drop = float(slope @ (start - average))
                assert sum(values.values()) == pytest.approx(0 if normalized else drop, rel=1e-4, abs=1e-12)
    clients = {client for values in rewards.values for client in values}
    totals = {client: sum(values.get(client, 0.0) for values in rewards.values) for client in clients}
    assert rewards.cumulated == pytest.approx(totals)


def test_models_and_their_participants() -> None:
    found = {}
    for name in FIRST_ORDER:
        rewards = ShapleyRewards()
        _, watched = fit_one(name, rewards)
        found[name] = [{model: sorted(values) for model, values in models.items()} for models in rewards.by_model]
        if name == "two models":
            assert rewards.values[0][1] == sum(values.get(1, 0.0) for values in rewards.by_model[0].values())
            assert watched.shares[0] == {0: {0: 1 / 3, 1: 2 / 3}, 1: {1: 2 / 5, 2: 3 / 5}}
        if name == "drawn clients":
            assert all((2 * share) % 1 == 0 for shares in watched.shares for share in shares[0].values())
    assert found["FedAvg"] == [{0: [0, 1, 2]}] * 3
    assert any(len(models[0]) < 3 for models in found["drawn clients"])
    assert sorted(found["coalitions of the round"][-1].values()) == [[0, 1, 2], [3, 4]]
    assert found["two models"][0] == {0: [0, 1], 1: [1, 2]}


def test_who_fits_its_own_errors_is_flattered_by_its_own_samples_only() -> None:
    """Judged by training samples, the client with wrong targets stands further below the others without its own."""
    gaps = []
    for leave_own_out in (False, True):
        rewards = ShapleyRewards(split="train", leave_own_out=leave_own_out, num_samples=None)
        fit(rewards, data=OneWrong(2, seed=0), rounds=3)
        total = rewards.cumulated
        gaps.append(min(value for client, value in total.items() if client != 2) - total[2])
    assert gaps[1] > gaps[0] > 0


@pytest.mark.parametrize("normalized", [True, False])
def test_exact_is_the_mean_over_all_orders_of_joining(normalized: bool) -> None:
    data, rewards, watched = TinyClients(), ShapleyRewards(method="exact", normalized=normalized), Watched()
    fit(rewards, watched, data=data, rounds=2)
    shares = [size / sum(SIZES) for size in SIZES]
    for turn, values in enumerate(rewards.values):
        start, learned = watched.starts[turn][0], {client: own for (client, _), own in watched.learned[turn].items()}

        def value(coalition: tuple[int, ...], start: Tensor = start, learned: dict[int, Tensor] = learned) -> float:
            if not coalition:
                return -float(held_out_loss(data, range(3), start))
            total = sum(shares[i] for i in coalition) if normalized else 1.0
            model = start + sum(shares[i] / total * (learned[i] - start) for i in coalition)
            return -float(held_out_loss(data, range(3), model))

        expected = dict.fromkeys(range(3), 0.0)
        for order in permutations(range(3)):
            for place, client in enumerate(order):
                expected[client] += (value(order[: place + 1]) - value(order[:place])) / 6
        assert values == pytest.approx(expected, rel=1e-4, abs=1e-6)
        drop = held_out_loss(data, range(3), start) - held_out_loss(data, range(3), watched.models[turn][0])
        assert sum(values.values()) == pytest.approx(float(drop), rel=1e-4, abs=1e-6)


def test_many_permutations_are_the_exact_values() -> None:
    exact, sampled = ShapleyRewards(method="exact"), ShapleyRewards(method="permutations", num_permutations=4000)
    fit(exact, rounds=1)
    run = fit(sampled, rounds=1)
    error = run.round_metrics["contribution/standard_error"]
    assert 0 < error < 0.02
    for client, value in exact.values[0].items():
        assert sampled.values[0][client] == pytest.approx(value, abs=4 * error)
    again = ShapleyRewards(method="permutations", num_permutations=4000)
    fit(again, rounds=1)
    assert again.values == sampled.values


# -- limits ------------------------------------------------------------------------------------------------------------


def test_twins_add_nothing_to_each_others_average_whatever_step_the_server_takes() -> None:
    data = TinyClients((16, 16), shuffle=False)
    data.sets |= {(1, split): data.sets[0, split] for split in ("train", "val", "test")}
    rewards = ShapleyRewards(leave_own_out=True)
    fit(rewards, data=data, strategy=FedAvgM(momentum=0.0, server_rate=0.5), rounds=2)
    assert rewards.values == [pytest.approx({0: 0.0, 1: 0.0}, abs=1e-6)] * 2


def test_first_order_differs_from_exact_by_the_square_of_the_learning_rate() -> None:
    differences = []
    for rate in (4e-3, 2e-3, 1e-3):
        found = []
        for method in ("first_order", "exact"):
            rewards = ShapleyRewards(method=method, normalized=False)  # type: ignore[arg-type]
            fit(rewards, module=TinyModule(rate).double(), data=_double(TinyClients()), rounds=1, precision="64")
            found.append(rewards.values[0])
        first, exact = found
        differences.append(max(abs(first[client] - exact[client]) for client in first))
        assert first == pytest.approx(exact, rel=30 * rate)
    orders = [math.log2(a / b) for a, b in pairwise(differences)]
    assert orders == pytest.approx([2, 2], abs=0.1)


def _double(data: TinyClients) -> TinyClients:
    for key, dataset in data.sets.items():
        data.sets[key] = TensorDataset(*(tensor.double() for tensor in dataset.tensors))  # type: ignore[attr-defined]
    return data


# -- the run is not changed --------------------------------------------------------------------------------------------


class Measured(TinyModule):
    """Counts a torchmetrics metric in training_step, over the steps of a turn."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.error = MeanSquaredError()
        self.modes: list[tuple[bool, bool, int]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        prediction = self(batch[0])
        self.error.update(prediction.detach(), batch[1])
        self.modes.append((self.training, self.trainer.training, self.current_epoch))
        loss = nn.functional.mse_loss(prediction, batch[1])
        self.log("train/loss", loss)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("train/error", self.error.compute())
        if self.current_epoch % 2:  # otherwise it goes on counting, also over the round's end
            self.error.reset()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["first_order", "exact"])
def test_models_and_metrics_keep_their_bits(method: Any) -> None:
    settings = {"optimizer_state": "keep", "rounds": 4}
    plain, valued = (Measured(dropout=0.3, norm=True) for _ in range(2))
    one = fit(module=plain, **settings)
    two = fit(ShapleyRewards(method=method, num_samples=4), module=valued, **settings)
    assert same_bits(weights_of(plain), weights_of(valued))
    assert one.metrics == two.metrics
    assert (False, False, 3) in valued.modes
    assert [mode for mode in valued.modes if mode[0]] == plain.modes
    assert all(parameter.requires_grad for parameter in valued.parameters())


def test_samples_are_drawn_anew_every_round_and_bound_the_work() -> None:
    seen: list[int] = []

    class Counting(TinyModule):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            if not self.training:
                seen.append(len(batch[0]))
            return super().training_step(batch, batch_idx)

    few, all_of_them = ShapleyRewards(num_samples=2), ShapleyRewards(num_samples=None)
    fit(few, module=Counting())
    assert sum(seen) == 2 * 3 * 2
    seen.clear()
    fit(all_of_them, module=Counting())
    assert sum(seen) == 2 * 3 * 6
    assert few.values[0] != pytest.approx(all_of_them.values[0], rel=1e-3)


# -- who takes part ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*is left out of round")
@pytest.mark.parametrize("method", ["first_order", "exact"])
def test_a_client_that_failed_has_no_value(method: Any) -> None:
    rewards, watched = ShapleyRewards(method=method), Watched()
    fit(rewards, watched, FailingTurns((2, 1, None)), rounds=3, on_client_error="skip")
    assert [sorted(values) for values in rewards.values] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert watched.shares[1] == {0: {0: pytest.approx(24 / 42), 2: pytest.approx(18 / 42)}}
    assert rewards.cumulated[1] == pytest.approx(rewards.values[0][1] + rewards.values[2][1])


@pytest.mark.parametrize("method", ["first_order", "exact"])
def test_personal_layers_are_each_clients_own(method: Any) -> None:
    data, rewards = TinyClients(), ShapleyRewards(method=method, normalized=False)
    watched = Watched()
    fit(rewards, watched, PersonalLayers(layers=["linear.bias"]), data=data)
    for turn, values in enumerate(rewards.values):
        start, after = watched.starts[turn][0], watched.models[turn][0]
        learned = {client: own for (client, _), own in watched.learned[turn].items()}

        def loss(shared: Tensor, learned: dict[int, Tensor] = learned) -> Tensor:
            each = [
                held_out_loss(data, [client], torch.cat([shared, own[3:]])) for client, own in sorted(learned.items())
            ]
            return torch.stack(each).mean()

        if method == "exact":
            drop = float(loss(start[:3]) - loss(after[:3]))
            assert sum(values.values()) == pytest.approx(drop, rel=1e-4, abs=1e-6)
            continue
        shared = after[:3].clone().requires_grad_()
        slope = torch.autograd.grad(loss(shared), shared)[0]
        for client, value in values.items():
            expected = -SIZES[client] / sum(SIZES) * float(slope @ (learned[client] - start)[:3])
            assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.usefixtures("few_draws")
def test_given_coalitions_are_valued_by_themselves() -> None:
    rewards = ShapleyRewards(method="exact")
    small = DiscriminatorSettings(hidden=8, max_rounds=40, learning_rate=0.5)
    fedcollab = FedCollab(capacity=1.0, discriminator=small)
    run = fit(fedcollab, rewards, data=TwoKinds(sizes=(40, 40, 40, 40, 40)), rounds=1)
    groups = {
        frozenset(client for client, weight in enumerate(row) if weight > 0)
        for row in run.collaboration.aggregation.tolist()
    }
    assert len(groups) > 1
    assert {frozenset(values) for values in rewards.by_model[0].values()} == groups


# -- records -----------------------------------------------------------------------------------------------------------


def test_values_are_logged_written_and_ranked(tmp_path: Path) -> None:
    rewards = ShapleyRewards(every_n_rounds=2)
    run = fit(rewards, rounds=5, root=tmp_path, logger=True)
    assert rewards.rounds == [2, 4]
    folder = Path(run.log_dir)
    table = pd.read_csv(folder / "contributions.csv")
    assert list(table.columns) == ["round", "model", "client", "psi", "cumulated"]
    assert table["round"].tolist() == [2, 2, 2, 4, 4, 4]
    last = table[table["round"] == 4].set_index("client")
    summary = json.loads((folder / "summary.json").read_text())["contributions"]
    assert (summary["method"], summary["normalized"], summary["rounds"]) == ("first_order", True, 2)
    curves = pd.read_csv(folder / "metrics.csv").set_index("step")
    order = sorted(range(3), key=lambda client: -rewards.cumulated[client])
    for client, total in rewards.cumulated.items():
        name = f"client_{client}"
        assert last.loc[name, "psi"] == pytest.approx(rewards.values[1][client])
        assert last.loc[name, "cumulated"] == pytest.approx(total)
        assert summary["clients"][name] == {"cumulated": total, "rank": order.index(client) + 1}
        assert curves.loc[4, f"contribution/{name}"] == pytest.approx(rewards.values[1][client])
        assert curves.loc[4, f"contribution/cumulated/{name}"] == pytest.approx(total)
    assert curves.loc[2, "contribution/max"] == pytest.approx(max(rewards.values[0].values()))
    assert curves.loc[2, "contribution/min"] == pytest.approx(min(rewards.values[0].values()))
    assert math.isnan(curves.loc[3, "contribution/max"])


# -- what is refused ---------------------------------------------------------------------------------------------------


class WithoutValidation(TinyClients):
    def client_data(self, client: int, split: Any) -> Any:
        return None if split == "val" and client else super().client_data(client, split)


def test_clients_without_held_out_data_are_refused_and_have_training_data_instead() -> None:
    rewards = ShapleyRewards(split="train")
    fit(rewards, data=WithoutValidation())
    assert len(rewards.values) == 2


def test_too_many_participants_for_enumeration_are_refused_before_training() -> None:
    with pytest.raises(ConfigurationError, match="method='exact'.* 11"):
        fit(
            ShapleyRewards(method="exact"),
            hooks(on_client_start=lambda trainer, client: pytest.fail("a client trains")),
            data=TinyClients((8,) * 11),
        )


def test_too_many_drawn_participants_are_refused_when_they_are_known() -> None:
    with pytest.raises(ConfigurationError, match="method='exact'.* 11"):
        fit(
            ShapleyRewards(method="exact"),
            hooks(role="participation", select_clients=lambda trainer: Cohort.of(range(11))),
            data=TinyClients((8,) * 11),
        )
