"""Refusals of cards and sources: type of the error, and the key or thing at fault."""

import re

import pytest
import yaml
from card_files import CARD, COLUMNS, FILE, FOLDER, LEAF, TORCHVISION, without, write, write_image_card

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.cards.lookup import MoleculeCard, available_cards, load_card
from lightning_fl.files import user_file

TABLE = {
    **{key: CARD[key] for key in ("name", "title", "standin", "licence", "citation", "note")},
    "task": "classification",
    "format": "table",
    "files": [FILE],
    "columns": {
        "names": ["age", "sex", "ill"],
        "target": "ill",
        "classes": ["no", "yes"],
        "categorical": ["sex"],
        "derived": [{"name": "old", "column": "age", "values": ["99"], "label": "old", "other": "young"}],
    },
    "rows": {"train": 3, "test": None},
}
TABLE_COLUMNS, DERIVED = TABLE["columns"], TABLE["columns"]["derived"][0]


def write_table_card(place, **changes):
    path = place / "mine.yaml"
    path.write_text(yaml.safe_dump(TABLE | changes))
    return path


def targets(**changes):
    return {"columns": COLUMNS | {"targets": [{"name": "y", "unit": "u"} | changes]}}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"licens": "CC0"}, "unknown key 'licens' (did you mean 'licence'?)"),
        ({"columns": without(COLUMNS, "smiles") | {"smile": "s"}}, "unknown key 'smile' (did you mean 'smiles'?)"),
        ({"files": [without(FILE, "sha256")]}, "files[0]: missing key 'sha256'"),
        ({"columns": None}, "columns: must have the keys smiles, targets, groups"),
        ({"files": []}, "files"),
        ({"files": FILE}, "files"),
        ({"columns": COLUMNS | {"targets": []}}, "columns.targets"),
        (targets(factor=2), "columns.targets[0], factor=2"),
        (targets(transform="log10", factor=0), "columns.targets[0], factor=0"),
        (targets(transform="log10", factor=True), "columns.targets[0], factor=True"),
        (targets(transform="ln"), "columns.targets[0], transform='ln'"),
        ({"censored": 1}, "censored=1"),
        ({"rows": 0}, "rows=0"),
        ({"rows": True}, "rows=True"),
        ({"format": "CSV"}, "format='CSV'"),
        ({"format": ["csv"]}, "format=['csv']"),
        ({"task": "ranking"}, "task='ranking'"),
        ({"standin": "freesolv"}, "standin='freesolv'"),
        ({"standin": "esol", "columns": COLUMNS | {"targets": [{"name": n, "unit": "u"} for n in "ab"]}}, "standin"),
        ({"standin": "tox21", "columns": COLUMNS | {"targets": {"all_but": [], "unit": "u"}}}, "standin"),
        ({"title": " "}, "title=' '"),
        ({"files": [FILE | {"sha256": ["ABC"]}]}, "sha256: 'ABC'"),
        ({"files": [FILE | {"addresses": ["ftp://x"]}]}, "addresses: 'ftp://x'"),
        ({"files": [FILE | {"sha256": []}]}, "sha256"),
        ({"files": [FILE | {"name": "a/b.csv"}]}, "name='a/b.csv'"),
    ],
)
def test_molecule_cards_are_refused(tmp_path, changes, fault):
    with pytest.raises(ConfigurationError, match=rf"mine\.yaml.*{re.escape(fault)}"):
        load_card(write(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"image": {"channels": 2, "size": 32}}, "channels=2"),
        ({"image": {"channels": 1, "size": 0}}, "size=0"),
        ({"image": {"channels": 1}}, "image: missing key 'size'"),
        ({"classes": ["cat"]}, "classes"),
        ({"classes": ["cat", "cat"]}, "classes"),
        ({"coarse_classes": "animal"}, "coarse_classes"),
        ({"coarse_clases": []}, "'coarse_clases' (did you mean 'coarse_classes'?)"),
        ({"rows": {"train": None, "test": 3}}, "rows.train"),
        ({"rows": {"train": 0, "test": 3}}, "rows[train]=0"),
        ({"rows": 3}, "rows=3"),
        ({"files": []}, "files"),
        ({"format": "scikit-learn-digits"}, "files"),
        ({"task": "regression"}, "task='regression'"),
        ({"standin": "esol"}, "standin='esol'"),
        ({"torchvision": TORCHVISION | {"files": []}}, "files=[]"),
        ({"torchvision": TORCHVISION | {"dataset": "utils"}}, "dataset='utils'"),
        ({"torchvision": TORCHVISION | {"dataset": "ImageFolder"}}, "dataset='ImageFolder'"),
        ({"torchvision": TORCHVISION | {"train": {"root": "/"}}}, "train={'root': '/'}"),
        ({"torchvision": TORCHVISION | {"train": {"x": []}}}, "train={'x': []}"),
        ({"torchvision": TORCHVISION | {"train": True}}, "train=True"),
        ({"torchvision": TORCHVISION | {"first_label": 2}}, "first_label=2"),
        ({"torchvision": {"dataset": "MNIST"}}, "torchvision: missing key 'train'"),
        ({"folder": FOLDER}, "coarse_classes"),
        (LEAF | {"image": {"channels": 3, "size": 28}}, "image.channels"),
        (LEAF | {"folder": FOLDER | {"layout": "leav"}}, "layout='leav'"),
        (LEAF | {"folder": FOLDER | {"parts": []}}, "folder, parts"),
        (LEAF | {"folder": FOLDER | {"parts": [{"test": ["a"]}]}}, "folder, parts[0]: missing key 'train'"),
        (LEAF | {"folder": FOLDER | {"parts": [{"train": "a"}]}}, "folder, parts[0], train"),
        (LEAF | {"folder": FOLDER | {"names": []}}, "folder, names=[]"),
        (LEAF | {"folder": FOLDER | {"names": ["/mine"]}}, "names=['/mine']"),
        (LEAF | {"folder": FOLDER | {"names": ["../x"]}}, "names=['../x']"),
    ],
)
def test_image_cards_are_refused(tmp_path, changes, fault):
    with pytest.raises(ConfigurationError, match=rf"mine\.yaml.*{re.escape(fault)}"):
        load_card(write_image_card(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"files": []}, "files"),
        ({"standin": "esol"}, "standin='esol'"),
        ({"task": "regression"}, "task='regression'"),
        ({"rows": {"train": 3, "test": 3}}, "rows"),
        ({"rows": {"train": None, "test": None}}, "rows"),
        ({"rows": {"train": 0, "test": None}}, "rows[train]=0"),
        ({"columns": TABLE_COLUMNS | {"names": ["age", "age"]}}, "columns.names"),
        ({"columns": TABLE_COLUMNS | {"classes": ["yes"]}}, "columns.classes"),
        ({"columns": TABLE_COLUMNS | {"target": "il"}}, "columns.target: there is no column 'il'"),
        ({"columns": TABLE_COLUMNS | {"categorical": ["ill"]}}, "columns.categorical"),
        ({"columns": TABLE_COLUMNS | {"unused": ["x"]}}, "columns.unused"),
        ({"columns": TABLE_COLUMNS | {"derived": [DERIVED | {"name": "sex"}]}}, "derived[0]: name='sex'"),
        ({"columns": TABLE_COLUMNS | {"derived": [DERIVED | {"values": []}]}}, "derived[0]"),
        ({"columns": TABLE_COLUMNS | {"derived": [DERIVED | {"column": "x"}]}}, "derived[0], column"),
    ],
)
def test_table_cards_are_refused(tmp_path, changes, fault):
    assert load_card(write_table_card(tmp_path)).num_rows == 3
    with pytest.raises(ConfigurationError, match=rf"mine\.yaml.*{re.escape(fault)}"):
        load_card(write_table_card(tmp_path, **changes))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("name: [1, 2", "line 2, column 1"),
        ("- a list", "'format', one of csv, csv.gz, "),
        ("name: mine", "'format', one of csv, csv.gz, "),
    ],
)
def test_files_that_are_no_cards_are_refused(tmp_path, text, fault):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=rf"mine\.yaml.*{re.escape(fault)}"):
        load_card(tmp_path / "mine.yaml")


