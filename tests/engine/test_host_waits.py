"""How often the host waits for a GPU, counted with a CUDA device of software: never in a step, a few times a turn."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_standin.device import StandIn
from cuda_standin.operations import Wait
from lightning.pytorch import LightningModule
from tiny import TinyClients, TinyModule, quiet_trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lightning_fl import FederatedDataModule
from lightning_fl.callbacks import LocalMixup
from lightning_fl.data import IID, MoleculeNet
from lightning_fl.data.images.transform import ImageTransform
from lightning_fl.models import MoleculeModel


class TalkativeModule(TinyModule):
    """Logs several values in every step."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log_dict({f"train/{name}": loss * name for name in range(4)}, on_step=True, on_epoch=True)
        return loss


class ByteImages(TinyClients):
    """Images of bytes [3, 8, 8], cropped and mirrored while training."""

    def __init__(self) -> None:
        super().__init__((24, 16, 16))
        self.transform = ImageTransform([0.5] * 3, [0.2] * 3, ["crop", "flip"])
        draws = torch.Generator().manual_seed(2)
        for place, dataset in list(self.sets.items()):
            assert isinstance(dataset, TensorDataset)
            images = torch.randint(0, 256, (len(dataset), 3, 8, 8), generator=draws, dtype=torch.uint8)
            self.sets[place] = TensorDataset(images, dataset.tensors[1])

    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> list[Tensor]:
        images, *others = batch
        return [self.transform(images, self.trainer.training), *others]


class ImageModule(TinyModule):
    """A linear function of the pixels."""

    def __init__(self) -> None:
        super().__init__(learning_rate=1e-3)
        self.linear = nn.Linear(192, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


Made = tuple[LightningModule, FederatedDataModule, dict[str, Any]]
#: A setting and its waits in a step and in a client's turn with its evaluation. A turn's are: the numbers that the
#: module logged together, whether the weights are finite, and the numbers of the validation together.
BOUNDS: dict[str, tuple[Callable[[], Made], float, float]] = {
    "plain": (lambda: (TinyModule(), TinyClients(), {}), 0, 3),
    "many values": (lambda: (TalkativeModule(), TinyClients(), {}), 0, 3),
    "mixup": (lambda: (TinyModule(), TinyClients(), {"callbacks": [LocalMixup(alpha=1.0)]}), 0, 3),
    "clipped": (lambda: (TinyModule(), TinyClients(), {"gradient_clip_val": 1.0}), 0, 3),
    "dropout and buffers": (lambda: (TinyModule(dropout=0.2, norm=True), TinyClients(), {}), 0, 3),
    "stacked": (lambda: (TinyModule(), TinyClients(), {"stacked_clients": 3}), 0, 3),  # one for all three in a stack
    # besides, its controls go to the host and back
    "scaffold": (lambda: (TinyModule(), TinyClients(), {"strategy": "scaffold"}), 0, 6),
    "augmented images": (lambda: (ImageModule(), ByteImages(), {}), 0, 3),
    # its validation metrics are computed value by value (models/molecule.py): to go to 3
    "molecules": (
        lambda: (
            MoleculeModel(hidden_dim=4),
            MoleculeNet(source="standin", partitioner=IID(num_clients=3), batch_size=32),
            {},
        ),
        0,
        15,
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_step_waits_for_nothing_and_a_turn_for_its_results(
    name: str, cuda_standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, of_a_step, of_a_turn = BOUNDS[name]

    def waits(rounds: int, steps: int) -> Counter[Wait]:
        module, data, settings = make()
        cuda_standin.waits.clear()
        work = {"max_rounds": rounds, "local_steps": steps, "default_root_dir": tmp_path}
        trainer = quiet_trainer(accelerator="cuda", devices=1, **work, **settings)
        trainer.fit(module, data)
        assert data.num_clients == 3
        return cuda_standin.waits.copy()

    few = waits(1, 2)
    of_steps, of_turns = waits(1, 6) - few, waits(2, 2) - few
    assert of_steps.total() <= of_a_step * 3 * 4, of_steps
    assert of_turns.total() <= of_a_turn * 3, of_turns
