"""What a module may ask of ``self.trainer``: every public attribute of Lightning's Trainer is answered or refused."""

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.strategies import SingleDeviceStrategy
from reference import (
    Clients,
    Linear,
    federated_trainer,
    fit_whole_and_resumed,
    fitted,
    linear,
    make,
    samples,
    step,
    train_both,
    watching,
)
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler
from torchmetrics import MeanMetric

from lightning_fl import Partitioned, Silos
from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.data import IID
from lightning_fl.engine.turn.trainer_parts import REFUSED

#: Where a federated run answers otherwise, by moment; ``docs/lightning-support.md`` says why.
_PLACES = {"default_root_dir", "log_dir"}
_DIFFERENT = {
    "setup": {"num_training_batches", "estimated_stepping_batches"},
    "configure_optimizers": {"val_dataloaders", "num_val_batches", "num_sanity_val_batches"},
    "on_train_epoch_start": set(),
    "training_step": set(),
    "on_train_batch_end": set(),
    "on_train_epoch_end": set(),
    # Lightning validates inside of the epoch, a federated run after it.
    "validation_step": {"is_last_batch", "callback_metrics", "logged_metrics"},
}


def lightnings_attributes() -> list[str]:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    return sorted({name for name in (*dir(pl.Trainer), *vars(trainer)) if not name.startswith("_")})


ATTRIBUTES = lightnings_attributes()


