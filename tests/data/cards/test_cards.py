import re
import sys
from pathlib import Path

import pytest
import yaml
from processes import run

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.data.cards import catalogue as cards
from lightning_fl.data.cards.catalogue import (
    ImageCard,
    MoleculeCard,
    TableCard,
    available_cards,
    expect_kind,
    load_card,
)
from lightning_fl.files import package_folders

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
    kinds = {
        MoleculeCard: [
            *("aqsoldb", "aqsoldb_curated", "bace", "bbbp", "biogen_adme", "chembl_by_year", "chembl_ic50"),
            *("chembl_ki_simpd", "drugood_ic50", "esol", "freesolv", "hiv", "lipophilicity", "moonshot", "sider"),
            *("tdc_admet", "tox21", "toxcast"),
        ],
        ImageCard: [
            *("cifar10", "cifar100", "cinic10", "digits", "emnist_balanced", "emnist_byclass", "emnist_letters"),
            *("fashionmnist", "femnist", "mnist", "mnistm", "pacs", "svhn", "synthdigits", "usps"),
        ],
        TableCard: ["adult", "heart_disease", "tcga_brca"],
    }
    assert list(found) == sorted(name for names in kinds.values() for name in names)
    for kind, names in kinds.items():
        assert all(type(load_card(name)) is kind for name in names)
    for name, path in found.items():
        card = load_card(name)
        assert (card.name, card.path) == (name, path)
        assert card.title
        assert card.citation
        assert card.licence
        assert all(card.details().values())
        assert card.describe().keys() == {"name", "title", "licence", "citation"}
    assert [name for name in kinds[MoleculeCard] if load_card(name).standin] == ["aqsoldb", "bbbp", "esol", "tox21"]
    assert [name for name in kinds[ImageCard] if not load_card(name).standin] == ["digits", "pacs"]


def test_a_card_of_ones_own_is_read_in_full(tmp_path):
    card = load_card(write(tmp_path))
    assert card.file == cards.CardFile("mine.csv", ("0" * 64,), ("https://example.org/mine.csv",))
    assert card.targets == (cards.CardTarget("y", "kcal/mol"),)
    assert (card.smiles, card.groups, card.rows, card.standin) == ("smiles", ("lab",), 3, None)


def test_cards_in_the_package_go_before_those_beside_it(tmp_path, monkeypatch):
    inside, beside = tmp_path / "inside" / "datasets", tmp_path / "beside" / "datasets"
    beside.mkdir(parents=True)
    write(beside)
    monkeypatch.setattr(package_folders, "_PLACES", (inside.parent, beside.parent))
    assert available_cards() == {"mine": beside / "mine.yaml"}
    inside.mkdir(parents=True)
    write(inside)
    assert available_cards() == {"mine": inside / "mine.yaml"}


def test_no_folder_of_cards_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(package_folders, "_PLACES", (tmp_path / "none",))
    with pytest.raises(ConfigurationError, match=r"no cards found in .*none/datasets: install"):
        available_cards()


@pytest.mark.processes
def test_reading_a_card_imports_nothing_heavy():
    code = (
        "import sys; from lightning_fl.data.cards.catalogue import load_card; load_card('esol');"
        "print([name for name in ('torch', 'lightning', 'pandas', 'rdkit', 'numpy') if name in sys.modules])"
    )
    ended = run(sys.executable, "-c", code)
    assert ended.code == 0, ended.err
    assert ended.out.strip() == "[]"


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(
        ConfigurationError, match=r"no card named 'Esol_' \(did you mean 'esol'\?\)\. There are adult, aqsoldb"
    ):
        load_card("Esol_")


def test_missing_path_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no card at .*other\.yaml: give the path"):
        load_card(tmp_path / "other.yaml")


