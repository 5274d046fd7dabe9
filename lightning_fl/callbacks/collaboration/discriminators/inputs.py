"""Clients' samples as vectors for client discriminators: features and the encoded label.

FedCollab (Bao et al., ICML 2023, https://arxiv.org/abs/2306.06508, section 4.1) discriminates clients by pairs (x, y),
so that shifts of features, of labels, and of labels given features are visible. A sample's vector is
``[x / s, 2 e(y)]``: features x, over the root mean square norm s of all clients' features, and the encoded label e(y)
with a norm of about 1: a thousand raw pixels would outweigh a plain one-hot label, and with few samples a shift of
labels would be invisible. The paper does not say how y is encoded. Features wider than 128 are first multiplied by a
random matrix, the same for all clients. docs/reproduction/fedcollab.md compares these choices with others.

Only sums leave a client: the squared norms of its features, and for real-valued targets those of
``FederatedTrainer.target_statistics``; the number of classes is the largest of any client.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.lightning_private import eval_mode
from lightning_fl.core.seeding import generator
from lightning_fl.data.graphs import is_graph
from lightning_fl.data.molecules.descriptors import morgan_generator
from lightning_fl.data.targets import TARGET_KEYS, batch_targets
from lightning_fl.engine.batches.client import ClientBatches
from lightning_fl.engine.batches.packs import PackedBatches
from lightning_fl.engine.probes.layer_records import named_layer
from lightning_fl.engine.probes.statistics import target_statistics
from lightning_fl.engine.turn.loop import LocalLoop

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

#: Wider features are projected to this number.
MAX_FEATURES = 128
#: Of Morgan fingerprints.
_BITS = 1024


class LayerOutput(nn.Module):
    """The output [B, ...] of a submodule when a module is called with a batch's inputs, in evaluation mode.

    A submodule that does not exist, run once or return a tensor is a ConfigurationError.
    """

    def __init__(self, module: nn.Module, layer: str) -> None:
        super().__init__()
        self._held = (module, named_layer(module, layer))  # in a tuple, which does not become a submodule
        self._layer = layer

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        module, submodule = self._held
        outputs: list[Any] = []
        with submodule.register_forward_hook(lambda *call: outputs.append(call[-1])), eval_mode(module):
            module(*inputs, **named)
        if len(outputs) != 1 or not isinstance(outputs[0], Tensor):
            what = f"layer={self._layer!r} returned {len(outputs)} outputs for a batch"
            raise ConfigurationError(f"{what}: name a submodule that runs once and returns a tensor.")
        return outputs[0]


def client_features(
    loop: LocalLoop, clients: Collection[int], encoder: nn.Module | None = None, label_weight: float = 2.0
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Discriminator inputs of hosted clients. Every rank must call it.

    Features are the flattened inputs of the module's steps (normalised, never augmented), an ``encoder``'s output for
    them, or Morgan fingerprints of molecules. Ranks exchange sums of squares, class counts and moments of targets.

    Returns client -> features and encoded targets, float32 [n, d], and client -> classes to stratify by, int64 [n].
    Features of different sizes, and classes beside real targets, are a ConfigurationError.
    """
    trainer, processes, seed = loop.module_trainer, loop.processes, loop.settings.seed
    trainer.set_stage(TrainerFn.FITTING, RunningStage.VALIDATING)  # data modules augment training batches only
    try:
        samples = {client: _samples(loop, client, encoder) for client in processes.hosted if client in clients}
    finally:
        trainer.set_stage(TrainerFn.FITTING, RunningStage.TRAINING)
    own = {client: (x.shape[1], squared_norms(x).cpu(), count_classes(y)) for client, (x, y) in samples.items()}
    told = processes.exchange(own)
    first = next(iter(told))
    for client, (width, _, classes) in told.items():
        if width != told[first][0]:
            what = f"client {client}'s samples have {width} features, client {first}'s have {told[first][0]}"
            raise ConfigurationError(f"{what}: give an encoder that maps both to the same size.")
        if (classes == 0) != (told[first][2] == 0):
            raise ConfigurationError(f"clients {client} and {first} have classes and real targets: use the same kind.")
    total = torch.stack([norms for _, norms, _ in told.values()]).sum(0)
    num_classes = max(classes for _, _, classes in told.values())
    mean, std = (None, None) if num_classes else target_statistics(loop.factory, processes, seed)
    features = {
        client: discriminator_inputs(
            random_projection(x, generator(seed, "feature projection")),
            encode_targets(y, num_classes=num_classes, mean=mean, std=std),
            total,
            label_weight,
        )
        for client, (x, y) in samples.items()
    }
    return features, {client: sample_classes(y) for client, (_, y) in samples.items()}


