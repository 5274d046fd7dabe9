"""APFL, Per-FedAvg, pFedMe, FedRep: numbers worked out for two parabolas, plain loops, neutral and extreme values."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bowls import FOUR, Bowls, Regrouped, roll
from lightning.pytorch import LightningModule
from parabolas import (
    CURVES,
    RATE,
    SHARES,
    START,
    OneWeight,
    TwoParabolas,
    Watched,
    exactly,
    number,
    parabolas,
    tiny_run,
    trainer,
)
from tiny import TinyClients, TinyModule, digest
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics import MeanMetric

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.callbacks import Callback, LocalTraining, PersonalLayers
from lightning_fl.engine.batches.client import parts_of
from lightning_fl.strategies import APFL, FedAvg, FedRep, PerFedAvg, PFedMe


def evaluated(run: FederatedTrainer) -> list[float]:
    """The weight that each client was evaluated with, from its loss and the side of the minimum that it is on."""
    return [number(run.client_model(client)) for client in (0, 1)]


# -- APFL --------------------------------------------------------------------------------------------------------------


def test_apfl_agrees_with_a_plain_loop() -> None:
    """With momentum and weight decay; shares that move in every step are in ``test_battery.py``."""
    x, v, alpha = START, np.full(2, START), np.full(2, 0.3)
    for _ in range(3):
        ends = []
        for i, (a, c) in enumerate(CURVES):
            w, of_w, of_v = x, 0.0, 0.0
            for step in range(3):
                mixed = alpha[i] * v[i] + (1 - alpha[i]) * w
                slope = a * (mixed - c)
                moved = min(max(alpha[i] - RATE * (v[i] - w) * slope, 0.0), 1.0)
                of_w = 0.9 * of_w + a * (w - c) + 0.05 * w
                of_v = 0.9 * of_v + alpha[i] * slope + 0.05 * v[i]
                w, v[i] = w - RATE * of_w, v[i] - RATE * of_v
                if step == 0:
                    alpha[i] = moved
            ends.append(w)
        x = float(np.dot(SHARES, ends))
    watched = Watched()
    run = trainer(
        watched, strategy=APFL(alpha=0.3, alpha_every="round"), max_rounds=3, local_steps=3, optimizer_state="fresh"
    )
    run.fit(OneWeight(momentum=0.9, decay=0.05), TwoParabolas())
    assert watched.own(-1) == [pytest.approx(value, rel=1e-10) for value in v]
    assert watched.own(-1, "alpha") == [pytest.approx(value, rel=1e-10) for value in alpha]
    assert watched.weights[-1] == pytest.approx(x, rel=1e-10)


def test_apfl_at_both_ends_of_the_share() -> None:
    """Nothing of the own model is FedAvg; nothing of the shared one is training alone."""
    for alpha in (0.0, 0.5, 1.0):
        run = trainer(strategy=APFL(alpha=alpha, alpha_every="never"), max_rounds=3)
        run.fit(TinyModule(dropout=0.0, norm=True), TinyClients())
        plain = trainer(strategy=FedAvg(), max_rounds=3)
        plain.fit(TinyModule(dropout=0.0, norm=True), TinyClients())
        assert digest(run.models[0]) == digest(plain.models[0])  # whatever the share
        if alpha == 0:
            assert run.metrics["val"] == plain.metrics["val"]
    alone = trainer(LocalTraining(), max_rounds=3)
    alone.fit(OneWeight(), TwoParabolas())
    run, _ = parabolas(APFL(alpha=1.0, alpha_every="never"), max_rounds=3)
    assert evaluated(run) == [pytest.approx(number(alone.client_model(i)), rel=1e-14) for i in (0, 1)]


def test_the_second_optimiser_goes_on_where_the_run_keeps_optimisers() -> None:
    watched = Watched()
    run = trainer(
        watched, strategy=APFL(alpha=1.0, alpha_every="never"), max_rounds=3, optimizer_state="keep", local_steps=2
    )
    run.fit(OneWeight(momentum=0.5), TwoParabolas())
    for i, (a, c) in enumerate(CURVES):
        v, memory = START, 0.0
        for _ in range(6):  # the momentum of all rounds
            memory = 0.5 * memory + a * (v - c)
            v -= RATE * memory
        assert watched.own(-1)[i] == pytest.approx(v, rel=1e-12)


def test_the_second_model_is_clipped_as_the_first() -> None:
    watched = Watched()
    run = trainer(
        watched, strategy=APFL(alpha=1.0, alpha_every="never"), max_rounds=1, gradient_clip_val=0.25, local_steps=1
    )
    run.fit(OneWeight(), TwoParabolas())
    sizes = [0.25 / (1 + 1e-6 / slope) for slope in (1.0, 6.0)]  # as torch clips
    assert watched.own(0) == exactly(START + RATE * sizes[0], START - RATE * sizes[1])


# -- Per-FedAvg --------------------------------------------------------------------------------------------------------


def test_per_fedavg_adapts_at_the_rate_of_the_optimiser() -> None:
    run, watched = parabolas(PerFedAvg(adaptation_rate=None), max_rounds=1, local_steps=1)
    assert watched.weights == exactly(0.7075)
    assert evaluated(run) == exactly(0.83675, 0.19525)


class Line(LightningModule):
    """A straight line through points that differ, so that it matters which batch a gradient is of."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
        self.seen: list[Tensor] = []
        self.mean = MeanMetric()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        self.seen.append(x)
        self.mean.update(x.mean())
        loss = (self.slope * x - y).square().mean() / 2
        self.log("points", float(len(x)), on_step=False, on_epoch=True, reduce_fx="sum")
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", (self.slope * batch[0] - batch[1]).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


