import copy
import logging
import os
import pickle
from pathlib import Path
from unittest import TestCase

import pytest
import torch
from lightning_utilities.core import rank_zero
from molecule_tables import BROKEN
from molecule_tables import molecule_table as table
from torch.utils.data import Subset
from torch_geometric.loader import DataLoader

from lightning_fl.core.errors import DataError
from lightning_fl.data.molecules import dataset as molecules
from lightning_fl.data.molecules.dataset import MoleculeDataset
from lightning_fl.data.molecules.featurizer import ATOM_DIM, BOND_DIM, encode_smiles, molecule_graphs
from lightning_fl.files import atomic

NAN = float("nan")


SMILES = ["CCO", "C", "c1ccccc1", "[Na+].[Cl-]"]


def test_items_are_the_molecules_graphs():
    dataset = MoleculeDataset(table(SMILES))
    assert len(dataset) == 4
    for number, smiles in enumerate(SMILES):
        item, alone = dataset[number], molecule_graphs(encode_smiles([smiles]))
        assert torch.equal(item.x, alone.x)
        assert torch.equal(item.edge_index, alone.edge_index)
        assert torch.equal(item.edge_attr, alone.edge_attr)
        assert item.y.tolist() == [[2.0 * number, 2.0 * number + 1]]
        assert item.num_nodes == len(alone.x)
    assert dataset[1].edge_index.shape == (2, 0)
    assert dataset[1].edge_attr.shape == (0, BOND_DIM)
    assert dataset.smiles == SMILES
    assert (dataset.target_names, dataset.target_units) == (["y0", "y1"], ["u", "u"])
    assert dataset.rows == [2, 3, 4, 5]
    assert dataset.column("lab") == ["lab0", "lab1", "lab0", "lab1"]
    assert list(dataset._columns) == ["lab"]


def test_a_data_set_of_one_molecule():
    item = MoleculeDataset(table(["CCO"]))[0]
    assert item.x.shape == (3, ATOM_DIM)
    assert item.y.shape == (1, 2)


def test_batches_keep_missing_targets_and_number_the_graphs():
    targets = torch.tensor([[1.0, NAN], [2, 3], [NAN, NAN], [4, 5]])
    dataset = MoleculeDataset(table(SMILES, targets=targets))
    batch = next(iter(DataLoader(Subset(dataset, [2, 1, 0]), batch_size=3)))
    assert batch.ptr.tolist() == [0, 6, 7, 10]
    torch.testing.assert_close(batch.y, targets[[2, 1, 0]], equal_nan=True)
    assert batch.edge_index.max() == 9  # the last atom of ethanol
    torch.testing.assert_close(dataset.targets, targets, equal_nan=True)


def test_views_follow_their_indices():
    view = MoleculeDataset(table(SMILES))[[3, 1]]
    assert view.smiles == ["[Na+].[Cl-]", "C"]
    assert view.rows == [5, 3]
    assert view.targets.tolist() == [[6, 7], [2, 3]]
    assert view.column("lab") == ["lab1", "lab1"]
    assert view[1:].smiles == ["C"]


def test_copies_and_pickles_are_equal():
    dataset = MoleculeDataset(table(SMILES))
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert other.smiles == dataset.smiles
        assert torch.equal(other[2].x, dataset[2].x)


# ---- SMILES that cannot be read


def test_broken_smiles_are_skipped_with_a_warning():
    with pytest.warns(UserWarning, match=r"3 of 6 SMILES .*row 3 'C\(C'"):
        dataset = MoleculeDataset(table(BROKEN), invalid="skip")
    assert dataset.smiles == ["CCO", "c1ccccc1", "C"]
    assert dataset.rows == [2, 4, 6]
    assert dataset.targets[:, 0].tolist() == [0, 4, 8]
    assert dataset.column("lab") == ["lab0", "lab0", "lab0"]
    for item, smiles in zip(dataset, dataset.smiles, strict=True):
        assert torch.equal(item.x, molecule_graphs(encode_smiles([smiles])).x)
        assert torch.equal(item.edge_index, molecule_graphs(encode_smiles([smiles])).edge_index)


# ---- the cache


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """Number of molecules of every call that featurises."""
    calls: list[int] = []

    def counting(smiles):
        calls.append(len(smiles))
        return encode_smiles(smiles)

    monkeypatch.setattr(molecules, "encode_smiles", counting)
    return calls


