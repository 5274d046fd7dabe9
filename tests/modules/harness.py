"""A public module under Lightning's own Trainer and federated: what is tried of every case."""

import contextlib
import importlib.metadata
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn

from lightning_fl import FederatedTrainer, Silos

__all__ = ["CASES", "Case", "Outcome", "case", "federate_and_resume", "fit_plain", "largest_difference", "try_case"]

Loaders = Mapping[str, Iterable[Any]]


@dataclass(frozen=True)
class Case:
    """One module of one package.

    ``make()`` gives the module with its initial weights, ``loaders(silo)`` a silo's loaders (``train``, and ``val`` and
    ``test`` where the module evaluates) in a fixed order, ``load(path, module)`` opens an exported model with a new
    module (else the class' ``load_from_checkpoint``). ``package`` is the
    distribution that ships the module or, where ``wraps`` says so, the network or loss of a module written here.
    """

    name: str
    package: str
    make: Callable[[], Any]
    loaders: Callable[[int], Loaders]
    load: Callable[[Path, Any], nn.Module] | None = None
    wraps: bool = False
    silos: int = 3
    trainer: Mapping[str, Any] = field(default_factory=dict)
    datamodule: Callable[[int], Any] | None = None
    #: What is refused or fails, where it is not this package's to mend; the message must hold it.
    fails: str | None = None
    #: Why the weights of one client differ from the plain Trainer's, and by how much they may.
    differs: str | None = None
    atol: float = 0.0

    @property
    def version(self) -> str:
        """Of the package that is installed."""
        return importlib.metadata.version(self.package)


CASES: dict[str, Case] = {}


def case(name: str, package: str, **options: Any) -> Callable[[Callable[[], dict[str, Any]]], Callable[[], Any]]:
    """Register what a function returns (``make``, ``loaders``, ...), which is called when the case is tried."""

    def register(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        CASES[name] = Case(name, package, make=_unopened, loaders=_unopened, **options)
        _OPEN[name] = function
        return function

    return register


_OPEN: dict[str, Callable[[], dict[str, Any]]] = {}


def _unopened(*_: Any) -> Any:
    raise RuntimeError("open the case first")


def opened(name: str) -> Case:
    """The case with its packages imported."""
    import dataclasses

    return dataclasses.replace(CASES[name], **_OPEN[name]())


class SiloData(LightningDataModule):
    """A silo's loaders as an ordinary data module."""

    def __init__(self, loaders: Loaders) -> None:
        super().__init__()
        self.loaders = loaders

    def train_dataloader(self) -> Any:
        return self.loaders["train"]

    def val_dataloader(self) -> Any:
        return self.loaders.get("val", [])

    def test_dataloader(self) -> Any:
        return self.loaders.get("test", [])


@dataclass
class Outcome:
    """A row of the table."""

    plain: str = "not tried"
    federated: str = "not tried"
    difference: float | None = None
    one_client: str = "not tried"


def make(case: Case) -> Any:
    """The module, with the same initial weights every time."""
    with torch.random.fork_rng(devices=[]):
        pl.seed_everything(7, verbose=False)
        return case.make()


def _seed_steps(module: Any) -> Any:
    """The module, whose random draws (dropout, noise) depend on the epoch and the batch only."""

    class Seeded(type(module)):  # type: ignore[misc]
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            torch.manual_seed(1000 * self.current_epoch + batch_idx)
            return super().on_train_batch_start(batch, batch_idx)

    Seeded.__name__, Seeded.__qualname__ = type(module).__name__, type(module).__qualname__
    module.__class__ = Seeded
    return module


def _data(case: Case, silo: int) -> Any:
    return case.datamodule(silo) if case.datamodule else SiloData(case.loaders(silo))


def _lightning(module: Any) -> Any:
    """The Lightning that the module is built on: ``lightning.pytorch`` or ``pytorch_lightning``."""
    if isinstance(module, LightningModule):
        return pl
    import pytorch_lightning

    return pytorch_lightning


def fit_plain(case: Case, folder: Path, *, epochs: int = 2) -> Any:
    """The module after ``epochs`` on silo 0 under the Trainer of its own Lightning, tested where it has test data."""
    module = _seed_steps(make(case))
    trainer = _lightning(module).Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        **case.trainer,
    )
    data = _data(case, 0)
    plain = SiloData if _lightning(module) is pl else _other_lightning(SiloData)
    trainer.fit(module, datamodule=data if case.datamodule else plain(data.loaders))
    return module


