import bz2
import hashlib
import pickle
import socket
import string
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
import torch
import torchvision
from image_files import cycle, pictures, write_idx, write_mnist, write_npz

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.lookup import dataset_cache, load_card
from lightning_fl.data.images.module import ImageOrigin
from lightning_fl.data.images.sources import download, find_images, torchvision_cache
from lightning_fl.data.images.standin import read_digits

MNIST = load_card("mnist")


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


# ---- where images are looked for


def test_the_order_of_the_folders(tmp_path, own_folder):
    card = replace(MNIST, files=(replace(MNIST.file, sha256=()),))
    root = tmp_path / "root"
    root.mkdir()
    write_mnist(torchvision_cache())
    found = find_images(card, data_root=root)
    assert (found.layout, found.origin, found.verified) == ("torchvision", "cache", True)
    assert found.path == torchvision_cache()
    dataset_cache(card).mkdir(parents=True)
    write_npz(dataset_cache(card) / "mnist.npz")
    assert (find_images(card, data_root=root).layout, find_images(card).origin) == ("npz", "cache")
    write_mnist(own_folder)
    found = find_images(card, data_root=root)
    assert (found.layout, found.origin, found.verified) == ("torchvision", "LIGHTNING_FL_DATA", False)
    write_npz(own_folder / "mnist.npz")  # goes before torchvision's layout
    assert (find_images(card).layout, find_images(card).path) == ("npz", own_folder / "mnist.npz")
    write_mnist(root)
    assert find_images(card, data_root=root).origin == "data_root"


def test_the_sum_of_a_file_is_compared_and_recorded(own_folder):
    path = write_npz(own_folder / "mnist.npz")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.warns(UserWarning, match="card mnist"):
        found = find_images(MNIST)
    assert found.record() == {"file": "mnist.npz", "sha256": digest, "verified": False, "layout": "npz"}
    known = replace(MNIST, files=(replace(MNIST.file, sha256=(digest,)),))
    assert find_images(known).verified
    assert find_images(known).place == str(path)


def test_the_record_of_torchvisions_files_has_all_sums(own_folder):
    write_mnist(own_folder)
    record = find_images(MNIST).record()
    assert list(record["sha256"]) == list(MNIST.torchvision.files)
    assert (
        record["sha256"]["MNIST/raw/train-labels-idx1-ubyte"]
        == hashlib.sha256((own_folder / "MNIST/raw/train-labels-idx1-ubyte").read_bytes()).hexdigest()
    )


# ---- the download


class FakeMNIST:
    """Stands in for torchvision's class; ``behaviour`` is what a download does."""

    behaviour = staticmethod(write_mnist)
    timeouts: list = []  # noqa: RUF012

    def __init__(self, root, train, download=False):
        FakeMNIST.timeouts.append(socket.getdefaulttimeout())
        FakeMNIST.behaviour(root)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.delenv("LIGHTNING_FL_OFFLINE", raising=False)
    monkeypatch.setattr(torchvision.datasets, "MNIST", FakeMNIST)
    monkeypatch.setattr(FakeMNIST, "timeouts", [])

    def set_behaviour(behaviour):
        monkeypatch.setattr(FakeMNIST, "behaviour", staticmethod(behaviour))

    return set_behaviour


def test_a_download_goes_to_the_cache_when_it_is_complete(fake):
    found = find_images(MNIST)
    assert (found.origin, found.verified, found.path) == ("download", True, torchvision_cache())
    assert find_images(MNIST, allow_download=False).origin == "cache"
    assert FakeMNIST.timeouts == [10.0, 10.0]  # a silent server does not hold it up
    assert socket.getdefaulttimeout() is None
    assert not (torchvision_cache() / "MNIST.part").exists()


def test_a_second_part_of_the_same_data_set_replaces_the_first(fake):
    (torchvision_cache() / "MNIST" / "raw").mkdir(parents=True)
    assert find_images(MNIST).origin == "download"
    assert find_images(MNIST).origin == "cache"


def test_a_failed_download_leaves_nothing_behind(fake):
    def fail(root):
        (root / "MNIST").mkdir()
        raise RuntimeError("File not found\nor corrupted.")

    fake(fail)
    with pytest.raises(DataError, match=r"MNIST .*RuntimeError: File not found or corrupted"):
        find_images(MNIST)
    assert [path.name for path in torchvision_cache().iterdir()] == ["MNIST.lock"]
    fake(lambda root: None)
    with pytest.raises(DataError, match="MNIST/raw/train-images"):
        find_images(MNIST)


def test_what_another_process_downloaded_meanwhile_is_taken(fake):
    fake(lambda root: pytest.fail("it is there"))
    write_mnist(torchvision_cache())
    download(MNIST)


def test_a_cache_that_cannot_be_written_is_named(fake, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="LIGHTNING_FL_CACHE"):
        find_images(MNIST)


# ---- reading


