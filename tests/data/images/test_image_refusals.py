"""Refusals of images: type of the error, and the option or thing at fault."""

import json
import pickle
import re
import shutil

import numpy as np
import pytest
import torch
from image_files import cycle, leaf_content, pictures, write_cinic10, write_leaf, write_mnist, write_npz
from PIL import Image

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.cards.lookup import load_card
from lightning_fl.data.images.dataset import ImageDataset, read_npz
from lightning_fl.data.images.domains import ImageDomains
from lightning_fl.data.images.file import read_image_file
from lightning_fl.data.images.module import ImageData, ImageOrigin
from lightning_fl.data.images.silos import ImageFolders
from lightning_fl.data.images.sources import find_images
from lightning_fl.data.images.standin import digits_domain
from lightning_fl.data.partition import IID
from lightning_fl.data.shifts import LabelPermutation

MNIST, FEMNIST, CINIC = load_card("mnist"), load_card("femnist"), load_card("cinic10")


def image_data(**options):
    return ImageData(**({"partitioner": IID(num_clients=2)} | options))


def domains(**options):
    return ImageDomains(**({"domains": ["mnist", "usps"]} | options))


def folders(**options):
    return ImageFolders(**({"root": "nowhere", "size": 4} | options))


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")


@pytest.mark.parametrize(
    ("make", "options", "fault"),
    [
        (image_data, {"source": "fake"}, "ImageData.source='fake'"),
        (image_data, {"size": 0}, "ImageData.size=0"),
        (image_data, {"channels": 4}, "ImageData.channels=4"),
        (image_data, {"max_samples": 0}, "ImageData.max_samples=0"),
        (image_data, {"augment": ["turn"]}, "ImageData.augment[0]='turn'"),
        (image_data, {"augment": ["flip", "flip"]}, "augment"),
        (image_data, {"mean": [0.5]}, "mean=[0.5], std=None"),
        (image_data, {"mean": [0.5], "std": [0.5], "normalize": False}, "normalize=False"),
        (image_data, {"mean": [0.5], "std": [0.0]}, "ImageData.std[0]=0.0"),
        (image_data, {"mean": [0.5, 0.5], "std": [1.0, 1.0]}, "mean=[0.5, 0.5]"),
        (image_data, {"mean": [0.5], "std": [1.0, 1.0, 1.0]}, "std=[1.0, 1.0, 1.0]"),
        (image_data, {"name": "mnits"}, "'mnist'"),
        (image_data, {"name": "mnist", "coarse_labels": True}, "coarse_labels=True"),
        (image_data, {"name": "esol"}, "MoleculeNet"),
        (image_data, {"name": "a.npz", "source": "standin"}, "source='standin'"),
        (image_data, {"name": "a.npz", "data_root": "x"}, "data_root='x'"),
        (domains, {"domains": ["mnist"]}, "domains=['mnist']"),
        (domains, {"domains": ["mnist", "mnist"]}, "domains"),
        (domains, {"clients_per_domain": 0}, "ImageDomains.clients_per_domain=0"),
        (domains, {"clients_per_domain": [1, 0]}, "ImageDomains.clients_per_domain[1]=0"),
        (domains, {"clients_per_domain": [1, 2, 3]}, "clients_per_domain=[1, 2, 3]"),
        (domains, {"samples_per_client": 0}, "ImageDomains.samples_per_client=0"),
        (domains, {"source": "fake"}, "ImageDomains.source='fake'"),
        (domains, {"size": 0}, "ImageDomains.size=0"),
        (domains, {"domains": ["mnist", "esol"]}, "card 'esol'"),
        (folders, {"size": 0}, "ImageFolders.size=0"),
        (folders, {"channels": 2}, "ImageFolders.channels=2"),
        (folders, {"split": (0.5, 0.5, 0.5)}, "split="),
        (folders, {"silos": []}, "silos=[]"),
        (folders, {"silos": ["a", "a"]}, "silos"),
        (folders, {"classes": ["a"]}, "classes=['a']"),
        (folders, {"mean": [0.5] * 3, "std": [0.5] * 3, "channels": 1}, "mean=[0.5, 0.5, 0.5]"),
        (image_data, {"mean": [-0.5], "std": [0.5]}, "ImageData.mean[0]=-0.5"),
    ],
)
def test_options_are_refused(make, options, fault):
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        make(**options)