def _other_lightning(kind: type[SiloData]) -> type:
    """The same data module for ``pytorch_lightning``."""
    import pytorch_lightning

    return type(kind.__name__, (pytorch_lightning.LightningDataModule,), dict(vars(kind)) | {"__init__": _keep_loaders})


def _keep_loaders(self: Any, loaders: Loaders) -> None:
    import pytorch_lightning

    pytorch_lightning.LightningDataModule.__init__(self)
    self.loaders = loaders


def _trainer(case: Case, folder: Path, **arguments: Any) -> FederatedTrainer:
    quiet: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    return FederatedTrainer(**(quiet | {"default_root_dir": folder, "seed": 0} | dict(case.trainer) | arguments))


def fit_one_client(case: Case, folder: Path, *, rounds: int = 2) -> Any:
    """The module after ``rounds`` with silo 0 as the only client, without fused steps, which round otherwise."""
    module = _seed_steps(make(case))
    plain: dict[str, Any] = {"optimizer_state": "keep", "fused_optimizers": False, "enable_checkpointing": False}
    trainer = _trainer(case, folder, max_rounds=rounds, **plain)
    trainer.fit(module, Silos([_data(case, 0)]))
    return module


def federate_and_resume(case: Case, folder: Path) -> None:
    """Two rounds over all silos, a test, a third round from the checkpoint, the exported model opened without us."""
    data = Silos([_data(case, silo) for silo in range(case.silos)])
    trainer = _trainer(case, folder / "first", max_rounds=2)
    module = make(case)
    trainer.fit(module, data)
    if "test" in case.loaders(0):
        trainer.test(module, data)
    assert trainer.log_dir is not None
    exported = sorted((Path(trainer.log_dir) / "models").glob("*.ckpt"))
    assert exported, "no model was exported"
    opened = case.load(exported[-1], make(case)) if case.load else type(module).load_from_checkpoint(exported[-1])
    saved = torch.load(exported[-1], weights_only=False, map_location="cpu")["state_dict"]
    for name, value in opened.state_dict().items():
        assert name not in saved or torch.equal(value, saved[name]), f"{name} is not as exported"
    data = Silos([_data(case, silo) for silo in range(case.silos)])
    again = _trainer(case, folder / "second", max_rounds=3)
    again.fit(make(case), data, ckpt_path=str(Path(trainer.log_dir) / "checkpoints" / "last.ckpt"))
    assert again.current_round == 3


def largest_difference(own: nn.Module, reference: nn.Module) -> float:
    """Over all parameters and buffers; 0 means equal to the last bit (NaN where the reference has NaN)."""
    theirs, ours = reference.state_dict(), own.state_dict()
    assert ours.keys() == theirs.keys(), f"other tensors: {sorted(ours.keys() ^ theirs.keys())}"
    largest = 0.0
    for name, value in theirs.items():
        if torch.is_tensor(value) and value.numel() and not torch.equal(value, ours[name]):
            if value.isnan().any() or value.dtype == torch.bool:
                torch.testing.assert_close(ours[name], value, rtol=0, atol=0, equal_nan=True, msg=f"{name} differs")
                continue
            apart = (value.double() - ours[name].double()).abs()
            largest = max(largest, float(apart.max()))
    return largest


def told_bits(difference: float) -> str:
    """Whether the bits are equal; a shared model is summed with 46 bits behind the point."""
    if difference == 0:
        return "yes"
    return "yes, but for entries below 2^-22" if difference < 2**-46 else f"no, {difference:.0e}"


def moved(module: nn.Module, start: nn.Module) -> bool:
    """Whether training changed any tensor."""
    before = start.state_dict()
    return any(torch.is_tensor(v) and not torch.equal(v, before[k]) for k, v in module.state_dict().items())


@contextlib.contextmanager
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def try_case(name: str, folder: Path) -> Outcome:
    """All of a case; what fails is told in the outcome, as its error's first line.

    In one thread, as federated runs by default: on several, torch adds the gradients of some layers in another order.
    """
    outcome = Outcome()
    with _quiet():
        try:
            found = opened(name)
            torch.set_num_threads(1)
            plain = fit_plain(found, folder / "plain")
            outcome.plain = "yes" if moved(plain, make(found)) else "nothing was trained"
        except Exception as error:
            outcome.plain = _first_line(error)
            return outcome
        try:
            federate_and_resume(found, folder / "federated")
            outcome.federated = "yes"
        except Exception as error:
            outcome.federated = _first_line(error)
        try:
            outcome.difference = largest_difference(fit_one_client(found, folder / "one"), plain)
            outcome.one_client = told_bits(outcome.difference)
        except Exception as error:
            outcome.one_client = _first_line(error)
    return outcome


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