class Points(FederatedDataModule):
    """One client with some points, in their order."""

    def __init__(self, count: int = 6, batch_size: int = 6) -> None:
        super().__init__(batch_size=batch_size, shuffle=False)
        self.count = count

    @property
    def num_clients(self) -> int:
        return 1

    def client_data(self, client: int, split: str) -> TensorDataset:
        x = torch.linspace(-1.0, 2.0, self.count, dtype=torch.float64)
        return TensorDataset(x, 3 * x + x.square())


def slope_at(w: float, x: Tensor, y: Tensor) -> float:
    return float((x * (w * x - y)).mean())


@pytest.mark.parametrize("hessian", ["ignored", "differences"])
def test_per_fedavg_takes_each_gradient_on_a_part_of_its_own(hessian: Any) -> None:
    x, y = Points().client_data(0, "train").tensors
    parts = list(zip(x.chunk(2 if hessian == "ignored" else 3), y.chunk(2 if hessian == "ignored" else 3), strict=True))
    inner = 0.5 - 0.2 * slope_at(0.5, *parts[0])
    gradient = slope_at(inner, *parts[1])
    if hessian == "differences":  # the curvature on the third part
        gradient -= 0.2 * float(parts[2][0].square().mean()) * gradient
    run = trainer(strategy=PerFedAvg(adaptation_rate=0.2, hessian=hessian), max_rounds=1, local_steps=1)
    module = Line()
    run.fit(module, Points())
    assert float(run.models[0].vectors[torch.float64][0]) == pytest.approx(0.5 - RATE * gradient, rel=1e-10)
    # What the further passes log and count is nowhere, and the evaluation adapts on all points.
    assert run.metrics["train"]["points"].clients[0] == len(parts[0][0])
    assert len(module.seen[-1]) == 6


def test_without_curvature_both_orders_of_per_fedavg_are_the_same() -> None:
    class Slope(Line):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return (self.slope * batch[0]).mean()

    found = []
    for hessian in ("ignored", "differences"):
        run = trainer(strategy=PerFedAvg(adaptation_rate=0.2, hessian=hessian), max_rounds=1, local_steps=1)
        run.fit(Slope(), Whole())
        found.append(float(run.models[0].vectors[torch.float64][0]))
    assert found == [pytest.approx(0.5 - RATE * 2.0, rel=1e-10)] * 2


class Whole(Points):
    """Points that are all alike, whatever part of them is taken."""

    def client_data(self, client: int, split: str) -> TensorDataset:
        return TensorDataset(torch.full((6,), 2.0, dtype=torch.float64), torch.zeros(6, dtype=torch.float64))


def test_per_fedavg_leaves_out_batches_that_are_too_small() -> None:
    module, plain = Line(), Line()
    for strategy, one in ((PerFedAvg(adaptation_rate=0.1), module), (FedAvg(), plain)):
        trainer(strategy=strategy, max_rounds=1, local_steps=None, local_epochs=1).fit(one, Points(7, 4))
    assert [len(x) for x in plain.seen[:2]] == [4, 3]
    assert [len(x) for x in module.seen[:2]] == [2, 2]  # both parts of the first batch; nothing of the second

    strategy = PerFedAvg(adaptation_rate=0.1)
    strategy.smallest_part = 9
    nobody = trainer(strategy=strategy, max_rounds=1)
    nobody.fit(Line(), Points())
    assert float(nobody.models[0].vectors[torch.float64][0]) == 0.5