@pytest.mark.parametrize(
    ("make", "options", "kind", "fault"),
    [
        (image_data, {"name": "usps", "source": "real"}, DataError, "data set usps"),
        (image_data, {"name": "digits", "source": "standin"}, ConfigurationError, "digits has no stand-in"),
        (image_data, {"name": "cifar100", "source": "standin"}, ConfigurationError, "cifar100 has no stand-in"),
        (image_data, {"name": "cifar100"}, DataError, "data set cifar100"),
        (image_data, {"name": "gone.npz"}, DataError, "'gone.npz'"),
        (image_data, {"max_samples": 1}, DataError, "max_samples=1 .*test"),
        (image_data, {"mean": [0.5] * 3, "std": [0.5] * 3}, ConfigurationError, r"mean=\[0.5, 0.5, 0.5\]"),
        (
            image_data,
            {"shifts": [LabelPermutation(permutations=[[0, 1]] * 2, clients_per_value=1)]},
            ConfigurationError,
            "LabelPermutation.* 2 labels.* 3",
        ),
        (domains, {"source": "real"}, DataError, "2 of 2 domains"),
    ],
)
def test_missing_or_unfit_images_are_refused_in_setup(own_folder, make, options, kind, fault):
    if make is image_data and "name" not in options:
        options = {"name": str(write_npz(own_folder / "mine.npz"))} | options
    data = make(**options)
    with pytest.raises(kind, match=fault):
        data.setup("fit")


@pytest.mark.parametrize("name", ["num_classes", "image_shape"])
def test_access_before_setup_is_refused(name):
    with pytest.raises(DataError, match=r"prepare_data\(\)"):
        getattr(image_data(name="mine.npz"), name)


def test_there_are_only_so_many_renderings():
    with pytest.raises(DataError, match="6 domains"):
        digits_domain(6, size=8)


# ---- arrays

BYTES, LABELS = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.long)


@pytest.mark.parametrize(
    ("images", "targets", "columns", "fault"),
    [
        (BYTES.float(), LABELS, {}, "[2, 1, 4, 4] and type torch.float32"),
        (BYTES[:, 0], LABELS, {}, "[2, 4, 4]"),
        (BYTES.expand(2, 2, 4, 4), LABELS, {}, "[2, 2, 4, 4]"),
        (BYTES[:0], LABELS[:0], {}, "[0, 1, 4, 4]"),
        (BYTES, torch.zeros(3, dtype=torch.long), {}, "[3]"),
        (BYTES, torch.zeros(2), {}, "torch.float32"),
        (BYTES, torch.tensor([0, 2]), {}, "from 0 to 2"),
        (BYTES, torch.tensor([-1, 0]), {}, "from -1 to 0"),
        (BYTES, LABELS, {"writer": [1, 2, 3]}, "'writer' has 3 values for 2"),
    ],
)
def test_tensors_are_refused(images, targets, columns, fault):
    with pytest.raises(DataError, match=rf"mine: .*{re.escape(fault)}"):
        ImageDataset(images, targets, classes=["a", "b"], columns=columns, place="mine")


def test_unknown_columns_are_refused():
    data = ImageDataset(BYTES, LABELS, classes=["a", "b"], columns={"writer": [1, 2]})
    with pytest.raises(DataError, match=r"'writter' .*'writer'.* writer, label"):
        data.column("writter")


