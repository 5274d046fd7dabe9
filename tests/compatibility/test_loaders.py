"""Loaders as people hold them, against Lightning's own Trainer: several per split, streams, any iterable."""

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import CombinedLoader
from reference import (
    Batches,
    Holds,
    Linear,
    Rows,
    Validated,
    assert_same_weights,
    federated_trainer,
    fitted,
    lightning_trainer,
    loader,
    make,
    samples,
)
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn import SAGEConv
from torchmetrics import MeanAbsoluteError

from lightning_fl import FederatedTrainer
from lightning_fl.core.errors import ConfigurationError, DataError, TrainingError
from lightning_fl.data.silos import Silos


def both(
    module: Callable[[], LightningModule], folder: Path, data: Callable[[], Holds], epochs: int = 2, **arguments: Any
) -> tuple[Any, FederatedTrainer, Any, pl.Trainer]:
    """One silo for some rounds, and Lightning for as many epochs."""
    own, reference = make(module), make(module)
    trainer = fitted(folder / "federated", own, Silos([data()]), max_rounds=epochs, optimizer_state="keep", **arguments)
    theirs = lightning_trainer(folder / "lightning", max_epochs=epochs, **arguments)
    theirs.fit(reference, datamodule=data())
    return own, trainer, reference, theirs


# -- several loaders for evaluation ---------------------------------------------------------------------------------


class Watches(Linear):
    """Logs in all ways, and writes down what its hooks are given."""

    def __init__(self) -> None:
        super().__init__()
        self.errors = torch.nn.ModuleList([MeanAbsoluteError(), MeanAbsoluteError()])
        self.one_error = MeanAbsoluteError()
        self.calls: list[tuple[Any, ...]] = []

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.calls.append(("start", batch_idx, dataloader_idx))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.calls.append(("transfer", dataloader_idx))
        return batch

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.calls.append(("end", len(batch[0]), batch_idx, dataloader_idx))

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        x, y = batch
        self.log("val_loss", self.loss(batch))
        self.log(f"own_{dataloader_idx}", self.loss(batch), add_dataloader_idx=False)
        self.errors[dataloader_idx](self.net(x), y)
        self.log("mae", self.errors[dataloader_idx])
        self.one_error(self.net(x), y)
        self.log("together", self.one_error)

    def on_validation_epoch_end(self) -> None:
        self.log("batches", float(sum(self.trainer.num_val_batches)))
        self.calls.append(("batches", *self.trainer.num_val_batches))

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        return batch[1] + dataloader_idx


def _validation(kind: str) -> Callable[[], Any]:
    def make_loaders() -> Any:
        parts = [loader(0, 6, "val"), loader(1, 3, "val")]
        return {
            "list": parts,
            "dict": dict(zip("ab", parts, strict=True)),
            "combined": CombinedLoader(parts, "sequential"),
        }[kind]

    return make_loaders


@pytest.mark.parametrize("kind", ["list", "dict", "combined"])
def test_several_validation_loaders(kind: str, tmp_path: Path) -> None:
    """Names, values, hooks and indices are those of Lightning, metrics that two loaders share included."""
    own, trainer, reference, theirs = both(
        Watches, tmp_path, lambda: Holds(lambda: loader(0, 8), _validation(kind)), epochs=1
    )
    assert own.calls == reference.calls
    assert ("batches", 2, 1) in own.calls
    ours = {name: value.mean for name, value in trainer.metrics["val"].items()}
    assert ours.keys() == theirs.callback_metrics.keys()
    assert "val_loss/dataloader_idx_1" in ours
    assert ours == pytest.approx({name: float(value) for name, value in theirs.callback_metrics.items()}, rel=1e-6)


@pytest.mark.slow
def test_several_test_loaders_and_predictions(tmp_path: Path) -> None:
    data = Holds(lambda: loader(0, 8), _validation("list"))
    own, trainer, reference, theirs = both(Watches, tmp_path, lambda: data, epochs=1)
    trainer.test(own, trainer.datamodule)
    expected = theirs.test(reference, datamodule=data, verbose=False)
    ours = {name: value.mean for name, value in trainer.metrics["test"].items()}
    assert ours == pytest.approx(expected[0] | expected[1], rel=1e-6)
    predicted, plain = trainer.predict(own, trainer.datamodule)[0], theirs.predict(reference, datamodule=data)
    assert [len(part) for part in predicted] == [len(part) for part in plain] == [2, 1]
    for one, other in zip(chain(*predicted), chain(*plain), strict=True):
        assert torch.equal(one, other)


