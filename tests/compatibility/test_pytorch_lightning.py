"""Modules, data modules and loggers of ``pytorch_lightning`` work as those of ``lightning.pytorch`` do."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch
import pandas as pd
import pytest
import pytorch_lightning
import torch
from processes import Process, succeed
from reference import Clients, federated_trainer, fitted, lightning_trainer, loader, samples
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import MeanAbsoluteError

from lightning_fl import FederatedTrainer, Partitioned, Silos, federate
from lightning_fl.cli import main
from lightning_fl.core.lightning_types import AnyDataModule, AnyLogger, AnyModule, is_overridden
from lightning_fl.data import IID

BOTH = (lightning.pytorch, pytorch_lightning)


def module_of(pl: ModuleType, **members: Any) -> Any:
    """A module that uses most of Lightning, built on one of its names."""

    class Complete(pl.LightningModule):  # type: ignore[name-defined]
        def __init__(self, lr: float = 0.05) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 1))
            self.mae = MeanAbsoluteError()
            self.calls: list[str] = []

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = nn.functional.mse_loss(self(batch[0]), batch[1])
            self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.mae(self(batch[0]), batch[1])
            self.log_dict({"mae": self.mae, "twice": self.mae.compute().detach() * 2})

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("test_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

        def on_train_epoch_end(self) -> None:
            assert isinstance(self.trainer, pl.Trainer)
            assert isinstance(self.trainer.strategy, pl.strategies.SingleDeviceStrategy)
            self.calls.append(f"{self.current_epoch} {self.global_step} {self.trainer.state.fn == 'fit'}")

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "loss_epoch"}}

    torch.manual_seed(7)
    return type("Complete", (Complete,), members)()


def _by_hand(self: Any, batch: Any, batch_idx: int) -> None:
    optimizer, scheduler = self.optimizers(), self.lr_schedulers()
    with optimizer.toggle_model():
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        optimizer.step()
    self.log("loss", loss)
    scheduler.step(loss.detach())


def _two_by_hand(self: Any, batch: Any, batch_idx: int) -> None:
    for optimizer in self.optimizers():
        self.toggle_optimizer(optimizer)
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)


def _two(self: Any) -> Any:
    return [torch.optim.SGD(self.net[0].parameters(), lr=0.01), torch.optim.Adam(self.net[3].parameters(), lr=0.01)]


def _own_step(self: Any, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
    assert type(optimizer).__module__.startswith(("lightning.pytorch", "pytorch_lightning"))
    optimizer.step(closure=closure)


def _logs_gradients(self: Any, optimizer: Any) -> None:
    self.log("grad", sum(float(p.grad.norm()) for p in self.parameters()))


class _Warm:
    """A scheduler of one's own, which needs ``lr_scheduler_step``."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def _steps_warm(self: Any, scheduler: Any, metric: Any) -> None:
    for group in scheduler.optimizer.param_groups:
        group["lr"] *= 0.5


def _warm(self: Any) -> Any:
    optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
    return [optimizer], [_Warm(optimizer)]


CASES: dict[str, dict[str, Any]] = {
    "automatic": {},
    "manual": {"automatic_optimization": False, "training_step": _by_hand},
    "several optimisers": {
        "automatic_optimization": False,
        "training_step": _two_by_hand,
        "configure_optimizers": _two,
    },
    "hooks of the step": {"optimizer_step": _own_step, "on_before_optimizer_step": _logs_gradients},
    "a scheduler of one's own": {"configure_optimizers": _warm, "lr_scheduler_step": _steps_warm},
}


def _outcome(trainer: FederatedTrainer, module: Any) -> dict[str, Any]:
    means = {f"{split}/{name}": m.mean for split, of in trainer.metrics.items() for name, m in of.items()}
    return means | module.state_dict() | {"calls": module.calls}


def _assert_equal(own: dict[str, Any], reference: dict[str, Any]) -> None:
    assert own.keys() == reference.keys()
    for name, value in own.items():
        assert torch.equal(value, reference[name]) if isinstance(value, Tensor) else value == reference[name], name


