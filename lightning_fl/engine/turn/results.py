"""Values logged during a client's turn, reduced to one number per name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torchmetrics import Metric

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import LoggedValue
from lightning_fl.core.pinned_memory import fetch, to_device
from lightning_fl.engine.batches.client import guess_batch_size

_MEANS, _REDUCTIONS = ("mean", "avg"), ("sum", "min", "amin", "max", "amax")


@dataclass
class _Entry:
    name: str
    reduce_fx: str | Callable[[Tensor], Any]
    to_logger: bool
    prog_bar: bool
    on_step: bool
    on_epoch: bool
    loader: int | None = None  # of the values, if several loaders are read
    metric: Metric | None = None
    computed: Tensor | None = None  # the metric's value after its loader
    values: list[Tensor] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    at_steps: list[int] = field(default_factory=list)
    last: Tensor | None = None

    @property
    def forked(self) -> bool:
        """Whether Lightning also logs NAME_step and NAME_epoch."""
        return self.on_step and self.on_epoch


class ResultCollection:
    """Base of what replaces Lightning's result collection, which a module's ``log`` calls."""

    def reset(self, metrics: bool | None = None, fx: str | None = None) -> None:
        """Do nothing; Lightning calls this between hooks."""


class LogCollector(ResultCollection):
    """Result collection of ``LightningModule.log`` for one client's turn, which also keeps every n-th step's values.

    Values stay on their device until :meth:`reduce`, which waits for a GPU once. A ``Metric`` is computed once at the
    end and reset, so that every client's metric covers only its own samples.
    """

    def __init__(self, every_n_steps: int = 0) -> None:
        self._every_n_steps = every_n_steps
        self.batch: Any = None
        self.batch_size: int | None = None
        self.step = 0
        self._loader: int | None = None
        self._sizes: list[float] = []  # batch sizes that the module gave in the present step
        self._size_of_loss: float | None = None
        self._entries: dict[tuple[str, str], _Entry] = {}  # of hook and name; a later hook's value counts

    def begin_step(self, batch: Any, batch_size: int | None, step: int | None = None) -> None:
        """Begin a step on a batch; ``None`` for an unknown number of samples."""
        self.batch, self.batch_size = batch, batch_size
        if step is not None:
            self.step = step
        self._size_of_loss = None
        if self._sizes:
            self._sizes = []

    def step_size(self) -> float:
        """Samples of the present step: the ``batch_size`` of the first logged loss, else value, else the batch's."""
        if self._size_of_loss is not None:
            return self._size_of_loss
        return self._sizes[0] if self._sizes else self._current_batch_size(needed=False)

    def begin_loader(self, number: int | None) -> None:
        """Begin one of several loaders, or end the last (``None``), whose metrics are computed and go on counting."""
        for entry in self._entries.values():
            if entry.metric is not None and entry.loader is not None and entry.loader == self._loader:
                entry.computed = _single(entry.name, entry.metric.compute()).clone()  # no state
        self._loader = number

    def so_far(self, *, training: bool, ended: bool, destination: str | None = None) -> dict[str, Tensor]:
        """Values logged until now, as Lightning's Trainer shows them; metrics continue counting.

        Args:
            training: single steps are in ``callback_metrics``, too.
            ended: the steps are over, so that epoch values exist.
            destination: "to_logger" or "prog_bar", where each value has one name; ``None`` for ``callback_metrics``.
        """
        found: dict[str, Tensor] = {}
        for entry in self._entries.values():
            if destination is not None and not getattr(entry, destination):
                continue
            values: dict[str, Tensor] = {}  # the epoch's comes last, and gets the plain name
            if entry.on_step and entry.last is not None and (training or destination is not None):
                values["step"] = entry.last
            if entry.on_epoch and ended:
                values["epoch"] = _so_far(entry)
            for of, value in values.items():
                if entry.forked:
                    found[f"{entry.name}_{of}"] = value
                if destination is None or not entry.forked:
                    found[entry.name] = value
        return found

    def begin(self) -> None:
        """Forget the last client's values, including those of a failed turn."""
        self._reset_metrics()
        self._entries.clear()
        self.begin_step(None, None, 0)
        self._loader = None

    def log(
        self,
        fx: str,
        name: str,
        value: Tensor | Metric,
        *,
        prog_bar: bool,
        logger: bool,
        on_step: bool,
        on_epoch: bool,
        reduce_fx: str | Callable[[Tensor], Any],
        batch_size: float | None,
        add_dataloader_idx: bool = True,
        **_: Any,
    ) -> None:
        """Keep one value. The signature is that of Lightning's result collection; other arguments have no effect."""
        if batch_size is not None:
            batch_size = float(batch_size)  # it may be a tensor
            self._sizes.append(batch_size)
            if self._size_of_loss is None and "loss" in name.lower():
                self._size_of_loss = batch_size
        if self._loader is not None and add_dataloader_idx:
            name = f"{name}/dataloader_idx_{self._loader}"
        entry = self._entries.get((fx, name))
        if entry is None:
            entry = _Entry(name, reduce_fx, logger, prog_bar, on_step, on_epoch, self._loader)
            self._entries[fx, name] = entry
        elif entry.loader != self._loader and self._loader is not None:
            loaders = f"loaders {entry.loader} and {self._loader}"
            what = f"self.log({name!r}, add_dataloader_idx=False) is called for {loaders}"
            raise ConfigurationError(f"{what}: use different names, or leave add_dataloader_idx out.")
        if isinstance(value, Metric):
            entry.metric, entry.last = value, value._forward_cache
            keeps = on_step and self._every_n_steps > 0 and self.step % self._every_n_steps == 0
            if keeps and value._forward_cache is not None:
                entry.values.append(value._forward_cache.detach())
                entry.at_steps.append(self.step)
            return
        entry.values.append(value)
        entry.last = value
        if batch_size is None:  # as in Lightning, which determines a batch's size only for a mean
            batch_size = self._current_batch_size(needed=on_epoch and _name(reduce_fx) in _MEANS)
        entry.weights.append(float(batch_size))
        entry.at_steps.append(self.step)

    def keep(self, name: str, value: Tensor) -> None:
        """Keep a value that a callback logged through a logger, with weight 1 and without a batch size."""
        entry = self._entries.setdefault(
            ("", name), _Entry(name, "mean", to_logger=True, prog_bar=False, on_step=True, on_epoch=False)
        )
        entry.last = value
        entry.values.append(value)
        entry.weights.append(1.0)
        entry.at_steps.append(self.step)

    def reduce(
        self, num_samples: float, of_loaders: Sequence[float] = (), losses: Sequence[Tensor] = ()
    ) -> tuple[dict[str, LoggedValue], list[float]]:
        """One :class:`LoggedValue` per name, and the losses of the turn's batches as Python numbers.

        A ``Metric`` object's value is weighted by ``num_samples``, with several loaders by its own of ``of_loaders``.
        """
        steps = {key: self._steps(entry) for key, entry in self._entries.items()}
        asked = [_column(losses)] if losses else []
        for key, entry in self._entries.items():
            asked.append(self._number(entry))
            if steps[key]:
                asked.append(_column([value for _, value in steps[key]]))
            if entry.forked and entry.last is not None:
                asked.append(entry.last.reshape(()))
        found = iter(fetch(asked))
        self._reset_metrics()  # after all are computed, because those of a MetricCollection share states
        of_losses = next(found) if losses else []
        reduced: dict[str, LoggedValue] = {}
        epochs: set[str] = set()  # names with a value of the epoch
        for key, entry in self._entries.items():
            better, weight = None, sum(entry.weights)
            if entry.metric is not None:
                better = entry.metric.higher_is_better
                weight = float(num_samples if entry.loader is None else of_loaders[entry.loader])
            (number,) = next(found)
            of_steps = tuple(zip([step for step, _ in steps[key]], next(found) if steps[key] else [], strict=True))
            last = next(found)[0] if entry.forked and entry.last is not None else None
            value = LoggedValue(number, weight, better, entry.to_logger, entry.prog_bar, of_steps, entry.forked, last)
            if (earlier := reduced.get(entry.name)) is not None:  # of another hook
                of_steps = tuple(sorted({**dict(earlier.steps), **dict(of_steps)}.items()))
                value = replace(value if entry.on_epoch or entry.name not in epochs else earlier, steps=of_steps)
            epochs |= {entry.name} if entry.on_epoch else set()
            reduced[entry.name] = value
        return reduced, of_losses

    def _number(self, entry: _Entry) -> Tensor:
        if entry.metric is None:
            return _single(entry.name, _reduced(entry))
        return _single(entry.name, entry.metric.compute() if entry.computed is None else entry.computed)

    def _reset_metrics(self) -> None:
        for entry in self._entries.values():
            if entry.metric is not None:
                entry.metric.reset()

    def _steps(self, entry: _Entry) -> list[tuple[int, Tensor]]:
        if not (entry.on_step and self._every_n_steps):
            return []
        pairs = zip(entry.at_steps, entry.values, strict=True)
        return [(step, value) for step, value in pairs if step % self._every_n_steps == 0]

    def _current_batch_size(self, needed: bool = True) -> int:
        if self.batch_size is None:
            if self.batch is None:
                return 1  # logged outside a step, e.g. in on_train_epoch_end
            if not needed:
                return guess_batch_size(self.batch)
            self.batch_size = extract_batch_size(self.batch)
        return self.batch_size


