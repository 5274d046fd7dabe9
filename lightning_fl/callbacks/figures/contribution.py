"""Figure of the clients' contributions over rounds."""

import torch
from torch import Tensor

from lightning_fl.callbacks.figures.plots.run import draw_contributions
from lightning_fl.callbacks.figures.round_figure import RoundFigure
from lightning_fl.callbacks.rewards.shapley_rewards import ShapleyRewards
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.runtime.drawing import drawing
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["ContributionFigure"]


class ContributionFigure(RoundFigure):
    """Draws cumulated values of ``ShapleyRewards`` over rounds and as sorted bars.

    Drawn at the end of the fit, in TensorBoard and as ``figures/contributions.png``.

    Args:
        every_n_rounds: also draw every n rounds; 0 for the end only.

    Raises:
        ConfigurationError: at the start of a fit, ``ShapleyRewards`` is missing.
    """

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse a run without ``ShapleyRewards``."""
        if stage == "fit":
            _rewards(trainer)

    def draw(self, trainer: TrainerSurface) -> None:
        """Draw the whole history."""
        rewards = _rewards(trainer)
        if not trainer.is_global_zero or not rewards.rounds:
            return
        with drawing("contributions"):
            figure = draw_contributions(
                rewards.rounds,
                _cumulated(rewards.values, trainer.num_clients),
                trainer.datamodule.client_names(),
                title=f"Contributions up to round {trainer.federation.current_round}: Shapley values,"
                f" {_words(rewards)}",
                ylabel="cumulated contribution (units of the loss)",
                source=trainer.datamodule.source,
            )
            trainer.run_log.log_figure("contributions", figure, trainer.federation.current_round)


def _cumulated(values: list[dict[int, float]], num_clients: int) -> Tensor:
    """Cumulated values [R, N], float64; NaN before a client's first value."""
    rows, row = [], torch.full((num_clients,), torch.nan, dtype=torch.float64)
    for of_round in values:
        row = row.clone()
        for client, value in of_round.items():
            row[client] = value + (0.0 if row[client].isnan() else float(row[client]))
        rows.append(row)
    return torch.stack(rows)


def _words(rewards: ShapleyRewards) -> str:
    return f"{rewards.method.replace('_', ' ')}{', normalised' if rewards.normalized else ''}"


def _rewards(trainer: TrainerSurface) -> ShapleyRewards:
    rewards = trainer.callback(ShapleyRewards)
    if rewards is None:
        raise ConfigurationError(
            "ContributionFigure needs ShapleyRewards: add it to trainer.callbacks, or remove ContributionFigure."
        )
    return rewards