@pytest.mark.parametrize("members", CASES.values(), ids=CASES)
def test_both_names_give_the_same_bits(members: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for pl in BOTH:
        module = module_of(pl, **members)
        trainer = fitted(tmp_path / pl.__name__, module, Clients((10, 6)), max_rounds=3, optimizer_state="keep")
        trainer.test(module, Clients((10, 6)))
        found.append(_outcome(trainer, module))
    _assert_equal(found[1], found[0])


@pytest.mark.parametrize("name", ["automatic", "manual"])
def test_a_client_has_the_weights_of_its_own_trainer(name: str, tmp_path: Path) -> None:
    def plain(pl: ModuleType) -> Any:
        module = module_of(pl, **CASES[name])
        module.net[2].p = 0.0  # the trainers draw otherwise
        return module

    own, reference = plain(pytorch_lightning), plain(pytorch_lightning)
    federated_trainer(tmp_path, max_rounds=2, optimizer_state="keep").fit(own, Clients((10,)))
    trainer = lightning_trainer(tmp_path, pytorch_lightning.Trainer, max_epochs=2, limit_val_batches=0)
    trainer.fit(reference, loader(0, 10))
    for name, value in own.state_dict().items():
        assert torch.equal(value, reference.state_dict()[name]), name


def hospital_of(pl: ModuleType) -> type:
    """An ordinary data module, built on one of Lightning's names."""

    class Hospital(pl.LightningDataModule):  # type: ignore[name-defined]
        def __init__(self, count: int = 8) -> None:
            super().__init__()
            self.save_hyperparameters()

        def setup(self, stage: str) -> None:
            assert self.trainer.state.fn in ("fit", "test")  # Partitioned opens all splits in each
            self.ready = True

        def train_dataloader(self) -> DataLoader:
            return DataLoader(samples(1, self.hparams.count), batch_size=4, shuffle=True)

        def val_dataloader(self) -> DataLoader:
            return DataLoader(samples(1, 5, "val"), batch_size=4)

        def test_dataloader(self) -> DataLoader:
            return DataLoader(samples(1, 5, "test"), batch_size=4)

    return Hospital


def _asks_data(self: Any) -> None:
    data = self.trainer.datamodule
    assert data.ready
    assert isinstance(data, type(self).hospital)
    self.calls.append(str((data.hparams.count, len(data.train_dataloader()))))


@pytest.mark.parametrize("kind", ["silos", "partitioned", "federate"])
def test_data_modules(kind: str, tmp_path: Path) -> None:
    found = []
    for pl in BOTH:
        hospital = hospital_of(pl)
        module = module_of(pl, on_train_epoch_start=_asks_data, hospital=hospital)
        folder = tmp_path / pl.__name__
        if kind == "federate":
            options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "seed": 0}
            data: Any = [hospital(8), hospital(12)]
            trainer = federate(module, data, max_rounds=2, default_root_dir=folder, **options)
        else:
            data = Silos([hospital(8), hospital(12)])
            data = data if kind == "silos" else Partitioned(hospital(16), IID(num_clients=2))
            trainer = fitted(folder, module, data, max_rounds=2)
            trainer.test(module, data)
        found.append(_outcome(trainer, module))
    _assert_equal(found[1], found[0])


def test_loggers(tmp_path: Path) -> None:
    tables = []
    for pl in BOTH:
        logger = pl.loggers.CSVLogger(tmp_path, name=pl.__name__)
        module = module_of(pl)
        fitted(tmp_path / "runs", module, Clients((8, 6)), max_rounds=2, logger=logger)
        assert module.logger is logger
        tables.append(pd.read_csv(Path(logger.log_dir) / "metrics.csv"))
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert "loss" in tables[1]


def test_exported_models_open_under_their_own_name(tmp_path: Path) -> None:
    module = _Exported(0.01)
    trainer = fitted(tmp_path, module, Clients((8, 6)), max_rounds=1, enable_checkpointing=True)
    path = Path(trainer.log_dir) / "models" / "client_0.ckpt"
    opened = _Exported.load_from_checkpoint(path, map_location="cpu")
    assert opened.hparams.lr == 0.01
    assert torch.equal(opened.net.weight, module.net.weight)