class EarlyLog(ResultCollection):
    """Keeps what ``on_train_start``, ``on_validation_start`` and ``on_test_start`` log for the turns that follow."""

    def __init__(self) -> None:
        self._moment: Any = None
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def begin(self, moment: Any) -> None:
        """Forget the calls; keep those of a stage and round from now on."""
        self._moment, self._calls = moment, []

    def log(self, *args: Any, **kwargs: Any) -> None:
        self._calls.append((args, kwargs))

    def replay(self, moment: Any, collector: LogCollector) -> None:
        if moment == self._moment:
            for args, kwargs in self._calls:
                collector.log(*args, **kwargs)


def _single(name: str, value: Any) -> Tensor:
    """A single number as a tensor; Python numbers become double precision."""
    if isinstance(value, Tensor) and value.numel() != 1:
        what = f"self.log({name!r}): the value has shape {tuple(value.shape)} and must be one number"
        remedy = "log its entries under different names, or their mean (for a torchmetrics metric: average='macro')"
        raise ConfigurationError(f"{what}: {remedy}.")
    if isinstance(value, Tensor) and not value.is_complex():
        return value
    return torch.tensor(float(value), dtype=torch.float64)


def _column(values: Sequence[Tensor]) -> Tensor:
    """Stack tensors of one number each, [n]."""
    if len({value.dtype for value in values}) > 1:  # stacking would convert integers to single precision
        values = [value.double() for value in values]
    return torch.stack([value.detach().reshape(()) for value in values])


def _reduced(entry: _Entry) -> Tensor:
    values, name = torch.stack(entry.values).double(), _name(entry.reduce_fx)
    if name in _MEANS:
        weights = to_device(torch.tensor(entry.weights, dtype=torch.float64), values.device)
        return (values * weights).sum() / weights.sum()
    if name in _REDUCTIONS:
        return getattr(torch, name)(values)
    if callable(entry.reduce_fx):
        return entry.reduce_fx(values)
    known = "'mean', 'sum', 'min', 'max' or a function of a tensor"
    raise ConfigurationError(f"self.log(reduce_fx={entry.reduce_fx!r}): use {known}.")


def _so_far(entry: _Entry) -> Tensor:
    if entry.metric is None:
        return torch.as_tensor(_reduced(entry)).float()
    return entry.metric.compute() if entry.computed is None else entry.computed.to(torch.get_default_dtype())


def _name(reduce_fx: str | Callable[[Tensor], Any]) -> str:
    return reduce_fx.lower() if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", "")