def kind(value: Any) -> Any:
    """What is compared of an attribute's value."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, DataLoader):
        return type(value), len(value), value.batch_size, type(value.sampler), len(value.dataset)  # type: ignore[arg-type]
    if isinstance(value, list | tuple):
        return [kind(item) for item in value]
    if isinstance(value, dict):
        return sorted(value)
    if isinstance(value, Optimizer):
        return type(value)
    return "callable" if callable(value) and not isinstance(value, nn.Module) else "object"


def _look(self: Any, moment: str, *_: Any) -> None:
    """Read every public attribute the first time that the module is in a hook."""
    if moment == "configure_optimizers":
        _ = self.trainer.estimated_stepping_batches  # whereby Lightning makes its loader
    if moment in self.seen:
        return
    found = self.seen[moment] = {}
    for name in ATTRIBUTES:
        if moment == "setup" and name == "estimated_stepping_batches":  # loads data in Lightning
            continue
        try:
            found[name] = kind(getattr(self.trainer, name))
        except AttributeError as error:
            found[name] = error


def test_every_public_attribute_is_what_lightnings_trainer_answers_or_refused(tmp_path: Path) -> None:
    silent = linear("Silent", validation_step=lambda *_: None, build=lambda self: setattr(self, "seen", {}))
    own, _, reference, _ = train_both(watching(silent, _DIFFERENT, _look), tmp_path, epochs=2)
    assert own.seen.keys() == _DIFFERENT.keys()
    for moment, found in own.seen.items():
        expected = reference.seen[moment]
        refused = {name for name, value in found.items() if isinstance(value, AttributeError)}
        assert refused == set(REFUSED), moment
        compared = set(found) - refused - _PLACES - _DIFFERENT[moment]
        assert {name: found[name] for name in compared} == {name: expected[name] for name in compared}, moment


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str, tmp_path: Path) -> None:
    class Asks(Linear):
        def on_train_start(self) -> None:
            assert not hasattr(self.trainer, name)
            getattr(self.trainer, name)

    with pytest.raises(AttributeError) as error:
        federated_trainer(tmp_path, max_rounds=1).fit(Asks(), Clients((4,)))
    assert str(error.value) == f"self.trainer.{name} has no meaning in a federated run: {REFUSED[name]}."


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("max_rounds", "self.trainer.federated.max_rounds"),
        ("tune", "lightning-support"),
        ("fit_loop.run", "lightning-support"),
        ("fit_loop.epoch_loop.val_loop.run", "lightning-support"),
        ("validate_loop.run", "lightning-support"),
    ],
)
def test_what_there_is_not_says_what_there_is(path: str, instead: str, tmp_path: Path) -> None:
    class Asks(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            value: Any = self.trainer
            for name in path.split("."):
                value = getattr(value, name)

    with pytest.raises(TrainingError, match=rf"self.trainer.{path} .*{instead}"):
        federated_trainer(tmp_path, max_rounds=1).fit(Asks(), Clients((4,)))


@pytest.mark.parametrize("stage", ["test", "validate"])
def test_evaluations_have_no_training_batches_and_no_optimisers(stage: str, tmp_path: Path) -> None:
    seen: list[Any] = []
    module = linear(
        test_step=lambda self, *_: seen.append(self.trainer.num_training_batches),
        validation_step=lambda self, *_: seen.append(self.trainer.num_training_batches),
        on_test_start=lambda self: seen.append(self.optimizers()),
        on_validation_start=lambda self: seen.append(self.optimizers()),
    )
    getattr(federated_trainer(tmp_path, max_rounds=1), stage)(module(), Clients((4,)))
    assert (seen[0], {*seen[1:]}) == ([], {math.inf})


def test_an_error_of_what_is_asked_for_is_its_own(tmp_path: Path) -> None:
    class Broken(MeanMetric):
        def compute(self) -> Any:
            return self.misspelt

    class Asks(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.broken = Broken()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.broken.update(1.0)
            self.log("broken", self.broken, on_step=False, on_epoch=True)
            return self.loss(batch)

        def on_train_epoch_end(self) -> None:
            self.trainer.callback_metrics  # noqa: B018

    with pytest.raises(TrainingError, match="misspelt"):
        federated_trainer(tmp_path, max_rounds=1).fit(Asks(), Clients((4,)))


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("limit_val_batches", "set trainer.check_val_every_n_rounds of the run instead"),
        ("accumulate_grad_batches", "set trainer.accumulate_grad_batches of the run instead"),
        ("gradient_clip_val", "set trainer.gradient_clip_val of the run instead"),
        ("reload_dataloaders_every_n_epochs", "leave it as it is"),
    ],
)
def test_settings_of_the_run_cannot_be_changed_by_a_module(name: str, instead: str, tmp_path: Path) -> None:
    module = linear(on_train_start=lambda self: setattr(self.trainer, name, 3))()
    message = rf"self.trainer.{name} = 3 would change nothing: it belongs to the whole run; {instead}"
    with pytest.raises(AttributeError, match=message):
        federated_trainer(tmp_path, max_rounds=1).fit(module, Clients((4,)))


def test_neither_can_loops_and_callbacks(tmp_path: Path) -> None:
    class Sets(Linear):
        def on_train_start(self) -> None:
            with pytest.raises(AttributeError, match=r"self.trainer.fit_loop.max_epochs has .* It cannot be set"):
                self.trainer.fit_loop.max_epochs = 7
            with pytest.raises(AttributeError, match=r"self.trainer.callbacks cannot be changed within a run"):
                self.trainer.callbacks.append(pl.Callback())

    federated_trainer(tmp_path, max_rounds=1, callbacks=[Callback()]).fit(Sets(), Clients((4,)))


# -- loaders --------------------------------------------------------------------------------------------------------


def test_loaders_are_those_of_the_client_whose_turn_it_is(tmp_path: Path) -> None:
    seen: list[Any] = []
    data = Clients((8, 3), batch_size=4)

    class Reads(Linear):
        def setup(self, stage: str) -> None:
            t = self.trainer
            assert (t.train_dataloader, t.val_dataloaders, t.test_dataloaders, t.predict_dataloaders) == 4 * (None,)

        def configure_optimizers(self) -> Any:
            loader = self.trainer.train_dataloader
            assert torch.equal(
                loader.dataset.tensors[0], samples(self.trainer.client, data.sizes[self.trainer.client])[:][0]
            )
            seen.append((self.trainer.client, len(loader), loader.batch_size, self.trainer.num_val_batches))
            return super().configure_optimizers()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            batches = list(self.trainer.val_dataloaders)
            assert torch.equal(batches[batch_idx][0], batch[0])
            assert self.trainer.test_dataloaders is None

        def test_step(self, batch: Any, batch_idx: int) -> None:
            assert torch.equal(list(self.trainer.test_dataloaders)[batch_idx][0], batch[0])
            assert self.trainer.train_dataloader is None

        def predict_step(self, batch: Any, batch_idx: int) -> None:
            for loader in (self.trainer.predict_dataloaders, self.trainer.datamodule.predict_dataloader()):
                assert torch.equal(list(loader)[batch_idx][0], batch[0])

    trainer = fitted(tmp_path, Reads(), data, max_rounds=1)
    assert seen == [(0, 2, 4, [2]), (1, 1, 4, [2])]
    trainer.test(Reads(), data)
    trainer.predict(Reads(), data, split="val")
    trainer.validate(Reads(), data)


def test_reading_the_loader_changes_nothing(tmp_path: Path) -> None:
    """It has an order of its own, the same for the same turn whatever was read before."""
    read: list[Tensor] = []

    class Plain(Linear):
        def loss(self, batch: Any) -> Any:
            return super().loss([nn.functional.dropout(batch[0]), batch[1]])

    def act(self: Any) -> None:
        loader = self.trainer.train_dataloader
        assert isinstance(loader.sampler, RandomSampler)
        read.append(torch.cat([x for x, _ in loader]))

    own, plain = make(linear("Reads", Plain, training_step=step(act))), make(Plain)
    federated_trainer(tmp_path / "a", max_rounds=2).fit(own, Clients((8, 8), shuffle=True))
    federated_trainer(tmp_path / "b", max_rounds=2).fit(plain, Clients((8, 8), shuffle=True))
    assert torch.equal(own.net.weight, plain.net.weight)
    assert torch.equal(read[0], read[1])  # one turn
    assert not torch.equal(read[0], read[-1])  # another one


def test_chemprops_warm_up(tmp_path: Path) -> None:
    """The number of steps as ``chemprop.models.MPNN.configure_optimizers`` finds it."""

    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        if self.trainer.train_dataloader is None:
            _ = self.trainer.estimated_stepping_batches
        steps = self.trainer.num_training_batches * 2
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}

    own, _, reference, _ = train_both(linear(configure_optimizers=configure_optimizers), tmp_path)
    assert torch.equal(own.net.weight, reference.net.weight)


# -- loops ----------------------------------------------------------------------------------------------------------


class Counts(Linear):
    """Compares its loops with its trainer; :data:`Noting` notes where Lightning's loops are."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loop = self.trainer.fit_loop
        assert loop._data_source.is_defined()
        assert loop.epoch_loop.val_loop._data_source.is_defined()
        assert loop._combined_loader.flattened[0] is self.trainer.train_dataloader
        assert loop.epoch_loop._should_accumulate() == (self.trainer.accumulate_grad_batches > 1 and batch_idx == 0)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loop = self.trainer.fit_loop.epoch_loop.val_loop
        assert (loop.batch_progress.current.ready, loop.num_dataloaders, loop.max_batches) == (batch_idx + 1, 1, [2])