def test_unknown_cards_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match=r"'Esol_' \(did you mean 'esol'\?\).* adult, aqsoldb"):
        load_card("Esol_")
    with pytest.raises(ConfigurationError, match=r"other\.yaml"):
        load_card(tmp_path / "other.yaml")
    assert load_card("esol", MoleculeCard).name == "esol"
    with pytest.raises(ConfigurationError, match="'mnist' .*ImageData"):
        load_card("mnist", MoleculeCard)
    monkeypatch.setattr(user_file, "_PLACES", (tmp_path / "none",))
    with pytest.raises(ConfigurationError, match="none/datasets"):
        available_cards()


@pytest.mark.parametrize(
    "name",
    [
        *("../escaped", "../../../escaped", "/tmp/escaped", "..", ".", "a/../../b", "a\\..\\b", "C:\\x", "C:x"),
        *("~/x", "~root", ".hidden", "x.", "nul", "COM1.csv", "x" * 300, "ü" * 100, "a\x00b", "a\nb"),
    ],
)
def test_no_name_in_a_card_leaves_its_folder(tmp_path, name):
    for changes in ({"name": name}, {"files": [FILE | {"name": name}]}):
        with pytest.raises(ConfigurationError, match=r"mine\.yaml.*name="):
            load_card(write(tmp_path, **changes))
    folder = {"folder": FOLDER | {"names": ["fine", f"below/{name}"]}}
    with pytest.raises(ConfigurationError, match="folder, names="):
        load_card(write_image_card(tmp_path, **(LEAF | folder)))
    with pytest.raises(ConfigurationError, match="torchvision, files="):
        load_card(write_image_card(tmp_path, torchvision=TORCHVISION | {"files": [name]}))
