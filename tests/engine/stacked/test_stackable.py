"""What cannot be trained for several clients at once is refused, with the mend."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import EMAWeightAveraging
from test_stacked_clients import SIZES, Doubles, Network, fit
from tiny import TinyModule, regression_set
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MeanAbsoluteError

from lightning_fl import FederatedTrainer, Silos
from lightning_fl.callbacks import Callback, LocalMixup
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.strategies import FedAvg

REMEDY = "[Ss]et trainer.stacked_clients=1"


class Plain(Network):
    """Of a class of its own, so that every test may add what is refused."""

    def __init__(self) -> None:
        super().__init__(norm=False)

    def training_step(self, batch, batch_idx):
        return (self.head(self.net(batch[0])) * self.scale - batch[1]).square().mean()


def with_method(name: str, method: Any) -> Any:
    return type("Plain", (Plain,), {name: method})


HOOKS = (
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_batch_end",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "optimizer_step",
)


def test_hooks_of_a_clients_turn_are_named_together(tmp_path):
    hooked = type("Plain", (Plain,), {name: lambda self, *args, **kwargs: None for name in HOOKS})
    with pytest.raises(ConfigurationError, match=rf"Plain .*{', '.join(HOOKS)}\. {REMEDY}"):
        fit(tmp_path, 3, hooked())


def test_turns_that_end_early(tmp_path):
    ending = with_method("on_train_batch_start", lambda self, batch, index: -1 if index else None)
    with pytest.raises(TrainingError, match=f"Plain.on_train_batch_start .*{REMEDY}"):
        fit(tmp_path, 3, ending())


def rates_of_steps(module, batch, index):
    for group in module.optimizers().param_groups:
        group["lr"] = 0.01 / (1 + module.global_step)


def rates_of_clients(module, batch, index):
    for group in module.optimizers().param_groups:
        group["lr"] = 0.01 / (1 + module.trainer.client)


def rates_of_one_client(module, batch, index):
    """What it sets must not reach the next client's hook."""
    if module.trainer.client == 0:
        for group in module.optimizers().param_groups:
            group["lr"] = 0.001


def freezes(module, batch, index):
    module.head.requires_grad_(index < 1)


@pytest.mark.parametrize("name", ["on_train_batch_start", "training_step"])
def test_submodules_that_are_switched_in_the_turn(name, tmp_path):
    def switch(module, batch, index):
        module.head.eval()
        return Plain.training_step(module, batch, index) if name == "training_step" else None

    module = with_method(name, switch)()
    with pytest.raises(TrainingError, match=f"'head' to .*{REMEDY}"):
        fit(tmp_path, 3, module)
    assert module.head.training


@pytest.mark.parametrize("hook", [rates_of_steps, rates_of_clients, rates_of_one_client, freezes])
def test_hooks_that_set_what_clients_share(hook, tmp_path):
    setting = with_method("on_train_batch_start", hook)
    with pytest.raises(TrainingError, match=f"Plain.on_train_batch_start .*{REMEDY}") as raised:
        fit(tmp_path, 3, setting())
    assert isinstance(raised.value.__cause__, ConfigurationError)


@pytest.mark.parametrize(
    "transfer",
    [
        lambda self, batch, _: {"x": batch[0]},
        lambda self, batch, _: None,
        lambda self, batch, _: [batch[0], None],
        lambda self, batch, _: [batch[0][: self.trainer.client + 1], batch[1][: self.trainer.client + 1]],
    ],
)
def test_batches_that_a_hook_made_unlike(transfer, tmp_path):
    with pytest.raises(TrainingError, match=f"on_after_batch_transfer .*{REMEDY}"):
        fit(tmp_path, 3, with_method("on_after_batch_transfer", transfer)())