@pytest.mark.parametrize(("count", "steps"), [(5, None), (9, None), (9, 3), (1, 2)])
def test_batches_that_are_left_out_shift_no_accumulation(count: int, steps: int | None) -> None:
    """Two batches of 4 to a step; those of fewer points are left out, and a step without any batch is not taken."""
    x, y = Points(count).client_data(0, "train").tensors
    batches = list(zip(x.split(4), y.split(4), strict=True))
    epochs = [batches] * 2 if steps is None else [(batches * 6)[: 2 * steps]]  # only epochs begin a step anew
    windows = [epoch[k : k + 2] for epoch in epochs for k in range(0, len(epoch), 2)]
    w = 0.5
    for window in windows:
        halves = [(x.split(2), y.split(2)) for x, y in window if len(x) == 4]
        if halves:
            inner = w - 0.2 * sum(slope_at(w, x[0], y[0]) for x, y in halves) / 2
            w -= RATE * sum(slope_at(inner, x[1], y[1]) for x, y in halves) / 2
    work = {"local_steps": steps} if steps else {"local_steps": None, "local_epochs": 2}
    run = trainer(strategy=PerFedAvg(adaptation_rate=0.2), max_rounds=1, accumulate_grad_batches=2, **work)
    run.fit(Line(), Points(count, 4))
    assert float(run.models[0].vectors[torch.float64][0]) == pytest.approx(w, rel=1e-12)


def test_per_fedavg_adapts_in_a_test_at_the_rate_of_a_schedule_over_the_turn() -> None:
    """The schedule, which begins at a fifth of the highest rate, can be made only where a turn's length is known."""

    class Cycles(OneWeight):
        def configure_optimizers(self) -> Any:
            lengths.append(self.trainer.estimated_stepping_batches)
            optimizer = torch.optim.SGD(self.parameters(), lr=RATE)
            cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=lengths[-1], div_factor=5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

        def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.log("test_loss", self.loss(batch))

    lengths: list[Any] = []
    run = trainer(strategy=PerFedAvg(adaptation_rate=None), max_rounds=2)
    run.fit(Cycles(), TwoParabolas())
    trained, lengths[:] = set(lengths), []
    tested = trainer(strategy=PerFedAvg(adaptation_rate=None))
    module, start = Cycles(), number(run.models[0])
    with torch.no_grad():
        module.w.fill_(start)
    found = tested.test(module, TwoParabolas())["test_loss"].clients
    assert set(lengths) == trained == {4}  # two rounds of two steps
    for client, (curvature, centre) in enumerate(CURVES):
        adapted = start - RATE / 5 * curvature * (start - centre)
        assert found[client] == pytest.approx(curvature / 2 * (adapted - centre) ** 2, rel=1e-9)


def test_per_fedavg_without_an_adaptation_is_fedavg_to_the_bit() -> None:
    assert PerFedAvg(adaptation_rate=0.0).batch_parts == 1
    assert tiny_run(PerFedAvg(adaptation_rate=0.0)).models[0].equal(tiny_run(FedAvg()).models[0])


def test_batches_in_parts() -> None:
    x, weights = torch.arange(14.0), torch.ones(3)
    (first, size), (second, other) = parts_of({"x": x, "weights": weights, "name": "a"}, None, 2, 1, "Who")
    assert (size, other) == (7, 7)
    assert torch.equal(torch.cat([first["x"], second["x"]]), x)
    assert first["weights"] is weights
    assert second["name"] == "a"
    assert [size for _, size in parts_of([torch.zeros(8, 2)], 8, 3, 1, "Who")] == [3, 3, 2]
    assert parts_of([torch.zeros(5)], 5, 2, 3, "Who") == []


def test_a_batch_of_graphs_in_parts() -> None:
    from torch_geometric.data import Batch, Data

    graphs = [
        Data(x=torch.full((n, 1), float(n)), edge_index=torch.tensor([[0], [n - 1]]), y=torch.tensor([n]))
        for n in (1, 2, 3, 4, 5)
    ]
    for (part, size), expected in zip(
        parts_of(Batch.from_data_list(graphs), 5, 2, 1, "Who"), (graphs[:3], graphs[3:]), strict=True
    ):
        whole = Batch.from_data_list(expected)
        assert size == len(expected)
        for key in ("x", "edge_index", "y", "batch", "ptr"):
            assert torch.equal(part[key], whole[key]), key


# -- pFedMe ------------------------------------------------------------------------------------------------------------

FEDME: dict[str, Any] = {"strength": 1.0, "personal_steps": 3, "personal_rate": 0.1}