def test_not_yaml_is_an_error(tmp_path):
    (tmp_path / "bad.yaml").write_text("name: [1, 2")
    with pytest.raises(ConfigurationError, match=r"card .*bad\.yaml, line 2, column 1: not YAML"):
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
        ({"columns": None}, "columns: expected the keys smiles, targets, groups, split, select, got NoneType"),
        ({"files": []}, "files: got 0 files"),
        ({"files": FILE}, "files: expected a list, got {"),
        ({"columns": COLUMNS | {"targets": []}}, "columns.targets is empty"),
        ({"rows": 0}, "rows=0: give the number"),
        ({"rows": True}, "rows=True: give the number"),
        ({"format": "CSV"}, "format='CSV': expected one of csv, csv.gz, drugood-json, npz, "),
        ({"task": "ranking"}, "task='ranking': expected one of regression"),
        ({"standin": "freesolv"}, "standin='freesolv': expected one of esol"),
        (
            {"standin": "esol", "columns": COLUMNS | {"targets": [{"name": n, "unit": "u"} for n in "ab"]}},
            "standin: it has one target and cannot replace 2",
        ),
        (
            {"standin": "tox21", "columns": COLUMNS | {"targets": {"all_but": [], "unit": "u"}}},
            "standin: it needs targets that are named",
        ),
        ({"title": " "}, "title=' ': expected a text"),
        ({"files": [FILE | {"sha256": ["ABC"]}]}, "sha256: 'ABC' is not a SHA-256 sum"),
        ({"files": [FILE | {"addresses": ["ftp://x"]}]}, "addresses: 'ftp://x' is no https:// or http:// address"),
        ({"files": [FILE | {"sha256": []}]}, "a download cannot be checked without a sum"),
        ({"files": [FILE | {"name": "a/b.csv"}]}, "name='a/b.csv': it names a file or folder, so give a name without"),
    ],
)
def test_a_fault_is_named(tmp_path, changes, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load_card(write(tmp_path, **changes))


def test_did_you_mean_ignores_case_and_stays_silent_far_away():
    assert did_you_mean("SMILES", ["smiles", "target"]) == " (did you mean 'smiles'?)"
    assert did_you_mean("assay", ["smiles", "target"]) == ""


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../escaped",
            "../../../escaped",
            "/tmp/escaped",
            "..",
            ".",
            "a/../../b",
            "a\\..\\b",
            "C:\\x",
            "C:x",
            "~/x",
            "~root",
        ),
        *(".hidden", "x.", "nul", "COM1.csv", "x" * 300, "ü" * 100, "a\x00b", "a\nb"),
    ],
)
def test_no_name_in_a_card_leaves_its_folder(tmp_path, name):
    for changes in ({"name": name}, {"files": [FILE | {"name": name}]}):
        with pytest.raises(ConfigurationError, match=r"mine\.yaml.*name=.*: it names a file or folder, so give a name"):
            load_card(write(tmp_path, **changes))
    folder = {"folder": FOLDER | {"names": ["fine", f"below/{name}"]}}
    with pytest.raises(ConfigurationError, match="give one or more folders, relative and without"):
        load_card(write_image_card(tmp_path, **(LEAF | folder)))
    with pytest.raises(ConfigurationError, match="relative and without"):
        load_card(write_image_card(tmp_path, torchvision=TORCHVISION | {"files": [name]}))


def test_names_of_any_script_are_fine_in_a_card(tmp_path):
    assert load_card(write(tmp_path, name="Löslichkeit 溶解度 (v1.2)")).name == "Löslichkeit 溶解度 (v1.2)"


# ---- images

IMAGES = {
    "name": "mine",
    "title": "My pictures",
    "task": "classification",
    "format": "npz",
    "files": [{"name": "mine.npz", "sha256": [], "addresses": []}],
    "torchvision": {
        "dataset": "EMNIST",
        "train": {"split": "letters", "train": True},
        "test": {"split": "letters", "train": False},
        "files": ["a/b"],
        "first_label": 1,
    },
    "image": {"channels": 3, "size": 32},
    "classes": ["cat", "dog", 7],
    "coarse_classes": ["animal", "number"],
    "rows": {"train": 1000, "test": 200},
    "standin": "digits",
    "licence": "CC0",
    "citation": "none",
    "note": "for tests",
}
TORCHVISION = IMAGES["torchvision"]
FOLDER = {"layout": "leaf", "names": ["mine", "b/mine"], "parts": [{"train": ["train"], "test": ["test"]}]}
#: Changes to a card of grey images in LEAF's files.
LEAF = {"folder": FOLDER, "image": {"channels": 1, "size": 28}, "coarse_classes": ...}


def write_image_card(place: Path, **changes: object) -> Path:
    path = place / "mine.yaml"
    content = {key: value for key, value in (IMAGES | changes).items() if value is not ...}
    path.write_text(yaml.safe_dump(content))
    return path


def test_an_image_card_is_read_in_full(tmp_path):
    card = load_card(write_image_card(tmp_path))
    assert isinstance(card, ImageCard)
    assert (card.channels, card.size, card.classes, card.num_rows) == (3, 32, ("cat", "dog", "7"), 1200)
    assert (card.coarse_classes, card.rows) == (("animal", "number"), {"train": 1000, "test": 200})
    assert (card.torchvision.dataset, card.torchvision.files, card.torchvision.first_label) == ("EMNIST", ("a/b",), 1)
    assert card.torchvision.parts["test"] == {"split": "letters", "train": False}
    assert (card.files, card.can_be_fetched) == ((card.file,), True)
    assert card.details() == {
        "images": "1,000 for train and 200 for test, 32 x 32 pixels, colour",
        "classes": "3: cat, dog, 7; 2 superclasses",
    }


def test_what_an_image_card_may_leave_out(tmp_path):
    path = write_image_card(tmp_path, torchvision=None, rows={"train": 5, "test": None}, standin=None)
    path.write_text(yaml.safe_dump(without(yaml.safe_load(path.read_text()), "coarse_classes")))
    card = load_card(path)
    assert (card.torchvision, card.coarse_classes, card.num_rows, card.can_be_fetched) == (None, (), 5, False)