def _samples(loop: LocalLoop, client: int, encoder: nn.Module | None) -> tuple[Tensor, Tensor]:
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


def client_samples(
    batches: ClientBatches,
    seed_path: tuple[int | str, ...],
    *,
    transfer: Callable[[Any, bool], Any] = lambda batch, on_device: batch,
    encoder: nn.Module | None = None,
    smiles: Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]:
    """Features, float32 [n, d], and targets [n, T] of all samples of a client, in one pass in their own order.

    ``seed_path`` seeds the pass. ``transfer`` converts a batch, given whether it is on the device, to the input of a
    training step. Fingerprints of ``smiles``, in the same order, replace the :func:`batch_features`.
    """
    features: list[Tensor] = []
    targets: list[Tensor] = []
    for batch, _ in batches.once(seed_path):
        found = batch_targets(batch).detach()
        targets.append(found.reshape(len(found), -1) if found.ndim else found.reshape(1, 1))
        if smiles is None:
            features.append(batch_features(transfer(batch, batches.on_device), encoder))
    labels = torch.cat(targets)
    x = torch.cat(features) if smiles is None else morgan_fingerprints(smiles).to(labels.device)
    if len(x) != len(labels):
        raise DataError(f"{len(x)} feature vectors for {len(labels)} targets: give one of each per sample.")
    return x, labels


@torch.no_grad()
def batch_features(batch: Any, encoder: nn.Module | None = None) -> Tensor:
    """The features of a batch, float32 [B, d]: its flattened inputs, or an encoder's output [B, ...] for them.

    ``batch`` is a tuple or list (inputs, targets), a dictionary, or PyG data. Bytes are images, scaled to 0 to 1. The
    encoder is called as ``encoder(*inputs)``, ``encoder(**inputs)`` or, for graphs, ``encoder(batch)``, in evaluation
    mode and without gradients. Without it, floating inputs are flattened and joined, and nodes of a graph averaged.
    """
    inputs: list[Any] = []
    named: dict[Any, Any] = {}
    if is_graph(batch):
        inputs = [batch]
    elif isinstance(batch, Mapping):
        named = {key: _from_bytes(value) for key, value in batch.items() if key not in TARGET_KEYS}
    else:
        inputs = [_from_bytes(value) for value in batch[:-1]]
    if encoder is not None:
        with eval_mode(encoder):
            return _as_vectors(encoder(*inputs, **named))
    if is_graph(batch):
        return _as_vectors(_pooled(batch))
    inputs += named.values()
    if not inputs or not all(isinstance(value, Tensor) and value.is_floating_point() for value in inputs):
        what = f"the inputs of a {type(batch).__name__} are {', '.join(map(_kind, inputs)) or 'none'}"
        raise DataError(f"{what}: distances of clients need floating tensors, or an `encoder`.")
    return torch.cat([_as_vectors(value) for value in inputs], 1)


def _from_bytes(value: Any) -> Any:
    return value.float() / 255 if isinstance(value, Tensor) and value.dtype == torch.uint8 else value