def test_features_are_computed_once(tmp_path, encoded):
    first = MoleculeDataset(table(SMILES), cache=tmp_path / "features")
    second = MoleculeDataset(table(SMILES, target_names=["other", "b"]), cache=tmp_path / "features")
    assert encoded == [4]
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one.x, two.x)
        assert torch.equal(one.edge_index, two.edge_index)
        assert torch.equal(one.edge_attr, two.edge_attr)
    assert [path.suffix for path in (tmp_path / "features").iterdir()] == [".pt"]


def test_other_molecules_order_or_versions_are_computed_anew(tmp_path, encoded, monkeypatch):
    MoleculeDataset(table(SMILES), cache=tmp_path)
    MoleculeDataset(table(SMILES[::-1]), cache=tmp_path)
    monkeypatch.setattr(molecules, "FEATURIZER_VERSION", "next")
    MoleculeDataset(table(SMILES), cache=tmp_path)
    monkeypatch.setattr("rdkit.__version__", "next")
    MoleculeDataset(table(SMILES), cache=tmp_path)
    assert encoded == [4] * 4


def test_broken_smiles_are_reported_from_the_cache_too(tmp_path, encoded):
    for _ in range(2):
        with pytest.raises(DataError, match="row 3 'xx'"):
            MoleculeDataset(table(["C", "xx"]), cache=tmp_path)
    with pytest.warns(UserWarning, match="row 3 'xx'"):
        assert len(MoleculeDataset(table(["C", "xx"]), cache=tmp_path, invalid="skip")) == 1
    assert encoded == [2]


def entry(folder: Path) -> Path:
    (path,) = folder.glob("*.pt")
    return path


@pytest.mark.parametrize("fault", ["cut off", "garbled", "text", "empty", "flipped"])
def test_a_damaged_cache_is_computed_again(tmp_path, encoded, fault):
    MoleculeDataset(table(SMILES), cache=tmp_path)
    path = entry(tmp_path)
    content = torch.load(path, weights_only=True)
    match fault:
        case "cut off":
            path.write_bytes(path.read_bytes()[:500])
        case "garbled":
            path.write_bytes(b"garbled" * 100)
        case "text":
            path.write_text("each cached file is text\n")
        case "flipped":
            atoms = content["atoms"].numpy().tobytes()
            path.write_bytes(path.read_bytes().replace(atoms, bytes(len(atoms))))
        case "empty":
            path.write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"):
        dataset = MoleculeDataset(table(SMILES), cache=tmp_path)
    assert dataset[0].x.shape == (3, ATOM_DIM)
    assert encoded == [4, 4]
    MoleculeDataset(table(SMILES), cache=tmp_path)
    assert encoded == [4, 4]


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path):
    (tmp_path / "occupied").write_text("a file, not a folder")
    with pytest.warns(UserWarning, match="occupied .*LIGHTNING_FL_CACHE"):
        dataset = MoleculeDataset(table(SMILES), cache=tmp_path / "occupied")
    assert len(dataset) == 4


def test_what_a_killed_process_left_is_removed_and_not_what_is_being_written(tmp_path):
    (tmp_path / ".a.pt.0123.tmp").write_bytes(b"half")
    with atomic.whole_file(tmp_path / "b.pt", by_several=True) as file:
        MoleculeDataset(table(SMILES), cache=tmp_path)
        file.write(b"whole")
    assert not list(tmp_path.glob("*.tmp"))
    assert (tmp_path / "b.pt").read_bytes() == b"whole"


def test_an_unreadable_cache_is_not_used(tmp_path):
    tmp_path.chmod(0)
    own = os.geteuid()
    os.seteuid(own or 65534)  # root may look into everything
    try:
        with pytest.warns(UserWarning, match="LIGHTNING_FL_CACHE"):
            assert len(MoleculeDataset(table(SMILES), cache=tmp_path / "inner")) == 4
    finally:
        os.seteuid(own)


# ---- progress


def test_many_molecules_are_announced_on_one_line(monkeypatch):
    monkeypatch.setattr(molecules, "_REPORT_FROM", 3)
    with TestCase().assertLogs(rank_zero.log, logging.INFO) as told:
        MoleculeDataset(table(SMILES))
    assert len([line for line in told.output if "Reading 4 molecules" in line]) == 1


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(molecules, "_PROGRESS_FROM", 3)
    monkeypatch.setattr(molecules.sys.stderr, "isatty", lambda: True, raising=False)
    dataset = MoleculeDataset(table(SMILES))
    assert len(dataset) == 4
    assert "Reading molecules" in capsys.readouterr().err
