"""Lightning's callbacks that a module brings along (``configure_callbacks``), in a federated run.

Those that watch, or do in hooks what the module might do itself, are called in each client's turn with Lightning's
arguments. Others stand for something that a federated run does in its own way, or drive Lightning's loops.
"""

from collections.abc import Sequence
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import is_overridden

__all__ = ["LIGHTNING", "OF_STATE", "module_callbacks"]

#: Classes of Lightning's -> what does so here. They are left out; no result of training changes.
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
#: Those that change training by ways of Lightning's loops.
_REFUSED = {
    "StochasticWeightAveraging": "return lightning.pytorch.callbacks.WeightAveraging",
    "GradientAccumulationScheduler": "set trainer.accumulate_grad_batches",
    "BackboneFinetuning": "unfreeze and add_param_group in on_train_epoch_start, or derive from BaseFinetuning",
    "ModelPruning": "prune before fit",
    "BatchSizeFinder": "set the batch size",
    "LearningRateFinder": "set the rate",
    "SpikeDetection": "set trainer.gradient_clip_val, or return None from training_step to leave a batch out",
}
#: What a callback defines that keeps a state.
OF_STATE = ("state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint")
LIGHTNING = ("lightning.", "pytorch_lightning.")


def module_callbacks(module: LightningModule) -> dict[str, list[Any]]:
    """The callbacks of a module's ``configure_callbacks`` that are called in a run: hook -> those that define it.

    Raises:
        ConfigurationError: one of them cannot work here; naming it, and what to do instead.
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
            raise ConfigurationError(f"{where} {name}, which is no callback of Lightning's.")
        mend = _named(callback, _REFUSED)
        if mend is not None:
            raise ConfigurationError(f"{where} {name}, which cannot work in a federated round: {mend}.")
        mend = _named(callback, _LEFT_OUT)
        if mend is not None:
            left_out.append(f"{name} ({mend})")
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
        rank_zero_warn(f"{where} {', '.join(left_out)}: left out, since a federated run does so in its own way.")
    return called


def _base(callback: object) -> type | None:
    """Lightning's class of all callbacks, under either of its package's names."""
    return next((kind for kind in _lightnings(callback) if kind.__name__ == "Callback"), None)


def _named(callback: object, mends: dict[str, str]) -> str | None:
    """What is said of the first of Lightning's classes that a callback derives from, if anything."""
    return next((mends[kind.__name__] for kind in _lightnings(callback) if kind.__name__ in mends), None)


def _lightnings(callback: object) -> list[type]:
    return [kind for kind in type(callback).__mro__ if kind.__module__.startswith(LIGHTNING)]
