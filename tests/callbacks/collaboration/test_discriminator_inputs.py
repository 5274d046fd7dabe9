from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from client_distances import pairwise_distances
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torch_geometric.data import Batch, Data
from torchvision.transforms.v2 import CenterCrop

from lightning_fl.callbacks.collaboration.discriminators.inputs import (
    batch_features,
    client_samples,
    count_classes,
    dataset_smiles,
    discriminator_inputs,
    encode_targets,
    morgan_fingerprints,
    random_projection,
    sample_classes,
    squared_norms,
)
from lightning_fl.callbacks.collaboration.discriminators.networks import DiscriminatorSettings
from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.molecules.dataset import MoleculeDataset
from lightning_fl.data.molecules.standin import make_standin
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch
from lightning_fl.engine.batches.factory import pack_dataset
from lightning_fl.engine.batches.packs import PackedBatches, TensorPack

SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "CCN", "C"]


class ListedBatches(ClientBatches):
    """Batches as a user's own DataLoader might give them."""

    def __init__(self, batches: list[Any]) -> None:
        self.listed = batches

    def epoch_length(self) -> int:
        return len(self.listed)

    def once(self, seed_path: tuple[int | str, ...]) -> Iterator[SizedBatch]:
        return ((batch, None) for batch in self.listed)

    def shuffled(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[SizedBatch]:
        raise NotImplementedError


def graphs(num: int) -> list[Data]:
    draws = torch.Generator().manual_seed(0)
    return [
        Data(
            x=torch.randn(size, 3, generator=draws),
            edge_index=torch.zeros(2, 0, dtype=torch.long),
            y=torch.full((1, 2), float(size)),
        )
        for size in range(1, num + 1)
    ]


def test_images_of_bytes_in_their_own_order() -> None:
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (10, 1, 4, 4), generator=draws).to(torch.uint8)
    labels = torch.arange(10)
    chosen = torch.tensor([7, 2, 9, 4, 0])
    batches = PackedBatches(TensorPack([images, labels]), chosen, batch_size=2, shuffle=True)
    features, targets = client_samples(batches, (0,))
    assert torch.equal(features, images[chosen].flatten(1).float() / 255)
    assert torch.equal(targets, chosen[:, None])
    assert features.dtype == torch.float32


def test_transfer_hooks_come_before_the_encoder() -> None:
    batches = PackedBatches(TensorPack([torch.ones(3, 1, 6, 6), torch.zeros(3)]), None, batch_size=2, shuffle=False)
    seen: list[bool] = []

    def transfer(batch: list[Tensor], on_device: bool) -> list[Tensor]:
        seen.append(on_device)
        return [batch[0] * 2, batch[1]]

    features, targets = client_samples(batches, (0,), transfer=transfer, encoder=CenterCrop(4))
    assert torch.equal(features, torch.full((3, 16), 2.0))
    assert targets.shape == (3, 1)
    assert seen == [True, True]


def test_changed_targets_are_seen() -> None:
    batches = PackedBatches(TensorPack([torch.ones(3, 2), torch.zeros(3)]), None, batch_size=2, shuffle=False)
    batches.targets = torch.tensor([1.0, 2.0, 3.0])
    assert client_samples(batches, (0,))[1].flatten().tolist() == [1, 2, 3]


def test_several_inputs_and_dictionaries() -> None:
    x, z, y = torch.randn(4, 2, 3), torch.randn(4), torch.arange(4)
    joined = torch.cat([x.flatten(1), z[:, None]], 1)
    assert torch.equal(batch_features((x, z, y)), joined)
    assert torch.equal(batch_features({"x": x, "z": z, "labels": y}), joined)
    encoder = nn.Bilinear(3, 3, 5)
    named = {"input1": x[:, 0], "input2": x[:, 1], "y": y}
    with torch.no_grad():
        assert torch.equal(batch_features(named, encoder), encoder(x[:, 0], x[:, 1]))
        assert torch.equal(batch_features((x[:, 0], x[:, 1], y), encoder), encoder(x[:, 0], x[:, 1]))


def test_an_encoder_is_evaluated_and_left_as_it_was() -> None:
    encoder = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.9))
    encoder[1].eval()  # frozen by the user
    x = torch.randn(6, 4)
    features = batch_features((x, torch.zeros(6)), encoder)
    assert torch.equal(features, batch_features((x, torch.zeros(6)), encoder))
    assert not features.requires_grad
    assert [part.training for part in encoder.modules()] == [True, True, False, True]
    assert int(encoder[1].num_batches_tracked) == 0


