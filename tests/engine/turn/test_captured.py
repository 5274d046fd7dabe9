"""Captured steps have the bits of those that Python asks for one by one; what a graph would not repeat is refused."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from recorded_graphs import RecordedGraph, record, recorded_graphs
from run_tiny import STRATEGIES
from tiny import TinyClients, TinyModule, same_bits, weights_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError

from lightning_fl import ConfigurationError, FederatedDataModule, FederatedTrainer, TrainingError
from lightning_fl.callbacks import IFCA, Callback, LabelNoise, LocalMixup, PersonalLayers
from lightning_fl.engine.turn.capture_checks import host_draws
from lightning_fl.strategies import FedAvg

__all__ = ["recorded_graphs"]


def test_the_stand_in_shows_what_did_not_come_through_fixed_memory(recorded_graphs):
    x, outside = torch.ones(3), torch.zeros(3)
    graph = RecordedGraph()
    with record(graph):
        y = (x * 2).view(3, 1)
        outside.add_(1)
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            float(x.sum())
    assert y.isnan().all()  # nothing was computed yet
    assert outside.tolist() == [0, 0, 0]
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [[8], [8], [8]]
    assert outside.tolist() == [1, 1, 1]


class Images(FederatedDataModule):
    """Clients with images [n, 2, 6, 6], labels of 3 classes; last batches are smaller."""

    def __init__(self, sizes: tuple[int, ...] = (11, 6, 8), batch_size: int = 4) -> None:
        super().__init__(batch_size=batch_size, shuffle=True)
        self.sizes = sizes

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    def client_data(self, client: int, split: str) -> TensorDataset:
        draws = torch.Generator().manual_seed(10 * client + len(split))
        n = self.sizes[client]
        return TensorDataset(torch.randn(n, 2, 6, 6, generator=draws), torch.randint(3, (n,), generator=draws))


class Network(LightningModule):
    """An MLP, or convolutions with batch normalisation; it logs, and is validated."""

    def __init__(self, kind: str = "cnn", optimizer: Any = torch.optim.SGD, dropout: float = 0.0, **settings: Any):
        super().__init__()
        torch.manual_seed(3)
        first = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)] if kind == "cnn" else [nn.Flatten(), nn.Linear(72, 5)]
        self.net = nn.Sequential(
            *first, nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(48 if kind == "cnn" else 5, 3)
        )
        self.optimizer, self.settings = optimizer, settings or {"lr": 0.1, "momentum": 0.9}

    def loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train/loss", loss, prog_bar=True)
        self.log("count", batch[1].sum(), reduce_fx="max", on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), **self.settings)


def fit(folder: Any, module: LightningModule, captured: bool, data: Any = None, **settings: Any) -> FederatedTrainer:
    given = {"max_rounds": 3, "local_epochs": 2, "log_every_n_steps": 2, **settings}
    trainer = FederatedTrainer(
        accelerator="cpu",
        logger=False,
        default_root_dir=folder / str(captured),
        enable_progress_bar=False,
        enable_checkpointing=False,
        cuda_graphs=captured,
        **given,
    )
    trainer.fit(module, data or Images())
    return trainer


def same(first: FederatedTrainer, second: FederatedTrainer) -> bool:
    """Models, metrics of every client, and what clients keep."""
    assert len(first.models) == len(second.models)
    assert all(one.equal(other) for one, other in zip(first.models, second.models, strict=True))
    for client, report in first.client_reports.items():
        assert report.metrics == second.client_reports[client].metrics
        assert report.num_steps == second.client_reports[client].num_steps
    return first.metrics == second.metrics


CASES = {
    "MLP, SGD": lambda: Network("mlp"),
    "CNN, SGD": lambda: Network("cnn"),
    "MLP, Adam": lambda: Network("mlp", torch.optim.Adam, lr=0.01),
    "CNN, AdamW": lambda: Network("cnn", torch.optim.AdamW, lr=0.01),
    "CNN, RMSprop": lambda: Network("cnn", torch.optim.RMSprop, lr=0.01),
    "CNN, dropout": lambda: Network("cnn", dropout=0.4),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_the_bits_of_plain_steps_over_clients_and_rounds(make, recorded_graphs, tmp_path):
    plain, captured = (fit(tmp_path, make(), on) for on in (False, True))
    assert same(plain, captured)
    assert captured.client_reports[0].metrics["count"].steps  # single steps are logged
    # one graph for full batches and one for each size of a client's last one: 3 of 11, 2 of 6
    assert len(recorded_graphs) == 3
    assert sum(graph.replays for graph in recorded_graphs) == 3 * 2 * (3 + 2 + 2)
    assert all(parameter.grad is None for parameter in captured.loop.module.parameters())


SETTINGS: dict[str, dict[str, Any]] = {
    "clipped": {"gradient_clip_val": 0.1},
    "kept": {"optimizer_state": "keep"},
    "fused": {"fused_optimizers": True},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16-true": {"precision": "bf16-true"},
    "64": {"precision": "64"},
    "channels_last": {"channels_last": True},
    "SCAFFOLD": {"strategy": "scaffold"},
    "two models": {"callbacks": [IFCA(num_clusters=2)]},
    "noisy labels": {"callbacks": [LabelNoise(probability=0.5, client_share=1.0, num_classes=3)]},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings_that_a_graph_leaves_as_they_are(settings, recorded_graphs, tmp_path):
    assert same(*(fit(tmp_path, Network(), on, **settings) for on in (False, True)))
    assert recorded_graphs


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_the_bits_of_plain_steps(name, recorded_graphs, tmp_path):
    """Those that take second gradients or divide batches do so beside the graph, and phases look at it anew."""

    def run(captured: bool) -> FederatedTrainer:
        callbacks = [PersonalLayers(layers=["net.5.bias"])]
        settings = {"strategy": STRATEGIES[name](), "callbacks": callbacks, "local_epochs": 1}
        return fit(tmp_path, Network("mlp"), captured, Images((24, 12, 18), 12), **settings)

    assert same(run(False), run(True))
    assert sum(graph.replays for graph in recorded_graphs) >= 3 * (2 + 1 + 2)


def test_a_schedule_of_the_learning_rate(recorded_graphs, tmp_path):
    class Scheduled(Network):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    assert same(*(fit(tmp_path, Scheduled("mlp"), on) for on in (False, True)))


def test_a_parameter_that_the_loss_does_not_reach(recorded_graphs, tmp_path):
    class Idle(Network):
        def __init__(self):
            super().__init__("mlp")
            self.idle = nn.Parameter(torch.ones(2))

    assert same(*(fit(tmp_path, Idle(), on) for on in (False, True)))


def test_what_a_turn_begins_with_is_looked_at_in_every_turn(recorded_graphs, tmp_path):
    class Annealed(Network):
        def on_train_epoch_start(self):
            self.share = 0.5**self.current_epoch
            self.settings["unused"] = None
            if self.current_epoch == 2:
                self.net[0].eval()
                self.net[1].weight.requires_grad_(False)

        def training_step(self, batch, batch_idx):
            return self.share * self.loss(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    assert same(*(fit(tmp_path, Annealed("mlp"), on, local_epochs=1) for on in (False, True)))
    assert len(recorded_graphs) == 3 * 3


def test_the_oldest_graphs_make_room(recorded_graphs, monkeypatch, tmp_path):
    monkeypatch.setattr("lightning_fl.engine.turn.captured._MOST_GRAPHS", 1)
    assert same(*(fit(tmp_path, Network("mlp"), on) for on in (False, True)))
    assert len(recorded_graphs) > 3


def test_a_hook_of_the_datas_draws_outside_of_the_graph(recorded_graphs, tmp_path):
    class Augmented(Images):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return [batch[0] + torch.randn(batch[0].shape), batch[1]]

    assert same(*(fit(tmp_path, Network(), on, Augmented()) for on in (False, True)))


# -- refused -----------------------------------------------------------------------------------------------------------


def test_a_cpu(tmp_path):
    with pytest.raises(
        ConfigurationError,
        match=r"trainer.cuda_graphs cannot capture the training steps of Network: it trains on a cpu device, not on a"
        r" GPU of CUDA's\. Set trainer.cuda_graphs=false",
    ):
        fit(tmp_path, Network(), True)


class OwnLoss(FedAvg):
    def client_loss(self, loss, module):
        return loss


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mixup": ({"callbacks": [LocalMixup(alpha=0.4)]}, r"LocalMixup takes part in every step \(around_training_step\)"),
    "loss": ({"strategy": OwnLoss()}, "the strategy has a client_loss of its own"),
    "compiled": ({"compile": {"backend": "eager"}}, r"its training_step is compiled \(trainer.compile\)"),
    "accumulated": ({"accumulate_grad_batches": 2}, "trainer.accumulate_grad_batches=2 adds gradients of several"),
    "stacked": ({"stacked_clients": 2}, "trainer.stacked_clients=2 trains several clients at once"),
}


@pytest.mark.parametrize(("settings", "reason"), REFUSED.values(), ids=REFUSED)
def test_settings_that_do_not_go_with_it(settings, reason, recorded_graphs, tmp_path):
    with pytest.raises(ConfigurationError, match=f"training steps of Network: {reason}.*Set trainer.cuda_graphs=false"):
        fit(tmp_path, Network(), True, **settings)


def test_hooks_of_steps_and_loaders_in_one_message(recorded_graphs, tmp_path):
    class Hooked(Network):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            pass

        def on_after_backward(self):
            pass

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch

    class Loaded(Images):
        def client_data(self, client, split):
            return DataLoader(super().client_data(client, split), batch_size=4, collate_fn=lambda samples: samples)

    with pytest.raises(
        ConfigurationError,
        match=r"it overrides on_train_batch_end, on_after_backward, on_after_batch_transfer; the training data of"
        r" client 0 \(client_0\) are not those of a TensorDataset",
    ):
        fit(tmp_path, Hooked(), True, Loaded())


def steps(body: Any) -> type[Network]:
    class Own(Network):
        kept: Any = 0

        def __init__(self) -> None:
            super().__init__("mlp")
            self.register_buffer("seen", torch.zeros(()))
            self.error = MeanAbsoluteError()

        def training_step(self, batch, batch_idx):
            return body(self, batch, batch_idx, self.loss(batch))

    return Own


def assigned(self, batch, index, loss):
    self.kept = loss.detach()
    return loss


def appended(self, batch, index, loss):
    self.settings.setdefault("losses", []).append(1)
    return loss


def new_buffer(self, batch, index, loss):
    self.seen = self.seen + 1
    return loss


def measured(self, batch, index, loss):
    self.error(self.net(batch[0])[:, 0], batch[0][:, 0, 0, 0])
    self.log("error", self.error)
    return loss


def drawn(self, batch, index, loss):
    return loss * float(np.random.rand())  # noqa: NPY002 - as users' code does


def counted(self, batch, index, loss):
    self.log("number", 0.5)
    return loss


IN_A_STEP: dict[str, tuple[Any, str]] = {
    "attribute": (assigned, "it changes self.kept, which Python would do once and not in every step"),
    "list": (appended, "it changes self.settings, which"),
    "buffer": (new_buffer, r"it assigns a parameter or buffer anew: change it in place \(copy_\)"),
    "metric": (measured, r"self.log\('error'\) of a MeanAbsoluteError, which counts in Python"),
    "number": (counted, r"it makes a tensor of Python's numbers \(torch.tensor, self.log of a number\)"),
    "index": (lambda s, b, i, loss: loss * (i + 1), "it reads batch_idx, which is not the same in every step"),
    "index shown": (lambda s, b, i, loss: loss * len(f"{i}"), "it reads batch_idx"),
    "client": (lambda s, b, i, loss: loss * s.trainer.client, "it reads self.trainer.client, which"),
    "epoch": (lambda s, b, i, loss: loss * s.current_epoch, "it reads self.trainer.current_epoch, which"),
    "step": (lambda s, b, i, loss: loss * s.global_step, "it reads self.trainer.global_step, which"),
    "value": (lambda s, b, i, loss: loss if loss > 0 else -loss, r"it reads a tensor's value \(.item\(\)"),
    "mask": (lambda s, b, i, loss: loss + b[0][b[1] > 0].sum(), r"depends on a tensor \(nonzero, a mask as index\)"),
    "python": (lambda s, b, i, loss: loss * random.random(), "it draws random numbers on the host"),
    "numpy": (drawn, "it draws random numbers on the host"),
    "none": (lambda s, b, i, loss: None, "returned None: a captured step returns one number for each batch"),
    "vector": (lambda s, b, i, loss: loss.view(1), r"returned a loss of shape \(1,\): a captured step"),
}


@pytest.mark.parametrize(("body", "reason"), IN_A_STEP.values(), ids=IN_A_STEP)
def test_what_a_graph_would_not_repeat_is_refused_in_the_first_step(body, reason, recorded_graphs, tmp_path):
    with pytest.raises(TrainingError, match=rf"{reason}.*Set trainer.cuda_graphs=false\."):
        fit(tmp_path, steps(body)(), True)


def test_draws_of_another_device_than_the_modules():
    before = host_draws(torch.device("meta"))
    torch.rand(())
    assert host_draws(torch.device("meta")) != before  # on the host, for a module that is not
    before = host_draws(torch.device("cpu"))
    torch.rand(())
    assert host_draws(torch.device("cpu")) == before


def test_batches_of_other_things_than_tensors(recorded_graphs, tmp_path):
    class Named(Images):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return [*batch, "a name"]

    with pytest.raises(TrainingError, match="its batch holds other things than tensors"):
        fit(tmp_path, Network(), True, Named())


def test_a_capture_that_fails_says_so_and_leaves_the_module_as_it_was(recorded_graphs, monkeypatch, tmp_path):
    module = Network()
    before = weights_of(module)

    class Failing:
        def __init__(self) -> None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: Failing())
    with pytest.raises(
        TrainingError,
        match=r"Network.training_step cannot be captured as a CUDA graph\. Set trainer.cuda_graphs=false\. The cause:"
        r" RuntimeError: CUDA error: operation not permitted when stream is capturing",
    ):
        fit(tmp_path, module, True)
    assert same_bits(before, weights_of(module))


def test_an_error_of_the_step_is_its_own(recorded_graphs, tmp_path):
    def wrong(self, batch, index, loss):
        raise ValueError("no such column")

    with pytest.raises(TrainingError, match="ValueError: no such column") as raised:
        fit(tmp_path, steps(wrong)(), True)
    assert "CUDA graph" not in str(raised.value)


def test_callbacks_after_a_step_are_told_of_it(recorded_graphs, tmp_path):
    class Counting(Callback):
        steps = 0

        def on_client_step_end(self, trainer, client, step):
            self.steps += 1

    counting = Counting()
    fit(tmp_path, TinyModule(), True, TinyClients(), callbacks=[counting], local_epochs=1)
    assert counting.steps == 3 * (3 + 2 + 3)
