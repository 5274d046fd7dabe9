"""What a run is doing, in the words that users' data modules ask Lightning's trainer with."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_fl.engine.turn.loop import LocalLoop

__all__ = ["Stages"]


class Stages:
    """``trainer.training`` and its kin: hooks of a data module ask for them, to augment training batches only."""

    loop: "LocalLoop"

    @property
    def training(self) -> bool:
        """A client trains."""
        return self.loop.module_trainer.training

    @property
    def validating(self) -> bool:
        """A client's model is evaluated on its validation data."""
        return self.loop.module_trainer.validating

    @property
    def testing(self) -> bool:
        """A client's model is evaluated on its test data."""
        return self.loop.module_trainer.testing

    @property
    def predicting(self) -> bool:
        """A client's model predicts."""
        return self.loop.module_trainer.predicting

    @property
    def evaluating(self) -> bool:
        """Validation or test."""
        return self.loop.module_trainer.evaluating
