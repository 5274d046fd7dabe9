"""Callbacks that draw the figures of a run, by the functions in ``plots``."""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback, Drawings
from lightning_fl.callbacks.progress import displayed_metric
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import ClientMetrics
from lightning_fl.data.module import Split
from lightning_fl.runtime.drawing import drawing, show_source
from lightning_fl.runtime.surface import TrainerSurface


class FigureCallback(Callback):
    """Base of callbacks that draw after a fit and after evaluations, in TensorBoard and as ``figures/NAME.png``."""

    only_shows = True

    def drawn(self, trainer: TrainerSurface, stage: Literal["fit", "val", "test"]) -> Drawings:
        """The figures to draw, as :meth:`Callback.figures`."""
        raise NotImplementedError

    def on_evaluate_end(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        if split != "train" and not trainer.round.fitting:
            self.draw(trainer, split)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        self.draw(trainer, "fit")

    def draw(self, trainer: TrainerSurface, stage: Literal["fit", "val", "test"]) -> None:
        """Draw figures on rank zero, and log and save them; one that fails is a warning."""
        for name, make in self.drawn(trainer, stage):
            if trainer.is_global_zero:
                with drawing(name):
                    figure = make()
                    show_source(figure, [trainer.datamodule.source])
                    trainer.run_log.log_figure(name, figure, trainer.federation.current_round)


class Figures(FigureCallback):
    """Draws the figures that the run's callbacks and strategy offer (:meth:`Callback.figures`), and those of every run.

    Those of every run, at the end of a fit: ``learning_curves``, the training loss and a validation metric (the first
    loss, else the first) of every client, their mean and the worst client; ``collaboration``, the heat map of ``P A``,
    unless all clients use the same average; ``partition``, every client's coalition over rounds, where a callback forms
    coalitions; ``sampling_weights`` of clients over rounds, where the participation has them.
    """

    saved = ("rounds", "history", "assignments", "weights")
    #: Names of the figures that it draws, or their beginnings that end in "_"; empty for all.
    only: ClassVar[tuple[str, ...]] = ()
    #: Names of classes of callbacks, one of which a run needs.
    needs: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        #: Rounds done, for the rows of :attr:`weights` and, without the start of the fit, of :attr:`assignments`.
        self.rounds: list[int] = []
        #: Metric -> round -> "mean", "worst" and "clients", which is client -> value.
        self.history: dict[str, dict[int, dict[str, Any]]] = {}
        #: Every client's coalition after each round.
        self.assignments: list[list[int]] = []
        #: Sampling weights [R, N]; the first row is of the start.
        self.weights = torch.empty(0, dtype=torch.float64)

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        if stage == "fit":
            Figures.__init__(self)
        if self.needs and not any(map(self.draws_from, trainer.callbacks)):
            name, needed = type(self).__name__, " or ".join(self.needs)
            raise ConfigurationError(f"{name} needs {needed}: add it to trainer.callbacks, or remove {name}.")

    def draws_from(self, callback: Callback) -> bool:
        """Whether this callback has what is drawn."""
        return any(kind.__name__ in self.needs for kind in type(callback).__mro__)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        if not self.rounds:
            self._keep_weights(trainer)

    def on_round_end(self, trainer: TrainerSurface) -> None:
        self._keep_weights(trainer)
        if self._draws("partition") and any(one.role == "collaboration" for one in trainer.callbacks):
            self.assignments.append(trainer.federation.collaboration.partition)
        splits: tuple[Split, ...] = ("train", "val") if trainer.round.evaluated else ("train",)
        for split in splits if self._draws("learning_curves") else ():
            metrics = trainer.federation.metrics.get(split) or ClientMetrics()
            if (name := displayed_metric(metrics)) is not None:
                found = metrics[name]
                values = {"mean": found.mean, "worst": found.worst, "clients": dict(found.clients)}
                name = trainer.federation.curve_name(name, split)
                self.history.setdefault(name, {})[trainer.federation.current_round] = values

    def drawn(self, trainer: TrainerSurface, stage: Literal["fit", "val", "test"]) -> Drawings:
        found: list[tuple[str, Any]] = []
        offers: list[tuple[str, Any]] = [
            (type(self).__name__, partial(self._of_run, trainer)),
            (type(trainer.strategy).__name__, partial(trainer.strategy.figures, trainer)),
            *((hook.owner, hook) for hook in trainer.hooks.of("figures")),
        ]
        for owner, offer in offers:
            with drawing(f"of {owner}"):
                found.extend(one for one in offer(stage) if self._draws(one[0]))
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(state.get("history"), Tensor):  # the name of sampling weights in earlier versions
            state = {"rounds": state["rounds"], "weights": state["history"]}
        super().load_state_dict(self.state_dict() | state)

    def _draws(self, name: str) -> bool:
        return not self.only or name in self.only or any(name.startswith(one) for one in self.only if one[-1] == "_")

    def _keep_weights(self, trainer: TrainerSurface) -> None:
        self.rounds.append(trainer.federation.current_round)
        for one in filter(_has_weights, trainer.callbacks if self._draws("sampling_weights") else ()):
            if one.weights.shape == (trainer.num_clients,):  # otherwise not the clients' weights
                self.weights = torch.cat([self.weights, one.weights.detach().to("cpu", torch.float64)[None]])

    def _of_run(self, trainer: TrainerSurface, stage: str) -> Drawings:
        if stage != "fit":
            return
        from lightning_fl.callbacks.figures.plots import coalitions, run

        names, after = trainer.client_names, f"round {trainer.federation.current_round}"
        if self.history:
            yield "learning_curves", partial(run.draw_learning_curves, self.history)
        if self._draws("collaboration") and trainer.federation.collaboration.num_models > 1:  # N x N numbers
            matrix = trainer.federation.collaboration.matrix
            if not torch.allclose(matrix, matrix[:1].expand_as(matrix)):
                yield "collaboration", partial(run.draw_matrix, matrix, names, f"Collaboration after {after}")
        if self.assignments:
            rounds, title = self.rounds[-len(self.assignments) :], f"Coalitions up to {after}"
            yield "partition", partial(coalitions.draw_partition, rounds, self.assignments, names, title)
        if 0 < len(self.weights) == len(self.rounds):  # weights in every round
            title, uniform = f"Sampling weights up to {after}", ("uniform", 1 / trainer.num_clients)
            draw = partial(run.draw_client_curves, self.rounds, self.weights, names, reference=uniform)
            yield "sampling_weights", partial(draw, title=title, ylabel="sampling weight λ")


class LearningCurves(Figures):
    """The figure ``learning_curves`` of :class:`Figures` only."""

    only = ("learning_curves",)


class CollaborationFigure(Figures):
    """The figure ``collaboration`` of :class:`Figures` only."""

    only = ("collaboration",)


class CoalitionFigure(Figures):
    """The figures ``partition``, ``distances`` (FedCollab) and ``merge_tree`` (HCCT) only."""

    only = ("partition", "distances", "merge_tree")
    needs = ("FedCollab", "HCCT")

    def draws_from(self, callback: Callback) -> bool:
        return callback.role == "collaboration"


class SamplingWeightsFigure(Figures):
    """The figure ``sampling_weights`` of :class:`Figures` only."""

    only = ("sampling_weights",)
    needs = ("DROClientSampling",)

    def draws_from(self, callback: Callback) -> bool:
        return _has_weights(callback)


class ContributionFigure(Figures):
    """The figure ``contributions`` of ``ShapleyRewards`` only."""

    only = ("contributions",)
    needs = ("ShapleyRewards",)


class GainFigure(Figures):
    """The figures ``gain_val`` and ``gain_test`` of ``LocalReference`` only."""

    only = ("gain_",)
    needs = ("LocalReference",)


class GraphFigure(Figures):
    """The figure ``graph`` of ``CollaborationGraph`` only."""

    only = ("graph",)
    needs = ("CollaborationGraph",)


class TierFigures(Figures):
    """The figures ``tier_*``, ``token_*`` and ``personal_*`` of ``TierBidding``, also with ``ShapleyRewards``, only."""

    only = ("tier_", "token_", "personal_")
    needs = ("TierBidding",)


def _has_weights(callback: Any) -> bool:
    return callback.role == "participation" and isinstance(getattr(callback, "weights", None), Tensor)
