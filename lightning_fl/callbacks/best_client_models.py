"""Every client ends with the model of its own best round by validation, as in DPFL (Kharrat et al. 2025, section 4)."""

import math
from typing import TYPE_CHECKING, Literal

from lightning_fl.callbacks.callback import Callback
from lightning_fl.data.module import Split
from lightning_fl.errors import ConfigurationError
from lightning_fl.metrics import ClientMetrics

if TYPE_CHECKING:
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["BestClientModels"]


class BestClientModels(Callback):
    """Keeps each client's model of the round in which its validation was best; they are what fit ends with.

    ``ModelCheckpoint`` keeps one best round for all; here every client has its own. What is tested after fit and
    written to ``models/`` are the kept models; ``FineTuning`` starts from them. Costs the memory of one more model a
    client. A run that goes on from its last checkpoint goes on from the models of the last round, and remembers the
    best ones.

    Args:
        monitor: validation metric; default the first one with "loss" in its name, else the first.
        mode: "min", "max", or "auto" for the metric's own direction.

    Raises:
        ConfigurationError: the mode is unknown; in a run, the metric is not logged or validation is switched off.
    """

    role = "best models"

    def __init__(self, *, monitor: str | None = None, mode: Literal["auto", "min", "max"] = "auto") -> None:
        if mode not in ("auto", "min", "max"):
            raise ConfigurationError(f"BestClientModels.mode={mode!r}: choose one of auto, min, max.")
        self.monitor = monitor
        self.mode = mode

    def on_fit_start(self, trainer: "FederatedTrainer") -> None:
        """Without validation there is no best round."""
        if not trainer.check_val_every_n_rounds or not trainer.loop.evaluates("val"):
            raise ConfigurationError(
                "BestClientModels goes by validation: set trainer.check_val_every_n_rounds to 1 or more, and give the"
                " module a validation_step."
            )

    def on_round_start(self, trainer: "FederatedTrainer") -> None:
        """A resumed run trains the models of the last round."""
        trainer.client_stores.pop("final_models", None)

    def on_evaluate_end(self, trainer: "FederatedTrainer", split: Split, metrics: ClientMetrics) -> None:
        """Keep the models of the clients that improved."""
        if split != "val" or not trainer.fitting or not metrics:
            return
        name = self.monitor or next((name for name in metrics if "loss" in name), next(iter(metrics)))
        if name not in metrics:
            raise ConfigurationError(
                f"BestClientModels.monitor={name!r} is not logged in validation. Logged are: {', '.join(metrics)}."
            )
        higher = metrics[name].higher_is_better if self.mode == "auto" else self.mode == "max"
        kept = trainer.client_store("best_models")
        for client in trainer.hosted_clients:
            value, best = metrics[name].clients.get(client, math.nan), kept.get(client)
            sign = 1 if higher else -1
            if math.isnan(value) or (best is not None and sign * value <= sign * best["value"]):
                continue
            weights = trainer.client_model(client).state_dict()
            kept[client] = {"value": value, "round": trainer.current_round, "weights": weights}

    def on_fit_end(self, trainer: "FederatedTrainer") -> None:
        """The kept models are the run's result."""
        if trainer.interrupted_by:  # the rounds are not over; a resumed run will come here
            return
        for client, best in trainer.client_store("best_models").items():
            trainer.client_store("final_models").setdefault(client, best["weights"])  # fine-tuned ones stay
        trainer.models_are_final = True