def test_loaders_that_are_not_read_in_turn_give_one_batch(tmp_path: Path) -> None:
    class Pairs(Linear):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.loss(batch["a"]) + 10 * self.loss(batch["b"]), batch_size=len(batch["a"][0]))

    def pairs() -> CombinedLoader:
        return CombinedLoader({"a": loader(0, 7, "val"), "b": loader(1, 4, "val")}, "max_size_cycle")

    _, trainer, _, theirs = both(Pairs, tmp_path, lambda: Holds(lambda: loader(0, 8), pairs), epochs=1)
    value = float(theirs.callback_metrics["val_loss"])
    assert trainer.metrics["val"]["val_loss"].mean == pytest.approx(value, rel=1e-6)


def test_a_loader_s_metrics_stand_for_its_samples(tmp_path: Path) -> None:
    """Of several loaders each, of streams once they are read."""

    class Counts(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.error = torch.nn.ModuleList([MeanAbsoluteError(), MeanAbsoluteError()])

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.error[dataloader_idx](self.net(batch[0]), batch[1])
            self.log("mae", self.error[dataloader_idx])

    silos = Silos(
        [
            {"train": samples(0, 4), "val": [loader(0, 6, "val"), Batches(0, 5)]},
            {"train": samples(0, 4), "val": Batches(0, 7)},
        ]
    )
    trainer = fitted(tmp_path, make(Counts), silos, max_rounds=1)
    several, one = (trainer.loop.evaluator.evaluate(client, trainer.client_model(client), "val") for client in range(2))
    assert several is not None
    assert one is not None
    assert [value.weight for value in several.metrics.values()] == [6, 5]
    assert [value.weight for value in one.metrics.values()] == [7]
    assert (several.num_samples, one.num_samples) == (11, 7)


# -- several loaders for training -----------------------------------------------------------------------------------


class Joins(Linear):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        parts = batch.values() if isinstance(batch, dict) else batch
        loss = torch.stack([self.loss(part) for part in parts if part is not None]).sum()
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=4)
        return loss


@pytest.mark.parametrize(
    "kind", ["list", "dict", "one", pytest.param("min_size", marks=pytest.mark.slow), "max_size", "max_size_cycle"]
)
def test_training_on_several_loaders(kind: str, tmp_path: Path) -> None:
    """A list or dict is Lightning's ``CombinedLoader`` in the mode "max_size_cycle"; other modes as they are."""

    def train() -> Any:
        parts = {"a": loader(0, 10), "b": loader(1, 5)}
        if kind in ("list", "one"):
            return list(parts.values())[: 1 if kind == "one" else 2]
        return parts if kind == "dict" else CombinedLoader(parts, kind)  # type: ignore[arg-type]

    own, trainer, reference, theirs = both(Joins, tmp_path, lambda: Holds(train))
    assert_same_weights(own, reference)
    assert trainer.client_states[0].global_step == theirs.global_step
    assert trainer.num_samples == [5 if kind == "min_size" else 10]
    value = float(theirs.callback_metrics["loss"])
    assert trainer.metrics["train"]["loss"].mean == pytest.approx(value, rel=1e-6)


# -- any iterable, streams ------------------------------------------------------------------------------------------