def _kind(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _as_vectors(values: Any) -> Tensor:
    if not isinstance(values, Tensor) or values.ndim == 0 or not values.is_floating_point():
        raise DataError(f"the encoder returned {_kind(values)} for a batch: it must return a floating tensor [B, ...].")
    return values.detach().float().flatten(1) if values.ndim > 1 else values.detach().float().unsqueeze(1)


def _pooled(batch: "BaseData") -> Tensor:
    from torch_geometric.nn import global_mean_pool

    x = batch.x if "x" in batch else None
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise DataError("the graphs have no floating node features `x`: give an `encoder`, or molecules with SMILES.")
    return global_mean_pool(x.reshape(len(x), -1), batch.batch, batch.num_graphs)


def dataset_smiles(dataset: Dataset | Sequence[Any] | None) -> list[str] | None:
    """The SMILES strings of a data set, through ``Subset`` and ``ConcatDataset``; ``None`` if it has none."""
    if type(dataset) is Subset:
        held = dataset_smiles(dataset.dataset)
        return None if held is None else [held[int(index)] for index in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        parts = [dataset_smiles(part) for part in dataset.datasets]
        return None if any(part is None for part in parts) else [text for part in parts for text in part or []]
    found = getattr(dataset, "smiles", None)
    return list(found) if isinstance(found, Sequence) and all(isinstance(text, str) for text in found) else None


def morgan_fingerprints(smiles: Sequence[str]) -> Tensor:
    """Morgan fingerprints of n molecules: 0 and 1 for 1,024 circular substructures, float32 [n, 1024]."""
    from rdkit import Chem, rdBase

    bits = torch.empty(len(smiles), _BITS)
    with rdBase.BlockLogs():
        for row, text in enumerate(smiles):
            molecule = Chem.MolFromSmiles(text)
            if molecule is None:
                raise DataError(f"molecule {row} cannot be read from its SMILES {text!r}: correct it or leave it out.")
            bits[row] = torch.from_numpy(morgan_generator(_BITS).GetFingerprintAsNumPy(molecule))
    return bits


def count_classes(targets: Tensor) -> int:
    """The largest class of integer targets [n, T] plus 1; 0 for real values."""
    if targets.is_floating_point() or not len(targets):
        return 0
    if int(targets.min()) < 0:
        raise DataError(f"the class {int(targets.min())} is negative: number classes from 0.")
    return int(targets.max()) + 1


def sample_classes(targets: Tensor) -> Tensor:
    """The class of each sample for stratification, int64 [n]; all 0 for real values and several targets per sample."""
    if targets.is_floating_point() or targets.shape[1] != 1:
        return torch.zeros(len(targets), dtype=torch.int64, device=targets.device)
    return targets[:, 0].long()


def encode_targets(
    targets: Tensor, *, num_classes: int = 0, mean: Tensor | None = None, std: Tensor | None = None
) -> Tensor:
    """Encode labels [n, T] as vectors with a norm of about 1, float32, the same at all clients.

    Integers become one-hot classes, [n, T * num_classes]; real values, NaN if missing, become standardised ones, by the
    mean and deviation [T] over all clients (0 if missing), and flags of missing values, [n, 2 T]. Both over √T.
    """
    scale = targets.shape[1] ** -0.5
    if not targets.is_floating_point():
        return nn.functional.one_hot(targets.long(), num_classes).flatten(1).float() * scale
    assert mean is not None
    assert std is not None
    mean, std = mean.to(targets), std.to(targets)
    missing = targets.isnan()
    values = (targets - mean) / torch.where(std > 0, std, torch.ones_like(std))
    return torch.cat([values.masked_fill(missing, 0.0), missing.to(values)], 1).float() * scale


def squared_norms(features: Tensor) -> Tensor:
    """Sum of a client's squared norms, and its number of samples, float64 [2], to be summed over clients."""
    norms = features.double().square().sum(1)
    return torch.stack([norms.sum(), norms.new_tensor(len(features))])


def random_projection(features: Tensor, draws: torch.Generator) -> Tensor:
    """Project features [n, d] with more than :data:`MAX_FEATURES` columns by a matrix of N(0, 1 / MAX_FEATURES).

    Norms and differences are approximately preserved (Johnson and Lindenstrauss, Contemporary Mathematics 26, 1984),
    and clients learn nothing of each other's data. The matrix is drawn on the CPU, the same for all clients.
    """
    width = features.shape[1]
    if width <= MAX_FEATURES:
        return features
    return features @ (torch.randn(width, MAX_FEATURES, generator=draws) / MAX_FEATURES**0.5).to(features)


def discriminator_inputs(features: Tensor, labels: Tensor, total_norms: Tensor, label_weight: float = 2.0) -> Tensor:
    """``[x / s, label_weight e(y)]``, float32 [n, d + l], for features x [n, d] and labels e(y) [n, l].

    s² is the mean squared norm by :func:`squared_norms`, summed over clients, [2].
    """
    total, count = total_norms.tolist()
    if not 0 <= total < float("inf"):
        raise DataError(f"the squared norms of all clients' features sum to {total}: remove NaN and infinite values.")
    scale = (count / total) ** 0.5 if total else 1.0
    return torch.cat([features * scale, labels.to(features) * label_weight], 1)
