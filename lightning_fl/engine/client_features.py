"""What client discriminators see of a client's training samples: features and encoded targets, one row a sample."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.model_helpers import _ModuleMode
from torch import Tensor, nn
from torch_geometric.data.data import BaseData
from torch_geometric.nn import global_mean_pool

from lightning_fl.data.targets import batch_targets
from lightning_fl.engine.batches import PackedBatches
from lightning_fl.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["LayerOutput", "client_features", "encode_targets", "morgan_fingerprints"]

_FINGERPRINT_BITS = 1024
_FINGERPRINT_RADIUS = 2


class LayerOutput(nn.Module):
    """What comes out of one submodule when a module is given some inputs, without gradients and in evaluation mode.

    Args:
        module: called with a batch's inputs.
        layer: name of the submodule, as ``named_modules`` gives it; it gives a tensor [B, ...].

    Raises:
        ConfigurationError: there is no such submodule; when called, if it was not run or gave no tensor.
    """

    def __init__(self, module: nn.Module, layer: str) -> None:
        super().__init__()
        layers = dict(module.named_modules())
        if layer not in layers or not layer:
            raise ConfigurationError(
                f"layer={layer!r}: {type(module).__name__} has no such submodule; it has"
                f" {', '.join(name for name in layers if name)}."
            )
        self._held = (module, layers[layer])  # in a tuple, so that the module is not taken for a part of this one
        self._layer = layer

    def forward(self, inputs: Any) -> Tensor:
        """The submodule's output for a batch's inputs."""
        module, submodule = self._held
        outputs: list[Any] = []
        mode = _ModuleMode()
        mode.capture(module)
        handle = submodule.register_forward_hook(lambda *call: outputs.append(call[-1]))
        try:
            module.eval()
            module(inputs)
        finally:
            handle.remove()
            mode.restore(module)
        if len(outputs) != 1 or not isinstance(outputs[0], Tensor):
            raise ConfigurationError(
                f"layer={self._layer!r} gave {len(outputs)} outputs for a batch: name a submodule that runs once and"
                " gives a tensor."
            )
        return outputs[0]


def client_features(
    trainer: "FederatedTrainer", clients: Collection[int], encoder: nn.Module | None = None
) -> tuple[dict[int, Tensor], dict[int, Tensor] | None]:
    """Features and classes of the hosted ones among some clients; every rank calls it.

    Inputs are what the module's steps get (normalised, never augmented), flattened; with ``encoder`` its output for
    them; of graphs, Morgan fingerprints where the data set knows its SMILES, else the mean of the node features. They
    are scaled by one number, so that their root mean square norm over all clients is 1, and followed by the encoded
    targets (:func:`encode_targets`). Only sums of squares, numbers of classes and moments of targets are exchanged.

    Args:
        trainer: in a fit, with its data set up.
        clients: who is wanted.
        encoder: a frozen network, from inputs [B, ...] (a PyG batch for graphs) to [B, ...].

    Returns:
        Client -> features, float32 [n, d] on the run's device; client -> classes, int64 [n], or ``None`` where the
        targets are no classes.

    Raises:
        ConfigurationError: clients' inputs have different sizes, or classes and real targets are mixed.
        DataError: a sample has no input tensor, or no targets are found.
    """
    inputs, targets = {}, {}
    shim = trainer.loop.module_trainer
    shim.set_stage(TrainerFn.FITTING, RunningStage.VALIDATING)  # data modules augment training batches only
    try:
        for client in trainer.hosted_clients:
            if client in clients:
                inputs[client], targets[client] = _read(trainer, client, encoder)
    finally:
        shim.set_stage(TrainerFn.FITTING, RunningStage.TRAINING)
    exchange = trainer.strategy.exchange
    shapes = exchange({client: (x.shape[1], float(x.double().square().sum()), len(x)) for client, x in inputs.items()})
    widths = {client: width for client, (width, _, _) in shapes.items()}
    if len(set(widths.values())) > 1:
        first, other = next(iter(widths)), next(c for c, w in widths.items() if w != next(iter(widths.values())))
        raise ConfigurationError(
            f"client {other}'s samples have {widths[other]} numbers, client {first}'s have {widths[first]}:"
            " discriminators need inputs of one size. Give FedCollab an encoder that maps both to the same size."
        )
    squares = sum(square for _, square, _ in shapes.values())
    scale = (sum(count for _, _, count in shapes.values()) / squares) ** 0.5 if squares else 1.0
    kinds = exchange({client: _kind(y) for client, y in targets.items()})
    if len({kind for kind, _ in kinds.values()}) > 1:
        raise ConfigurationError("some clients have classes as targets, others real numbers: give all of one kind.")
    is_class = next(iter(kinds.values()))[0] == "classes"
    num_classes = max(largest for _, largest in kinds.values()) + 1
    mean, std = (None, None) if is_class else trainer.target_statistics()
    features = {}
    for client, x in inputs.items():
        labels = encode_targets(targets[client], num_classes if is_class else None, mean, std)
        features[client] = torch.cat([x.float() * scale, labels.to(x.device)], dim=1)
    classes = {client: y.reshape(-1).long() for client, y in targets.items()} if is_class else None
    return features, classes


def encode_targets(
    targets: Tensor, num_classes: int | None, mean: Tensor | None = None, std: Tensor | None = None
) -> Tensor:
    """Targets as columns that a discriminator can read.

    Args:
        targets: [n], [n, 1] or [n, T].
        num_classes: C for classes, which become one-hot; ``None`` for real targets.
        mean: [T], subtracted from real targets.
        std: [T], by which they are divided (where it is not 0).

    Returns:
        float32 [n, C]; or [n, 2 T], standardised values (0 where missing) and 1 where a value is missing.
    """
    if num_classes is not None:
        return nn.functional.one_hot(targets.reshape(-1).long(), num_classes).float()
    columns = targets.reshape(len(targets), -1).double()
    if mean is not None and std is not None:
        columns = (columns - mean.to(columns.device)) / torch.where(std == 0, 1.0, std).to(columns.device)
    return torch.cat([columns.nan_to_num(0.0), columns.isnan().double()], dim=1).float()


def morgan_fingerprints(smiles: list[str]) -> Tensor:
    """Morgan fingerprints (radius 2, 1,024 bits; RDKit) of molecules, float32 [n, 1024].

    Raises:
        DataError: a SMILES cannot be read.
    """
    from rdkit import Chem
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    generator = GetMorganGenerator(radius=_FINGERPRINT_RADIUS, fpSize=_FINGERPRINT_BITS)
    rows = []
    for text in smiles:
        molecule = Chem.MolFromSmiles(text)
        if molecule is None:
            raise DataError(f"the SMILES {text!r} cannot be read: mend it or leave the molecule out.")
        rows.append(torch.from_numpy(generator.GetFingerprintAsNumPy(molecule)))
    return torch.stack(rows).float()


def _read(trainer: "FederatedTrainer", client: int, encoder: nn.Module | None) -> tuple[Tensor, Tensor]:
    """A client's inputs [n, d] and targets [n, ...], in the same order."""
    batches = trainer.client_batches(client, "train")
    assert batches is not None
    device = trainer.fabric.device
    if encoder is not None:
        encoder.to(device).eval()
    smiles = _smiles(trainer, client) if encoder is None and isinstance(batches, PackedBatches) else None
    inputs, targets = [], []
    with torch.no_grad():
        for batch, _ in batches.once((trainer.seed, "client features", client)):
            moved = trainer.loop.move(batch, batches.on_device)
            targets.append(batch_targets(moved))
            if smiles is None:
                inputs.append(_input(moved, encoder))
    features = morgan_fingerprints(smiles).to(device) if smiles is not None else torch.cat(inputs)
    y = torch.cat(targets)
    if len(features) != len(y):
        raise DataError(
            f"client {client} has {len(features)} inputs and {len(y)} targets: a discriminator needs one target (or one"
            " row of targets) for each sample."
        )
    return features, y


