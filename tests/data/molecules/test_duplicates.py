import json
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from molecule_tables import csv_module, ready
from molecule_tables import molecule_table as table

from lightning_fl.core.errors import DataError
from lightning_fl.data import ColumnDivision, HashDivision, ScaffoldDivision
from lightning_fl.data.module import SPLITS
from lightning_fl.data.molecules.duplicates import count_duplicates, merge_duplicates, molecule_identities
from lightning_fl.data.partition import IID, FromFile, murcko_scaffolds
from lightning_fl.data.partition.from_file import split_file_text

#: Several ways to write each of some molecules.
WAYS = [["CCO", "OCC", "C(C)O"], ["c1ccccc1C", "Cc1ccccc1"], ["CC(=O)O", "OC(C)=O"], ["C1CCCCC1"]]


def ids(one):
    return molecule_identities(one.smiles)


# ---- which molecules are the same


def test_ways_to_write_a_molecule_are_the_same():
    flat = [text for ways in WAYS for text in ways]
    for identity in ("smiles", "inchikey_no_stereo"):
        found = molecule_identities(flat, identity)
        groups = [{found[flat.index(text)] for text in ways} for ways in WAYS]
        assert [len(group) for group in groups] == [1] * 4
        assert len(set().union(*groups)) == 4


def test_stereochemistry_counts_by_smiles_and_not_by_the_first_block():
    pair = ["C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O", "CC(N)C(=O)O"]
    assert len(set(molecule_identities(pair))) == 3
    # the first block of alanine's InChIKey, QNAYBMKLOCPYGJ-REOHCLBHSA-N
    assert set(molecule_identities(pair, "inchikey_no_stereo")) == {"QNAYBMKLOCPYGJ"}


def test_what_cannot_be_read_is_nothing():
    assert molecule_identities(["CCO", "no smiles"]) == ["CCO", None]


def test_identities_are_cached_and_a_damaged_entry_is_computed_again(tmp_path, monkeypatch):
    first = molecule_identities(["OCC", "CCO", "no"], cache=tmp_path)
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr("rdkit.Chem.MolFromSmiles", None)  # would fail if it were called
    assert molecule_identities(["no", "CCO", "OCC"], cache=tmp_path) == first[::-1]
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="damaged"):
        assert molecule_identities(["OCC", "CCO", "no"], cache=tmp_path) == first


# ---- counting


def test_counts_by_hand():
    names = list("aabbccddxy")
    shares = [
        # a twice in training; b trained and tested on; c trained on, d tested on
        {"train": [0, 1, 2, 4], "val": [], "test": [3, 6]},
        # c tested on here, d trained on here; x and y are nobody else's
        {"train": [7, 8], "val": [9], "test": [5]},
    ]
    shares = [{split: torch.tensor(part, dtype=torch.long) for split, part in of.items()} for of in shares]
    counts = count_duplicates(names, shares)
    assert counts == {
        "copies_in_a_client": 2,
        "train_and_test_in_a_client": 1,
        "in_several_clients": 2,
        "train_and_test_across_clients": 2,
    }
    assert not any(count_duplicates(list("xyz"), [{s: torch.tensor([p]) for p, s in enumerate(SPLITS)}]).values())


# ---- merging


def test_the_mean_of_the_values_that_are_there():
    nan = float("nan")
    one = table(
        ["CCO", "CC", "OCC", "C(C)O"], [[1, nan], [5, 6], [3, nan], [nan, 4]], columns={"lab": ["a", "b", "c", "d"]}
    )
    merged = merge_duplicates(one, ids(one), "merge_mean")
    assert merged.smiles == ["CCO", "CC"]
    assert merged.targets.tolist() == [[2, 4], [5, 6]]
    assert merged.rows == [2, 3]
    assert merged.columns == {"lab": ["a", "b"]}
    assert one.targets[0, 0] == 1  # the table itself stays