def _note_loops(self: Any, hook: str, *_: Any) -> None:
    loop = self.trainer.fit_loop
    progress = loop.epoch_loop.batch_progress
    counts = [
        (part.ready, part.started, part.processed, part.completed)
        for part in (loop.epoch_progress.current, progress.current, progress.total)
    ]
    indices = (loop.batch_idx, loop.total_batch_idx, loop.epoch_loop.batch_idx, loop.epoch_loop.total_batch_idx)
    ends = (loop.max_epochs, loop.max_steps, loop.min_epochs, loop.max_batches, loop.epoch_loop.global_step)
    self.notes.append((hook, indices, ends, *counts))


_NOTED = "on_train_epoch_start on_train_batch_start training_step on_train_batch_end on_train_epoch_end"
Noting = watching(Counts, _NOTED.split(), _note_loops)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_loops_are_where_lightnings_are(accumulate: int, tmp_path: Path) -> None:
    own, _, reference, _ = train_both(Noting, tmp_path, epochs=2, accumulate_grad_batches=accumulate)
    again = next(place for place, note in enumerate(own.notes) if place and note[0] == "on_train_epoch_start")
    # Before its first batch Lightning still counts the epoch before.
    assert own.notes[again][3] == reference.notes[again][3]
    del own.notes[again], reference.notes[again]
    assert own.notes == reference.notes


