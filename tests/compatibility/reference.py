"""The same module under Lightning's own Trainer and under the federated one, on the same tiny data."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from hooks import Cohorts, StopAfter
from lightning.pytorch import LightningModule
from tiny import QUIET
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.callbacks.callback import Callback
from lightning_fl.data.module import Split


def samples(client: int, count: int, split: str = "train") -> TensorDataset:
    """Inputs [count, 3] and noisy linear targets [count, 1], different for every client and split."""
    draws = torch.Generator().manual_seed(1000 * client + len(split))
    x = torch.randn(count, 3, generator=draws)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.1 * torch.randn(count, 1, generator=draws) + client
    return TensorDataset(x, y)


class Clients(FederatedDataModule):
    """Clients with ``sizes`` training samples each and five validation and test samples, in a fixed order.

    ``data`` replaces what a client has in a split.
    """

    def __init__(
        self,
        sizes: Sequence[int] = (10,),
        *,
        batch_size: int = 4,
        data: Callable[[int, Split], Any] | None = None,
        **options: Any,
    ) -> None:
        options = {"eval_batch_size": batch_size, "shuffle": False} | options  # the batches of Lightning's loaders
        super().__init__(batch_size=batch_size, **options)
        self.sizes = list(sizes)
        self._data = data

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    def client_data(self, client: int, split: Split) -> Dataset | DataLoader | None:
        if self._data is not None:
            return self._data(client, split)
        return samples(client, self.sizes[client] if split == "train" else 5, split)


class OneClient(pl.LightningDataModule):
    """Client 0 of :class:`Clients` as ordinary data."""

    def __init__(self, clients: Clients) -> None:
        super().__init__()
        self.clients = clients

    def _loader(self, split: Split) -> DataLoader:
        data: Any = self.clients.client_data(0, split)
        return data if isinstance(data, DataLoader) else DataLoader(data, batch_size=self.clients.batch_size)

    def train_dataloader(self) -> DataLoader:
        return self._loader("train")

    def val_dataloader(self) -> DataLoader:
        return self._loader("val")

    def test_dataloader(self) -> DataLoader:
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader:
        return self._loader("test")


class Linear(LightningModule):
    """Least squares with an optimiser that a test names; ``training_step`` logs nothing."""

    def __init__(self, lr: float = 0.05) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Linear(3, 1)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def linear(
    name: str = "Module", base: type = Linear, *, build: Callable[[Any], Any] | None = None, **members: Any
) -> type[Any]:
    """A subclass of ``base`` with these members; ``build`` is called at the end of its constructor."""

    def initialise(self: Any) -> None:
        super(made, self).__init__()
        build(self)  # type: ignore[misc]

    made: type[Any] = type(name, (base,), members if build is None else members | {"__init__": initialise})
    return made


def step(act: Callable[[Any], Any]) -> Callable[[Any, Any, int], Tensor]:
    """A training step that calls ``act(module)`` and returns the loss."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> Tensor:
        act(self)
        return self.loss(batch)

    return training_step


def watching(base: type, hooks: Iterable[str], note: Callable[..., Any]) -> type[Any]:
    """A subclass of ``base``; each of ``hooks`` calls ``note(self, hook, *arguments)``, then what ``base`` has."""

    def make_hook(name: str) -> Callable[..., Any]:
        def hook(self: Any, *arguments: Any, **named: Any) -> Any:
            note(self, name, *arguments, *named.values())
            return getattr(super(watcher, self), name)(*arguments, **named)

        return hook

    watcher: type[Any] = type(f"Watching{base.__name__}", (base,), {name: make_hook(name) for name in hooks})
    return watcher


def logs_from(hook: str, base: type = Linear) -> type[Any]:
    """A module whose ``hook`` logs how often it was called."""

    def logs(self: Any, *_: Any) -> None:
        self.count = getattr(self, "count", 0) + 1
        self.log(hook, float(self.count), on_step=False, on_epoch=True)

    return linear("Logs", base, **{hook: logs})


class Validated(Linear):
    """Logs the loss of each validation batch."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", self.loss(batch))


class Fails(Linear):
    """Raises an error in its training step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise ValueError("no such thing")


