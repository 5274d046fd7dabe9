"""A picture of predictions against measurements."""

from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.figures.plots.run import draw_parity
from lightning_fl.data.module import Split
from lightning_fl.drawing import drawing
from lightning_fl.errors import ConfigurationError
from lightning_fl.metrics import ClientMetrics
from lightning_fl.options import check_counts
from lightning_fl.surface import TrainerSurface

__all__ = ["ParityFigure"]


class ParityFigure(Callback):
    """Predicted over measured held-out values, coloured by client, each client's own model on its own data.

    Drawn after ``test`` (for ``split="val"``: after ``fit`` and ``validate``) as ``figures/parity_SPLIT.png`` and in
    TensorBoard. Missing targets (NaN) are left out. Where ``predict_step`` does not return tensors shaped like the
    targets, a warning says what it returned and nothing is drawn.

    This brings every client's held-out targets and predictions to rank zero: do not use it where they must not leave
    a silo.

    Args:
        split: "test" or "val".
        target: which column of the targets.

    Raises:
        ConfigurationError: an argument is not one of the above.
    """

    only_shows = True
    several = True  # a picture for each split and target

    def __init__(self, *, split: Literal["test", "val"] = "test", target: int = 0) -> None:
        if split not in ("test", "val"):
            raise ConfigurationError(f"ParityFigure.split={split!r}: choose one of test, val.")
        check_counts(self, target=target, at_least=0, mend=": a column of the targets, counted from 0")
        self.split: Split = split
        self.target = target

    def on_evaluate_end(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        """Draw after ``test`` or ``validate``; a fit's own validations are left to :meth:`on_fit_end`."""
        if split == self.split and not trainer.fitting:
            self._draw(trainer)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Draw the validation data under the last models, where that split is asked for."""
        if self.split == "val":
            self._draw(trainer)

    def _draw(self, trainer: TrainerSurface) -> None:
        collected = trainer.strategy.exchange(
            {client: self._collect(trainer, client) for client in trainer.hosted_clients}
        )
        problem = next((found for found in collected.values() if isinstance(found, str)), None)
        if problem is not None:
            rank_zero_warn(f"ParityFigure draws nothing: {problem}")
            return
        points = {client: found for client, found in collected.items() if isinstance(found, tuple) and len(found[0])}
        if not points:
            rank_zero_warn(f"ParityFigure draws nothing: no client has {self.split} data with a measured value.")
            return
        if not trainer.is_global_zero:
            return
        data: Any = trainer.datamodule
        # Data modules may name their targets and units; the contract does not ask for it.
        names, units = getattr(data, "target_names", None), getattr(data, "target_units", None)
        unit = units[self.target] if units else ""
        name = f"parity_{self.split}" + (f"_{self.target}" if self.target else "")
        with drawing(name):
            figure = draw_parity(
                points,
                data.client_names(),
                quantity=names[self.target] if names else "target",
                unit="" if unit == "not given" else unit,
                source=data.source,
            )
            trainer.run_log.log_figure(name, figure, trainer.current_round)

    def _collect(self, trainer: TrainerSurface, client: int) -> tuple[Tensor, Tensor] | str | None:
        """Predictions and targets [n] of a hosted client; a text says what is wrong; ``None`` for no data.

        Errors become texts so that every rank still takes part in the exchange.
        """
        batches = trainer.client_batches(client, self.split)
        if batches is None:
            return None
        try:
            targets = batches.targets.cpu()
            outputs = trainer.predict_client(client, self.split)
        except Exception as error:  # the user's predict_step may raise anything; a picture must not end a test
            return f"{type(error).__name__}: {error}"
        return paired(outputs, targets, self.target)


def paired(outputs: list[Any], targets: Tensor, target: int) -> tuple[Tensor, Tensor] | str:
    """Predictions and targets [n] of one column where the target is there, or what keeps them from being paired.

    Args:
        outputs: what ``predict_step`` returned, batch by batch: tensors [b, T] or [b].
        targets: [n, T] or [n].
        target: the column.
    """
    other = next((output for output in outputs if not isinstance(output, Tensor)), None)
    if other is not None:
        return f"predict_step returned a {type(other).__name__}; return a tensor shaped like the targets."
    rows = [output.flatten(1) if output.ndim > 1 else output.reshape(-1, 1) for output in outputs]
    columns = targets.flatten(1) if targets.ndim > 1 else targets.unsqueeze(1)
    shape = (sum(len(row) for row in rows), *{row.shape[1] for row in rows})
    if shape != tuple(columns.shape):
        return (
            f"predict_step returned values of shape {shape} in all, the targets have {tuple(columns.shape)}; return a"
            " tensor shaped like the targets."
        )
    predictions = torch.cat(rows)
    if target >= columns.shape[1]:
        return f"target={target}, but there are {columns.shape[1]} columns of targets (counted from 0)."
    measured, predicted = columns[:, target].double(), predictions[:, target].double()
    present = ~measured.isnan()
    return predicted[present], measured[present]
