import sys

import pytest
import yaml
from card_files import LEAF, without, write, write_image_card
from processes import run

from lightning_fl.core.errors import did_you_mean
from lightning_fl.data.cards.card import CardFile
from lightning_fl.data.cards.kinds import CardTarget
from lightning_fl.data.cards.lookup import (
    ImageCard,
    MoleculeCard,
    TableCard,
    available_cards,
    load_card,
)
from lightning_fl.files import user_file


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
    assert card.file == CardFile("mine.csv", ("0" * 64,), ("https://example.org/mine.csv",))
    assert card.targets == (CardTarget("y", "kcal/mol"),)
    assert (card.smiles, card.groups, card.rows, card.standin) == ("smiles", ("lab",), 3, None)


def test_cards_in_the_package_go_before_those_beside_it(tmp_path, monkeypatch):
    inside, beside = tmp_path / "inside" / "datasets", tmp_path / "beside" / "datasets"
    beside.mkdir(parents=True)
    write(beside)
    monkeypatch.setattr(user_file, "_PLACES", (inside.parent, beside.parent))
    assert available_cards() == {"mine": beside / "mine.yaml"}
    inside.mkdir(parents=True)
    write(inside)
    assert available_cards() == {"mine": inside / "mine.yaml"}


@pytest.mark.processes
def test_reading_a_card_imports_nothing_heavy():
    code = (
        "import sys; from lightning_fl.data.cards.lookup import load_card; load_card('esol');"
        "print([name for name in ('torch', 'lightning', 'pandas', 'rdkit', 'numpy') if name in sys.modules])"
    )
    ended = run(sys.executable, "-c", code)
    assert ended.code == 0, ended.err
    assert ended.out.strip() == "[]"


def test_did_you_mean_ignores_case_and_stays_silent_far_away():
    assert did_you_mean("SMILES", ["smiles", "target"]) == " (did you mean 'smiles'?)"
    assert did_you_mean("assay", ["smiles", "target"]) == ""


def test_names_of_any_script_are_fine_in_a_card(tmp_path):
    assert load_card(write(tmp_path, name="Löslichkeit 溶解度 (v1.2)")).name == "Löslichkeit 溶解度 (v1.2)"


# ---- images


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


def test_cards_name_what_torchvision_has():
    import inspect

    import torchvision

    for name in available_cards():
        card = load_card(name)
        if isinstance(card, ImageCard) and card.torchvision is not None:
            kind = getattr(torchvision.datasets, card.torchvision.dataset)
            for arguments in card.torchvision.parts.values():
                inspect.signature(kind).bind("root", download=True, **arguments)