class Asks(Linear):
    """Writes down what Lightning tells of the turn's length."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.told.append((batch_idx, self.trainer.num_training_batches, self.trainer.is_last_batch))
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_any_iterable_of_batches(sized: bool, accumulate: int, tmp_path: Path) -> None:
    data = Holds(lambda: Batches(0, 10, sized), lambda: Batches(1, 5, sized))
    own, trainer, reference, theirs = both(Asks, tmp_path, lambda: data, accumulate_grad_batches=accumulate)
    assert_same_weights(own, reference)
    assert own.told == reference.told
    assert own.told[0][1] == (3 if sized else math.inf)
    assert trainer.client_states[0].global_step == theirs.global_step
    assert trainer.num_samples == [10]


def test_a_stream_of_samples(tmp_path: Path) -> None:
    """Counted once for its weight; a turn of several epochs ends where the stream does."""
    own, trainer, reference, _ = both(Asks, tmp_path, lambda: Holds(lambda: DataLoader(Rows(0, 10), batch_size=4)))
    assert_same_weights(own, reference)
    assert own.told == reference.told
    assert trainer.num_samples == [10]
    twice = make(Asks)
    trainer = fitted(tmp_path, twice, Silos([Rows(0, 10)], batch_size=4, shuffle=False), max_rounds=1, local_epochs=2)
    assert [index for index, _, _ in twice.told] == list(range(6))
    assert [last for _, _, last in twice.told] == 5 * [False] + [True]
    assert_same_weights(twice, reference)  # without optimiser states


def test_accumulation_begins_anew_with_every_pass_over_a_stream(tmp_path: Path) -> None:
    weights = []
    for data in (Silos([Batches(0, 10)]), Silos([DataLoader(samples(0, 10), batch_size=4)])):
        module = make(Linear)
        trainer = fitted(tmp_path, module, data, max_rounds=1, local_epochs=2, accumulate_grad_batches=2)
        assert trainer.client_states[0].global_step == 4
        weights.append(module)
    assert_same_weights(*weights)


class Endless(IterableDataset):
    """One row after another without end, in an order that torch's generator draws."""

    def __init__(self, client: int) -> None:
        self.rows = samples(client, 8)
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.read += 1
            yield self.rows[int(torch.randint(8, ()))]


def test_an_endless_stream_trains_by_steps(tmp_path: Path) -> None:
    """Each turn begins it anew; its weight is what is read in a turn, or what is given."""
    streams = [Endless(0), Endless(1)]
    trainer = fitted(tmp_path, make(Linear), Silos(streams, batch_size=4), max_rounds=2, local_steps=3)
    assert trainer.num_samples == [12, 12]
    assert trainer.client_states[0].global_step == 6
    assert streams[0].read == 3 * 12  # counted, and two rounds

    results = []
    for names, given in ((None, [1, 3]), (["a", "b"], {"b": 3, "a": 1})):
        streams = [Endless(0), Endless(1)]
        module = make(Linear)
        trainer = federated_trainer(tmp_path, max_rounds=2, local_steps=3)
        trainer.fit(module, Silos(streams, names=names, batch_size=4, num_samples=given))  # type: ignore[arg-type]
        assert trainer.num_samples == [1, 3]
        assert streams[0].read == 2 * 12
        results.append(module)
    assert_same_weights(*results)


def test_what_can_be_read_only_once_is_refused(tmp_path: Path) -> None:
    batches = list(Batches(0, 8))
    trainer = federated_trainer(tmp_path, max_rounds=2)
    for once in ((batch for batch in batches), iter(batches), map(tuple, batches)):
        kind = type(once).__name__
        with pytest.raises(
            ConfigurationError, match=rf"train_dataloader\(\) returned a {kind}, which can be read only"
        ):
            trainer.fit(make(Linear), Silos([Holds(lambda once=once: once)]))
        with pytest.raises(
            ConfigurationError, match=rf"north: the train data are a {kind}, which can be read only once"
        ):
            Silos({"north": once, "south": Batches(1, 8)})

    class Once:
        def __init__(self) -> None:
            self.left = iter(batches)

        def __iter__(self) -> Iterator[Any]:
            return self.left

    with pytest.raises((DataError, TrainingError), match="Once .*__iter__"):
        trainer.fit(make(Linear), Silos([Once()]))


# -- sizes of batches -----------------------------------------------------------------------------------------------


class Words(Linear):
    """Tokenises strings in its step, and says their number."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = torch.tensor([[float(len(word)), 1.0, 0.0] for word in batch])
        loss = self.net(x).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=len(batch))
        return loss


def _words() -> DataLoader:
    return DataLoader(["a", "bcd", "ef", "ghij", "k"], batch_size=2, collate_fn=list)  # type: ignore[arg-type]


def test_batches_without_tensors(tmp_path: Path) -> None:
    own, trainer, reference, theirs = both(Words, tmp_path, lambda: Holds(_words))
    assert_same_weights(own, reference)
    value = float(theirs.callback_metrics["loss"])
    assert trainer.metrics["train"]["loss"].mean == pytest.approx(value, rel=1e-6)
    assert trainer.metrics["train"]["train/loss"].mean == pytest.approx(value, rel=1e-6)
    assert trainer.num_samples == [5]


def test_a_batch_whose_size_nobody_tells_counts_as_one(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Where Lightning needs no size; where it does, its own error says so."""

    class Silent(Words):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = self.net(torch.ones(len(batch), 3)).square().mean()
            self.log("seen", loss, on_step=True, on_epoch=False)
            return loss

    class Means(Silent):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            self.log("mean", loss, on_step=False, on_epoch=True)
            return loss

    own, _, reference, _ = both(Silent, tmp_path, lambda: Holds(_words))
    assert_same_weights(own, reference)
    assert sum("counts as one sample" in str(warning.message) for warning in recwarn) <= 1
    with pytest.raises(TrainingError, match="We could not infer the batch_size from the batch"):
        federated_trainer(tmp_path, max_rounds=1).fit(make(Means), Silos([Holds(_words)]))