class _Exported(pytorch_lightning.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


@pytest.mark.slow
def test_compiled_modules(tmp_path: Path) -> None:
    plain, compiled = _Exported(0.01), _Exported(0.01)
    compiled.load_state_dict(plain.state_dict())
    federated_trainer(tmp_path, max_rounds=1).fit(plain, Clients((8, 6)))  # type: ignore[arg-type]
    federated_trainer(tmp_path, max_rounds=1).fit(torch.compile(compiled, backend="eager"), Clients((8, 6)))  # type: ignore[arg-type]
    assert torch.equal(plain.net.weight, compiled.net.weight)


def test_several_clients_at_once(tmp_path: Path) -> None:
    alone, together = _Exported(0.01), _Exported(0.01)
    together.load_state_dict(alone.state_dict())
    federated_trainer(tmp_path, max_rounds=2).fit(alone, Clients((8, 6)))  # type: ignore[arg-type]
    federated_trainer(tmp_path, max_rounds=2, stacked_clients=2).fit(together, Clients((8, 6)))  # type: ignore[arg-type]
    torch.testing.assert_close(alone.net.weight, together.net.weight)


# -- recipes --------------------------------------------------------------------------------------------------------

_MODULE = """
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class OldModule(pl.LightningModule):
    def __init__(self, lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class OldData(pl.LightningDataModule):
    def __init__(self, count: int = 4):
        super().__init__()
        self.count = count

    def train_dataloader(self):
        x = torch.randn(self.count, 2)
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2)
"""

_RECIPE = """
trainer:
  max_rounds: 2
  accelerator: cpu
  devices: 1
  enable_progress_bar: false
  default_root_dir: runs
  logger:
    - class_path: pytorch_lightning.loggers.CSVLogger
      init_args: {save_dir: logs}
model:
  class_path: old_package.OldModule
  init_args: {lr: 0.05}
data:
  class_path: Silos
  init_args:
    datamodules:
      - class_path: old_package.OldData
        init_args: {count: 6}
      - class_path: old_package.OldData
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("old_package.py").write_text(_MODULE)
    Path("recipe.yaml").write_text(_RECIPE)
    return tmp_path


@pytest.mark.slow
def test_a_recipe_names_classes_of_either_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", "recipe.yaml"]) == 0, capsys.readouterr().err
    assert list(folder.glob("logs/**/metrics.csv"))
    assert main(["fit", "--config", "recipe.yaml", "--model.init_args.nonsense", "3"]) == 2
    assert "model.nonsense: OldModule has no such argument" in capsys.readouterr().err
    sys.modules.pop("old_package")


def test_what_is_of_neither_name_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", "recipe.yaml", "--model", "old_package.DataLoader"]) == 2
    message = "model.class_path='old_package.DataLoader': not a subclass of lightning.pytorch"
    assert message in capsys.readouterr().err
    sys.modules.pop("old_package")


# -- what counts ----------------------------------------------------------------------------------------------------


def test_what_counts_as_what() -> None:
    for pl in BOTH:
        kinds: list[tuple[Any, Callable[[], Any]]] = [
            (AnyModule, pl.LightningModule),
            (AnyDataModule, pl.LightningDataModule),
            (AnyLogger, pl.loggers.logger.DummyLogger),
        ]
        for kind, make in kinds:
            assert [isinstance(make(), other) for other, _ in kinds] == [kind is other for other, _ in kinds]
        assert is_overridden("training_step", module_of(pl))
        assert not is_overridden("predict_step", module_of(pl))
        assert is_overridden("train_dataloader", hospital_of(pl)())
        assert not is_overridden("predict_dataloader", hospital_of(pl)())
    with pytest.raises(TypeError, match="Linear is neither a LightningModule nor a LightningDataModule"):
        is_overridden("training_step", nn.Linear(1, 1))


@pytest.mark.slow
@pytest.mark.processes
def test_the_other_name_is_not_imported_for_it(start_warm: Callable[..., Process]) -> None:
    """Where all of this package is imported, and a recipe was read."""
    code = """
import sys
from lightning_fl.core.lightning_types import AnyModule
assert not isinstance(3, AnyModule)
assert "lightning_fl.recipe.parser" in sys.modules
assert "pytorch_lightning" not in sys.modules
"""
    succeed(start_warm("-c", code))
