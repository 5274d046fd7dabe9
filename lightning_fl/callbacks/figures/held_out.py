"""Base class of figures of held-out data, which collects predictions and targets of all clients on rank zero."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from matplotlib.figure import Figure
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import did_you_mean, listed
from lightning_fl.core.metrics import ClientMetrics
from lightning_fl.core.validation import Size, checked
from lightning_fl.data.module import Split
from lightning_fl.runtime.drawing import drawing
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["HeldOutFigure", "Pairs", "pair_outputs"]

#: client -> (predictions [n] or [n, C], targets [n]) of one target, without missing values.
Pairs = Mapping[int, tuple[Tensor, Tensor]]


class HeldOutFigure(Callback):
    """Figure of predictions against held-out targets, each client's own model on its own data.

    Drawn after ``test`` (for ``split="val"`` after ``fit`` and ``validate``) as ``figures/NAME_SPLIT.png`` and in
    TensorBoard. Missing targets (NaN) are ignored. If ``predict_step`` does not fit the targets, it warns and draws
    nothing.

    Sends every client's held-out targets and predictions to rank zero: do not use it if they must not leave a silo.

    Args:
        split: of the data.
        target: number from 0 or name of a target; ``None`` for a panel of each.
    """

    only_shows = True
    several = True  # one for each split and target
    #: File name.
    picture: str

    @checked
    def __init__(self, *, split: Literal["test", "val"] = "test", target: Size | str | None = None) -> None:
        self.split: Split = split
        self.target = target

    @abstractmethod
    def _draw(
        self, panels: Mapping[str, Pairs], units: Mapping[str, str], names: list[str], source: str
    ) -> Figure | str:
        """Return the figure, or the reason why it cannot be drawn.

        Args:
            panels: target -> client -> predictions and targets, n >= 1.
            units: target -> unit; "" if unknown.
            names: of the clients.
            source: of the data.
        """

    def on_evaluate_end(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        """Draw after ``test`` or ``validate``, not after a fit's validations."""
        if split == self.split and not trainer.round.fitting:
            self._show(trainer)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Draw the validation data with the last models, if requested."""
        if self.split == "val":
            self._show(trainer)

    def _show(self, trainer: TrainerSurface) -> None:
        collected = trainer.strategy.exchange(
            {client: self._collect(trainer, client) for client in trainer.hosted_clients}
        )
        problem = next((found for found in collected.values() if isinstance(found, str)), None)
        if problem is not None:
            self._say_nothing(problem)
            return
        points = {client: found for client, found in collected.items() if isinstance(found, tuple)}
        data: Any = trainer.datamodule
        # Optional attributes of data modules.
        known, units = getattr(data, "target_names", None), getattr(data, "target_units", None)
        count = next((targets.shape[1] for _, targets in points.values()), 1)
        named = list(known) if known else ["target"] if count == 1 else [f"target {number}" for number in range(count)]
        chosen = self._chosen(named)
        if isinstance(chosen, str):
            self._say_nothing(chosen)
            return
        panels = {named[number]: present(points, number) for number in chosen}
        panels = {name: pairs for name, pairs in panels.items() if pairs}
        if not panels:
            self._say_nothing(f"no client has {self.split} data with a measured value.")
            return
        if not trainer.is_global_zero:
            return
        name = self._file_name(named)
        of_target = {} if not units else dict(zip(named, units, strict=True))
        with drawing(name):
            figure = self._draw(
                panels,
                {target: "" if unit == "not given" else unit for target, unit in of_target.items()},
                data.client_names(),
                data.source,
            )
            if isinstance(figure, str):
                self._say_nothing(figure)
            else:
                trainer.run_log.log_figure(name, figure, trainer.federation.current_round)

    def _say_nothing(self, problem: str) -> None:
        rank_zero_warn(f"{type(self).__name__} draws nothing: {problem}")

    def _chosen(self, named: list[str]) -> list[int] | str:
        """Numbers of the drawn targets, or an error message."""
        if self.target is None:
            return list(range(len(named)))
        if isinstance(self.target, str):
            if self.target not in named:
                hint = did_you_mean(self.target, named)
                return f"target={self.target!r}: unknown{hint}; the targets are {listed(named)}."
            return [named.index(self.target)]
        if self.target >= len(named):
            return f"target={self.target}: there are {len(named)} targets, counted from 0."
        return [self.target]

    def _file_name(self, named: list[str]) -> str:
        number = named.index(self.target) if isinstance(self.target, str) else self.target
        return f"{self.picture}_{self.split}" + (f"_{number}" if number else "")

    def _collect(self, trainer: TrainerSurface, client: int) -> tuple[Tensor, Tensor] | str | None:
        """Predictions [n, T] or [n, T, C] and targets [n, T] of a hosted client, ``None`` without data.

        Errors are returned as texts, so that every rank takes part in the exchange.
        """
        batches = trainer.client_batches(client, self.split)
        if batches is None:
            return None
        try:
            targets = batches.targets.cpu()
            outputs = trainer.predict_client(client, self.split)
        except Exception as error:  # an error in the user's predict_step must not end the test
            return f"{type(error).__name__}: {error}"
        return self._paired(outputs, targets)

    def _paired(self, outputs: list[Any], targets: Tensor) -> tuple[Tensor, Tensor] | str:
        return pair_outputs(outputs, targets)


def pair_outputs(outputs: list[Any], targets: Tensor, *, classes: bool = False) -> tuple[Tensor, Tensor] | str:
    """Predictions [n, T] (or [n, T, C]) and targets [n, T], float64, or an error message.

    Args:
        outputs: of ``predict_step``, one per batch: [b, T] or [b]; with ``classes`` also [b, T, C], or [b, C] for one
            target.
        targets: [n, T] or [n].
        classes: allow a dimension of classes.
    """
    other = next((output for output in outputs if not isinstance(output, Tensor)), None)
    if other is not None:
        return f"predict_step returned a {type(other).__name__}; return a tensor shaped like the targets."
    columns = targets.flatten(1) if targets.ndim > 1 else targets.unsqueeze(1)
    rows = [output if output.ndim > 1 else output.reshape(-1, 1) for output in outputs]
    shapes = {row.shape[1:] for row in rows}
    if classes and len(shapes) == 1:
        (shape,) = shapes
        if len(shape) == 1 and columns.shape[1] == 1 and shape[0] > 1:
            rows = [row.unsqueeze(1) for row in rows]
        if rows[0].ndim == 3 and sum(map(len, rows)) == len(columns) and rows[0].shape[1] == columns.shape[1]:
            return torch.cat(rows).double(), columns.double()
    rows = [row.flatten(1) for row in rows]
    found = (sum(len(row) for row in rows), *{row.shape[1] for row in rows})
    if found != tuple(columns.shape):
        return (
            f"predict_step returned shape {found}, the targets have {tuple(columns.shape)}; return a tensor shaped like"
            " the targets."
        )
    return torch.cat(rows).double(), columns.double()


def present(points: Mapping[int, tuple[Tensor, Tensor]], number: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Predictions and measured values of one target, for clients with any."""
    found = {}
    for client, (predictions, targets) in points.items():
        measured = ~targets[:, number].isnan()
        if bool(measured.any()):
            found[client] = (predictions[measured, number], targets[measured, number])
    return found