class Molecules(Linear):
    """Batches whose first tensor has a row per atom, three to a molecule, as chemprop's."""

    def __init__(self, order: int = 0) -> None:
        super().__init__()
        self.order = order

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        atoms, (x, y) = batch
        loss = self.loss((x, y))
        if self.order:
            self.log("atoms", atoms.sum(), batch_size=len(atoms))
        self.log("molecule_loss", loss, on_step=False, on_epoch=True, batch_size=len(x))
        return loss


@pytest.mark.parametrize("order", [0, 1])
def test_the_size_that_the_module_gives_weighs_its_loss(order: int, tmp_path: Path) -> None:
    """That of the value that is called a loss, where several are given (D9)."""

    def collate(rows: list[Any]) -> Any:
        x, y = map(torch.stack, zip(*rows, strict=True))
        return torch.zeros(1 if len(rows) == 4 else 9, 1), (x, y)  # so that atoms would weigh otherwise

    data = Holds(lambda: DataLoader(samples(0, 10), batch_size=4, collate_fn=collate))
    _, trainer, _, theirs = both(lambda: Molecules(order), tmp_path, lambda: data)
    value = float(theirs.callback_metrics["molecule_loss"])
    assert trainer.metrics["train"]["train/loss"].mean == pytest.approx(value, rel=1e-6)


# -- hooks of each silo's data module -------------------------------------------------------------------------------


class Scales(Holds):
    """Scales its batches as they go to the device; knows whether the trainer trains."""

    def __init__(self, client: int, factor: float) -> None:
        super().__init__(lambda: loader(client, 8), lambda: loader(client, 4, "val"))
        self.factor = factor

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [self.factor * batch[0], batch[1]]


class Shifts(Holds):
    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return [batch[0] + 1.0, batch[1]]


@pytest.mark.parametrize("way", [Scales(0, 3.0), Shifts(lambda: loader(0, 8), lambda: loader(0, 4, "val"))])
def test_a_silo_s_data_module_moves_its_batches(way: Holds, tmp_path: Path) -> None:
    own, trainer, reference, theirs = both(Validated, tmp_path, lambda: way)
    assert_same_weights(own, reference)
    value = float(theirs.callback_metrics["val_loss"])
    assert trainer.metrics["val"]["val_loss"].mean == pytest.approx(value, rel=1e-6)


def test_each_silo_has_hooks_of_its_own(tmp_path: Path) -> None:
    """Two clients whose data modules scale differently, one that brings a loader: as if the data were so."""

    def scaled(client: int, split: str, count: int, factor: float) -> Any:
        x, y = samples(client, count, split).tensors
        return torch.utils.data.TensorDataset(factor * x, y)

    modules = []
    plain = [{"train": scaled(c, "train", 8, f), "val": scaled(c, "val", 4, f)} for c, f in enumerate((3.0, 0.5))]
    for silos in ([Scales(0, 3.0), Scales(1, 0.5)], plain):
        module = make(Validated)
        trainer = fitted(tmp_path, module, Silos([*silos, loader(2, 8)], batch_size=4, shuffle=False), max_rounds=2)
        modules.append((module, trainer.metrics["val"]["val_loss"].clients))
    assert_same_weights(modules[0][0], modules[1][0])
    assert modules[0][1] == modules[1][1]


# -- PyG's loaders --------------------------------------------------------------------------------------------------


