"""FEMNIST in LEAF's JSON files."""

import json

import numpy as np
import pytest
import torch
from image_files import leaf_content, pictures, write_leaf, write_npz

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.lookup import dataset_cache, load_card
from lightning_fl.data.images.module import ImageData
from lightning_fl.data.images.sources import find_images
from lightning_fl.data.partition import IID, GroupBy

CARD = load_card("femnist")
#: LEAF's -t sample: a writer is in both parts.
BY_SAMPLE = {
    "train": [{"f0001_41": 8, "f0000_14": 6}, {"f0002_00": 10}],
    "test": [{"f0001_41": 3, "f0000_14": 2}, {"f0002_00": 4}],
}
#: LEAF's -t user: a writer is in one.
BY_USER = {"train": [{"f0000_14": 6, "f0001_41": 8}], "test": [{"f0002_00": 5, "f0003_07": 5}]}


def read(**kwargs):
    return find_images(CARD, **kwargs).read()


def ready(**kwargs):
    data = ImageData(name="femnist", source="real", split_seed=0, **kwargs)
    data.prepare_data()
    data.setup("fit")
    return data


# ---- what is read


def test_images_labels_and_writers_are_those_of_the_files(own_folder):
    write_leaf(own_folder / "femnist", BY_SAMPLE)
    parts = read()
    assert [len(part) for part in parts.values()] == [24, 9]
    train = parts["train"]
    assert (train.images.shape, train.images.dtype) == ((24, 1, 28, 28), torch.uint8)
    assert train.column("writer") == ["f0000_14"] * 6 + ["f0001_41"] * 8 + ["f0002_00"] * 10
    first = pictures(6, 28, seed=sum(b"f0000_14"))
    assert torch.equal(train.images[:6, 0], torch.from_numpy(first))  # bytes, as before LEAF divided them by 255
    assert train.targets[:6].tolist() == leaf_content({"f0000_14": 6})["user_data"]["f0000_14"]["y"]
    assert parts["test"].column("writer") == ["f0000_14"] * 2 + ["f0001_41"] * 3 + ["f0002_00"] * 4


def test_classes_are_digits_upper_case_lower_case(own_folder):
    assert CARD.classes == tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    content = leaf_content({"w": 4, "empty": 0})
    content["user_data"]["w"]["y"] = [9, 10, 36, 61]
    content["user_data"]["alone"] = {"x": [], "y": []}  # LEAF's -t sample keeps writers of one image so
    (own_folder / "femnist" / "all_data").mkdir(parents=True)
    (own_folder / "femnist" / "all_data" / "a.json").write_text(json.dumps(content))
    (data,) = read().values()
    assert data.column("label") == ["9", "A", "a", "z"]
    assert data.column("writer") == ["w"] * 4  # writers without an image are left out


def test_how_writers_are_spread_over_files_changes_nothing(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    writers = {"b": 3, "a": 4, "c": 5}
    write_leaf(one / "femnist", {"all_data": [writers]})
    write_leaf(other / "femnist", {"all_data": [{"c": 5}, {"a": 4}, {"b": 3}]})
    (first,), (second,) = read(data_root=one).values(), read(data_root=other).values()
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.targets, second.targets)
    assert first.column("writer") == second.column("writer")


@pytest.mark.parametrize("place", ["femnist", "femnist/data", "data/femnist/data", "in the cache"])
def test_it_may_lie_where_leaf_puts_it(own_folder, place):
    folder, origin = own_folder / place, "LIGHTNING_FL_DATA"
    if place == "in the cache":
        folder, origin = dataset_cache(CARD) / "femnist", "cache"
    write_leaf(folder, BY_SAMPLE)
    found = find_images(CARD)
    assert (found.layout, found.path, found.origin) == ("leaf", folder, origin)
    assert found.place == f"{folder} (4 files)"


def test_parts_go_before_all_data_and_a_npz_file_before_both(own_folder):
    write_leaf(own_folder / "femnist" / "data", {"all_data": [{"a": 9}], **BY_SAMPLE})
    assert list(read()) == ["train", "test"]
    writers = ["x"] * 30 + ["y"] * 30
    write_npz(own_folder / "femnist.npz", size=28, train_writer=np.array(writers), test_writer=np.array(["x"] * 30))
    assert find_images(CARD).layout == "npz"
    assert read()["train"].column("writer") == writers


def test_the_record_has_a_sum_of_names_and_sizes(tmp_path):
    for name in ("one", "other"):
        write_leaf(tmp_path / name / "femnist", BY_SAMPLE)
    one, other = (find_images(CARD, data_root=tmp_path / name).record() for name in ("one", "other"))
    assert one == other  # wherever the folder lies, whenever it was written
    sizes = [path.stat().st_size for path in (tmp_path / "one").rglob("*.json")]
    assert one["num_files"] == 4
    assert one["num_bytes"] == sum(sizes)
    assert (one["layout"], one["sha256"], one["verified"], one["file"]) == ("leaf", None, False, "femnist")
    write_leaf(tmp_path / "other" / "femnist", {"train": [{"f0001_41": 8, "f0000_14": 7}]})
    assert find_images(CARD, data_root=tmp_path / "other").record() != one


# ---- writers as clients


def test_each_writer_is_a_client_in_all_splits(own_folder):
    write_leaf(own_folder / "femnist", BY_SAMPLE)
    data = ready(partitioner=GroupBy(column="writer"), split=(0.5, 0.5, 0.0))
    assert data.client_names() == ["f0000_14", "f0001_41", "f0002_00"]
    assert data.num_samples("test") == [2, 3, 4]
    parts = read()
    for client, name in enumerate(data.client_names()):
        for split, part in (("train", "train"), ("val", "train"), ("test", "test")):
            view = data.client_data(client, split)
            assert {parts[part].column("writer")[index] for index in view.indices} == {name}
            image, label = view[0]
            assert torch.equal(image, parts[part].images[view.indices[0]])
            assert label == parts[part].targets[view.indices[0]]
    assert sum(data.num_samples("train")) + sum(data.num_samples("val")) == 24


def test_parts_without_a_common_writer_need_pooling(own_folder):
    write_leaf(own_folder / "femnist", BY_USER)
    with pytest.raises(DataError, match=r"2 clients, such as f0002_00, have .* test part.*pooled"):
        ready(partitioner=GroupBy(column="writer"))
    with pytest.raises(DataError, match="no client has samples in the test part"):
        ready(partitioner=GroupBy(column="writer", min_samples=1))  # which leaves the writers of the test part out
    data = ready(partitioner=GroupBy(column="writer"), pooled=True, split=(0.5, 0.25, 0.25))
    assert data.client_names() == ["f0000_14", "f0001_41", "f0002_00", "f0003_07"]
    totals = zip(*(data.num_samples(split) for split in ("train", "val", "test")), strict=True)
    assert [sum(sizes) for sizes in totals] == [6, 8, 5, 5]
    assert ready(partitioner=IID(num_clients=2)).num_samples("test") == [5, 5]  # without writers it is no fault


# ---- the stand-in


@pytest.mark.slow
def test_the_stand_in_has_writers():
    writers = GroupBy(column="writer", num_groups=100, min_samples=20)
    data = ImageData(name="femnist", source="standin", partitioner=writers)
    with pytest.warns(UserWarning, match="STAND-IN DATA"):
        data.setup()
    assert (data.num_clients, data.num_classes, data.image_shape) == (100, 62, (1, 28, 28))
    assert data.client_names()[0].startswith("made_up_")
    assert min(data.num_samples("test")) > 0
