"""Batches of every structure, the hooks that move them, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import pytest
import torch
from reference import (
    Clients,
    Linear,
    OneClient,
    Rows,
    Validated,
    assert_same_weights,
    federated_trainer,
    fitted,
    lightning_trainer,
    linear,
    make,
    samples,
    train_both,
)
from rounding import rounding
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.nn import global_add_pool

from lightning_fl import FederatedDataModule, Partitioned, Silos
from lightning_fl.data import IID


class Structured(Dataset):
    """The same samples as dicts, nested tuples or named tuples."""

    def __init__(self, base: TensorDataset, kind: str) -> None:
        self.base, self.kind = base, kind

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> Any:
        x, y = self.base[index]
        return {
            "dict": {"x": x, "nested": {"y": y}, "name": f"sample {index}"},
            "tuple": (x, (y, {"index": index})),
            "named": Pair(x, y),
        }[self.kind]


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class TakesAnything(Linear):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if isinstance(batch, dict):
            assert len(batch["name"]) == len(batch["x"])
            x, y = batch["x"], batch["nested"]["y"]
        elif isinstance(batch, Pair):
            x, y = batch.x, batch.y
        else:
            x, (y, _) = batch
        loss = self.loss((x, y))
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dict", "tuple", "named"])
def test_structured_batches(kind: str, tmp_path: Path) -> None:
    data = Clients((10,), data=lambda client, split: Structured(samples(client, 10), kind))
    own, trainer, reference, theirs = train_both(TakesAnything, tmp_path, data=data)
    plain, _, _, _ = train_both(Linear, tmp_path)
    assert_same_weights(own, reference, moved=False)
    assert_same_weights(own, plain)
    assert trainer.metrics["train"]["loss"].mean == pytest.approx(float(theirs.callback_metrics["loss"]), rel=1e-6)


def _graphs(client: int, count: int) -> list[Data]:
    draws = torch.Generator().manual_seed(client)
    graphs = []
    for index in range(count):
        x = torch.randn(2 + index % 3, 3, generator=draws)
        graphs.append(Data(x=x, edge_index=torch.tensor([[0, 1], [1, 0]]), y=x.sum().reshape(1, 1)))
    return graphs


class Graphs(Linear):
    def loss(self, batch: Any) -> Tensor:
        assert isinstance(batch, Batch)
        return nn.functional.mse_loss(self.net(global_add_pool(batch.x, batch.batch, batch.num_graphs)), batch.y)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=batch.num_graphs)
        self.log("guessed", loss, on_epoch=True)
        return loss


@pytest.mark.parametrize("follow", [None, ["x"]])
def test_graph_batches(follow: list[str] | None, tmp_path: Path) -> None:
    """Packed by the engine, and from a loader of one's own; a batch counts its graphs, not its nodes."""
    loader = GraphLoader(_graphs(0, 10), batch_size=4, follow_batch=follow)  # type: ignore[arg-type]
    own, trainer, reference, theirs = train_both(
        Graphs, tmp_path, data=Clients((10,), data=lambda client, split: loader)
    )
    assert_same_weights(own, reference, atol=rounding(torch.float32, 3 * 3))  # no weight is above 1
    value = float(theirs.callback_metrics["loss"])
    assert trainer.metrics["train"]["loss"].mean == pytest.approx(value, rel=1e-5)
    assert trainer.metrics["train"]["guessed"].mean == pytest.approx(value, rel=1e-5)


class Stream(Rows):
    def __len__(self) -> int:
        return len(self.rows)


def test_iterable_data(tmp_path: Path) -> None:
    data = Clients((10,), data=lambda client, split: DataLoader(Stream(0, 10), batch_size=4))
    own, _, reference, _ = train_both(Linear, tmp_path, data=data)
    assert_same_weights(own, reference)


def test_collation_that_leaves_a_batch_out(tmp_path: Path) -> None:
    """A ``collate_fn`` that returns ``None`` skips the batch, as in Lightning."""

    def collate(rows: list[Any]) -> Any:
        if len(rows) < 4:
            return None
        return tuple(map(torch.stack, zip(*rows, strict=True)))

    data = Clients((10,), data=lambda client, split: DataLoader(samples(0, 10), batch_size=4, collate_fn=collate))
    own, trainer, reference, theirs = train_both(Linear, tmp_path, data=data)
    assert_same_weights(own, reference)
    assert trainer.client_states[0].global_step == theirs.global_step == 6


def test_the_modules_own_loaders_are_not_asked(tmp_path: Path) -> None:
    def refuse(self: Any) -> Any:
        raise AssertionError

    module = linear(train_dataloader=refuse, val_dataloader=refuse)
    own, _, reference, _ = train_both(module, tmp_path)
    assert_same_weights(own, reference)


# -- moving batches -------------------------------------------------------------------------------------------------

_CALLS = ["on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"]


