"""Momentum of each client over its turns and of the server for each model, and a callback that draws both."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import Callback
from lightning_fl.core.validation import Fraction, checked
from lightning_fl.strategies import ClientTurn, ClientUpdate, FedAvg, ModelUpdate, Weights


class Momenta(FedAvg):
    """A client descends against its last change as well; the server adds a part of its own last change."""

    kept_for_model = ("change",)

    @checked
    def __init__(self, client: Fraction = 0.1, server: Fraction = 0.5, **settings: Any) -> None:
        super().__init__(**settings)
        self.client, self.server = client, server

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        if "change" in turn.kept:
            for dtype, vector in gradient.floating():
                vector.sub_(turn.kept["change"].vectors[dtype], alpha=self.client)

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        turn.kept["change"] = change = turn.direction((1.0, weights), (-1.0, turn.start))
        return ClientUpdate(weights, numbers={"change": turn.dot(change, change) ** 0.5})

    def aggregate(self, update: ModelUpdate) -> Weights:
        last = update.state.get("change", update.direction((0.0, update.start)))
        change = update.direction((1.0, update.average), (-1.0, update.start), (self.server, last))
        update.state |= {"change": change, "length": update.dot(change, change) ** 0.5}
        return update.combine((1.0, update.start), (1.0, change))


class MomentaFigure(Callback):
    """Offers ``momenta.png`` to ``Figures``: lengths of the clients' changes and of the first model's, over rounds."""

    only_shows = True
    saved = ("rows",)

    def on_fit_start(self, trainer: FederatedTrainer) -> None:
        if not isinstance(trainer.strategy, Momenta):
            raise ConfigurationError("MomentaFigure needs trainer.strategy=Momenta: set it, or remove MomentaFigure.")
        self.rows: list[dict[str, float | None]] = []

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        row = {"round": trainer.current_round, "server": trainer.model_states.get(0, {}).get("length")}
        self.rows.append(row | {f"client {i}": trainer.client_reports[i].numbers["change"] for i in trainer.survivors})

    def figures(self, trainer: FederatedTrainer, stage: str) -> Any:
        return [("momenta", self._draw)] if stage == "fit" else []

    def _draw(self) -> Figure:
        return pd.DataFrame(self.rows).plot(x="round", ylabel="norm", ax=Figure(layout="constrained").subplots()).figure