DOMAINS = {"train_domains": np.array([2, 0, 1]), "domain_names": np.array(["art", "photo"])}


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({"test_images": pictures(3), "test_labels": cycle(3)}, "test_images, test_labels"),
        ({"train_images": pictures(3)}, "'train_labels'"),
        ({"train_labels": cycle(3)}, "'train_images'"),
        ({"train_images": pictures(3) / 255, "train_labels": cycle(3)}, "[3, 8, 8] and type float64"),
        ({"train_images": pictures(3, 8, 2), "train_labels": cycle(3)}, "[3, 8, 8, 2] and type uint8"),
        ({"train_images": pictures(3)[0], "train_labels": cycle(3)}, "[8, 8] and type uint8"),
        ({"train_images": pictures(3), "train_labels": np.eye(3, dtype=int)}, "train_labels has shape [3, 3]"),
        ({"train_images": pictures(3), "train_labels": np.ones(3)}, "train_labels has shape [3] and type float64"),
        ({"train_images": pictures(0), "train_labels": cycle(0)}, "train_labels has shape [0]"),
        ({"train_images": pictures(3), "train_labels": cycle(4)}, "[4] and type torch.int64"),
        ({"train_images": pictures(3), "train_labels": cycle(3), **DOMAINS}, "train_domains"),
    ],
)
def test_arrays_are_refused(tmp_path, arrays, fault):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=rf"mine\.npz.*{re.escape(fault)}"):
        read_npz(tmp_path / "mine.npz")


def test_missing_labels_are_refused(tmp_path):
    with pytest.raises(DataError, match="'train_fine'"):
        read_npz(write_npz(tmp_path / "mine.npz"), labels="fine")


def test_damaged_files_are_refused(tmp_path):
    path = write_npz(tmp_path / "mine.npz")
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    np.save(tmp_path / "single.npy", np.zeros(3))
    np.savez(tmp_path / "object.npz", train_images=np.array([{"an": "object"}], dtype=object), train_labels=cycle(1))
    for broken, fault in (
        (content[: len(content) // 2], ""),
        (b"no file of numpy's", ""),
        (b"", ""),
        (bytes(flipped), "checksum"),
        ((tmp_path / "single.npy").read_bytes(), "single array"),
        ((tmp_path / "object.npz").read_bytes(), "Python objects"),
        (pickle.dumps({"an": "object"}), "numpy"),
    ):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=rf"mine\.npz .*{fault}") as refused:
            read_npz(path)
        assert "pickle" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "pixels", "fault"),
    [
        ("a.png", np.full((4, 4), 1000, dtype=np.uint16), "mode I;16"),
        ("a.tiff", np.ones((4, 4), dtype=np.float32), "mode F"),
        ("a.tiff", [np.full((4, 4), shade, dtype=np.uint8) for shade in (0, 9, 99)], "3 pictures"),
    ],
)
def test_images_that_pillow_would_clip_are_refused(tmp_path, name, pixels, fault):
    pictures = [Image.fromarray(page) for page in (pixels if isinstance(pixels, list) else [pixels])]
    pictures[0].save(tmp_path / name, **({"save_all": True, "append_images": pictures[1:]} if pictures[1:] else {}))
    with pytest.raises(DataError, match=f"silo x: .*{name} .*ValueError: .*{fault}"):
        read_image_file(tmp_path / name, 1, "silo x")


# ---- sources