class _Moves:
    """The three hooks, each of which changes the batch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.moved: list[str] = []

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.moved.append(f"{_CALLS[0]} {dataloader_idx}")
        return [batch[0] + 1.0, batch[1]]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        self.moved.append(f"{_CALLS[1]} {device.type} {dataloader_idx}")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)  # type: ignore[misc]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.moved.append(f"{_CALLS[2]} {dataloader_idx}")
        return [2.0 * batch[0], batch[1]]


class MovingModule(_Moves, Validated): ...


class MovingData(_Moves, Clients): ...


class MovingLightningData(_Moves, OneClient): ...


def test_transfer_hooks_of_the_module(tmp_path: Path) -> None:
    own, trainer, reference, theirs = train_both(MovingModule, tmp_path)
    assert_same_weights(own, reference)
    assert own.moved == reference.moved
    value = float(theirs.callback_metrics["val_loss"])
    assert trainer.metrics["val"]["val_loss"].mean == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("module", [Linear, MovingModule])
def test_transfer_hooks_of_the_data_come_before_the_modules(module: type[Linear], tmp_path: Path) -> None:
    own, reference = make(module), make(module)
    data = MovingData((10,))
    federated_trainer(tmp_path, max_rounds=2, optimizer_state="keep", check_val_every_n_rounds=0).fit(own, data)
    lightning_data = MovingLightningData(Clients((10,)))
    lightning_trainer(tmp_path, max_epochs=2, limit_val_batches=0).fit(reference, datamodule=lightning_data)
    assert_same_weights(own, reference)
    assert data.moved == lightning_data.moved
    assert len(data.moved) == 2 * 3 * 3
    assert getattr(own, "moved", []) == []


class AsksItsTrainer(Clients):
    """Augments training batches only, as Lightning's documentation shows it."""

    def __init__(self) -> None:
        super().__init__((10,))
        self.asked: list[str] = []

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        stages = ("training", "validating", "testing", "predicting", "evaluating")
        self.asked.append(" ".join(stage for stage in stages if getattr(self.trainer, stage)))
        return batch


def test_the_data_module_is_told_what_the_run_is_doing(tmp_path: Path) -> None:
    class Evaluated(Validated):
        def test_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.loss(batch)

        predict_step = test_step

    data, module = AsksItsTrainer(), make(Evaluated)
    trainer = fitted(tmp_path, module, data, max_rounds=1)
    assert set(data.asked) == {"training", "validating evaluating"}
    for run, said in ((trainer.test, "testing evaluating"), (trainer.predict, "predicting")):
        data.asked = []
        run(module, data)
        assert set(data.asked) == {said}


# -- prediction -----------------------------------------------------------------------------------------------------


class Predicts(Linear):
    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        assert not torch.is_grad_enabled()
        return {"made": self.net(batch[0]), "batch": batch_idx, "rest": [batch[1]]}


def test_predict_step(tmp_path: Path, three_clients: Clients) -> None:
    """Whatever it returns comes back batch by batch; every client's own samples with the shared model."""
    module = make(Predicts)
    trainer = fitted(tmp_path, module, three_clients, max_rounds=1)
    outputs = trainer.predict(module, three_clients)
    assert sorted(outputs) == [0, 1, 2]
    for client, batches in outputs.items():
        x, y = samples(client, 5, "test").tensors
        assert [batch["batch"] for batch in batches] == [0, 1]
        torch.testing.assert_close(torch.cat([batch["made"] for batch in batches]), module.net(x).detach())
        torch.testing.assert_close(torch.cat([batch["rest"][0] for batch in batches]), y)


def test_predict_without_a_predict_step_calls_forward(tmp_path: Path) -> None:
    """Lightning's own ``predict_step`` is ``self(batch)``."""

    module = make(linear(forward=lambda self, batch: self.net(batch[0])))
    outputs = federated_trainer(tmp_path).predict(module, Clients((4,)), split="val")
    torch.testing.assert_close(torch.cat(outputs[0]), module.net(samples(0, 5, "val").tensors[0]).detach())


class Releases(pl.LightningDataModule):
    """Holds its samples, divided at random, from setup to teardown, as those do that open a file."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.drawn: list[Any] = []

    def setup(self, stage: str) -> None:
        self.calls.append("setup")
        self.samples: Any = samples(0, 20)
        self.parts = random_split(Held(self), [10, 6, 4])
        self.drawn.append([list(part.indices) for part in self.parts])

    def teardown(self, stage: str) -> None:
        self.calls.append("teardown")
        self.samples = None

    def train_dataloader(self) -> Any:
        return DataLoader(self.parts[0], batch_size=4)

    def val_dataloader(self) -> Any:
        return DataLoader(self.parts[1], batch_size=4)

    def test_dataloader(self) -> Any:
        return DataLoader(self.parts[2], batch_size=4)


class Held(Dataset):
    """The samples that a data module holds now."""

    def __init__(self, holder: Releases) -> None:
        self.holder = holder

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return self.holder.samples[index]


class Tested(Validated):
    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("test_loss", self.loss(batch))


@pytest.mark.parametrize("federated", [lambda one: Silos([one]), lambda one: Partitioned(one, IID(num_clients=1))])
@pytest.mark.parametrize("runs", [("fit", "validate"), ("fit", "fit"), ("fit", "test", "test"), ("test", "validate")])
def test_each_run_sets_up_and_tears_down_the_same_random_split(
    runs: tuple[str, ...], federated: Callable[[Any], FederatedDataModule], tmp_path: Path
) -> None:
    given, module = Releases(), make(Tested)
    data = federated(given)
    for seed, run in enumerate(runs):
        getattr(federated_trainer(tmp_path, max_rounds=1, seed=seed), run)(module, data)
        assert given.calls[:1] == ["setup"]
        assert given.calls.index("teardown") == len(given.calls) - 1
        given.calls.clear()
    assert given.drawn == len(given.drawn) * given.drawn[:1]
