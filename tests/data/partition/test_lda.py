"""Latent Dirichlet allocation over groups of samples."""

import pytest
import torch
from partition_tiny import Molecules

from lightning_fl.data.partition import ScaffoldLDA


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