class Holds(pl.LightningDataModule):
    """An ordinary data module with the loaders that a test makes."""

    def __init__(self, train: Callable[[], Any], val: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.train, self.val = train, val or list

    def train_dataloader(self) -> Any:
        return self.train()

    def val_dataloader(self) -> Any:
        return self.val()

    def test_dataloader(self) -> Any:
        return self.val()

    predict_dataloader = test_dataloader


def loader(client: int, count: int, split: str = "train", batch_size: int = 4) -> DataLoader:
    """A loader over :func:`samples`, in order."""
    return DataLoader(samples(client, count, split), batch_size=batch_size)


class Batches:
    """Batches of four as an iterable that is no loader; with or without a length."""

    def __init__(self, client: int, count: int, sized: bool = False) -> None:
        self.rows = samples(client, count).tensors
        if sized:
            self.__class__ = type("SizedBatches", (Batches,), {"__len__": lambda self: -(-len(self.rows[0]) // 4)})

    def __iter__(self) -> Iterator[Any]:
        return zip(self.rows[0].split(4), self.rows[1].split(4), strict=True)


class Rows(IterableDataset):
    """Samples one after another, without a length."""

    def __init__(self, client: int, count: int) -> None:
        self.rows = samples(client, count)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def leave_out(cohorts: Sequence[Sequence[int]]) -> Callback:
    """Clients take part in the rounds that ``cohorts`` lists for each round."""
    return Cohorts(dict(enumerate(cohorts, start=1)), 0)


def federated_trainer(folder: Path, **arguments: Any) -> FederatedTrainer:
    """A quiet trainer that writes below ``folder``."""
    return FederatedTrainer(**(QUIET | {"default_root_dir": folder, "seed": 0} | arguments))


def fitted(folder: Path, *given: Any, ckpt_path: Any = None, **arguments: Any) -> FederatedTrainer:
    """The trainer of a fit of a module on data."""
    trainer = federated_trainer(folder, **arguments)
    trainer.fit(*given, ckpt_path=ckpt_path)
    return trainer


def lightning_trainer(folder: Path, kind: Any = pl.Trainer, **arguments: Any) -> Any:
    """Lightning's own Trainer, as quiet, on one CPU."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": folder,
    }
    return kind(**(quiet | arguments))


def make(module: Callable[[], LightningModule]) -> LightningModule:
    """A module with the same initial weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return module()


def train_both(
    module: Callable[[], LightningModule],
    folder: Path,
    *,
    epochs: int = 3,
    data: Clients | None = None,
    federated: dict[str, Any] | None = None,
    lightning: dict[str, Any] | None = None,
    **arguments: Any,
) -> tuple[Any, FederatedTrainer, Any, pl.Trainer]:
    """One client for ``epochs`` rounds, and Lightning for as many epochs.

    ``arguments`` go to both trainers; the client keeps its optimisers, as Lightning does.

    Returns:
        The federated module and trainer, Lightning's module and trainer.
    """
    data = Clients() if data is None else data
    own, reference = make(module), make(module)
    trainer = federated_trainer(
        folder / "federated", **({"max_rounds": epochs, "optimizer_state": "keep"} | arguments | (federated or {}))
    )
    trainer.fit(own, data)
    theirs = lightning_trainer(folder / "lightning", **({"max_epochs": epochs} | arguments | (lightning or {})))
    theirs.fit(reference, datamodule=OneClient(data))
    return own, trainer, reference, theirs


def train_alike(
    module: Callable[[], LightningModule], folder: Path, *compared: str, moved: bool = True, **options: Any
) -> Any:
    """:func:`train_both`, with equal weights, steps and attributes ``compared``; returns the federated module."""
    own, trainer, reference, theirs = train_both(module, folder, **options)
    assert_same_weights(own, reference, moved=moved)
    assert trainer.client_states[0].global_step == theirs.global_step > 0
    for name in compared:
        assert getattr(own, name) == getattr(reference, name), name
        assert getattr(own, name), name
    return own


def fit_whole_and_resumed(
    module: Callable[[], Any],
    folder: Path,
    data: FederatedDataModule | None = None,
    *,
    stop: bool = False,
    **options: Any,
) -> tuple[list[Any], list[FederatedTrainer]]:
    """Four rounds at once, and two rounds that are resumed to four.

    ``stop`` ends the first two by a callback, in a run that is set up for four rounds.

    Returns:
        The modules and the trainers of the whole run, of its first part and of the resumed one.
    """
    runs: list[tuple[str, dict[str, Any], str | None]] = [
        ("whole", {}, None),
        ("cut", {"callbacks": [StopAfter(2)]} if stop else {"max_rounds": 2}, None),
        ("cut", {}, "last"),
    ]
    modules, trainers = [], []
    for name, own, path in runs:
        modules.append(make(module))
        arguments = {"max_rounds": 4, "enable_checkpointing": True} | options | own
        trainers.append(federated_trainer(folder / name, **arguments))
        trainers[-1].fit(modules[-1], Clients((8, 12)) if data is None else data, ckpt_path=path)
    return modules, trainers


def assert_same_weights(own: nn.Module, reference: nn.Module, *, atol: float = 0.0, moved: bool = True) -> None:
    """Every parameter and buffer is equal (to ``atol``), and training changed the reference."""
    theirs = reference.state_dict()
    assert own.state_dict().keys() == theirs.keys()
    for name, value in own.state_dict().items():
        torch.testing.assert_close(
            value, theirs[name], rtol=0.0, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )
    if moved:
        start = make(type(reference)).state_dict()
        assert any(not torch.equal(value.to(start[name].dtype), start[name]) for name, value in theirs.items())
