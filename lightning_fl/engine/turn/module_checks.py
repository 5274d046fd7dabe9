"""What of a module has no place in a federated turn, refused before training."""

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
    """Refuse hooks that are not called here."""
    if is_overridden("configure_sharded_model", module):
        raise ConfigurationError(
            f"{type(module).__name__}.configure_sharded_model is not called: Lightning has dropped it for"
            " configure_model. Rename it."
        )


def refuse_manual_steps(module: LightningModule, who: str) -> None:
    """Refuse a module whose ``training_step`` trains by itself, where its losses or gradients are asked for."""
    if not module.automatic_optimization:
        raise ConfigurationError(
            f"{who} needs the loss that training_step returns, and {type(module).__name__} optimises manually: use"
            f" automatic optimisation, or do without {who}."
        )


def takes_batch_index(module: LightningModule, name: str) -> bool:
    """Whether a step of the module's takes the batch's index, which is given by its place, as Lightning does.

    Raises:
        ConfigurationError: it takes something that a client cannot give.
    """
    parameters = inspect.signature(getattr(module, name)).parameters
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if "dataloader_iter" in parameters:
        raise ConfigurationError(
            f"{type(module).__name__}.{name} takes 'dataloader_iter': a federated client hands over batches. Define"
            f" {name}(self, batch, batch_idx)."
        )
    by_name = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if by_name:
        raise ConfigurationError(
            f"{type(module).__name__}.{name} takes {', '.join(by_name)} by name only: a batch and its index are given"
            " by their places. Give it a default value."
        )
    required = [p for p in positional if p.default is p.empty]
    if len(required) > 2 + (name != "training_step" and "dataloader_idx" in parameters):
        raise ConfigurationError(
            f"{type(module).__name__}.{name} takes {', '.join(p.name for p in required)}: a client gives it"
            f" a batch and its index. Give {required[2].name} a default value, or leave it out."
        )
    variadic = any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters.values())
    return variadic or len(positional) >= 2


def check_dataloader_idx(module: LightningModule, word: str, num_loaders: int) -> None:
    """Hold a step and the hooks around its batches against a client's number of loaders, by Lightning's own rule.

    Args:
        module: the user's.
        word: "validation", "test" or "predict".
        num_loaders: that are read one after another.

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
        held = f"{num_loaders} loaders" if several else "one loader"
        mend = "Add dataloader_idx=0 to its arguments" if several else "Give dataloader_idx a default value"
        raise ConfigurationError(
            f"{type(module).__name__}.{lacking} {'lacks' if several else 'needs'} dataloader_idx, and a client has"
            f" {held} in this split. {mend}, as under Lightning's Trainer."
        ) from error
