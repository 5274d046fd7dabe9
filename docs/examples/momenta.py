"""Momentum of each client over its turns and of the server for each model, and a callback that draws both."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lightning_fl.callbacks import Callback
from lightning_fl.core.validation import Fraction, checked
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.surface import TrainerSurface
from lightning_fl.strategies import ClientTurn, ClientUpdate, FedAvg, ModelUpdate


class Momenta(FedAvg):
    """A client descends against its last change as well; the server adds a part of its own last change."""

    kept_for_model = ("change",)

    @checked
    def __init__(self, client: Fraction = 0.1, server: Fraction = 0.5, **settings: Any) -> None:
        super().__init__(**settings)
        self.client, self.server = client, server

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        for dtype, vector in gradient.floating() if "change" in turn.kept else ():
            vector.sub_(turn.kept["change"].vectors[dtype], alpha=self.client)

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        turn.kept["change"] = change = turn.combine((1.0, weights), (-1.0, turn.start))
        return ClientUpdate(weights, numbers={"change": turn.dot(change, change) ** 0.5})

    def aggregate(self, update: ModelUpdate) -> Weights:
        last = update.state.get("change", update.combine((0.0, update.start)))
        change = update.combine((1.0, update.average), (-1.0, update.start), (self.server, last))
        update.state |= {"change": change, "length": update.dot(change, change) ** 0.5}
        return update.combine((1.0, update.start), (1.0, change))


class MomentaFigure(Callback):
    """Offers ``momenta.png`` to ``Figures``: lengths of the clients' changes and of the first model's, over rounds."""

    only_shows = True
    saved = ("lengths",)

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        self.lengths: list[dict[str, float]] = []

    def on_round_end(self, trainer: TrainerSurface) -> None:
        of_clients = {f"client {i}": trainer.client_reports[i].numbers["change"] for i in sorted(trainer.survivors)}
        self.lengths.append({"server": trainer.model_states[0]["length"], **of_clients})

    def figures(self, trainer: TrainerSurface, stage: str) -> Any:
        return [("momenta", self._draw)] if stage == "fit" else []

    def _draw(self) -> Figure:
        figure = Figure(layout="constrained")
        pd.DataFrame(self.lengths).plot(ax=figure.subplots(), xlabel="rounds before", ylabel="length of the change")
        return figure
