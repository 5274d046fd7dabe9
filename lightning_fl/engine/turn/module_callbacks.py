"""Lightning callbacks of a module's ``configure_callbacks``, in a federated run.

Their hooks are called in each client's turn with Lightning's arguments. Callbacks that a federated run replaces are
left out, and those that change Lightning's loops are refused.
"""

from collections.abc import Sequence
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import is_overridden

__all__ = ["LIGHTNING", "OF_STATE", "module_callbacks"]

#: Lightning classes that are left out, without effect on training -> replacement.
_LEFT_OUT = {
    "EarlyStopping": "set self.trainer.should_stop = True in a hook, or trainer.max_rounds",
    "Checkpoint": "lightning_fl.callbacks.ModelCheckpoint keeps the best and the last round",
    "LearningRateMonitor": "self.log the rate",
    "DeviceStatsMonitor": "trainer.profile",
    "ThroughputMonitor": "trainer.profile",
    "Timer": "trainer.max_rounds",
    "ProgressBar": "trainer.enable_progress_bar",
    "ModelSummary": "print it before fit",
    "BasePredictionWriter": "trainer.predict returns every client's outputs",
}
#: Lightning classes that are refused, because they change Lightning's loops -> remedy.
_REFUSED = {
    "StochasticWeightAveraging": "return lightning.pytorch.callbacks.WeightAveraging",
    "GradientAccumulationScheduler": "set trainer.accumulate_grad_batches",
    "BackboneFinetuning": "unfreeze and add_param_group in on_train_epoch_start, or derive from BaseFinetuning",
    "ModelPruning": "prune before fit",
    "BatchSizeFinder": "set the batch size",
    "LearningRateFinder": "set the rate",
    "SpikeDetection": "set trainer.gradient_clip_val, or return None from training_step to leave a batch out",
}
#: Hooks of callbacks with a state.
OF_STATE = ("state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint")
LIGHTNING = ("lightning.", "pytorch_lightning.")


def module_callbacks(module: LightningModule) -> dict[str, list[Any]]:
    """Hook -> callbacks of a module's ``configure_callbacks`` that define it.

    Raises:
        ConfigurationError: a callback is not supported.
    """
    if not is_overridden("configure_callbacks", module):
        return {}
    made: Any = module.configure_callbacks()
    callbacks = list(made) if isinstance(made, Sequence) else [made]
    where = f"{type(module).__name__}.configure_callbacks returns"
    left_out: list[str] = []
    called: dict[str, list[Any]] = {}
    for callback in callbacks:
        name = type(callback).__name__
        base = _base(callback)
        if base is None:
            raise ConfigurationError(f"{where} {name}, which is not a Lightning callback: derive it from Callback.")
        remedy = _entry(callback, _REFUSED)
        if remedy is not None:
            raise ConfigurationError(f"{where} {name}, which is not supported in a federated round: {remedy}.")
        remedy = _entry(callback, _LEFT_OUT)
        if remedy is not None:
            left_out.append(f"{name} ({remedy})")
            continue
        hooks = [
            hook
            for hook in vars(base)
            if hook in vars(callback) or getattr(type(callback), hook) is not getattr(base, hook)  # LambdaCallback
        ]
        for hook in hooks:
            if not hook.startswith("_"):
                called.setdefault(hook, []).append(callback)
    if left_out:
        rank_zero_warn(f"{where} {', '.join(left_out)}: left out, because a federated run has its own replacement.")
    return called


def _base(callback: object) -> type | None:
    """Lightning's base class of callbacks, from either of its packages."""
    return next((kind for kind in _lightning_classes(callback) if kind.__name__ == "Callback"), None)


def _entry(callback: object, table: dict[str, str]) -> str | None:
    """The table's entry of the first Lightning class that a callback derives from, if any."""
    return next((table[kind.__name__] for kind in _lightning_classes(callback) if kind.__name__ in table), None)


def _lightning_classes(callback: object) -> list[type]:
    return [kind for kind in type(callback).__mro__ if kind.__module__.startswith(LIGHTNING)]
