"""Figure of the clients' contributions over rounds."""

from functools import partial

import torch
from torch import Tensor

from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.run import draw_contributions
from lightning_fl.callbacks.rewards.shapley_rewards import ShapleyRewards
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["ContributionFigure"]


class ContributionFigure(FigureCallback):
    """Draws cumulated values of ``ShapleyRewards`` over rounds and as sorted bars.

    Drawn at the end of the fit, in TensorBoard and as ``figures/contributions.png``.

    Args:
        every_n_rounds: also draw every n rounds; 0 for the end only.

    Raises:
        ConfigurationError: at the start of a run, ``ShapleyRewards`` is missing.
    """

    needs = (ShapleyRewards,)
    in_any_order = True

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The whole history."""
        rewards = trainer.callback(ShapleyRewards)
        if rewards is not None and rewards.rounds:
            method = f"{rewards.method.replace('_', ' ')}{', normalised' if rewards.normalized else ''}"
            yield (
                "contributions",
                partial(
                    draw_contributions,
                    rewards.rounds,
                    _cumulated(rewards.values, trainer.num_clients),
                    trainer.client_names,
                    title=f"Contributions up to round {trainer.federation.current_round}: Shapley values, {method}",
                    ylabel="cumulated contribution (units of the loss)",
                ),
            )


def _cumulated(values: list[dict[int, float]], num_clients: int) -> Tensor:
    """Cumulated values [R, N], float64; NaN before a client's first value."""
    table = torch.tensor(
        [[of_round.get(client, torch.nan) for client in range(num_clients)] for of_round in values],
        dtype=torch.float64,
    )
    begun = table.isfinite().cummax(0).values
    return table.nan_to_num(nan=0.0).cumsum(0).where(begun, torch.nan)
