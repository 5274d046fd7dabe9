"""Checks before training, and in the first step, that several clients can be trained at once."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from lightning.fabric.plugins.precision import DoublePrecision, Precision
from lightning.pytorch import LightningModule
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_private import NoOptimizer
from lightning_fl.engine.batches.packs import PackedBatches, TensorPack
from lightning_fl.engine.stacked.weights import why_not_stackable
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.optimization import STEP_HOOKS

_IN_PLACE = "it changes a tensor of all clients in place (such as a metric's state)"
#: Words in torch's errors for a step that cannot be vectorised -> meaning.
_MEANINGS = {
    "randomness error mode": "it draws random numbers (such as dropout), which differ between clients",
    "data-dependent": "its control flow depends on a tensor's value",
    ".item()": "it reads a tensor's value (.item(), float(), or a metric that does)",
    "in-place": _IN_PLACE,
    "inplace": _IN_PLACE,
    "broadcast shape": _IN_PLACE,
}

#: Hooks of the module for one client's turn, gradients or optimiser.
_HOOKS_OF_A_TURN = ("on_train_epoch_start", "on_train_epoch_end", "on_train_batch_end", *STEP_HOOKS)


def refuse_unstackable(loop: LocalLoop) -> None:
    """Refuse a run that cannot train several clients at once. Every rank must call it before the first round."""
    found = [*_of_the_run(loop), *_of_the_data(loop)]
    if loop.module.automatic_optimization:
        found += _of_the_optimizer(loop)
    if reasons := [reason for of_rank in loop.processes.of_ranks(found) for reason in of_rank]:
        option = f"trainer.stacked_clients={loop.settings.stacked_clients}"
        what = f"the clients of {type(loop.module).__name__} at once: {'; '.join(dict.fromkeys(reasons))}"
        raise ConfigurationError(f"{option} cannot train {what}. Set trainer.stacked_clients=1.")


def _of_the_run(loop: LocalLoop) -> Iterator[str]:
    settings, precision = loop.settings, loop.module_trainer.precision_plugin.plugin
    if not loop.module.automatic_optimization:
        yield "it optimises manually"
    if hooks := [name for name in _HOOKS_OF_A_TURN if loop.overridden(name)]:
        yield f"it overrides {', '.join(hooks)}"
    for callback in loop.callback_states.callbacks.values():
        yield f"its callback {type(callback).__name__} has a state"
    if loop.module_trainer.lightning_callbacks.averages is not None:
        yield "StochasticWeightAveraging sets learning rates"
    for hook in ("around_training_step", "correct_gradient_", "on_client_step_end"):
        for watching in loop.hooks.of(hook):
            yield f"{watching.owner} takes part in every step ({hook})"
    strategy = type(loop.learner).__name__
    for step in ("client_loss", "phases"):
        if step in loop.own_steps:
            yield f"the strategy {strategy} has a {step} of its own"
    if loop.learner.batch_parts > 1:
        yield f"the strategy {strategy} divides every batch in {loop.learner.batch_parts} parts"
    if "correct_gradient_" in loop.own_steps and not loop.learner.elementwise:
        yield f"the strategy {strategy} has a correct_gradient_ of its own that is not elementwise"
    if type(precision) not in (Precision, DoublePrecision):
        yield f"trainer.precision={precision.precision} is neither 32 nor 64"
    if settings.channels_last is True:
        yield "trainer.channels_last converts the images of one client"
    if loop.optimizer_state != "fresh":
        yield f"trainer.optimizer_state={loop.optimizer_state} gives the optimiser of each client a state"


def _of_the_data(loop: LocalLoop) -> Iterator[str]:
    for client in loop.processes.hosted:
        batches = loop.factory.batches(client, "train")
        if not isinstance(batches, PackedBatches) or not isinstance(batches.pack, TensorPack):
            what = "are not a TensorDataset with default collation and no workers"
            yield f"the training data of {loop.name_of(client)} {what}"
            return


def _of_the_optimizer(loop: LocalLoop) -> Iterator[str]:
    optimizers, schedulers = loop.training.optimization.configure()
    if schedulers or loop.training.optimization.held_schedulers:
        yield "configure_optimizers returns a learning-rate scheduler, or keeps one"
    if isinstance(optimizers[0], NoOptimizer):
        yield "configure_optimizers returns no optimiser"
    elif (reason := why_not_stackable(optimizers[0], loop.flat)) is not None:
        yield reason


def explain(what: str, error: Exception) -> str:
    """Explain an error that ``torch.vmap`` or its gradient raised in a step."""
    text = str(error).strip().split("\n")[0]
    meaning = next((f": {meaning}" for words, meaning in _MEANINGS.items() if words in text), "")
    advice = f"cannot be run for several clients at once{meaning}. Set trainer.stacked_clients=1."
    return f"{what} {advice} The cause: {type(error).__name__}: {text}"


def outside_draws() -> tuple[Any, ...]:
    """The states of random number generators that ``torch.vmap`` does not check."""
    state: Any = np.random.get_state(legacy=True)  # noqa: NPY002 - the user's code may draw from it
    return random.getstate(), state[1].tobytes(), *state[2:]


def refuse_kept_tensors(module: LightningModule) -> None:
    """Refuse a step that left a tensor of all clients in the module, such as a list of losses or a metric's state."""
    for prefix, submodule in module.named_modules():
        for key, value in vars(submodule).items():
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            if any(isinstance(part, Tensor) and is_functorch_wrapped_tensor(part) for part in parts):
                name = ".".join(part for part in (prefix, key) if part)
                what = f"{type(module).__name__}.training_step keeps a tensor in self.{name}"
                raise ConfigurationError(f"{what}, which would mix clients: log it, or set trainer.stacked_clients=1.")