def test_bounds_are_those_of_the_values():
    nan = float("nan")
    bounds = torch.tensor([[1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
    one = replace(table(["CCO", "OCC", "CC"], [[5, nan], [nan, 3], [1, 1]]), bounds=bounds)
    merged = merge_duplicates(one, ids(one), "merge_refuse")
    assert merged.targets.tolist() == [[5, 3], [1, 1]]
    assert merged.bounds.tolist() == [[1, -1], [0, 1]]


def test_rows_of_several_clients_are_not_merged():
    one = table(["CCO", "OCC", "CCO"], [1.0, 3.0, 5.0], columns={"lab": ["a", "b", "a"]})
    merged = merge_duplicates(one, ids(one), "merge_mean", within=["lab"])
    assert merged.targets.tolist() == [[3], [3]]
    assert merged.rows == [2, 3]
    unreadable = table(["no", "no", "CC"], [1.0, 2.0, 3.0])
    assert merge_duplicates(unreadable, ids(unreadable), "merge_mean") is unreadable


def test_equal_values_are_merged_and_classes_by_majority():
    equal = table(["CCO", "OCC"], [3.0, 3.0])
    assert merge_duplicates(equal, ids(equal), "merge_refuse").targets.tolist() == [[3]]
    one = table(["CCO", "OCC", "CCO", "CC", "CC", "C"], [1, 1, 0, 0, 1, 0])
    targets = merge_duplicates(one, ids(one), "merge_majority").targets[:, 0]
    assert targets[[0, 2]].tolist() == [1, 0]
    assert targets[1].isnan()  # as many ones as zeros


# ---- in a data module

LABS = "smiles,y,lab\n" + "".join(
    f"{ways[number % len(ways)]},{number / 10},lab{number % 3}\n"
    for number in range(120)
    for ways in [[f"{'C' * (number % 40 + 1)}O", f"O{'C' * (number % 40 + 1)}"]]
)


@pytest.fixture
def csv(tmp_path):
    (tmp_path / "labs.csv").write_text(LABS)
    return str(tmp_path / "labs.csv")


def split_up(path, **kwargs):
    options = {} if "partitioner" in kwargs else {"group_column": "lab"}
    return ready(csv_module(path, **options, **kwargs))


def parts_of(data):
    """Molecule -> the (client, split) that it is in."""
    found, names = defaultdict(set), ids(data.dataset)
    index_of = {row: index for index, row in enumerate(data.dataset.rows)}
    for client in range(data.num_clients):
        for split, rows in data.held_rows(client).items():
            for row in rows:
                found[names[index_of[row]]].add((client, split))
    return found


def test_the_run_says_in_one_line_what_occurs_twice(csv, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("lightning_fl.data.molecules.module.rank_zero_info", said.append)
    data = split_up(csv)
    data.setup("test")  # reports nothing
    # number % 40 and number % 3 make 40 molecules that each laboratory has once
    told = data.describe()["duplicates"]
    assert "copies" not in data.describe()
    assert (told["copies_in_a_client"], told["in_several_clients"]) == (0, 40)
    both = [m for m, places in parts_of(data).items() if {"train", "test"} <= {split for _, split in places}]
    assert told["train_and_test_across_clients"] == len(both) > 0
    assert said == [
        f"Same molecules by smiles: 40 molecules are at several clients, {len(both)} are trained on by one client and"
        " tested on by another (division: HashDivision keeps them in the same split at all clients)."
    ]
    json.dumps(data.describe())


@pytest.mark.parametrize("by", ["molecule", "scaffold"])
def test_a_hash_keeps_a_molecule_on_one_side_at_all_laboratories(tmp_path, by):
    rings = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "c1ccoc1", "C1CCNCC1", "c1ccsc1", "C1CCCC1", "c1cnc[nH]1", "C1CCOC1"]
    rows = [f"{'C' * tail}{ring},{tail},lab{lab}\n" for lab in range(3) for tail in range(4) for ring in rings]
    (tmp_path / "rings.csv").write_text("smiles,y,lab\n" + "".join(rows))
    data = split_up(str(tmp_path / "rings.csv"), division=HashDivision(by=by))
    sides = {molecule: {split for _, split in places} for molecule, places in parts_of(data).items()}
    assert all(len(side) == 1 for side in sides.values())
    assert data.describe()["duplicates"]["train_and_test_across_clients"] == 0
    if by == "scaffold":
        of_scaffold = defaultdict(set)
        for molecule, scaffold in zip(sides, murcko_scaffolds(list(sides)), strict=True):
            of_scaffold[scaffold] |= sides[molecule]
        assert all(len(side) == 1 for side in of_scaffold.values())


@pytest.mark.parametrize("options", [{}, {"folds": 5}, {"division": ScaffoldDivision()}])
def test_copies_within_a_client_stay_together(csv, options):
    data = split_up(csv, partitioner=IID(num_clients=2), duplicates="together", **options)
    for client in range(2):
        places = [{split for c, split in found if c == client} for found in parts_of(data).values()]
        assert all(len(splits) <= 1 for splits in places)
    told = data.describe()["duplicates"]
    assert told["train_and_test_in_a_client"] == 0
    assert data.describe()["copies"] == {"identity": "smiles", "duplicates": "together"}
    assert told["copies_in_a_client"] > 0


def test_merging_before_molecules_are_shared_out(csv):
    data = split_up(csv, partitioner=IID(num_clients=2), duplicates="merge_mean")
    assert len(data.dataset) == 40
    # molecule k has the rows k, k + 40 and k + 80
    assert torch.allclose(data.dataset.targets[:, 0], torch.tensor([(k + 40) / 10 for k in range(40)]))
    assert data.describe()["duplicates"]["in_several_clients"] == 0
    assert len(split_up(csv, duplicates="merge_mean").dataset) == 120  # a laboratory keeps a row of its own


@pytest.mark.parametrize(
    "options", [{}, {"partitioner": IID(num_clients=2)}, {"division": ColumnDivision(column="part")}]
)
def test_merged_rows_are_repeated_from_a_file(tmp_path, options):
    path = tmp_path / "labs.csv"
    parts = ["train", "val", "test"]
    rows = [f"{'C' * (number % 20 + 1)},{number},lab{number % 3},{parts[number // 80]}\n" for number in range(240)]
    path.write_text("smiles,y,lab,part\n" + "".join(rows))
    data = split_up(str(path), duplicates="merge_mean", **options)
    splits = tmp_path / "splits.json"
    splits.write_text(split_file_text(data, range(data.num_clients)))
    for _ in range(2):  # also from the file of the repetition
        again = split_up(str(path), duplicates="merge_mean", partitioner=FromFile(path=str(splits)))
        assert [again.held_rows(c) for c in range(again.num_clients)] == [
            data.held_rows(c) for c in range(data.num_clients)
        ]
        assert torch.equal(again.dataset.targets, data.dataset.targets)
        splits.write_text(split_file_text(again, range(again.num_clients)))


def test_without_an_option_nothing_changes(csv):
    plain, said = split_up(csv), split_up(csv, duplicates="report", identity="inchikey_no_stereo")
    assert [plain.held_rows(c) for c in range(3)] == [said.held_rows(c) for c in range(3)]


def test_a_published_split_of_some_rows(tmp_path):
    path = tmp_path / "part.csv"
    path.write_text("smiles,y,split\nCC,1,train\nCCC,2,train\nCCCC,3,\nCCO,4,test\n")
    options = {"partitioner": IID(num_clients=1), "split": (0.9, 0.0, 0.1)}
    with pytest.raises(DataError, match="column 'split' has gaps: row 4"):
        split_up(str(path), division=ColumnDivision(column="split"), **options)
    data = split_up(str(path), division=ColumnDivision(column="split", leave_out=[""]), **options)
    assert data.held_rows(0) == {"train": [2, 3], "val": [], "test": [5]}