def test_an_image_card_may_name_the_folder_as_published(tmp_path):
    card = load_card(write_image_card(tmp_path, **LEAF))
    assert (card.folder.layout, card.folder.names, card.has_writers) == ("leaf", ("mine", "b/mine"), True)
    assert card.folder.parts == ({"train": ("train",), "test": ("test",)},)
    assert card.details()["folder"] == "or a folder mine or b/mine with train/*.json and test/*.json"
    assert not card.folder.joins_parts
    card = load_card("cinic10")
    assert (card.folder.joins_parts, card.has_writers, card.num_rows) == (True, False, 270_000)
    assert card.details()["folder"].endswith(" with train/CLASS/*.png and valid/CLASS/*.png and test/CLASS/*.png")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": {"channels": 2, "size": 32}}, "image.channels=2: give 1 for grey images or 3 for colours"),
        ({"image": {"channels": 1, "size": 0}}, "image, size=0: give height and width in pixels"),
        ({"image": {"channels": 1}}, "image: missing key 'size'"),
        ({"classes": ["cat"]}, "classes: give two or more names, all different"),
        ({"classes": ["cat", "cat"]}, "all different"),
        ({"coarse_classes": "animal"}, "coarse_classes: expected a list"),
        ({"coarse_clases": []}, "unknown key 'coarse_clases' (did you mean 'coarse_classes'?)"),
        ({"rows": {"train": None, "test": 3}}, "rows, train=None: give the number of images"),
        ({"rows": 3}, "rows: expected the keys train, test, got int"),
        ({"files": []}, "files: got 0 files"),
        ({"format": "scikit-learn-digits"}, "files: format scikit-learn-digits has no file; give an empty list"),
        ({"task": "regression"}, "task='regression': expected one of classification"),
        ({"standin": "esol"}, "standin='esol': expected one of digits"),
        ({"torchvision": TORCHVISION | {"files": []}}, "files=[]: name the files by which"),
        ({"torchvision": TORCHVISION | {"dataset": "utils"}}, "dataset='utils': expected one of MNIST, FashionMNIST"),
        ({"torchvision": TORCHVISION | {"dataset": "ImageFolder"}}, "dataset='ImageFolder': expected one of MNIST"),
        ({"torchvision": TORCHVISION | {"train": {"root": "/"}}}, "train={'root': '/'}: give the arguments of EMNIST"),
        ({"torchvision": TORCHVISION | {"train": {"x": []}}}, "train={'x': []}: give the arguments of EMNIST"),
        ({"torchvision": TORCHVISION | {"train": True}}, "train=True: give the arguments of EMNIST"),
        ({"torchvision": TORCHVISION | {"first_label": 2}}, "first_label=2: give 0 or 1"),
        ({"torchvision": {"dataset": "MNIST"}}, "torchvision: missing key 'train'"),
        ({"folder": FOLDER}, "folder: none of the layouts has superclasses; leave coarse_classes out"),
        (LEAF | {"image": {"channels": 3, "size": 28}}, "LEAF's JSON files hold grey images; set image.channels to 1"),
        (LEAF | {"folder": FOLDER | {"layout": "leav"}}, "layout='leav': expected one of leaf, class-folders (did you"),
        (LEAF | {"folder": FOLDER | {"parts": []}}, "folder, parts is empty: name the folders of the parts"),
        (LEAF | {"folder": FOLDER | {"parts": [{"test": ["a"]}]}}, "folder, parts[0]: missing key 'train'"),
        (LEAF | {"folder": FOLDER | {"parts": [{"train": "a"}]}}, "folder, parts[0], train: expected a list, got 'a'"),
        (LEAF | {"folder": FOLDER | {"names": []}}, "folder, names=[]: give one or more folders"),
        (LEAF | {"folder": FOLDER | {"names": ["/mine"]}}, "names=['/mine']: give one or more folders, relative and"),
        (LEAF | {"folder": FOLDER | {"names": ["../x"]}}, "names=['../x']: give one or more folders, relative and"),
    ],
)
def test_a_fault_of_an_image_card_is_named(tmp_path, changes, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load_card(write_image_card(tmp_path, **changes))


def test_a_card_must_say_its_format(tmp_path):
    for content in ("- a list", "name: mine"):
        (tmp_path / "mine.yaml").write_text(content)
        with pytest.raises(ConfigurationError, match=r"missing key 'format', one of csv, csv\.gz, .*npz"):
            load_card(tmp_path / "mine.yaml")


def test_a_card_of_another_kind_is_refused():
    assert expect_kind(load_card("mnist"), ImageCard).name == "mnist"
    with pytest.raises(ConfigurationError, match="card 'mnist' describes images, not molecules: use ImageData, or"):
        expect_kind(load_card("mnist"), MoleculeCard)


def test_cards_name_what_torchvision_has():
    import inspect

    import torchvision

    for name in available_cards():
        card = load_card(name)
        if isinstance(card, ImageCard) and card.torchvision is not None:
            kind = getattr(torchvision.datasets, card.torchvision.dataset)
            for arguments in card.torchvision.parts.values():
                inspect.signature(kind).bind("root", download=True, **arguments)