def test_batches_are_counted_on_after_a_resumed_run(tmp_path: Path) -> None:
    (whole, _, second), _ = fit_whole_and_resumed(Noting, tmp_path, Clients((10, 3)))
    totals = [note[1] for note in second.notes]
    assert totals == [note[1] for note in whole.notes][-len(totals) :]
    assert totals[-1][1] == 3  # client 1's fourth batch


def test_whether_there_are_validation_data(tmp_path: Path) -> None:
    """As gluonts asks: the monitor is chosen by it."""
    found: dict[int, bool] = {}

    class Asks(Linear):
        def configure_optimizers(self) -> Any:
            self.trainer.fit_loop.setup_data()
            found[self.trainer.client] = self.trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined()
            return super().configure_optimizers()

        def validation_step(self, batch: Any, batch_idx: int) -> None: ...

    def of_client(client: int, split: str) -> Any:
        return None if client and split != "train" else samples(client, 4, split)

    federated_trainer(tmp_path, max_rounds=1).fit(Asks(), Clients((4, 4), data=of_client))
    assert found == {0: True, 1: False}
    federated_trainer(tmp_path, max_rounds=1, check_val_every_n_rounds=0).fit(Asks(), Clients((4, 4), data=of_client))
    assert found == {0: False, 1: False}


# -- the strategy ---------------------------------------------------------------------------------------------------


