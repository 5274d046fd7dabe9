"""What a client keeps beside the shared model is on the device while it trains, and on the host after the run."""

from pathlib import Path

import torch
from cuda_standin.device import StandIn
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.strategies import APFL


class Heavy(TinyModule):
    """With momentum."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)


def own_models(accelerator: str, root: Path) -> list[torch.Tensor]:
    trainer = FederatedTrainer(
        strategy=APFL(alpha=0.5, alpha_every="never"),
        optimizer_state="keep",
        accelerator=accelerator,
        devices=1,
        max_rounds=3,
        local_steps=2,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=root,
    )
    trainer.fit(Heavy(), TinyClients())
    return [trainer.client_model(client).vectors[torch.float32] for client in range(3)]


def test_own_models_and_their_momentum_go_between_the_devices(cuda_standin: StandIn, tmp_path: Path) -> None:
    on_device = own_models("cuda", tmp_path / "device")
    assert {vector.device.type for vector in on_device} == {"cpu"}
    on_host = own_models("cpu", tmp_path / "host")
    assert all(torch.equal(one, other) for one, other in zip(on_device, on_host, strict=True))