def test_graphs_are_averaged_or_encoded() -> None:
    data = graphs(4)
    pack = pack_dataset(data)
    assert pack is not None
    features, targets = client_samples(PackedBatches(pack, None, batch_size=3, shuffle=True), (0,))
    torch.testing.assert_close(features, torch.stack([graph.x.mean(0) for graph in data]))
    assert torch.equal(targets, torch.cat([graph.y for graph in data]))

    class Sizes(nn.Module):
        def forward(self, batch: Batch) -> Tensor:
            return batch.ptr.diff().float()

    assert batch_features(Batch.from_data_list(data), Sizes()).tolist() == [[1], [2], [3], [4]]


def test_fingerprints_equal_rdkits() -> None:
    found = morgan_fingerprints(SMILES)
    maker = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=1024)
    for row, text in zip(found, SMILES, strict=True):
        bits = maker.GetFingerprint(Chem.MolFromSmiles(text))
        assert row.nonzero().flatten().tolist() == list(bits.GetOnBits())
    similar = DataStructs.TanimotoSimilarity(
        *(maker.GetFingerprint(Chem.MolFromSmiles(text)) for text in ("CCO", "CCN"))
    )
    assert (found[0] * found[3]).sum() / (found[0] + found[3]).clamp(max=1).sum() == pytest.approx(similar)


@pytest.mark.slow
def test_fingerprints_of_a_clients_molecules() -> None:
    dataset = MoleculeDataset(make_standin("esol", target_names=["logS"], target_units=["log10(mol/L)"]))
    chosen = [5, 1, 3]
    smiles = dataset_smiles(Subset(dataset, chosen))
    assert smiles == [dataset.smiles[index] for index in chosen]
    pack = pack_dataset(dataset)
    assert pack is not None
    batches = PackedBatches(pack, torch.tensor(chosen), batch_size=2, shuffle=True)
    features, targets = client_samples(batches, (0,), smiles=smiles)
    assert torch.equal(features, morgan_fingerprints([dataset.smiles[index] for index in chosen]))
    assert torch.equal(targets, dataset.targets[chosen])
    with pytest.raises(DataError, match="2 feature vectors for 3 targets"):
        client_samples(batches, (0,), smiles=smiles[:2])


def test_smiles_through_other_data_sets() -> None:
    class Named(TensorDataset):
        def __init__(self, smiles: list[str]) -> None:
            super().__init__(torch.zeros(len(smiles)))
            self.smiles = smiles

    first, second = Named(["C", "CC"]), Named(["CCC"])
    assert dataset_smiles(Subset(ConcatDataset([first, second]), [2, 0])) == ["CCC", "C"]
    assert dataset_smiles(ConcatDataset([first, TensorDataset(torch.zeros(1))])) is None
    assert dataset_smiles(Subset(TensorDataset(torch.zeros(1)), [0])) is None
    assert dataset_smiles(None) is None


def test_classes() -> None:
    labels = torch.tensor([[2], [0], [1]])
    assert count_classes(labels) == 3
    assert count_classes(labels.float()) == 0
    assert count_classes(labels[:0]) == 0
    assert sample_classes(labels).tolist() == [2, 0, 1]
    assert sample_classes(labels.float()).tolist() == [0, 0, 0]
    assert sample_classes(labels.expand(3, 2)).tolist() == [0, 0, 0]
    assert encode_targets(labels, num_classes=4).tolist() == [[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]]
    several = encode_targets(torch.tensor([[0, 1], [1, 1]]), num_classes=2)
    torch.testing.assert_close(several, torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 1]]) / 2**0.5)


def test_real_values_are_standardised_and_missing_ones_marked() -> None:
    targets = torch.tensor([[1.0, 5.0], [3.0, float("nan")]])
    found = encode_targets(targets, mean=torch.tensor([2.0, 5.0]), std=torch.tensor([0.5, 0.0]).double())
    expected = torch.tensor([[-2.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 1.0]]) / 2**0.5
    torch.testing.assert_close(found, expected)
    draws = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
    encoded = encode_targets(draws, mean=draws.mean(0), std=draws.std(0))
    assert encoded.square().sum(1).mean() == pytest.approx(1, abs=0.01)


