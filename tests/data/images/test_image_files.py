import numpy as np
import torch
from image_files import cycle, pictures, write_npz

from lightning_fl.data.images.dataset import ImageDataset, convert_channels, read_npz, resize_images


def dataset(count=6, channels=3, size=4, **kwargs):
    images = torch.randint(
        0, 256, (count, channels, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return ImageDataset(images, torch.arange(count) % 3, classes=["a", "b", "c"], **kwargs)


# ---- the data set


def test_samples_columns_and_tensors():
    data = dataset(columns={"writer": ["x", "y"] * 3})
    assert len(data) == 6
    assert torch.equal(data[4][0], data.images[4])
    assert int(data[4][1]) == 1
    assert list(data.columns) == ["writer"]
    assert data.column("label") == ["a", "b", "c"] * 2
    assert data.tensors().tensors[0] is data.images  # not copied
    some = data.select(torch.tensor([5, 1]))
    assert (some.column("writer"), some.targets.tolist()) == (["y", "y"], [2, 1])
    assert torch.equal(some.images, data.images[[5, 1]])


def test_joined_sets_keep_common_columns():
    both = ImageDataset.joined(
        [dataset(columns={"a": range(6), "b": range(6)}), dataset(columns={"b": range(6, 12)})], place="both"
    )
    assert list(both.columns) == ["b"]
    assert (len(both), list(both.column("b"))) == (12, list(range(12)))


# ---- size and channels


def test_what_fits_is_not_touched():
    data = dataset()
    assert data.converted().images is data.images
    assert data.converted(size=4, channels=3).images is data.images


def test_halving_keeps_the_mean():
    images = torch.randint(0, 256, (1, 1, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    smaller = resize_images(images, 16).float()
    assert abs(smaller.mean() - images.float().mean()) < 2
    # antialiasing averages: without it the deviation of single pixels would remain
    assert smaller.std() < images.float().std() / 2


def test_grey_is_the_luma_and_back_again_three_equal_channels():
    images = torch.tensor([200, 100, 50], dtype=torch.uint8)[None, :, None, None].expand(1, 3, 2, 2)
    grey = convert_channels(images, 1)
    assert abs(int(grey[0, 0, 0, 0]) - (0.299 * 200 + 0.587 * 100 + 0.114 * 50)) <= 1
    colours = convert_channels(grey, 3)
    assert colours.shape == (1, 3, 2, 2)
    assert (colours == grey).all()
    assert dataset().converted(size=8, channels=1).images.shape == (6, 1, 8, 8)
    assert dataset(channels=1).converted(size=2, channels=3).images.shape == (6, 3, 2, 2)


# ---- files


def test_grey_and_colour_files(tmp_path):
    for channels, flat in ((1, False), (3, True)):
        path = write_npz(tmp_path / f"{channels}.npz", channels=channels)
        if flat:  # labels [N]
            write_npz(path, channels=channels, train_labels=cycle(60), test_labels=cycle(30).astype(np.int32))
        parts = read_npz(path)
        assert list(parts) == ["train", "test"]
        train = parts["train"]
        assert train.images.shape == (60, channels, 8, 8)
        stored = torch.from_numpy(pictures(60, 8, channels))
        assert torch.equal(train.images[:, 0], stored if channels == 1 else stored[..., 0])
        assert (train.targets.tolist(), train.classes) == (cycle(60).tolist(), ["0", "1", "2"])
        assert train.place == f"{path}, train part"


def test_validation_part_columns_and_class_names(tmp_path):
    path = write_npz(
        tmp_path / "mine.npz",
        test=0,
        val_images=pictures(9),
        val_labels=cycle(9),
        train_writer=np.arange(60) // 20,
        train_site=np.array(["north", "south"] * 30),
        train_weights=np.ones(60),  # no integers, no text: not a column
    )
    parts = read_npz(path, classes=["x", "y", "z", "unused"])
    assert list(parts) == ["train", "val"]
    assert list(parts["train"].columns) == ["writer", "site"]
    assert parts["train"].column("site")[:2] == ["north", "south"]
    assert parts["train"].column("label")[:4] == ["x", "y", "z", "x"]
    assert list(parts["val"].columns) == []


def test_coarse_labels(tmp_path):
    path = write_npz(tmp_path / "mine.npz", test=0, train_coarse_labels=cycle(60, 2))
    assert read_npz(path, labels="coarse_labels")["train"].targets.tolist() == [0, 1] * 30


def test_domains_are_columns_by_their_names(tmp_path):
    path = tmp_path / "domains.npz"
    images, labels = np.zeros((6, 8, 8, 3), np.uint8), np.array([[0], [1]] * 3)
    content = {"train_images": images, "train_labels": labels, "train_domains": np.array([[2], [0], [1]] * 2)}
    np.savez(path, **content)
    numbers = read_npz(path)["train"]
    assert numbers.column("domains") == [2, 0, 1] * 2
    np.savez(path, **content, domain_names=np.array(["art", "photo", "sketch"]))
    assert read_npz(path)["train"].column("domains") == ["sketch", "art", "photo"] * 2