def test_manual_optimisation_and_all_else_that_is_wrong_in_one_message(tmp_path):
    class Manual(Plain):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def configure_callbacks(self):
            return EMAWeightAveraging()

    class Watches(Callback):
        def on_client_step_end(self, trainer: Any, client: int, num_steps: int) -> None: ...

    settings: dict[str, Any] = {"optimizer_state": "keep", "callbacks": [LocalMixup(alpha=0.4), Watches()]}
    with pytest.raises(
        ConfigurationError,
        match="stacked_clients=3 .*Manual .*manually.*on_train_epoch_end, on_train_batch_end.*EMAWeightAveraging.*"
        "LocalMixup .*around_training_step.*Watches .*on_client_step_end.*trainer.optimizer_state=keep",
    ):
        fit(tmp_path, 3, Manual(), **settings)


class Proximal(FedAvg):
    def client_loss(self, loss, module):
        return loss + 0.1


class Loaded(Doubles):
    def client_data(self, client, split):
        found = super().client_data(client, split)
        return DataLoader(found, batch_size=4, collate_fn=lambda samples: samples) if client == 2 else found


class Silo(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(regression_set(8, 0), batch_size=4)


class Shares(Plain):
    """Two parameters share their memory."""

    def __init__(self):
        super().__init__()
        *_, last = self.parameters()
        self.shared = nn.Parameter(last.data)


@pytest.mark.parametrize(
    ("module", "settings", "match"),
    [
        (Plain, {"strategy": Proximal()}, "Proximal .*client_loss"),
        (Plain, {"channels_last": True}, "trainer.channels_last"),
        (TinyModule, {"precision": "bf16-mixed"}, "trainer.precision=bf16-mixed"),
        (TinyModule, {"precision": "bf16-true"}, "trainer.precision=bf16-true"),
        (Plain, {"data": Loaded()}, r"client 2 \(client_2\).*TensorDataset"),
        (TinyModule, {"data": Silos([Silo(), Silo()])}, "stacked_clients=3.*=1"),
        (Shares, {}, "two of its optimiser's parameters"),
    ],
)
def test_settings_data_and_modules(module, settings, match, tmp_path):
    with pytest.raises(ConfigurationError, match=match):
        fit(tmp_path, 3, module(), **settings)


def optimized(make: Any) -> Any:
    return with_method("configure_optimizers", make)()


def hooked(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *args: None)
    return optimizer


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda self: None, "configure_optimizers .*no optimiser"),
        (lambda self: torch.optim.LBFGS(self.parameters()), "LBFGS"),
        (lambda self: torch.optim.SGD(self.parameters(), lr=0.1, foreach=True), "SGD .*foreach"),
        (hooked, "SGD .*hooks"),
        (
            lambda self: torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1),
            "parameters that are not the module's",
        ),
        (
            lambda self: {
                "optimizer": (made := torch.optim.SGD(self.parameters(), lr=0.1)),
                "lr_scheduler": torch.optim.lr_scheduler.StepLR(made, 1),
            },
            "configure_optimizers .*scheduler",
        ),
    ],
)
def test_optimizers(make, match, tmp_path):
    with pytest.raises(ConfigurationError, match=f"{match}.*{REMEDY}"):
        fit(tmp_path, 3, optimized(make))


def test_the_number_is_checked(tmp_path):
    with pytest.raises(ConfigurationError, match="trainer.stacked_clients=0"):
        FederatedTrainer(stacked_clients=0)


# -- what only a step shows ------------------------------------------------------------------------------------------


def step(body: Any) -> Any:
    """A module whose step does something besides."""

    def training_step(self, batch, batch_idx):
        loss = Plain.training_step(self, batch, batch_idx)
        if body is None:
            return None
        changed = body(self, batch, loss)
        return loss if changed is None else changed

    return with_method("training_step", training_step)()


def in_place(module, batch, loss):
    module.total = getattr(module, "total", torch.zeros(()).double())
    module.total += loss.detach()


def branch(module, batch, loss):
    return loss if loss > 1 else 2 * loss


def keeps(module, batch, loss):
    module.history = [loss.detach()]


