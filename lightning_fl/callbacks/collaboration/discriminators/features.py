"""Inputs of client discriminators: features and encoded targets of every client's training samples."""

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_fl.callbacks.collaboration.discriminators.inputs import (
    client_samples,
    count_classes,
    dataset_smiles,
    discriminator_inputs,
    encode_targets,
    random_projection,
    sample_classes,
    squared_norms,
)
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_private import eval_mode
from lightning_fl.core.seeding import generator
from lightning_fl.engine.batches.packed import PackedBatches
from lightning_fl.engine.probes.layer_records import named_layer
from lightning_fl.engine.probes.statistics import target_statistics
from lightning_fl.engine.turn.loop import LocalLoop

__all__ = ["LayerOutput", "client_features"]


class LayerOutput(nn.Module):
    """The output of a submodule when a module is called, in evaluation mode.

    Args:
        module: called with a batch's inputs.
        layer: name of the submodule, whose output is a tensor [B, ...].

    Raises:
        ConfigurationError: there is no such submodule; in a call, it did not run once or returned no tensor.
    """

    def __init__(self, module: nn.Module, layer: str) -> None:
        super().__init__()
        self._held = (module, named_layer(module, layer))  # in a tuple, which does not become a submodule
        self._layer = layer

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The submodule's output for a batch's inputs."""
        module, submodule = self._held
        outputs: list[Any] = []
        handle = submodule.register_forward_hook(lambda *call: outputs.append(call[-1]))
        try:
            with eval_mode(module):
                module(*inputs, **named)
        finally:
            handle.remove()
        if len(outputs) != 1 or not isinstance(outputs[0], Tensor):
            raise ConfigurationError(
                f"layer={self._layer!r} returned {len(outputs)} outputs for a batch: name a submodule that runs once"
                " and returns a tensor."
            )
        return outputs[0]


def client_features(
    loop: LocalLoop, clients: Collection[int], encoder: nn.Module | None = None, label_weight: float = 2.0
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Discriminator inputs of hosted clients (:mod:`.discriminator_inputs`). Every rank must call it.

    Features are the flattened inputs of the module's steps (normalised, never augmented), an ``encoder``'s output for
    them, or Morgan fingerprints of molecules with SMILES; more than ``MAX_FEATURES`` are projected at random. Ranks
    exchange sums of squares, numbers of classes and moments of targets.

    Returns:
        Client -> features and encoded targets, float32 [n, d], and client -> classes to stratify by, int64 [n].

    Raises:
        ConfigurationError: clients' features differ in size, or some have classes and others real targets.
        DataError: inputs or targets cannot be read.
    """
    samples: dict[int, tuple[Tensor, Tensor]] = {}
    trainer, processes = loop.module_trainer, loop.processes
    trainer.set_stage(TrainerFn.FITTING, RunningStage.VALIDATING)  # data modules augment training batches only
    try:
        for client in processes.hosted:
            if client in clients:
                samples[client] = _samples(loop, client, encoder)
    finally:
        trainer.set_stage(TrainerFn.FITTING, RunningStage.TRAINING)
    told = processes.exchange(
        {client: (x.shape[1], squared_norms(x).cpu(), count_classes(y)) for client, (x, y) in samples.items()}
    )
    first = next(iter(told))
    for client, (width, _, classes) in told.items():
        if width != told[first][0]:
            raise ConfigurationError(
                f"client {client}'s samples have {width} features, client {first}'s have {told[first][0]}: give an"
                " encoder that maps both to the same size."
            )
        if (classes == 0) != (told[first][2] == 0):
            raise ConfigurationError(
                f"the targets of clients {client} and {first} are classes and real numbers: use the same kind for all"
                " clients."
            )
    total = torch.stack([norms for _, norms, _ in told.values()]).sum(0)
    num_classes = max(classes for _, _, classes in told.values())
    moments = None if num_classes else target_statistics(loop.factory, processes, loop.settings.seed)
    mean, std = moments or (None, None)
    features = {
        client: discriminator_inputs(
            random_projection(x, generator(loop.settings.seed, "feature projection")),
            encode_targets(y, num_classes=num_classes, mean=mean, std=std),
            total,
            label_weight,
        )
        for client, (x, y) in samples.items()
    }
    return features, {client: sample_classes(y) for client, (_, y) in samples.items()}


def _samples(loop: LocalLoop, client: int, encoder: nn.Module | None) -> tuple[Tensor, Tensor]:
    """A client's features [n, d] and targets [n, T]."""
    batches = loop.factory.batches(client, "train")
    assert batches is not None
    smiles = None
    if encoder is not None:
        encoder.to(loop.processes.device)
    elif isinstance(batches, PackedBatches):  # in the order of the data set
        data = loop.data.client_data(client, "train")
        smiles = dataset_smiles(data.dataset if isinstance(data, DataLoader) else data)
    path = (loop.settings.seed, "client features", client)
    return client_samples(batches, path, transfer=partial(loop.move, client=client), encoder=encoder, smiles=smiles)
