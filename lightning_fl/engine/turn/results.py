"""What a module logs during one client's turn, reduced to one number per name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_fl.errors import ConfigurationError
from lightning_fl.metrics import LoggedValue

__all__ = ["LogCollector"]


@dataclass
class _Entry:
    reduce_fx: str | Callable[[Tensor], Any]
    to_logger: bool
    prog_bar: bool
    on_step: bool
    on_epoch: bool
    metric: Metric | None = None
    values: list[Tensor] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    at_steps: list[int] = field(default_factory=list)
    last: Tensor | None = None

    @property
    def forked(self) -> bool:
        """Whether Lightning has it as NAME_step and NAME_epoch, too."""
        return self.on_step and self.on_epoch


class LogCollector:
    """Takes what ``LightningModule.log`` hands to a Trainer's result collection, and keeps it for one client's turn.

    Values stay on their device until :meth:`reduce`, so that logging never waits for a GPU. A ``Metric`` object is
    computed once at the end and reset, so that every client's metric covers that client's samples only.

    Args:
        every_n_steps: also keep the values of every n-th step of what is logged with ``on_step=True``; 0 for none.
    """

    def __init__(self, every_n_steps: int = 0) -> None:
        self._every_n_steps = every_n_steps
        self.batch: Any = None
        self.batch_size: int | None = None
        self.step = 0
        self._entries: dict[str, _Entry] = {}

    def so_far(self, *, training: bool, ended: bool, destination: str | None = None) -> dict[str, Tensor]:
        """What was logged until now, as and when Lightning's Trainer shows it; metrics go on counting.

        Args:
            training: ``callback_metrics`` have single steps of training only.
            ended: the steps are over, so that the epoch's values are there.
            destination: "to_logger" or "prog_bar", where each value has one name; ``None`` for ``callback_metrics``.
        """
        found: dict[str, Tensor] = {}
        for name, entry in self._entries.items():
            if destination is not None and not getattr(entry, destination):
                continue
            values: dict[str, Tensor] = {}  # of the epoch last, which NAME alone then has
            if entry.on_step and entry.last is not None and (training or destination is not None):
                values["step"] = entry.last
            if entry.on_epoch and ended:
                values["epoch"] = entry.metric.compute() if entry.metric is not None else _reduced(entry).float()
            for of, value in values.items():
                if entry.forked:
                    found[f"{name}_{of}"] = value
                if destination is None or not entry.forked:
                    found[name] = value
        return found

    def begin(self) -> None:
        """Forget the last client's values, also those of a turn that failed before :meth:`reduce`."""
        self._reset_metrics()
        self._entries.clear()
        self.batch, self.batch_size, self.step = None, None, 0

    def reset(self, metrics: bool | None = None, fx: str | None = None) -> None:
        """Lightning calls this between hooks; a turn ends with :meth:`reduce` instead."""

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
        batch_size: int | None,
        **_: Any,
    ) -> None:
        """Keep one value. The signature is that of Lightning's result collection.

        The remaining arguments have no meaning here: clients never synchronise inside a round (``sync_dist``), have
        one loader per split (``add_dataloader_idx``), and values are detached (``enable_graph``).
        """
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry(reduce_fx, logger, prog_bar, on_step, on_epoch)
        if isinstance(value, Metric):
            entry.metric, entry.last = value, value._forward_cache
            if self._keeps_step(on_step) and value._forward_cache is not None:
                entry.values.append(value._forward_cache.detach())
                entry.at_steps.append(self.step)
            return
        entry.values.append(value)
        entry.last = value
        entry.weights.append(float(batch_size if batch_size is not None else self._current_batch_size()))
        entry.at_steps.append(self.step)

    def reduce(self, num_samples: float) -> dict[str, LoggedValue]:
        """One :class:`LoggedValue` per name; ``num_samples`` stands behind a ``Metric`` object's value.

        Raises:
            ConfigurationError: a ``Metric`` object's value is not one number, or ``reduce_fx`` is unknown.
        """
        reduced = {}
        for name, entry in self._entries.items():
            better, weight = None, float(num_samples)
            if entry.metric is not None:
                number = _single(name, entry.metric.compute())
                better = entry.metric.higher_is_better
            else:
                number = _single(name, _reduced(entry))
                weight = sum(entry.weights)
            last = float(entry.last) if entry.forked and entry.last is not None else None
            reduced[name] = LoggedValue(
                number, weight, better, entry.to_logger, entry.prog_bar, self._steps(entry), entry.forked, last
            )
        self._reset_metrics()  # when all are computed: those of a MetricCollection share their states
        return reduced

    def _reset_metrics(self) -> None:
        for entry in self._entries.values():
            if entry.metric is not None:
                entry.metric.reset()

    def _keeps_step(self, on_step: bool) -> bool:
        return on_step and self._every_n_steps > 0 and self.step % self._every_n_steps == 0

    def _steps(self, entry: _Entry) -> tuple[tuple[int, float], ...]:
        if not (entry.on_step and self._every_n_steps):
            return ()
        pairs = zip(entry.at_steps, entry.values, strict=True)
        return tuple((step, float(value)) for step, value in pairs if step % self._every_n_steps == 0)

    def _current_batch_size(self) -> int:
        if self.batch_size is None:
            if self.batch is None:
                return 1  # logged outside a step, e.g. in on_train_epoch_end
            from lightning.pytorch.utilities.data import extract_batch_size

            self.batch_size = extract_batch_size(self.batch)
        return self.batch_size


def _single(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ConfigurationError(
            f"self.log({name!r}): the value has shape {tuple(value.shape)}, but one number is shown per client. Log its"
            " entries under names of their own, or their mean (a torchmetrics metric: average='macro')."
        )
    return float(value)


def _reduced(entry: _Entry) -> Tensor:
    values = torch.stack(entry.values).double()
    return _reduce(entry.reduce_fx, values, torch.tensor(entry.weights, dtype=torch.float64, device=values.device))


def _reduce(reduce_fx: str | Callable[[Tensor], Any], values: Tensor, weights: Tensor) -> Tensor:
    name = reduce_fx.lower() if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", "")
    if name in ("mean", "avg"):
        return (values * weights).sum() / weights.sum()
    if name == "sum":
        return values.sum()
    if name in ("min", "amin"):
        return values.min()
    if name in ("max", "amax"):
        return values.max()
    if callable(reduce_fx):
        return reduce_fx(values)
    raise ConfigurationError(
        f"self.log(reduce_fx={reduce_fx!r}): use 'mean', 'sum', 'min', 'max' or a function of a tensor."
    )
