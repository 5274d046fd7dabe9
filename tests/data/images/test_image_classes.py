"""CINIC-10 in its folders of PNG files."""

import hashlib
import multiprocessing
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from image_files import CINIC_CLASSES, cycle, pictures, write_cinic10, write_npz
from processes import LIMIT

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.lookup import load_card
from lightning_fl.data.images import file as image_classes
from lightning_fl.data.images import file as image_file
from lightning_fl.data.images.file import cached_images
from lightning_fl.data.images.module import ImageData
from lightning_fl.data.images.sources import find_images
from lightning_fl.data.partition import IID, Dirichlet, FromFile
from lightning_fl.data.partition.from_file import split_file_text

CARD = load_card("cinic10")

pytestmark = pytest.mark.filterwarnings("ignore:.*archive is unpacked completely")


@pytest.fixture
def cinic(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(tmp_path))
    return write_cinic10(tmp_path / "CINIC-10")


@pytest.fixture
def opened(monkeypatch):
    """The files that were opened one by one."""
    paths = []
    read_image_file = image_file.read_image_file
    monkeypatch.setattr(
        image_file, "read_image_file", lambda path, *rest: paths.append(path) or read_image_file(path, *rest)
    )
    return paths


def read():
    return find_images(CARD).read()


def same(one, other):
    return list(one) == list(other) and all(
        torch.equal(one[split].images, other[split].images) and torch.equal(one[split].targets, other[split].targets)
        for split in one
    )


# ---- what is read


def test_training_and_validation_images_are_put_together(cinic):
    parts = read()
    assert {split: len(part) for split, part in parts.items()} == {"train": 40, "test": 20}
    train = parts["train"]
    assert train.images.shape == (40, 3, 32, 32)
    assert train.targets.tolist() == [label for _ in range(2) for label in range(10) for _ in range(2)]
    assert train.classes == list(CINIC_CLASSES)
    assert torch.equal(train.images[0].permute(1, 2, 0), torch.from_numpy(pictures(1, 32, 3, seed=0)[0]))
    assert torch.equal(train.images[1], torch.from_numpy(pictures(1, 32, 1, seed=1)).expand(3, -1, -1))  # a grey one
    valid = pictures(1, 32, 3, seed=100 + 30)[0]  # the first of class 3 in the second part
    assert torch.equal(train.images[26].permute(1, 2, 0), torch.from_numpy(valid))


def test_a_data_module_reads_it(cinic):
    data = ImageData(
        name="cinic10",
        source="real",
        split_seed=0,
        partitioner=Dirichlet(num_clients=3, alpha=1.0),
        split=(0.8, 0.2, 0),
    )
    data.prepare_data()
    data.setup()
    assert sum(data.num_samples("test")) == 20
    assert sum(data.num_samples("train")) + sum(data.num_samples("val")) == 40
    record = data.describe()
    assert (record["file"], record["layout"], record["num_files"]) == ("CINIC-10", "class-folders", 60)


def test_a_split_file_is_for_the_same_folder(cinic, tmp_path):
    def ready(partitioner):
        data = ImageData(name="cinic10", source="real", split_seed=0, partitioner=partitioner)
        data.prepare_data()
        data.setup()
        return data

    data = ready(IID(num_clients=2))
    (tmp_path / "splits.json").write_text(split_file_text(data, range(2)))
    again = FromFile(path=str(tmp_path / "splits.json"))
    assert [ready(again).held_rows(client) for client in range(2)] == [data.held_rows(client) for client in range(2)]
    path = cinic / "train" / "airplane" / "n00_0.png"
    path.rename(path.with_name("n09_0.png"))
    with pytest.raises(DataError, match=f"sum {data.describe()['names_and_sizes_sha256']}, these have"):
        ready(again)


def test_a_npz_file_goes_first_and_its_validation_images_are_joined(cinic):
    more = {"val_images": pictures(20, 32, 3, 5), "val_labels": cycle(20, 10)}
    write_npz(cinic.parent / "cinic10.npz", size=32, channels=3, **more)
    parts = read()
    assert {split: len(part) for split, part in parts.items()} == {"train": 80, "test": 30}
    assert torch.equal(parts["train"].images[60:].permute(0, 2, 3, 1), torch.from_numpy(more["val_images"]))