class Nodes(LightningModule):
    """Node regression on sampled subgraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = SAGEConv(3, 1)

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        loss = torch.nn.functional.mse_loss(self.net(batch.x, batch.edge_index), batch.y)
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=batch.num_nodes)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


@pytest.mark.parametrize("kind", ["nodes", "graphs"])
def test_loaders_of_pyg(kind: str, tmp_path: Path) -> None:
    draws = torch.Generator().manual_seed(0)
    graphs = [
        Data(
            x=torch.randn(6, 3, generator=draws),
            edge_index=torch.randint(6, (2, 12), generator=draws),
            y=torch.randn(6, 1, generator=draws),
        )
        for _ in range(5)
    ]

    def train() -> Any:
        if kind == "nodes":
            return RandomNodeLoader(graphs[0], num_parts=3)
        return GraphLoader(graphs, batch_size=2, follow_batch=["x"])  # type: ignore[arg-type]

    own, trainer, reference, theirs = both(Nodes, tmp_path, lambda: Holds(train), epochs=1)
    assert trainer.num_samples == [6 if kind == "nodes" else 5]
    if kind == "graphs":  # the parts are drawn
        assert_same_weights(own, reference)
        value = float(theirs.callback_metrics["loss"])
        assert trainer.metrics["train"]["train/loss"].mean == pytest.approx(value, rel=1e-6)


class Samples(torch.utils.data.Dataset):
    """Noise is added by a generator of its own."""

    def __init__(self, client: int) -> None:
        self.held = samples(client, 8)
        self.rng = random.Random(0)

    def __len__(self) -> int:
        return len(self.held)

    def __getitem__(self, index: int) -> Any:
        x, y = self.held[index]
        return x + self.rng.gauss(0, 1), y


class Collates:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, items: list[Any]) -> Any:
        x, y = default_collate(items)
        return x * float(self.rng.uniform(0.5, 2)), y


class Masks(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.rng = torch.Generator().manual_seed(0)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return self.loss((x * torch.rand(x.shape, generator=self.rng), y))


def test_generators_that_user_code_holds_are_seeded_by_run_round_and_client(tmp_path: Path) -> None:
    """Two silos that share a collation: a resumed run draws what the uninterrupted one does, each round anew."""
    shared = np.random.default_rng(0)

    def closure(items: list[Any]) -> Any:
        x, y = default_collate(items)
        return x + float(shared.uniform()), y

    def trained(rounds: int, folder: str, seed: int = 0, **options: Any) -> LightningModule:
        module = make(Masks)
        silos = [Holds(partial(DataLoader, Samples(0), 4, collate_fn=Collates())), Holds(lambda: one)]
        one = DataLoader(Samples(1), 4, collate_fn=closure)
        trainer = federated_trainer(tmp_path / folder, max_rounds=rounds, enable_checkpointing=True, seed=seed)
        trainer.fit(module, Silos(silos), **options)
        return module

    whole = trained(4, "whole")
    shared.uniform(size=7)  # drawn elsewhere
    trained(2, "cut")
    assert_same_weights(trained(4, "cut", ckpt_path="last"), whole, moved=False)
    other = trained(4, "other", seed=1)
    assert not torch.equal(other.net.weight, whole.net.weight)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("amount", [{"local_epochs": 1}, {"local_steps": 3}])
def test_an_endless_loader_with_a_length_trains_and_is_evaluated(amount: dict[str, int], tmp_path: Path) -> None:
    """Three batches an epoch, as under Lightning, and a sampler that is told the passes of its client."""

    class Endless:
        def __init__(self) -> None:
            self.told: list[int] = []
            self.sampler = self.batch_sampler = self

        def set_epoch(self, epoch: int) -> None:
            self.told.append(epoch)

        def __iter__(self) -> Iterator[Any]:
            return cycle(loader(0, 20))

        def __len__(self) -> int:
            return 3

    loaders = [Endless(), Endless()]
    own, reference = make(Validated), make(Validated)
    data = Silos([Holds(lambda: loaders[0], lambda: loaders[1])])
    trainer = fitted(tmp_path / "federated", own, data, max_rounds=2, enable_checkpointing=True, **amount)
    theirs = lightning_trainer(tmp_path / "lightning", max_epochs=2)
    theirs.fit(reference, datamodule=Holds(Endless, Endless))
    assert_same_weights(own, reference)
    assert trainer.metrics["val"]["val_loss"].mean == pytest.approx(float(theirs.callback_metrics["val_loss"]))
    counted, *told = loaders[0].told
    assert (counted, told) == (0, [0, 1])
    assert loaders[1].told == [0, 1]
    again = federated_trainer(tmp_path / "federated", max_rounds=3, enable_checkpointing=True, **amount)
    again.fit(make(Validated), data, ckpt_path="last")
    assert loaders[0].told[-1] == 2
