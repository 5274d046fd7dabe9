"""What of Lightning's Trainer a federated run cannot answer, and why.

The public attributes of Lightning's Trainer are either attributes of
:class:`~lightning_fl.engine.turn.module_trainer.ModuleTrainer` or stand in :data:`REFUSED`.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from lightning_fl.core.errors import ConfigurationError, page

__all__ = ["REFUSED", "FixedList", "Setting", "refusal", "refuse_outside_of_a_turn"]

_WITHIN = "a run is under way, and its clients share this one module"

#: Attribute of ``self.trainer`` -> why it is refused, and what there is instead.
REFUSED = {
    "fit": f"{_WITHIN}. Train another model with a Trainer of its own",
    "validate": f"{_WITHIN}. trainer.check_val_every_n_rounds says when models are validated; validation_step does it",
    "test": f"{_WITHIN}. Call FederatedTrainer.test after fit",
    "predict": f"{_WITHIN}. Call FederatedTrainer.predict after fit, or the module itself on a batch",
    "save_checkpoint": "every client would overwrite the file of the one before. The run keeps checkpoints/ itself"
    " (lightning_fl.callbacks.ModelCheckpoint) and writes each client's model to models/ after fit",
}

_LOOPS = ("fit_loop", "validate_loop", "test_loop", "predict_loop")


def refusal(name: str, federated: object = None) -> str:
    """Why ``self.trainer.NAME`` is refused, for the one who runs the module.

    Args:
        name: the attribute, with dots for one of a part (``fit_loop.run``).
        federated: whoever makes the run, to name its own attribute of this name.
    """
    text = f"self.trainer.{name} has no meaning in a federated run"
    if name in REFUSED:
        return f"{text}: {REFUSED[name]}."
    if name.startswith(_LOOPS):
        return (
            f"{text}: clients' turns take the place of Lightning's loops, of which a module may read where it is, but"
            f" neither run nor change them. {page('lightning-support#selftrainer')} lists what it may read."
        )
    if not name.startswith("_") and hasattr(type(federated), name):
        return f"{text}: {type(federated).__name__}'s own is self.trainer.federated.{name}."
    return (
        f"{text}, and it is no public part of Lightning's Trainer. {page('lightning-support#selftrainer')} lists what a"
        " module, data module or logger may read; another version of the package that reads it may do without."
    )


def refuse_outside_of_a_turn(name: str) -> NoReturn:
    """Say that an attribute is another one for each client."""
    raise ConfigurationError(
        f"self.trainer.{name} belongs to a client: read it in configure_optimizers, or later in a client's turn."
    )


class Setting:
    """An attribute that the run decides: ``answer`` tells it, and assigning to it is refused.

    Args:
        answer: of a trainer; anything else is the value itself.
        instead: what to set in its place.
    """

    def __init__(self, answer: Any, instead: str = "") -> None:
        self._answer: Callable[[Any], Any] = answer if callable(answer) else lambda trainer: answer
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, trainer: Any, owner: type) -> Any:
        return self if trainer is None else self._answer(trainer)

    def __set__(self, trainer: Any, value: object) -> NoReturn:
        mend = f"set trainer.{self._instead} of the run instead" if self._instead else "leave it as it is"
        raise AttributeError(
            f"self.trainer.{self._name} = {value!r} would change nothing: it belongs to the whole run; {mend}."
        )


class FixedList(list[Any]):
    """The run's callbacks, as a module may read them."""

    def _refuse(self, *_: object) -> NoReturn:
        raise AttributeError(
            "self.trainer.callbacks cannot be changed within a run: give FederatedTrainer(callbacks=...) what the run"
            " needs."
        )

    append = extend = insert = remove = pop = clear = __setitem__ = __delitem__ = __iadd__ = _refuse
