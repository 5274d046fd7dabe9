"""Models that log their weight as a metric, and their checkpoints."""

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

SAMPLES = TensorDataset(torch.arange(1.0, 9.0)[:, None])


class Constant(LightningModule):
    """Logs what its weight says, whatever the samples; has a counter as BatchNorm does."""

    def __init__(self, size: int = 1, names: tuple[str, ...] = ("val/loss", "val/acc")) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.names = names
        self.weight = nn.Parameter(torch.zeros(size))
        self.norm = nn.BatchNorm1d(1)
        self.opened = False

    def on_load_checkpoint(self, checkpoint):
        self.opened = True

    def validation_step(self, batch, batch_idx):
        for name in self.names:
            self.log(name, self.weight[0])


class Silent(Constant):
    """Without a validation step."""

    validation_step = LightningModule.validation_step


def write_models(folder, values, counters=None, make=Constant, **arguments):
    paths = []
    for k, value in enumerate(values):
        module = make(**arguments)
        with torch.no_grad():
            module.weight.fill_(value)
        if counters is not None:
            module.norm.num_batches_tracked.fill_(counters[k])
        path = folder / f"shared_{k}.ckpt"
        content = {"state_dict": module.state_dict(), "epoch": 7, "pytorch-lightning_version": "2.6.0"}
        if module.hparams:
            content["hyper_parameters"] = dict(module.hparams)
        torch.save(content, path)
        paths.append(path)
    return paths