def test_an_incomplete_archive_is_noticed(cinic):
    with pytest.warns(UserWarning, match="CINIC-10 .*60 .*cinic10 .*270,000"):
        read()


# ---- the cache


def test_what_is_cached_is_what_was_read(cinic, opened):
    first = read()
    assert len(opened) == 60
    second = read()
    assert len(opened) == 60  # not one more
    assert same(first, second)
    path = cached_images(find_images(CARD))
    assert sorted(entry.name for entry in path.parent.iterdir()) == sorted([path.name, "lock"])
    with np.load(path) as arrays:  # MedMNIST's layout
        assert arrays["train_images"].shape == (40, 32, 32, 3)


@pytest.mark.parametrize("change", ["content", "name", "more", "fewer"])
def test_a_changed_folder_is_read_again(cinic, opened, change):
    first = read()
    old = cached_images(find_images(CARD))
    path = cinic / "train" / "airplane" / "n00_0.png"
    if change == "content":  # of the same size
        size, changed_ns = path.stat().st_size, path.stat().st_mtime_ns
        other = (path.parent / "n01_0.png").read_bytes()
        path.write_bytes(other.ljust(size, b"\0"))
        assert path.stat().st_size == size
        os.utime(path, ns=(changed_ns, changed_ns + 10**9))
    elif change == "name":
        path.rename(path.with_name("n09_0.png"))
    elif change == "more":
        shutil.copy(path, path.with_name("n05_0.png"))
    else:
        path.unlink()
    second = read()
    assert len(opened) > 60
    assert not same(first, second)
    assert not old.exists()  # one state of the folder is kept
    count = len(opened)
    assert same(second, read())
    assert len(opened) == count


def test_a_card_of_other_channels_has_images_of_its_own(cinic, opened):
    for channels in (3, 1):
        images = find_images(replace(CARD, channels=channels)).read()["train"].images
        assert images.shape[1] == channels
    assert len(opened) == 120


def test_a_cache_that_cannot_be_written_is_named(cinic, tmp_path, monkeypatch, opened):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(tmp_path / "file"))
    found = find_images(CARD)
    with pytest.warns(UserWarning, match="LIGHTNING_FL_CACHE"):
        parts = image_classes.read_class_folders(found)
    assert (len(parts["train"]), len(opened)) == (40, 60)


def test_a_full_disk_does_not_make_it_read_twice(cinic, monkeypatch, opened):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.warns(UserWarning, match="No space left on device"):
        read()
    assert len(opened) == 60
    assert [path.name for path in cached_images(find_images(CARD)).parent.iterdir()] == ["lock"]


def _read_in_a_process(start, results):
    torch.set_num_threads(1)  # a forked process must not use the threads of the one it comes from
    opened = []
    read_image_file = image_file.read_image_file
    image_file.read_image_file = lambda path, *rest: opened.append(path) or read_image_file(path, *rest)
    start.wait()
    parts = read()
    results.put((hashlib.sha256(parts["train"].images.numpy().tobytes()).hexdigest(), len(opened)))


@pytest.mark.processes
def test_two_processes_read_at_once(cinic):
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_read_in_a_process, args=(start, results)) for _ in range(2)]
    for process in processes:
        process.start()
    said = [results.get(timeout=LIMIT) for _ in processes]
    for process in processes:
        process.join(LIMIT)
    digest = hashlib.sha256(read()["train"].images.numpy().tobytes()).hexdigest()
    assert [words[0] for words in said] == [digest, digest]
    assert sorted(words[1] for words in said) == [0, 60]  # the second takes what the first kept


def test_hidden_and_other_files_are_not_images(cinic):
    (cinic / "train" / "bird" / "._n00_2.png").write_bytes(b"left by an archive")
    (cinic / "train" / "bird" / "Thumbs.db").write_bytes(b"left by a viewer")
    (cinic / "train" / ".cache").mkdir()
    assert find_images(CARD).num_files == 60
