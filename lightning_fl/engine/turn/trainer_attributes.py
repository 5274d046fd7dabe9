"""Attributes of Lightning's Trainer that a federated run refuses, and why."""

from typing import Any, NoReturn

from lightning_fl.core.errors import ConfigurationError, page

__all__ = ["REFUSED", "FixedList", "Refused", "fixed", "refusal", "refuse_outside_of_a_turn"]

_WITHIN = "a run is under way, and its clients share this one module"

#: Attribute of ``self.trainer`` -> why it is refused, and the alternative.
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
    """Message that ``self.trainer.NAME`` is refused.

    Args:
        name: the attribute, with dots for one of a part (``fit_loop.run``).
        federated: the federated trainer, which may have an attribute of this name.
    """
    text = f"self.trainer.{name} has no meaning in a federated run"
    if name in REFUSED:
        return f"{text}: {REFUSED[name]}."
    if name.startswith(_LOOPS):
        return (
            f"{text}: clients' turns replace Lightning's loops, which a module may read, but neither run nor change."
            f" {page('lightning-support#selftrainer')} lists what it may read."
        )
    if not name.startswith("_") and hasattr(type(federated), name):
        return f"{text}: {type(federated).__name__}'s own is self.trainer.federated.{name}."
    return f"{text}, and Lightning's Trainer does not have it either. See {page('lightning-support#selftrainer')}."


def refuse_outside_of_a_turn(name: str) -> NoReturn:
    """Refuse an attribute that differs between clients."""
    raise ConfigurationError(
        f"self.trainer.{name} belongs to a client: read it in configure_optimizers, or later in a client's turn."
    )


class Refused:
    """An attribute of Lightning that raises an ``AttributeError``, whose message comes from ``__getattr__``."""

    def __get__(self, owner: Any, kind: type) -> NoReturn:
        raise AttributeError


def fixed(name: str, value: object, instead: str) -> str:
    """Message that a module cannot set ``self.trainer.NAME``; ``instead`` is the federated trainer's argument."""
    remedy = f"set trainer.{instead} of the run instead" if instead else "leave it as it is"
    return f"self.trainer.{name} = {value!r} would change nothing: it belongs to the whole run; {remedy}."


class FixedList(list[Any]):
    """The run's callbacks, which a module can only read."""

    def _refuse(self, *_: object) -> NoReturn:
        raise AttributeError(
            "self.trainer.callbacks cannot be changed within a run: give FederatedTrainer(callbacks=...) what the run"
            " needs."
        )

    append = extend = insert = remove = pop = clear = __setitem__ = __delitem__ = __iadd__ = _refuse