def keeps_inside(module, batch, loss):
    module.net[0].cache = {"loss": loss.detach()}


def counts(module, batch, loss):
    module.metric = MeanAbsoluteError().double()
    module.metric.update(batch[0].sum(1), batch[1][:, 0])


def assigns(module, batch, loss):
    module.mean = 0.5 * module.mean


CASES = {
    "dropout": (lambda m, b, loss: loss + nn.functional.dropout(b[0], 0.5).mean(), "random numbers"),
    "item": (lambda m, b, loss: loss * loss.item(), "reads a tensor's value"),
    "float": (lambda m, b, loss: loss * float(loss), "a tensor's value"),
    "branch": (branch, "depends on a tensor's value"),
    "in_place": (in_place, "in place"),
    "metric": (counts, "in place .*metric's state"),
    "cause": (lambda m, b, loss: loss + b[7].mean(), "IndexError: list index out of range"),
    "no_graph": (lambda m, b, loss: loss.detach(), "RuntimeError: .*does not require grad"),
    "none": (None, "returned None"),
    "shape": (lambda m, b, loss: loss.expand(2), r"loss of shape \(2,\)"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("body", "match"), CASES.values(), ids=CASES)
def test_a_step_that_cannot_be_run_for_several_clients(body, match, tmp_path):
    with pytest.raises(TrainingError, match=f"Plain.training_step.*(?:{match})") as raised:
        fit(tmp_path, 3, step(body))
    assert "trainer.stacked_clients=1" in str(raised.value)


REFUSED = {
    "python": (lambda m, b, loss: loss * random.random(), "Python's or NumPy's random numbers"),
    "numpy": (lambda m, b, loss: loss * np.random.rand(), "Python's or NumPy's random numbers"),  # noqa: NPY002
    "keeps": (keeps, r"self\.history"),
    "keeps_inside": (keeps_inside, r"self\.net\.0\.cache"),
    "assigns": (assigns, "'mean'.*copy_"),
    "unused": (lambda m, b, loss: m.scale.square() + b[0].sum() * 0, r"'net\.0\.weight'"),
    "client": (lambda m, b, loss: loss * m.trainer.client, "self.trainer.client,"),
    "length": (lambda m, b, loss: loss * m.trainer.num_training_batches, "self.trainer.num_training_batches"),
    "so_far": (lambda m, b, loss: loss * len(m.trainer.callback_metrics), "self.trainer.callback_metrics"),
}


@pytest.mark.parametrize(("body", "match"), REFUSED.values(), ids=REFUSED)
def test_a_step_that_would_mix_clients(body, match, tmp_path):
    with pytest.raises(TrainingError, match=f"Plain.*{match}") as raised:
        fit(tmp_path, 3, step(body))
    assert "trainer.stacked_clients=1" in str(raised.value)
    assert isinstance(raised.value.__cause__, ConfigurationError)


def test_metrics_that_are_logged_as_objects(tmp_path):
    class Counting(Plain):
        def __init__(self):
            super().__init__()
            self.metric = MeanAbsoluteError()

        def training_step(self, batch, batch_idx):
            self.log("mae", self.metric)
            return super().training_step(batch, batch_idx)

    with pytest.raises(TrainingError, match=r"self.log\('mae'\).*MeanAbsoluteError"):
        fit(tmp_path, 3, Counting())


def test_an_unknown_reduction_is_named_as_without_stacking(tmp_path):
    module = step(lambda m, b, loss: m.log("x", loss, reduce_fx="median"))
    with pytest.raises(TrainingError, match="reduce_fx='median'"):
        fit(tmp_path, 3, module)


def test_the_module_has_its_trainer_again_after_an_error(tmp_path):
    module = step(branch)
    with pytest.raises(TrainingError):
        fit(tmp_path, 3, module)
    assert module.trainer.num_clients == len(SIZES)
    assert module.trainer.client is None
    assert all(type(value) is nn.Parameter for value in module.parameters())
