"""What a client keeps beside the shared model is on the device while it trains, and on the host after the run."""

from functools import partial
from pathlib import Path

import torch
from cuda_standin.device import StandIn
from tiny import TinyClients, TinyModule, quiet_trainer, with_optimizer

from lightning_fl.strategies import APFL


def own_models(accelerator: str, root: Path) -> list[torch.Tensor]:
    strategy = APFL(alpha=0.5, alpha_every="never")
    settings = {"max_rounds": 3, "local_steps": 2, "default_root_dir": root, "enable_checkpointing": True}
    trainer = quiet_trainer(strategy=strategy, optimizer_state="keep", accelerator=accelerator, devices=1, **settings)
    heavy = with_optimizer(TinyModule, partial(torch.optim.SGD, lr=0.05, momentum=0.5))
    trainer.fit(heavy(), TinyClients())
    return [trainer.client_model(client).vectors[torch.float32] for client in range(3)]


def test_own_models_and_their_momentum_go_between_the_devices(cuda_standin: StandIn, tmp_path: Path) -> None:
    on_device = own_models("cuda", tmp_path / "device")
    assert {vector.device.type for vector in on_device} == {"cpu"}
    on_host = own_models("cpu", tmp_path / "host")
    assert all(torch.equal(one, other) for one, other in zip(on_device, on_host, strict=True))