def test_mnists_files_are_read(own_folder):
    write_mnist(own_folder)
    parts = find_images(MNIST).read()
    assert [len(part) for part in parts.values()] == [12, 6]
    assert torch.equal(parts["train"].images[:, 0], torch.from_numpy(pictures(12, 28, seed=12)))
    assert parts["test"].targets.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("name", "split", "first_label", "classes"),
    [
        ("emnist_letters", "letters", 1, string.ascii_lowercase),
        ("emnist_byclass", "byclass", 0, string.digits + string.ascii_uppercase + string.ascii_lowercase),
    ],
)
def test_emnists_classes_are_characters(own_folder, name, split, first_label, classes):
    for part in ("train", "test"):
        prefix = own_folder / "EMNIST" / "raw" / f"emnist-{split}-{part}"
        write_idx(prefix.with_name(f"{prefix.name}-images-idx3-ubyte"), pictures(len(classes), 28))
        labels = cycle(len(classes), len(classes)) + first_label
        write_idx(prefix.with_name(f"{prefix.name}-labels-idx1-ubyte"), labels)
    card = load_card(name)
    assert "".join(card.classes) == "".join(find_images(card).read()["train"].column("label")) == classes


def test_usps_is_read(own_folder):
    for name, count in (("usps.bz2", 20), ("usps.t.bz2", 10)):
        lines = [f"{i % 10 + 1} " + " ".join(f"{k + 1}:{-1 if k else 1}" for k in range(256)) for i in range(count)]
        (own_folder / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    card = load_card("usps")
    parts = find_images(card).read()
    assert parts["train"].images.shape == (20, 1, 16, 16)
    assert parts["test"].targets.tolist() == list(range(10))
    assert parts["test"].images[0, 0, 0, :2].tolist() == [255, 0]


def test_svhn_is_read_with_ten_as_zero(own_folder, monkeypatch):
    split_list = {}
    for split in ("train", "test"):
        path = own_folder / f"{split}_32x32.mat"
        scipy.io.savemat(
            path, {"X": pictures(20, 32, 3).transpose(1, 2, 3, 0), "y": np.where(cycle(20, 10) == 0, 10, cycle(20, 10))}
        )
        split_list[split] = ["", path.name, md5(path)]
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", split_list)
    card = load_card("svhn")
    train = find_images(card).read()["train"]
    assert train.targets.tolist() == cycle(20, 10).tolist()
    assert torch.equal(train.images, torch.from_numpy(pictures(20, 32, 3)).permute(0, 3, 1, 2))


@pytest.fixture
def cifar100(own_folder, monkeypatch):
    folder = own_folder / "cifar-100-python"
    folder.mkdir()
    flat = pictures(100, 32, 3).transpose(0, 3, 1, 2).reshape(100, -1)
    content = {"data": flat, "fine_labels": list(range(100)), "coarse_labels": [i % 20 for i in range(100)]}
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": list(load_card("cifar100").classes)}))
    kind = torchvision.datasets.CIFAR100
    monkeypatch.setattr(kind, "train_list", [["train", md5(folder / "train")]])
    monkeypatch.setattr(kind, "test_list", [["test", md5(folder / "test")]])
    monkeypatch.setattr(kind, "meta", {"filename": "meta", "key": "fine_label_names", "md5": md5(folder / "meta")})
    return folder


def test_cifar100_has_classes_and_superclasses(cifar100):
    card = load_card("cifar100")
    parts = find_images(card).read()
    assert parts["test"].targets.tolist() == list(range(100))
    assert torch.equal(parts["train"].images, torch.from_numpy(pictures(100, 32, 3)).permute(0, 3, 1, 2))
    coarse = find_images(card).read(coarse_labels=True)["train"]
    assert coarse.targets.tolist() == [i % 20 for i in range(100)]
    assert (len(coarse.classes), coarse.classes[-1]) == (20, "vehicles_2")
    (cifar100 / "train").write_bytes(b"another file")
    with pytest.raises(DataError, match="CIFAR100 in .*RuntimeError"):
        find_images(card).read()


def test_scikit_learns_digits_are_always_there():
    card = load_card("digits")
    found = find_images(card)
    assert (found.layout, found.place, found.record()["file"], found.record()["sha256"]) == (
        "scikit-learn",
        "scikit-learn",
        None,
        None,
    )
    (digits,) = found.read().values()
    assert digits.images.shape == (1797, 1, 8, 8)
    assert (int(digits.images.max()), len(digits.images.unique())) == (255, 17)
    assert torch.bincount(digits.targets).tolist() == torch.bincount(read_digits().targets).tolist()


# ---- what a name means


def test_a_name_is_a_card_or_a_file(tmp_path):
    origin = ImageOrigin.of("usps")
    assert (origin.short_name, origin.card.name) == ("usps", "usps")
    path = write_npz(tmp_path / "mine.npz")
    origin = ImageOrigin.of(str(path))
    assert (origin.short_name, origin.card) == ("mine", None)
    read = origin.read(allow_download=False)
    assert (read.source, read.record["file"], read.record["verified"]) == ("user", "mine.npz", False)
    assert read.record["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
