import json

import numpy as np
import pytest
import torch
from image_files import write_npz
from image_module_tiny import fit
from PIL import Image

from lightning_fl.core.errors import DataError
from lightning_fl.data.images.silos import ImageFolders
from lightning_fl.data.module import SPLITS


def write_images(folder, count=10, value=100, size=(9, 6), suffix=".png"):
    """Images of one brightness each: value, value + 1, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", size, (value + number,) * 3).save(folder / f"{number:03d}{suffix}")


@pytest.fixture
def root(tmp_path):
    """Three silos: class folders, class folders inside parts, and a file."""
    root = tmp_path / "root"
    write_images(root / "north" / "cat", value=10)
    write_images(root / "north" / "dog", value=60)
    write_images(root / "south" / "train" / "dog", value=110)
    write_images(root / "south" / "train" / "fox", 5, value=150)
    write_images(root / "south" / "test" / "fox", 4, value=200)
    (root / "file").mkdir()
    write_npz(root / "file" / "data.npz")
    (root / ".hidden").mkdir()
    return root


CLASSES = ["cat", "dog", "fox"]


def test_silos_are_the_folders_and_share_their_classes(root):
    data = ImageFolders(root=str(root), size=4, silos=["north", "south"], split_seed=0)
    assert data.num_clients == 2
    data.setup("fit")
    assert (data.class_names, data.image_shape, data.pinned) == (CLASSES, (3, 4, 4), True)
    data = ImageFolders(root=str(root), size=4, classes=CLASSES)
    data.setup("fit")
    assert data.client_names() == ["file", "north", "south"]
    assert [data.num_samples(split) for split in SPLITS] == [[53, 16, 13], [7, 2, 2], [30, 2, 4]]


def test_images_and_labels_are_those_of_the_folders(root):
    data = ImageFolders(root=str(root), size=4, silos=["north", "south"], channels=1, stratified=True, split_seed=0)
    data.setup("fit")
    for client, first in enumerate(({0: 10, 1: 60}, {1: 110, 2: 150})):
        for split in ("train", "val"):
            part = data.client_data(client, split)
            for image, label in part:
                start = first[int(label)]
                assert start <= int(image[0, 0, 0]) < start + 10
                assert (image == image[0, 0, 0]).all()
    assert sorted(int(image[0, 0, 0]) for image, _ in data.client_data(1, "test")) == [200, 201, 202, 203]
    labels = torch.tensor([int(label) for _, label in data.client_data(0, "test")])
    assert torch.bincount(labels).tolist() == [1, 1]  # stratified
    assert data.client_data(0, "train").dataset is data.client_data(0, "val").dataset


@pytest.mark.slow
def test_a_silo_is_opened_only_when_it_is_asked_for(root, tmp_path):
    (root / "north" / "cat" / "000.png").write_bytes(b"no image")
    # of the silo far away nothing is here
    data = ImageFolders(root=str(root), size=4, silos=["south", "far", "north"], classes=CLASSES)
    data.prepare_data()
    data.setup("fit")
    assert json.loads(json.dumps(data.describe()))["clients"] == ["south", "far", "north"]
    assert len(data.client_data(0, "train")) == 13
    with pytest.raises(DataError, match="silo far"):
        data.client_data(1, "train")
    with pytest.raises(DataError, match=r"silo north: .*000\.png"):
        data.client_data(2, "train")


def test_a_silo_without_a_split_has_none(root):
    data = ImageFolders(root=str(root), size=4, silos=["south"], classes=CLASSES, split=(1.0, 0.0, 0.0))
    assert data.client_data(0, "val") is None
    assert data.num_samples("test") == [4]


def test_photographs_are_turned_upright(tmp_path):
    folder = tmp_path / "silo" / "a"
    folder.mkdir(parents=True)
    (tmp_path / "silo" / "b").mkdir()
    photo = Image.fromarray(np.array([[0, 0], [255, 255]], dtype=np.uint8).repeat(8, 0).repeat(8, 1))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned right by a quarter
    photo.save(folder / "photo.png", exif=exif)
    data = ImageFolders(root=str(tmp_path), size=16, channels=1, silos=["silo"], split=(1.0, 0.0, 0.0))
    data.setup()
    image, _ = data.client_data(0, "train")[0]
    assert image[0, 0, [0, 15]].tolist() == [255, 0]


def test_values_lie_between_minus_one_and_one_unless_told_otherwise(root):
    images = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 3, 4, 4)
    labels = torch.zeros(2)
    for kwargs, low, high in (
        ({}, -1.0, 1.0),
        ({"normalize": False}, 0.0, 1.0),
        ({"mean": [0.0] * 3, "std": [0.5] * 3}, 0.0, 2.0),
    ):
        data = ImageFolders(root=str(root), size=4, classes=CLASSES, **kwargs)
        batch = data.on_after_batch_transfer([images, labels], 0)
        torch.testing.assert_close(batch[0].amin(), torch.tensor(low))
        torch.testing.assert_close(batch[0].amax(), torch.tensor(high))
        assert batch[1] is labels


@pytest.mark.slow
def test_a_run(root, tmp_path):
    data = ImageFolders(root=str(root), size=4, classes=CLASSES, augment=["flip"], batch_size=8, split_seed=0)
    module, trainer = fit(data, tmp_path)
    assert trainer.num_samples == [53, 16, 13]
    assert set(trainer.metrics["test"]["test_loss"].clients) == {0, 1, 2}
    assert all(images.shape[1:] == (3, 4, 4) for images in module.seen["train"])


@pytest.mark.parametrize("names", [("train", "Validation", "Test"), ("Training", "valid", "TESTING")])
def test_parts_have_the_names_that_people_give_them(tmp_path, names):
    for name, count in zip(names, (6, 3, 4), strict=True):
        write_images(tmp_path / "one" / name / "cat", count)
        write_images(tmp_path / "one" / name / "dog", count)
    data = ImageFolders(root=str(tmp_path), size=4)
    data.setup("fit")
    assert data.class_names == ["cat", "dog"]
    assert [data.num_samples(split) for split in SPLITS] == [[12], [6], [8]]


def test_classes_may_be_called_as_parts_are(tmp_path):
    for name in ("train", "bus", "valid"):
        write_images(tmp_path / "one" / name, 5)
    data = ImageFolders(root=str(tmp_path), size=4)
    data.setup("fit")
    assert data.class_names == ["bus", "train", "valid"]


def test_files_that_are_not_read_are_counted(root):
    for name in ("0.gif", "1.gif", "scan.dcm"):
        (root / "north" / "cat" / name).write_bytes(b"")
    data = ImageFolders(root=str(root), size=4, silos=["north"], classes=CLASSES)
    with pytest.warns(UserWarning, match=r"silo north: files .*2 \.gif, 1 \.dcm.*0\.gif"):
        data.client_data(0, "train")