def test_pfedme_at_its_limits() -> None:
    assert parabolas(PFedMe(strength=0.0))[1].weights == [START, START]
    _, watched = parabolas(PFedMe(strength=1.0, personal_steps=200), max_rounds=1, local_steps=1)
    assert watched.own(0) == exactly(1.5, -0.5)  # (a c + w) / (a + 1)
    _, watched = parabolas(PFedMe(strength=1 / RATE, personal_steps=1, personal_rate=0.02), max_rounds=1, local_steps=1)
    assert watched.weights == [pytest.approx(float(np.dot(SHARES, watched.own(0))), rel=1e-12)]  # w_i becomes theta


@pytest.mark.parametrize(("second", "kept"), [([1, 1, 0, 0], True), ([0, 1, 0, 1], False), ([0, 1, 1, 1], False)])
def test_pfedme_keeps_theta_of_clients_that_stay_together(second: list[int], kept: bool, tmp_path: Path) -> None:
    callback = Regrouped([0, 0, 1, 1], second)
    run = roll(Bowls(*FOUR), callback, root=tmp_path, strategy=PFedMe(**FEDME), max_rounds=4)
    for client, label in enumerate(second):
        assert run.client_model(client).equal(run.models[label]) is not kept


# -- FedRep ------------------------------------------------------------------------------------------------------------


class Product(LightningModule):
    """``(h b - y)^2 / 2`` where y is the bottom of a client's parabola: a head h and a body b."""

    def __init__(self, decay: float = 0.0) -> None:
        super().__init__()
        self.body, self.head = nn.Module(), nn.Module()
        self.body.b = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
        self.head.h = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
        self.decay = decay

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return (self.head.h * self.body.b - batch[0][:, 1]).square().mean() / 2

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", (self.head.h * self.body.b - batch[0][:, 1]).square().mean() / 2)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.9 if self.decay else 0.0, weight_decay=self.decay)


def product(run: FederatedTrainer, module: Product) -> tuple[list[float], float]:
    run.fit(module, TwoParabolas())
    heads = [float(values["head.h"]) for _, values in sorted(run.client_store("personal_layers").items())]
    span = next(span for span in run.loop.flat.spans() if span.name == "body.b")
    return heads, float(run.models[0].vectors[torch.float64][span.begin])


def test_fedrep_agrees_with_a_plain_loop_with_momentum_and_decay() -> None:
    """Which move nothing that is frozen: each phase has an optimiser of its own."""
    h, b = [0.5, 0.5], 1.0
    for _ in range(3):
        bodies = []
        for i, y in enumerate((2.0, -1.0)):
            memory = 0.0
            for _ in range(3):
                memory = 0.9 * memory + b * (h[i] * b - y) + 0.2 * h[i]
                h[i] -= RATE * memory
            mine, memory = b, 0.0
            for _ in range(2):
                memory = 0.9 * memory + h[i] * (h[i] * mine - y) + 0.2 * mine
                mine -= RATE * memory
            bodies.append(mine)
        b = float(np.dot(SHARES, bodies))
    run = trainer(
        PersonalLayers(layers=["head"]), strategy=FedRep(head_epochs=3), max_rounds=3, optimizer_state="fresh"
    )
    heads, body = product(run, Product(decay=0.2))
    assert heads == [pytest.approx(value, rel=1e-10) for value in h]
    assert body == pytest.approx(b, rel=1e-10)


def test_each_phase_leaves_the_other_part_as_it_is() -> None:
    class Normalised(TinyModule):
        def __init__(self) -> None:
            super().__init__(norm=True)
            self.phases: list[dict[str, Tensor]] = []

        def on_train_epoch_start(self) -> None:
            self.phases.append({name: value.clone() for name, value in self.state_dict().items()})

        on_train_epoch_end = on_train_epoch_start

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)

    module = Normalised()
    run = trainer(PersonalLayers(layers=["linear"]), strategy=FedRep(head_epochs=2), max_rounds=1)
    run.fit(module, TinyClients())
    for client in range(3):
        before, between, again, after = module.phases[4 * client : 4 * client + 4]
        for name in before:
            head = name.startswith("linear")
            assert torch.equal(before[name], between[name]) != head, name  # also BatchNorm's statistics
            assert torch.equal(between[name], again[name]), name
            assert torch.equal(again[name], after[name]) == head, name
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_phases_are_another_thing_than_both_at_once() -> None:
    """FedPer takes as many steps on both parts together."""
    found = []
    for strategy in (FedRep(head_epochs=1), FedAvg()):
        run = trainer(PersonalLayers(layers=["head"]), strategy=strategy, max_rounds=2, local_steps=None)
        found.append(product(run, Product()))
    assert abs(found[0][1] - found[1][1]) > 0.01


