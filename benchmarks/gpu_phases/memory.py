"""Memory with 100 clients, and what happens when it is not enough."""

import resource
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from workloads import JudgedClients, JudgedImageModule

from gpu_phases.common import TASKS, Arm, Options, Row, fit
from lightning_fl.callbacks import HCCT, Callback, CollaborationGraph


def _peak(options: Options) -> float:
    """MiB: on the device, or of this process."""
    if options.device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _of(name: str, options: Options) -> Iterator[Row]:
    callbacks: Sequence[Callback] = ()
    settings: dict[str, Any] = {"optimizer_state": "keep"} if name == "keep" else {}
    if name == "HCCT":
        callbacks = [HCCT(relative_trade_off=0.3)]
    if name == "DPFL":
        callbacks = [CollaborationGraph(budget=0.1, init_epochs=1)]
    clients = 4 if options.tiny else 100
    data = JudgedClients(clients, 16, 8, 8)
    before = _peak(options)
    trainer, _ = fit(options, "lenet", 2, callbacks, module=JudgedImageModule(), data=data, **settings)
    weights = trainer.models[0].num_bytes / 2**20
    note = f"{clients} clients, {weights:.2f} MiB a model, {before:.0f} MiB before"
    yield Row(f"{name}: peak MiB", f"{_peak(options):.0f}", note=note)


class _Hungry(LightningModule):
    """Asks for far too much memory in a client's turn, or for a class that there is not."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.inner = TASKS["mlp"].module()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if self.trainer.client == 1:
            if self.fault == "memory":
                torch.empty(2**45, device=batch[0].device)
            batch = [batch[0], batch[1] + 1000]
        return self.inner.training_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _fault(fault: str, aim: str, options: Options) -> Iterator[Row]:
    """What a run with ``on_client_error=skip`` says."""
    try:
        trainer, _ = fit(options, "mlp", 2, on_client_error="skip", module=_Hungry(fault))
    except Exception as error:
        yield Row(f"{fault}, skip", f"{type(error).__name__}: {error}"[:300], aim)
        return
    yield Row(f"{fault}, skip", f"went on without client 1, {trainer.current_round} rounds", aim)


PARALLEL = True
ARMS: dict[str, Arm] = {
    **{name: partial(_of, name) for name in ("FedAvg", "keep", "HCCT", "DPFL")},
    "out of memory": partial(_fault, "memory", "goes on"),
    "label out of range": partial(_fault, "label", "ends on a GPU, goes on on a CPU"),
}
