"""What the phases share: rows, small federations that need neither RDKit nor a data set, runs, digests of weights."""

import contextlib
import hashlib
import importlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import overhead
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from stacking import Classifier, pixels
from torch import Tensor, nn
from workloads import Clients, ImageModule, images

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback

__all__ = [
    "TASKS",
    "Arm",
    "Options",
    "Row",
    "Task",
    "Varied",
    "digest",
    "fit",
    "graphs",
    "has",
    "supports",
    "synchronize",
]


@dataclass(frozen=True)
class Options:
    """What all arms are told: the accelerator, whether to run small enough for a test, and whether it is software."""

    device: str
    tiny: bool
    stand_in: bool = False

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device, 0) if self.device == "cuda" else torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """One line of the table: what was looked at, what came of it, and what it should be."""

    what: str
    value: Any
    aim: str = ""
    note: str = ""

    def as_dict(self, phase: str, arm: str) -> dict[str, Any]:
        return {"phase": phase, "arm": arm, **asdict(self)}


#: An arm yields its rows as they become known.
Arm = Callable[[Options], Iterator[Row]]


class Varied(LightningModule):
    """Images [n, 3, 32, 32] through convolutions, batch normalisation, max pooling and dropout."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()),
            *(nn.Dropout(dropout), nn.Linear(8 * 49, 10)),
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def graphs(count: int) -> list[Any]:
    """Random graphs of the size of small molecules: a chain of 8 to 18 nodes and a few rings, 9 numbers a node."""
    from torch_geometric.data import Data

    draws = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        nodes = int(torch.randint(8, 19, (), generator=draws))
        chain = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
        rings = torch.randint(0, nodes, (2, 2), generator=draws)
        edges = torch.cat([chain, chain.flip(0), rings, rings.flip(0)], dim=1)
        x = torch.randn(nodes, 9, generator=draws)
        made.append(Data(x=x, edge_index=edges, y=x.mean().view(1, 1)))
    return made


def _graph_module() -> LightningModule:
    from workloads import GraphModule

    return GraphModule(9)


@dataclass(frozen=True)
class Task:
    """A federation: module, and data of so many clients, full or tiny."""

    module: Callable[[], LightningModule]
    data: Callable[[bool], Clients]


TASKS = {
    "mlp": Task(
        lambda: Classifier(32), lambda tiny: Clients(pixels(80 if tiny else 2000), 4 if tiny else 100, 10, True)
    ),
    "lenet": Task(ImageModule, lambda tiny: Clients(images(40 if tiny else 10000), 4 if tiny else 100, 16, True)),
    "varied": Task(Varied, lambda tiny: Clients(images(40 if tiny else 1000), 4, 16, True)),
    "gnn": Task(_graph_module, lambda tiny: Clients(graphs(48 if tiny else 1128), 3, 32, True)),  # type: ignore[arg-type]
}


def fit(
    options: Options, task: str, rounds: int, callbacks: Sequence[Callback] = (), **settings: Any
) -> tuple[FederatedTrainer, list[float]]:
    """A run of a task on the device.

    Returns:
        The trainer, and when each round ended, in seconds.
    """
    times = overhead.RoundTimes()
    given = {"accelerator": options.device, "devices": 1, "optimizer_state": "fresh", **settings}
    module = given.pop("module", None) or _seeded(TASKS[task].module)
    data = given.pop("data", None) or TASKS[task].data(options.tiny)
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
        trainer = FederatedTrainer(
            max_rounds=rounds,
            callbacks=[times, *callbacks],
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            default_root_dir=root,
            **given,
        )
        trainer.fit(module, data)
    return trainer, times.ends


def _seeded(make: Callable[[], LightningModule]) -> LightningModule:
    torch.manual_seed(7)
    return make()


def digest(trainer: FederatedTrainer, model: int = 0) -> str:
    """The bits of a model, in 12 letters."""
    vectors = trainer.models[model].vectors.values()
    bits = b"".join(vector.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() for vector in vectors)
    return hashlib.sha256(bits).hexdigest()[:12]


def synchronize(options: Options) -> None:
    """Wait for the device."""
    if options.device == "cuda":
        torch.cuda.synchronize()


def has(*modules: str) -> bool:
    """Whether packages can be imported."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            return False
    return True


def supports(setting: str) -> bool:
    """Whether the trainer has a setting: this script also measures versions that have not."""
    import inspect

    return setting in inspect.signature(FederatedTrainer.__init__).parameters


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
