import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lightning_fl.data import cards
from lightning_fl.data.cards import (
    ImageCard,
    MoleculeCard,
    TableCard,
    available_cards,
    did_you_mean,
    expect_kind,
    load_card,
)
from lightning_fl.errors import ConfigurationError

CARD = {
    "name": "mine",
    "title": "My molecules",
    "task": "regression",
    "format": "csv",
    "files": [{"name": "mine.csv", "sha256": ["0" * 64], "addresses": ["https://example.org/mine.csv"]}],
    "columns": {"smiles": "smiles", "targets": [{"name": "y", "unit": "kcal/mol"}], "groups": ["lab"]},
    "rows": 3,
    "standin": None,
    "licence": "CC0",
    "citation": "none",
    "note": "for tests",
}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(CARD | changes))
    return path


def test_every_shipped_card_reads_and_is_named_after_its_file():
    found = available_cards()
    assert list(found) == ["chembl_ic50", "drugood_ic50", "esol", "freesolv", "lipophilicity"]
    for name, path in found.items():
        card = load_card(name)
        assert (card.name, card.path) == (name, path)
        assert card.title
        assert card.citation
        assert card.licence
    assert [load_card(name).standin for name in found] == [None, None, "esol", None, None]


def test_a_card_of_ones_own_is_read_in_full(tmp_path):
    card = load_card(write(tmp_path))
    assert card.file == cards.CardFile("mine.csv", ("0" * 64,), ("https://example.org/mine.csv",))
    assert card.targets == (cards.CardTarget("y", "kcal/mol"),)
    assert (card.smiles, card.groups, card.rows, card.standin) == ("smiles", ("lab",), 3, None)


def test_cards_in_the_package_go_before_those_beside_it(tmp_path, monkeypatch):
    inside, beside = tmp_path / "inside", tmp_path / "beside"
    beside.mkdir()
    write(beside)
    monkeypatch.setattr(cards, "_FOLDERS", (inside, beside))
    assert available_cards() == {"mine": beside / "mine.yaml"}
    inside.mkdir()
    write(inside)
    assert available_cards() == {"mine": inside / "mine.yaml"}


def test_no_folder_of_cards_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "_FOLDERS", (tmp_path / "none",))
    with pytest.raises(ConfigurationError, match=r"no cards found in .*none: install"):
        available_cards()


def test_reading_a_card_imports_nothing_heavy():
    code = (
        "import sys; from lightning_fl.data.cards import load_card; load_card('esol');"
        "print([name for name in ('torch', 'lightning', 'pandas', 'rdkit', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigurationError, match=r"no card named 'Esol_' \(did you mean 'esol'\?\)\. There are chembl"):
        load_card("Esol_")


def test_missing_path_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no card at .*other\.yaml: give the path"):
        load_card(tmp_path / "other.yaml")


def test_not_yaml_is_an_error(tmp_path):
    (tmp_path / "bad.yaml").write_text("name: [1, 2")
    with pytest.raises(ConfigurationError, match=r"card .*bad\.yaml is not YAML"):
        load_card(tmp_path / "bad.yaml")


def without(entry: dict, key: str) -> dict:
    return {name: value for name, value in entry.items() if name != key}


FILE, COLUMNS = CARD["files"][0], CARD["columns"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"licens": "CC0"}, "unknown key 'licens' (did you mean 'licence'?)"),
        (
            {"columns": without(COLUMNS, "smiles") | {"smile": "s"}},
            "unknown key 'smile' (did you mean 'smiles'?); missing",
        ),
        ({"files": [without(FILE, "sha256")]}, "files[0]: missing key 'sha256'"),
        ({"columns": None}, "columns: expected the keys smiles, targets, groups, got NoneType"),
        ({"files": []}, "files: got 0 files"),
        ({"files": FILE}, "files: expected a list, got {"),
        ({"columns": COLUMNS | {"targets": []}}, "columns.targets is empty"),
        ({"rows": 0}, "rows=0: give the number"),
        ({"rows": True}, "rows=True: give the number"),
        ({"format": "CSV"}, "format='CSV': expected one of csv, csv.gz, drugood-json (did you mean 'csv'?)"),
        ({"task": "ranking"}, "task='ranking': expected one of regression"),
        ({"standin": "freesolv"}, "standin='freesolv': expected one of esol"),
        (
            {"standin": "esol", "columns": COLUMNS | {"targets": [{"name": n, "unit": "u"} for n in "ab"]}},
            "standin: it has one target and cannot replace 2",
        ),
        ({"title": " "}, "title=' ': expected a text"),
        ({"files": [FILE | {"sha256": ["ABC"]}]}, "sha256: 'ABC' is not a SHA-256 sum"),
        ({"files": [FILE | {"addresses": ["ftp://x"]}]}, "addresses: 'ftp://x' is no https:// or http:// address"),
        ({"files": [FILE | {"sha256": []}]}, "a download cannot be checked without a sum"),
        ({"files": [FILE | {"name": "a/b.csv"}]}, "name='a/b.csv': give the file's name without a folder"),
    ],
)
def test_a_fault_is_named(tmp_path, changes, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load_card(write(tmp_path, **changes))


def test_did_you_mean_ignores_case_and_stays_silent_far_away():
    assert did_you_mean("SMILES", ["smiles", "target"]) == " (did you mean 'smiles'?)"
    assert did_you_mean("assay", ["smiles", "target"]) == ""