def test_a_projection_keeps_norms_and_leaves_narrow_features() -> None:
    narrow = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    assert random_projection(narrow, torch.Generator()) is narrow
    wide = torch.randn(40, 600, generator=torch.Generator().manual_seed(0))
    draws = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    found, again, other = (random_projection(wide, each) for each in draws)
    assert found.shape == (40, 128)
    assert torch.equal(found, again)
    assert not torch.allclose(found, other)
    ratios = torch.pdist(found) / torch.pdist(wide)
    assert ratios.mean() == pytest.approx(1, abs=0.02)
    assert ratios.std() < 1.5 / (2 * 128) ** 0.5  # about 1 / sqrt(2 k)


@pytest.mark.slow
def test_a_projection_keeps_known_groups_apart() -> None:
    """Three kinds of clients that differ along one direction each, of 600 with unequal variances."""
    draws = torch.Generator().manual_seed(0)
    spread = torch.linspace(0.02, 1.0, 600)
    kinds = torch.randn(3, 600, generator=draws) * spread / 8
    clients = [torch.randn(300, 600, generator=draws) * spread + kinds[client // 2] for client in range(6)]
    found = pairwise_distances([random_projection(x, torch.Generator().manual_seed(1)) / 14 for x in clients]).distances
    alike = torch.arange(6)[:, None] // 2 == torch.arange(6) // 2
    assert found[alike].max() + 0.2 < found[~alike].min()


def test_blocks_get_the_same_mean_square_norm() -> None:
    draws = torch.Generator().manual_seed(0)
    parts = [torch.rand(size, 50, generator=draws) for size in (3, 9)]
    total = squared_norms(parts[0]) + squared_norms(parts[1])
    labels = [torch.eye(4)[: len(part) % 4 + 1][torch.zeros(len(part), dtype=torch.long)] for part in parts]
    joined = torch.cat([discriminator_inputs(x, y, total) for x, y in zip(parts, labels, strict=True)])
    assert joined.shape == (12, 54)
    assert joined[:, :50].square().sum(1).mean() == pytest.approx(1)
    assert torch.equal(joined[:, 50:], 2 * torch.cat(labels))
    lighter = discriminator_inputs(parts[0], labels[0], total, label_weight=0.5)
    assert torch.equal(lighter, torch.cat([joined[:3, :50], 0.5 * labels[0]], 1))
    assert not discriminator_inputs(torch.zeros(2, 3), torch.zeros(2, 1), squared_norms(torch.zeros(2, 3))).any()


def test_one_target_for_every_feature_vector() -> None:
    with pytest.raises(DataError, match="2 feature vectors for 3 targets"):
        client_samples(ListedBatches([(torch.zeros(2, 3), torch.zeros(3))]), (0,))


NAN, INF = float("nan"), float("inf")
X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(2)

Row = tuple[Callable[[], object], type[Exception], str]


@pytest.mark.parametrize(
    ("call", "error", "fault"),
    [
        (partial(DiscriminatorSettings, max_rounds=5), ConfigurationError, r"FedCollab\.discriminator\.max_rounds=5"),
        (lambda: pairwise_distances([X, X[:3]]), ConfigurationError, "client 1 has 3 training samples"),
        (lambda: count_classes(torch.tensor([[-1]])), DataError, "class -1"),
        (lambda: discriminator_inputs(X, X, torch.tensor([NAN, 1.0])), DataError, "nan"),
        (lambda: batch_features((X.long(), Y)), DataError, r"tuple .*torch.int64 \[6, 3\].*`encoder`"),
        (lambda: batch_features(("text", Y)), DataError, "tuple .*str"),
        (lambda: batch_features({"y": Y}), DataError, "dict .*none"),
        (lambda: batch_features((X, Y), nn.LSTM(3, 2)), DataError, "encoder .*tuple"),
        *[
            (partial(batch_features, Batch.from_data_list([Data(**parts, y=Y)])), DataError, "`x`")
            for parts in ({"x": X.long()}, {"edge_index": torch.zeros(2, 0, dtype=torch.long), "num_nodes": 2})
        ],
        (lambda: morgan_fingerprints(["C", "C1CC"]), DataError, "molecule 1 .*'C1CC'"),
    ],
)
def test_refusals(call: Callable[[], object], error: type[Exception], fault: str) -> None:
    with pytest.raises(error, match=fault):
        call()
