"""Label types, and latent Dirichlet allocation over scaffolds."""

import pytest
import torch
from partition_tiny import Molecules, class_counts, labelled
from torch.utils.data import TensorDataset

from lightning_fl.data.partition import FedCollabLabelShift, LabelTypes, ScaffoldLDA


def test_a_type_s_share_is_split_evenly_among_its_clients():
    # Class 0: half to type 0, so 30 / 3 each; class 1: 0.3 and 0.6 of 60; class 2: type 1 has all of 9.
    data = labelled(60, 60, 9)
    parts = LabelTypes(shares=[[0.5, 0.3, 0.0], [0.0, 0.6, 1.0]], clients_per_type=3)(data, 0)
    assert class_counts(data, parts, 3) == [[10, 6, 0]] * 3 + [[0, 12, 3]] * 3
    # a class that no client holds may be missing
    assert list(map(len, LabelTypes(shares=[[1.0, 0.0]], clients_per_type=2)(labelled(4), 0))) == [2, 2]


def test_an_uneven_class_differs_by_at_most_one_between_clients_of_a_type():
    data = labelled(17, 23)
    counts = class_counts(data, LabelTypes(shares=[[0.5, 1.0], [0.5, 0.0]], clients_per_type=4)(data, 3), 2)
    for block in (counts[:4], counts[4:]):
        assert all(max(sizes) - min(sizes) <= 1 for sizes in zip(*block, strict=True))


def test_all_splits_follow_the_types():
    partitioner = LabelTypes(shares=[[1.0, 0.5], [0.0, 0.5]], clients_per_type=1)
    train, test = labelled(40, 20), labelled(6, 8)
    parts = partitioner.partition_splits({"train": train, "test": test}, 0)
    assert class_counts(train, parts["train"], 2) == [[40, 10], [0, 10]]
    assert class_counts(test, parts["test"], 2) == [[6, 4], [0, 4]]


def test_real_targets_are_put_into_as_many_bins_as_there_are_classes():
    values = torch.rand(90, generator=torch.Generator().manual_seed(0))
    parts = LabelTypes(shares=[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], clients_per_type=1)(TensorDataset(values), 0)
    assert [len(part) for part in parts] == [30, 60]
    assert values[parts[0]].max() < values[parts[1]].min()


def test_fedcollab_s_clients_of_fashion_mnist():
    """70,000 pooled images: 2,450 each; of the label 0 a quarter of 7,000 for five clients is 350."""
    data = labelled(*[7000] * 10)
    counts = torch.tensor(class_counts(data, FedCollabLabelShift()(data, 0), 10))
    assert counts.sum(1).tolist() == [2450] * 20
    wanted = torch.zeros(4, 10, dtype=torch.long)
    for kind, (quarter, half) in enumerate([(0, [1, 2, 3]), (4, [1, 2, 3]), (5, [6, 7, 8]), (9, [6, 7, 8])]):
        wanted[kind, quarter], wanted[kind, half] = 350, 700
    assert torch.equal(counts, wanted.repeat_interleave(5, dim=0))


# ---- scaffolds


def group_lda(groups, num_clients, alpha, seed):
    owners, _ = ScaffoldLDA(num_clients=num_clients, alpha=alpha).assign(list(groups), len(groups), seed)
    return [(owners == client).nonzero()[:, 0] for client in range(num_clients)]


def test_small_alpha_keeps_groups_whole_and_large_alpha_divides_them_evenly():
    groups = [number // 40 for number in range(1600)]
    whole = group_lda(groups, 4, 1e-3, 1)
    assert sum(len({groups[i] for i in part.tolist()}) for part in whole) == 40
    even = group_lda(groups, 4, 1e6, 1)
    held = torch.stack([torch.tensor([groups[i] for i in part.tolist()]).bincount(minlength=40) for part in even])
    # binomial counts of 40 with 1/4: the mean squared deviation from 10 is their variance, 7.5
    assert float(((held - 10.0) ** 2).mean()) == pytest.approx(7.5, rel=0.25)


def test_groups_of_one_sample_fall_to_all_clients_alike():
    counts = torch.tensor([[len(part) for part in group_lda(range(300), 3, 1.0, seed)] for seed in range(20)])
    share = counts.sum(0) / counts.sum()
    assert ((share - 1 / 3).abs() < 4 * (2 / 9 / 6000) ** 0.5).all()


def test_the_groups_count_and_not_their_names_in_the_order_of_rows():
    groups = [f"s{number % 13}" for number in range(90)]
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0)).tolist()
    parts = [sorted(groups[i] for i in part.tolist()) for part in group_lda(groups, 3, 0.5, 4)]
    again = group_lda([groups[i] for i in order], 3, 0.5, 4)
    assert parts == [sorted(groups[order[i]] for i in part.tolist()) for part in again]


def test_molecules_by_scaffold():
    smiles = [f"{'C' * tail}{ring}" for ring in ("c1ccccc1", "C1CCCCC1", "c1ccncc1") for tail in range(20)]
    train, test = Molecules(smiles[:45]), Molecules(smiles[45:])
    parts = ScaffoldLDA(num_clients=3, alpha=0.5).partition_splits({"train": train, "test": test}, 2)
    together = ScaffoldLDA(num_clients=3, alpha=0.5)(Molecules(smiles), 2)
    for client in range(3):
        joined = parts["train"][client].tolist() + [45 + i for i in parts["test"][client].tolist()]
        assert joined == together[client].tolist()
