"""What is exported opens with the user's own class, without this package."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from processes import run
from reference import (
    Clients,
    Linear,
    assert_same_weights,
    federated_trainer,
    fit_whole_and_resumed,
    fitted,
    make,
    samples,
)
from rounding import assert_equal_up_to_rounding
from torch import Tensor, nn

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.collaboration import Collaboration


class Configured(LightningModule):
    """Hyper-parameters, tied weights, a norm, hooks of the checkpoint."""

    def __init__(self, width: int = 4, *, rate: float = 0.05, names: tuple[str, ...] = ("a",)) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.example_input_array = torch.zeros(2, 3)
        self.net = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 1))
        self.vocabulary = ["start"]

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["rate"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["vocabulary"] = [*self.vocabulary, f"epoch {checkpoint['epoch']}"]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.vocabulary = checkpoint["vocabulary"]


class Separate(Callback):
    """Every client has a model of its own."""

    def on_fit_start(self, trainer: Any) -> None:
        trainer.collaboration = Collaboration.local(trainer.num_clients)


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])
def test_every_exported_model_predicts_the_same(separate: bool, tmp_path: Path) -> None:
    callbacks: list[Callback] = [Separate()] if separate else []
    trainer = federated_trainer(tmp_path, max_rounds=2, enable_checkpointing=True, callbacks=callbacks)
    data = Clients((8, 4, 12))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = Configured(5, rate=0.01, names=("b", "c"))
    trainer.fit(module, data)
    best = trainer.checkpoint_callback
    assert best is not None
    predictions = trainer.predict(module, data, ckpt_path="best")
    files = sorted((Path(trainer.log_dir) / "models").glob("*.ckpt"))
    shared = [f"shared_{model}.ckpt" for model in range(3 if separate else 1)]
    assert [file.name for file in files] == [f"client_{client}.ckpt" for client in range(3)] + shared
    for file in files:
        loaded = Configured.load_from_checkpoint(file)
        assert dict(loaded.hparams) == {"width": 5, "rate": 0.01, "names": ("b", "c")}
        assert loaded.vocabulary == ["start", f"epoch {best.best_round}"]
        if file.name.startswith("client_"):
            client = int(file.stem[-1])
            made = loaded.eval()(samples(client, 5, "test").tensors[0])
            assert_equal_up_to_rounding(made, torch.cat(predictions[client]), steps=2)  # two layers
    if separate:
        one, other = (torch.load(file, weights_only=True)["state_dict"] for file in files[:2])
        assert not torch.equal(one["net.0.weight"], other["net.0.weight"])


@pytest.mark.processes
@pytest.mark.slow
def test_exported_models_open_without_this_package(tmp_path: Path) -> None:
    trainer = fitted(tmp_path, Configured(), Clients((4,)), max_rounds=1, enable_checkpointing=True)
    code = f"""
import sys
sys.modules["lightning_fl"] = None
import torch
content = torch.load({str(Path(trainer.log_dir) / "models" / "client_0.ckpt")!r}, weights_only=True)
print(sorted(content), content["hyper_parameters"]["width"])
"""
    made = run(sys.executable, "-c", code)
    assert made.code == 0, made.err
    keys = ["epoch", "global_step", "hparams_name", "hyper_parameters", "pytorch-lightning_version", "state_dict"]
    assert made.out.strip() == f"{sorted([*keys, 'vocabulary'])} 4"


@pytest.mark.slow
def test_changed_hyperparameters_are_exported_as_they_are(tmp_path: Path) -> None:
    class Adapts(Configured):
        def setup(self, stage: str) -> None:
            self.hparams["rate"] = 0.5

    trainer = fitted(tmp_path, Adapts(), Clients((4,)), max_rounds=1, enable_checkpointing=True)
    loaded = Adapts.load_from_checkpoint(Path(trainer.log_dir) / "models" / "shared_0.ckpt")
    assert loaded.hparams["rate"] == 0.5


def test_a_resumed_run_does_not_call_the_checkpoint_hooks(tmp_path: Path) -> None:
    """They belong to models; what a run goes on from is weights, optimisers, schedulers and callbacks."""

    class Fragile(Configured):
        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            raise AssertionError

    (whole, _, second), _ = fit_whole_and_resumed(Fragile, tmp_path, Clients((8,)))
    assert_same_weights(second, whole, moved=False)


def test_modules_without_hyperparameters(tmp_path: Path) -> None:
    trainer = federated_trainer(tmp_path, max_rounds=1, enable_checkpointing=True)
    module = make(Linear)
    trainer.fit(module, Clients((4,)))
    loaded = Linear.load_from_checkpoint(Path(trainer.log_dir) / "models" / "client_0.ckpt")
    assert torch.equal(loaded.net.weight, module.net.weight)


def test_metrics_states_are_not_part_of_a_model(tmp_path: Path) -> None:
    from torchmetrics import MeanSquaredError

    class Measures(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.mse = MeanSquaredError()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.mse.update(self.net(batch[0]), batch[1])
            self.log("val_mse", self.mse)

    trainer = fitted(tmp_path, Measures(), Clients((4,)), max_rounds=1, enable_checkpointing=True)
    saved = torch.load(Path(trainer.log_dir) / "models" / "client_0.ckpt", weights_only=True)
    assert sorted(saved["state_dict"]) == ["net.bias", "net.weight"]


def test_a_second_fit_with_the_same_module_goes_on_from_its_weights(tmp_path: Path) -> None:
    whole, parts = make(Linear), make(Linear)
    federated_trainer(tmp_path / "whole", max_rounds=4).fit(whole, Clients((8,)))
    for part in range(2):
        federated_trainer(tmp_path / f"part{part}", max_rounds=2).fit(parts, Clients((8,)))
    assert torch.equal(whole.net.weight, parts.net.weight)


def test_the_module_can_be_copied_pickled_and_used_after_a_run(tmp_path: Path) -> None:
    import copy
    import io

    module = make(Configured)
    federated_trainer(tmp_path, max_rounds=1).fit(module, Clients((4,)))
    x = torch.ones(2, 3)
    module.eval()
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(module), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(x), module(x))
        with torch.no_grad():
            other.net[0].weight.zero_()
        assert not torch.equal(other(x), module(x))