def test_missing_images_are_refused(own_folder, monkeypatch):
    write_mnist(own_folder)
    (own_folder / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()  # an incomplete layout does not count
    parts = (r"mnist\.npz", "MNIST/raw/train-images-idx3-ubyte", "LIGHTNING_FL_DATA", "cache", "LIGHTNING_FL_OFFLINE")
    with pytest.raises(DataError, match=f"{'.*'.join(parts)}.*Put mnist"):
        find_images(MNIST)
    with pytest.raises(
        DataError, match=r"femnist\.npz .*data/femnist/data .*train/\*\.json.*data_root.* folder femnist "
    ):
        find_images(FEMNIST)
    monkeypatch.delenv("LIGHTNING_FL_OFFLINE")
    with pytest.raises(DataError, match="synthdigits.*its card"):
        find_images(load_card("synthdigits"))
    with pytest.raises(DataError, match=r"prepare_data\(\)"):
        find_images(MNIST, allow_download=False)
    with pytest.raises(ConfigurationError, match="data_root='.*gone' .*femnist"):
        find_images(FEMNIST, data_root=own_folder / "gone")


def test_images_that_are_not_the_cards_are_refused(own_folder):
    with pytest.raises(ConfigurationError, match="'esol' .*MoleculeNet"):
        ImageOrigin.of("esol")
    write_mnist(own_folder)
    (own_folder / "MNIST" / "raw" / "t10k-images-idx3-ubyte").write_bytes(b"short")
    with pytest.raises(DataError, match=r"MNIST in .*own .*fetch"):
        find_images(MNIST).read()
    write_npz(own_folder / "synthdigits.npz", train_labels=cycle(60, 11))
    card = load_card("synthdigits")
    with pytest.raises(DataError, match=r"synthdigits\.npz, train part: .* 0 to 10.* 10 classes"):
        find_images(card).read()


# ---- published folders


def change(**changes):
    """The content of a file, with some keys of writer "a" changed; keys of the file itself begin with ``top_``."""
    content = leaf_content({"a": 2, "b": 3})
    for key, value in changes.items():
        if key.startswith("top_"):
            content[key.removeprefix("top_")] = value
        else:
            content["user_data"]["a"][key] = value
    return content


IMAGE = [0.5] * 784


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "JSON"),
        (b"\xff\xfe", "JSON .'utf-8' codec"),
        (["users"], "'users'"),
        ({"users": [], "num_samples": []}, "'user_data'"),
        (change(top_num_samples=[2]), "2 users and 1 num_samples"),
        (change(top_num_samples=[2, 4]), "writer b .*num_samples 4"),
        (change(top_users=["a", "c"]), "writer b"),
        (change(top_users=["a", "b", "c"], top_num_samples=[2, 3, 1]), "writer c"),
        (change(top_users=["a", "b", "a"], top_num_samples=[2, 3, 2]), "writer a .*twice"),
        (change(x=None), "writer a .*'x'"),
        (change(top_user_data={"a": [], "b": []}), "writer a .*'x'"),
        (change(y=[1]), "writer a has .* 1 labels and num_samples 2"),
        (change(x=[IMAGE, IMAGE[:-1]]), "writer a"),
        (change(x=[IMAGE[:-1], IMAGE[:-1]]), r"writer a has x of shape \[2, 783\]"),
        (change(x=[IMAGE, 3]), "writer a"),
        (change(x=[IMAGE, [*IMAGE[:-1], "dark"]]), "writer a"),
        (change(x=[IMAGE, [*IMAGE[:-1], 255]]), "writer a: image 1 has the value 255"),
        (change(x=[[*IMAGE[:-1], -0.1], IMAGE]), "writer a: image 0 has the value -0.1"),
        (change(x=[[*IMAGE[:-1], float("nan")], IMAGE]), "writer a: image 0 has the value nan"),
        (change(x=[[*IMAGE[:-1], None], IMAGE]), "writer a: image 0 has the value nan"),
        (change(y=[3, 62]), "writer a: a label"),
        (change(y=[-1, 3]), "writer a: a label"),
        (change(y=[3, 1.0]), "writer a: a label"),
        (leaf_content({}), "no writer"),
    ],
)
def test_files_of_leaf_are_refused(own_folder, content, fault):
    folder = own_folder / "femnist" / "all_data"
    folder.mkdir(parents=True)
    path = folder / "all_data_0.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=f"{fault}.*preprocess.sh") as raised:
        find_images(FEMNIST).read()
    assert fault == "no writer" or str(path) in str(raised.value)


def test_folders_of_leaf_are_refused(own_folder):
    (own_folder / "femnist" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"femnist/train .*\.json"):
        find_images(FEMNIST)
    write_leaf(own_folder / "femnist", {"train": [{"a": 2}]})
    with pytest.raises(DataError, match="femnist/test "):
        find_images(FEMNIST)
    with pytest.warns(UserWarning, match="STAND-IN DATA.*femnist/test "):
        image_data(name="femnist").setup()
    shutil.rmtree(own_folder / "femnist")
    write_leaf(own_folder / "femnist", {"all_data": [{"a": 3, "b": 2}, {"c": 3, "a": 3}]})
    with pytest.raises(DataError, match=r"all_data/all_data_1_.*writer a .*all_data_0_"):
        find_images(FEMNIST).read()


