"""Checks of a module's hooks and signatures before training."""

import inspect

from lightning.pytorch import LightningModule
from lightning.pytorch.loops.utilities import _verify_dataloader_idx_requirement
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

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
    parameters = inspect.signature(getattr(module, name)).parameters
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if "dataloader_iter" in parameters:
        raise ConfigurationError(
            f"{type(module).__name__}.{name} takes 'dataloader_iter', which is not supported: define"
            f" {name}(self, batch, batch_idx)."
        )
    by_name = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if by_name:
        raise ConfigurationError(
            f"{type(module).__name__}.{name} takes {', '.join(by_name)} by name only, and a batch and its index are"
            " passed by position: give it a default value."
        )
    required = [p for p in positional if p.default is p.empty]
    if len(required) > 2 + (name != "training_step" and "dataloader_idx" in parameters):
        raise ConfigurationError(
            f"{type(module).__name__}.{name} takes {', '.join(p.name for p in required)}, and gets only a batch and its"
            f" index: give {required[2].name} a default value, or leave it out."
        )
    variadic = any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters.values())
    return variadic or len(positional) >= 2


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
    several = num_loaders > 1
    try:
        _verify_dataloader_idx_requirement(hooks, several, _STAGES[word], module)
    except RuntimeError as error:
        lacking = next(
            hook for hook in hooks if is_param_in_hook_signature(getattr(module, hook), "dataloader_idx") != several
        )
        remedy = "add dataloader_idx=0 to its arguments" if several else "give dataloader_idx a default value"
        raise ConfigurationError(
            f"{type(module).__name__}.{lacking} {'lacks' if several else 'needs'} dataloader_idx, and a client has"
            f" {f'{num_loaders} loaders' if several else 'one loader'} in this split: {remedy}, as under Lightning's"
            " Trainer."
        ) from error
