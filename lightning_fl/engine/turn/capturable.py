"""What a captured training step does not go with: said before training."""

from collections.abc import Callable, Iterator, Sequence

import torch
from lightning.pytorch import LightningModule

from lightning_fl.data.module import BATCH_HOOKS
from lightning_fl.engine.batches.client import ClientBatches
from lightning_fl.engine.batches.packed import PackedBatches
from lightning_fl.engine.batches.packs import TensorPack
from lightning_fl.engine.hooks import Hooks
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.optimization import STEP_HOOKS

__all__ = ["HOOKS_OF_A_STEP", "reasons_against_capture"]

#: Kinds of devices that graphs are captured on.
DEVICES = frozenset({"cuda"})
#: Hooks of a module that Python runs in every step.
HOOKS_OF_A_STEP = ("on_train_batch_start", "on_train_batch_end", *STEP_HOOKS)


def reasons_against_capture(
    module: LightningModule,
    device: torch.device,
    settings: Settings,
    hooks: Hooks,
    overridden: Callable[[str], bool],
    own_steps: set[str],
    batches: Callable[[int], ClientBatches],
    clients: Sequence[int],
    name_of: Callable[[int], str],
) -> Iterator[str]:
    """Why the steps of a run cannot be captured as CUDA graphs, each in words.

    Args:
        module: the user's.
        device: where it trains.
        settings: of the run.
        hooks: who watches turns and steps.
        overridden: whether the module, or a callback that it brings, has a hook.
        own_steps: what the strategy does in its own way.
        batches: a client's training batches.
        clients: those that this rank hosts.
        name_of: a client's name in messages.
    """
    if device.type not in DEVICES:
        yield f"it trains on a {device.type} device, not on a GPU of CUDA's"
    found = [name for name in (*HOOKS_OF_A_STEP, *BATCH_HOOKS) if overridden(name)]
    if found:
        yield f"it overrides {', '.join(found)}"
    for watching in hooks.of("around_training_step"):
        yield f"{watching.owner} takes part in every step (around_training_step)"
    if "client_loss" in own_steps:
        yield "the strategy has a client_loss of its own"
    if "training_step" in vars(module):
        yield "its training_step is compiled (trainer.compile), which captures by itself with mode: reduce-overhead"
    if settings.accumulate_grad_batches > 1:
        yield f"trainer.accumulate_grad_batches={settings.accumulate_grad_batches} adds gradients of several batches"
    if settings.stacked_clients > 1:
        yield f"trainer.stacked_clients={settings.stacked_clients} trains several clients at once"
    for client in clients:
        found_batches = batches(client)
        if not isinstance(found_batches, PackedBatches) or not isinstance(found_batches.pack, TensorPack):
            yield (
                f"the training data of {name_of(client)} are not those of a TensorDataset, with default collation and"
                " no workers, so that batches differ in shape or come from the host"
            )
            return
