"""Checks of a module's hooks and signatures before training."""

import inspect

from lightning.pytorch import LightningModule
from lightning.pytorch.loops.utilities import _verify_dataloader_idx_requirement
from lightning.pytorch.trainer.states import RunningStage

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import is_overridden

__all__ = ["check_dataloader_idx", "refuse_hooks", "refuse_manual_steps", "takes_batch_index"]

_STAGES = {
    "validation": RunningStage.VALIDATING,
    "test": RunningStage.TESTING,
    "predict": RunningStage.PREDICTING,
}


def refuse_hooks(module: LightningModule) -> None:
    """Refuse hooks that are not called."""
    if is_overridden("configure_sharded_model", module):
        raise ConfigurationError(
            f"{type(module).__name__}.configure_sharded_model is not called: rename it to configure_model, which has"
            " replaced it in Lightning."
        )


def refuse_manual_steps(module: LightningModule, who: str) -> None:
    """Refuse manual optimisation where losses or gradients are needed."""
    if not module.automatic_optimization:
        raise ConfigurationError(
            f"{who} needs the loss that training_step returns, and {type(module).__name__} optimises manually: use"
            f" automatic optimisation, or remove {who}."
        )


def takes_batch_index(module: LightningModule, name: str) -> bool:
    """Whether a step takes the batch's index, which is passed by position as in Lightning.

    Raises:
        ConfigurationError: the step has arguments that a client cannot provide.
    """
    signature = inspect.signature(getattr(module, name))
    step = f"{type(module).__name__}.{name}"
    if "dataloader_iter" in signature.parameters:
        raise ConfigurationError(
            f"{step} takes 'dataloader_iter', which is not supported: define {name}(self, batch, batch_idx)."
        )
    kinds = [parameter.kind.name for parameter in signature.parameters.values()]
    takes_index = "VAR_POSITIONAL" in kinds or sum(kind.startswith("POSITIONAL") for kind in kinds) >= 2
    loader = name != "training_step" and "dataloader_idx" in signature.parameters
    try:
        signature.bind(*range(1 + takes_index), **({"dataloader_idx": 0} if loader else {}))
    except TypeError as error:
        raise ConfigurationError(
            f"{step} gets a batch and its index, by position ({error}): give other arguments default values."
        ) from error
    return takes_index


def check_dataloader_idx(module: LightningModule, word: str, num_loaders: int) -> None:
    """Check a step and its batch hooks against a client's number of loaders, by Lightning's own rule.

    Args:
        module: the user's module.
        word: "validation", "test" or "predict".
        num_loaders: read one after another.

    Raises:
        ConfigurationError: several loaders and a step without ``dataloader_idx``, or one and a step that needs it.
    """
    hooks = (f"{word}_step", f"on_{word}_batch_start", f"on_{word}_batch_end")
    try:
        _verify_dataloader_idx_requirement(hooks, num_loaders > 1, _STAGES[word], module)
    except RuntimeError as error:
        has = f"{num_loaders} loaders" if num_loaders > 1 else "one loader"
        raise ConfigurationError(f"{type(module).__name__} does not fit data with {has}: {error}") from error