def _smiles(trainer: "FederatedTrainer", client: int) -> list[str] | None:
    """The SMILES of a client's training samples, in the order of its batches, where the data set has them."""
    assert trainer.datamodule is not None
    data: Any = trainer.datamodule.client_data(client, "train")
    data = getattr(data, "dataset", data) if not hasattr(data, "indices") else data
    indices = None
    while hasattr(data, "indices") and hasattr(data, "dataset"):
        indices = list(data.indices) if indices is None else [data.indices[i] for i in indices]
        data = data.dataset
    smiles = getattr(data, "smiles", None)
    if smiles is None:
        return None
    return list(smiles) if indices is None else [smiles[i] for i in indices]


def _input(batch: Any, encoder: nn.Module | None) -> Tensor:
    """Inputs of a batch as rows [B, d]."""
    if isinstance(batch, BaseData):
        if encoder is None:
            x: Any = batch.x
            if not isinstance(x, Tensor):
                raise DataError("the graphs have no node features `x`: give FedCollab an encoder for them.")
            return global_mean_pool(x.float(), batch.batch, batch.num_graphs)
        return encoder(batch).flatten(1)
    first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0] if len(batch) else None
    if encoder is not None:
        return encoder(first).flatten(1)
    if not isinstance(first, Tensor):
        raise DataError(
            f"the first entry of a batch is a {type(first).__name__}: discriminators need a tensor of inputs [B, ...]."
            " Give FedCollab an encoder that makes one of it."
        )
    return first.float().flatten(1) if first.ndim > 1 else first.float().unsqueeze(1)


def _kind(targets: Tensor) -> tuple[str, int]:
    """Whether targets are classes, and the largest class."""
    single = targets.ndim == 1 or targets.shape[1:].numel() == 1
    if single and not targets.is_floating_point() and not targets.is_complex():
        return "classes", int(targets.max()) if len(targets) else 0
    return "values", 0
