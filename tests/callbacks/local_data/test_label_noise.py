"""Which labels are noisy, by how much, and that the rest are left alone."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import TinyClients, TinyModule, quiet_trainer
from torch import Tensor
from torch.utils.data import TensorDataset

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import LabelNoise
from lightning_fl.callbacks.local_data.label_noise import flip_labels, perturb_targets


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_noise_has_the_asked_probability_and_standard_deviation() -> None:
    clean = torch.randn(40_000, 1, generator=draws(1))
    added = perturb_targets(clean, 0.7, 0.3, draws()) - clean
    hit = added.abs() > 1e-6
    assert float(hit.float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(added[hit].std()) == pytest.approx(0.7, abs=0.02)
    assert float(added[hit].mean()) == pytest.approx(0.0, abs=0.02)
    assert torch.equal(perturb_targets(clean, 0.0, 1.0, draws()), clean)
    assert torch.equal(perturb_targets(clean, 0.7, 0.0, draws()), clean)


def test_missing_targets_stay_missing() -> None:
    targets = torch.tensor([[1.0, float("nan")], [float("nan"), 2.0]])
    assert torch.equal(perturb_targets(targets, 1.0, 1.0, draws()).isnan(), targets.isnan())


def test_ignored_labels_stay_as_they_are() -> None:
    labels = torch.tensor([-100, 0, -1, 1, 2, -100])
    flipped = flip_labels(labels, 3, 1.0, draws())
    assert torch.equal(flipped == labels, labels < 0)
    assert torch.equal(flipped[labels >= 0] >= 0, torch.ones(3, dtype=torch.bool))


def test_flipped_labels_are_other_classes_drawn_evenly() -> None:
    labels = torch.randint(0, 4, (40_000,), generator=draws(2))
    flipped = flip_labels(labels, 4, 0.5, draws())
    changed = flipped != labels
    assert float(changed.float().mean()) == pytest.approx(0.5, abs=0.01)
    shares = torch.bincount((flipped - labels)[changed] % 4, minlength=4) / changed.sum()
    assert shares.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.01)
    assert torch.equal(flip_labels(labels, 4, 0.0, draws()), labels)


class Remembers(TinyModule):
    """Collects every client's training targets."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, set[float]] = {}

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.seen.setdefault(self.trainer.client, set()).update(batch[1].flatten().tolist())  # type: ignore[attr-defined]
        return super().training_step(batch, batch_idx)


def trained(noise: LabelNoise, data: Any, **settings: Any) -> tuple[FederatedTrainer, Remembers]:
    trainer = quiet_trainer(noise, max_rounds=2, **settings)
    module = Remembers()
    trainer.fit(module, data)
    return trainer, module


def test_labels_that_are_floating_numbers_flip_with_their_gaps() -> None:
    labels = torch.tensor([[0.0, 1.0], [torch.nan, 1.0]])
    flipped = flip_labels(labels, 2, 1.0, draws())
    torch.testing.assert_close(flipped, 1 - labels, equal_nan=True)
    batches = SimpleNamespace(targets=labels)
    trainer = SimpleNamespace(seed=0, num_clients=1)
    LabelNoise(probability=1.0, client_share=1.0, num_classes=2).on_client_data(trainer, 0, "train", batches)  # type: ignore[arg-type]
    torch.testing.assert_close(batches.targets, 1 - labels, equal_nan=True)


def test_noise_on_labels_that_look_like_classes_is_said(recwarn: pytest.WarningsRecorder) -> None:
    trainer = SimpleNamespace(seed=0, num_clients=1)
    for values, said in (([[0.0, 1.0], [torch.nan, 1.0]], True), ([[0.0, 1.0], [0.5, 1.0]], False)):
        LabelNoise(client_share=1.0).on_client_data(trainer, 0, "train", SimpleNamespace(targets=torch.tensor(values)))  # type: ignore[arg-type]
        texts = [str(warning.message) for warning in recwarn]
        assert ["train targets of client 0" in text for text in texts] == [True] * said
        recwarn.clear()


def test_half_of_the_clients_train_on_noise_and_nothing_else_changes() -> None:
    data = TinyClients((12, 12, 12, 12))
    noise = LabelNoise(std=1.0, probability=0.5)
    trainer, module = trained(noise, data, seed=3)
    noisy = noise.noisy_clients(3, 4)
    assert len(noisy) == 2
    for client in range(4):
        clean = set(data.sets[client, "train"].tensors[1].flatten().tolist())  # type: ignore[attr-defined]
        assert (module.seen[client] == clean) == (client not in noisy)
        assert len(module.seen[client]) == 12  # the same noise in every round
        held_out = trainer.client_batches(client, "val")
        assert held_out is not None
        assert torch.equal(held_out.targets.cpu(), data.sets[client, "val"].tensors[1])  # type: ignore[attr-defined]


def test_the_share_is_rounded_half_up_and_follows_the_seed() -> None:
    assert [len(LabelNoise(client_share=0.5).noisy_clients(0, n)) for n in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]
    chosen = {tuple(LabelNoise().noisy_clients(seed, 4)) for seed in range(40)}
    assert len(chosen) == 6  # all pairs occur
    assert LabelNoise(clients=[2, 0]).noisy_clients(0, 3) == [0, 2]


def test_class_labels_flip() -> None:
    from lightning.pytorch import LightningModule

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(3, 3)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    data = TinyClients((30,))
    labels = torch.arange(30) % 3
    data.sets[0, "train"] = TensorDataset(torch.randn(30, 3), labels)
    trainer = quiet_trainer(LabelNoise(clients=[0], probability=1.0, num_classes=3), max_rounds=1)
    trainer.fit(Classifier(), data)
    batches = trainer.client_batches(0, "train")
    assert batches is not None
    assert not (batches.targets.cpu() == labels).any()
    module = Classifier()
    module.hparams["num_classes"] = 3
    told = quiet_trainer(LabelNoise(clients=[0], probability=1.0), max_rounds=1)
    told.fit(module, data)
    assert torch.equal(told.client_batches(0, "train").targets, batches.targets)
    with pytest.raises(ConfigurationError, match=r"LabelNoise\.num_classes"):
        quiet_trainer(LabelNoise(clients=[0])).fit(Classifier(), data)


def test_data_that_come_sample_by_sample_are_refused() -> None:
    class Streams(TinyClients):
        def client_data(self, client: int, split: Any) -> Any:
            return torch.utils.data.DataLoader(
                super().client_data(client, split), batch_size=4, collate_fn=lambda rows: list(zip(*rows, strict=True))
            )

    with pytest.raises(ConfigurationError, match="targets"):
        trained(LabelNoise(clients=[0]), Streams())