def test_the_strategy_answers_what_lightnings_does(tmp_path: Path) -> None:
    class Asks(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            strategy: Any = self.trainer.strategy
            assert isinstance(self.trainer, pl.Trainer)
            assert isinstance(strategy, SingleDeviceStrategy)
            assert (strategy.local_rank, strategy.global_rank, strategy.node_rank, strategy.world_size) == (0, 0, 0, 1)
            assert strategy.is_global_zero is True
            assert strategy.model is strategy.lightning_module is self
            assert strategy.root_device == self.device
            assert strategy.precision_plugin is self.trainer.precision_plugin
            assert strategy.accelerator is self.trainer.accelerator
            assert strategy.optimizers is self.trainer.optimizers
            assert strategy.broadcast(3) == 3
            assert strategy.reduce_boolean_decision(False) is False
            assert strategy.batch_to_device(batch)[0].device == self.device
            assert strategy.lightning_module_state_dict().keys() == self.state_dict().keys()
            with self.trainer.init_module():
                assert nn.Linear(2, 2).weight.dtype == torch.float32
            return super().training_step(batch, batch_idx)

    federated_trainer(tmp_path, max_rounds=1).fit(Asks(), Clients((4,)))


# -- the data module ------------------------------------------------------------------------------------------------


class Hospital(LightningDataModule):
    """An ordinary data module that asks what torchgeo's ask, and has something to tell."""

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.count = count
        self.num_classes: int | None = None
        self.notes: list[Any] = []

    def setup(self, stage: str) -> None:
        t = self.trainer
        assert t is not None
        self.num_classes = self.count + 100
        self.notes.append((stage, t.training, t.validating, t.testing, t.sanity_checking, t.world_size, t.max_epochs))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(samples(self.count, self.count), batch_size=2, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(samples(self.count, 4, "val"), batch_size=4)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(samples(self.count, 5, "test"), batch_size=4)


class AsksData(Linear):
    """Reads the data module where modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Any] = []

    def configure_optimizers(self) -> Any:
        data: Any = self.trainer.datamodule
        assert isinstance(data, Hospital)
        self.read.append((self.trainer.client, data.num_classes, data.hparams.count, len(data.train_dataloader())))
        assert data.train_dataloader().batch_size == 2
        return super().configure_optimizers()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        data: Any = self.trainer.datamodule
        assert torch.equal(list(data.test_dataloader())[batch_idx][0], batch[0])


def test_the_data_module_is_the_silos(tmp_path: Path) -> None:
    module, hospitals = AsksData(), [Hospital(6), Hospital(4)]
    data = Silos(hospitals, names=["a", "b"])
    trainer = fitted(tmp_path, module, data, max_rounds=1)
    assert module.read == [(0, 106, 6, 3), (1, 104, 4, 2)]
    trainer.test(module, data)
    assert hospitals[1].notes == [("fit", True, False, False, False, 1, 1), ("test", False, False, True, False, 1, 1)]


def test_the_data_module_is_the_one_that_was_cut_up(tmp_path: Path) -> None:
    module, hospital = AsksData(), Hospital(8)
    data = Partitioned(hospital, IID(num_clients=2))
    fitted(tmp_path, module, data, max_rounds=1)
    assert module.read == [(0, 108, 8, 2), (1, 108, 8, 2)]  # 4 of 8 samples in batches of 2
    assert [note[0] for note in hospital.notes] == ["fit", "test"]


def test_between_turns_the_data_module_tells_its_attributes(tmp_path: Path) -> None:
    class Asks(Linear):
        def setup(self, stage: str) -> None:
            data: Any = self.trainer.datamodule
            assert data.num_classes == 106
            assert data.client_names() == ["a", "b"]  # what only the silos have
            with pytest.raises(ConfigurationError, match=r"self.trainer.datamodule.train_dataloader\(\) belongs to a"):
                data.train_dataloader()
            with pytest.raises(AttributeError, match="'Hospital' object has no attribute 'nonsense'"):
                _ = data.nonsense
            data.told = 3
            self.told = True

    module, hospitals = Asks(), [Hospital(6), Hospital(4)]
    federated_trainer(tmp_path, max_rounds=1).fit(module, Silos(hospitals, names=["a", "b"]))
    assert module.told
    assert hospitals[0].told == 3  # type: ignore[attr-defined]


def test_a_federated_data_module_sees_the_modules_trainer(tmp_path: Path) -> None:
    class Data(Clients):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            t: Any = self.trainer
            assert (t.validating or t.sanity_checking) == (not t.training)
            assert t.federated.max_rounds == 1
            return batch

    def on_train_epoch_start(self: Any) -> None:
        assert len(self.trainer.datamodule.train_dataloader()) == 2

    module = linear(validation_step=lambda *_: None, on_train_epoch_start=on_train_epoch_start)
    federated_trainer(tmp_path, max_rounds=1).fit(module(), Data((8,)))


# -- errors ---------------------------------------------------------------------------------------------------------


def test_an_error_of_the_module_names_its_place(tmp_path: Path) -> None:
    class Wrong(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.mse_loss(self.net(batch[0][:, :2]), batch[1])

    place = r"RuntimeError: .*mat1 and mat2 .*\(.*test_module_trainer.py, line \d+, in training_step\)\. Nothing"
    with pytest.raises(TrainingError, match=place):
        federated_trainer(tmp_path, max_rounds=1).fit(Wrong(), Clients((4,)))


def test_an_error_with_a_message_of_ours_does_not(tmp_path: Path) -> None:
    module = linear(training_step=lambda *_: 1.0)()
    with pytest.raises(TrainingError) as error:
        federated_trainer(tmp_path, max_rounds=1).fit(module, Clients((4,)))
    assert "test_module_trainer" not in str(error.value)
