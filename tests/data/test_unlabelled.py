import tracemalloc

import numpy as np
import pandas as pd
import pytest

from lightning_fl.data.molecules.dataset import explain_unreadable, unlabelled_molecules
from lightning_fl.data.molecules.featurizer import encode_smiles
from lightning_fl.data.unlabelled import Reading, read_rows

RECORD = {"target_names": ["y"], "target_units": [""]}


def chunks(source, **reading):
    return list(unlabelled_molecules(source, RECORD, Reading(**reading), "smiles", lambda table, codes: (table, codes)))


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_chunks_hold_all_rows_in_their_order(tmp_path, rows):
    path = tmp_path / "new.csv"
    path.write_text('\n a;b\r\n1; "x\n;y"\n\n;\n2\n', newline="")
    found = list(read_rows(path, rows))
    assert max(map(len, found)) <= rows
    table = pd.concat(found)
    assert list(table.columns) == ["a", "b"]
    assert list(table.index) == [0, 1, 2]
    assert list(table["a"]) == ["1", "", "2"]
    assert list(table["b"])[1:] == ["", ""]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ('"smiles, canonical";y\nCCO;1\n', ["smiles, canonical", "y"]),
        ('"a ""b"", c, d"\ty\nCCO\t1\n', ['a "b", c, d', "y"]),
        ("\n  \nsmiles|y\nCCO|1\n\n", ["smiles", "y"]),
    ],
)
def test_separators_in_quotes_are_none(tmp_path, text, columns):
    path = tmp_path / "new.csv"
    path.write_text(text)
    (frame,) = read_rows(str(path), 10)
    assert list(frame) == columns
    assert frame.values.tolist() == [["CCO", "1"]]


def test_memory_does_not_grow_with_the_file(tmp_path):
    def most(count):
        path = tmp_path / f"{count}.csv"
        path.write_text("smiles,x\n" + "CCO,0.123456789\n" * count)
        tracemalloc.start()
        for _ in read_rows(path, 100):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    most(100)  # what is imported once
    assert most(5000) < 1.5 * most(500)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_molecules_of_chunks_are_those_of_the_whole(rows, workers):
    smiles = [("C" * (place % 9) + "O") if place % 5 else "bad" for place in range(600)][: 600 if rows > 1 else 30]
    found = chunks(smiles, rows=rows, workers=workers)
    assert [row for chunk in found for row in chunk.frame["smiles"]] == smiles
    kept = [int(chunk.frame.index[row]) for chunk in found for row in chunk.kept]
    assert kept == [place for place in range(len(smiles)) if place % 5]
    whole = encode_smiles([smiles[place] for place in kept])
    of_chunks = [chunk.data[1] for chunk in found if chunk.kept]
    for name in ("atoms", "bonds", "ends", "num_atoms", "num_bonds"):
        assert np.array_equal(np.concatenate([getattr(codes, name) for codes in of_chunks]), getattr(whole, name))
    assert [size for chunk in found for size in chunk.sizes or []] == whole.num_atoms.tolist()


def test_why_a_smiles_is_no_molecule():
    assert explain_unreadable("") == "no SMILES"
    assert explain_unreadable("C1CC") == "not a SMILES: C1CC"
    assert explain_unreadable("C" * 99 + "(") == f"not a SMILES: {'C' * 57}..."
    assert "Explicit valence for atom # 1 O, 3, is greater" in explain_unreadable("CO(C)C")
    assert "kekulize" in explain_unreadable("c1cccc1").lower()