# -- all ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [APFL(), PerFedAvg(), PFedMe()])
def test_statistics_and_metrics_move_by_the_steps_alone(strategy: FedAvg) -> None:
    """With steps of size zero all are FedAvg's, but for the samples of a part."""

    strategy.batch_parts = 1 if isinstance(strategy, PerFedAvg) else strategy.batch_parts
    plain = trainer(strategy=FedAvg())
    plain.fit(TinyModule(learning_rate=0.0, norm=True), TinyClients())
    if isinstance(strategy, PerFedAvg):
        strategy.correct_gradient_ = lambda turn, gradient, weights: gradient.copy_(  # type: ignore[method-assign]
            turn.step_gradient(turn.combine((2.0, weights)))
        )
    run = trainer(strategy=strategy)
    run.fit(TinyModule(learning_rate=0.0, norm=True), TinyClients())
    assert run.models[0].equal(plain.models[0])
    assert run.metrics["train"] == plain.metrics["train"]


# -- further gradients of a step ---------------------------------------------------------------------------------------


class Drawn(OneWeight):
    """Parabolas times a number in [0.5, 1.5) that is drawn for every batch."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.generators = {"own": torch.Generator().manual_seed(0), "numpy's own": np.random.default_rng(0)}
        self.own, self.numpys = self.generators.values()
        self.source = source

    def draw(self) -> float:
        draws: dict[str, Any] = {
            "torch": lambda: float(torch.rand(())),
            "numpy": np.random.random_sample,
            "normal": lambda: abs(np.random.standard_normal()),  # noqa: NPY002 - NumPy draws two at a time
            "python": random.random,
            "own": lambda: float(torch.rand((), generator=self.own)),
            "numpy's own": self.numpys.random,
        }
        return draws.get(self.source, lambda: 0.5)()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch) * (0.5 + self.draw())


class Mixed(Callback):
    """Draws from the callback's generator, as mixup does."""

    def around_training_step(self, trainer: Any, batch: Any, compute: Any, generator: torch.Generator) -> Any:
        return compute(batch) * (0.5 + float(torch.rand((), generator=generator)))


@pytest.mark.parametrize("source", ["torch", "numpy", "normal", "python", "own", "numpy's own", "callback"])
def test_further_gradients_of_a_step_are_of_the_same_loss(source: str) -> None:
    """Differences do not depend on delta where all is quadratic, and APFL's shared model is FedAvg's to the bit."""

    def weight(strategy: FedAvg) -> float:
        callbacks = [Mixed()] if source == "callback" else []
        run = trainer(*callbacks, strategy=strategy, accumulate_grad_batches=2, local_steps=3)
        run.fit(Drawn(source), TwoParabolas())
        return number(run.models[0])

    large, small = (weight(PerFedAvg(adaptation_rate=0.1, hessian="differences", delta=d)) for d in (1e-1, 1e-4))
    assert small == pytest.approx(large, rel=1e-8)
    assert weight(APFL(alpha_every="never")) == weight(FedAvg())


class Centred(LightningModule):
    """A line on what BatchNorm makes of one feature."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(1), nn.Linear(1, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.linear(self.norm(batch[0])).square().mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("mean", self.norm.running_mean.mean())
        self.log("batches", self.norm.num_batches_tracked.float())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


class FarApart(TinyClients):
    """Two clients whose feature is near -5 and near 5, in one batch."""

    def client_data(self, client: int, split: str) -> TensorDataset:
        return TensorDataset(torch.linspace(-1.0, 1.0, 8)[:, None] + 10 * client - 5)


@pytest.mark.parametrize("personal", [[], ["norm"]])
@pytest.mark.parametrize(
    ("strategy", "settings"), [(APFL, {}), (APFL, {"alpha": 1.0}), (PFedMe, {}), (PFedMe, {"personal_steps": 1})]
)
def test_own_models_have_statistics_of_their_own(
    strategy: type[FedAvg], settings: dict[str, Any], personal: list[str]
) -> None:
    callbacks = [PersonalLayers(layers=personal)] if personal else []
    run = trainer(*callbacks, strategy=strategy(**settings), max_rounds=10)
    run.fit(Centred(), FarApart((8, 8)))
    seen = run.metrics["val"]
    # APFL begins with the shared model's, pFedMe with those of the first step's own loss.
    counts = seen["batches"].clients
    assert counts[0] == counts[1]
    assert counts[0] in (20, 21)
    assert seen["mean"].clients == {
        i: pytest.approx(m * (1 - 0.9 ** counts[i]), rel=1e-5) for i, m in ((0, -5), (1, 5))
    }