def truncate(folder):
    path = folder / "valid" / "cat" / "n01_3.png"
    path.write_bytes(path.read_bytes()[:50])


def empty(folder):
    shutil.rmtree(folder / "valid" / "truck")
    (folder / "valid" / "truck").mkdir()


@pytest.mark.filterwarnings("ignore:.*archive is unpacked completely")
@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (truncate, r"data set cinic10: .*valid/cat/n01_3\.png"),
        (
            lambda folder: Image.new("RGB", (64, 48)).save(folder / "test" / "dog" / "n00_5.png"),
            r"test/dog/n00_5\.png has 64 x 48 pixels",
        ),
        (lambda folder: shutil.rmtree(folder / "valid" / "truck"), "CINIC-10/valid/truck "),
        (empty, r"CINIC-10/valid/truck .*\.png"),
        (lambda folder: (folder / "valid" / "truck" / "0.png").mkdir(), r"cinic10: .*/valid/truck/0.png "),
        (lambda folder: (folder / "test" / "plane").mkdir(), "CINIC-10/test .*plane .*airplane, auto"),
        (lambda folder: shutil.rmtree(folder / "test"), "CINIC-10/test/airplane"),
    ],
)
def test_folders_of_classes_are_refused(own_folder, damage, fault):
    damage(write_cinic10(own_folder / "CINIC-10"))
    with pytest.raises(DataError, match=fault):
        find_images(CINIC).read()


# ---- silos


def write_images(folder):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 6)).save(folder / "0.png")


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (
            lambda folder: (write_images(folder / "train" / "cat"), write_images(folder / "more" / "cat")),
            "odd has the folders more, train",
        ),
        (lambda folder: write_images(folder / "val" / "cat"), "odd has the folders val"),
        (lambda folder: write_images(folder / "wolf"), "odd has folders wolf"),
        (lambda folder: (folder / "cat").mkdir(), "no images"),
        (lambda folder: None, "no images"),
        (lambda folder: (write_npz(folder / "a.npz"), write_npz(folder / "b.npz")), r"several \.npz files"),
        (
            lambda folder: np.savez(folder / "a.npz", train_images=pictures(4), train_labels=cycle(4, 4)),
            r"a\.npz, train part: .*0 to 3.*3 classes",
        ),
        (lambda folder: (folder / "a.npz").write_bytes(b"no file"), r"a\.npz"),
    ],
)
def test_silos_are_refused_by_name(tmp_path, make, fault):
    (tmp_path / "odd").mkdir()
    make(tmp_path / "odd")
    data = folders(root=str(tmp_path), silos=["odd"], classes=["cat", "dog", "fox"])
    with pytest.raises(DataError, match=f"silo odd.*{fault}"):
        data.client_data(0, "train")


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda root: write_npz(root / "file" / "data.npz"), r"silo file: .*\.npz"),
        (lambda root: root.rmdir(), "root: .*root is not a folder"),
        (lambda root: shutil.rmtree(root / "file"), "root='.*root' has no folders"),
        (lambda root: None, r"silo file: .*\.npz"),
        (lambda root: (root / "file" / "cat").mkdir(), r"\['cat'\]"),
    ],
)
def test_roots_are_refused(tmp_path, make, fault):
    root = tmp_path / "root"
    root.mkdir()
    if "is not a folder" not in fault:
        (root / "file").mkdir()
    make(root)
    with pytest.raises(DataError, match=fault):
        folders(root=str(root)).setup("fit")


@pytest.mark.parametrize(
    ("name", "options"), [("num_classes", {"silos": ["a"]}), ("num_clients", {"classes": ["a", "b"]})]
)
def test_silos_and_classes_are_unknown_before_setup(name, options):
    with pytest.raises(DataError, match=r"setup\(\)"):
        getattr(folders(**options), name)
