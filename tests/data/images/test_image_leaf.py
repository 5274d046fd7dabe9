"""FEMNIST in LEAF's JSON files."""

import json
import re

import numpy as np
import pytest
import torch
from image_files import leaf_content, pictures, write_leaf, write_npz
from image_module_tiny import fit

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.cards.catalogue import load_card
from lightning_fl.data.cards.lookup import dataset_cache
from lightning_fl.data.images.module import ImageData
from lightning_fl.data.images.reading import read_images
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


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(folder))
    return folder


def read(**kwargs):
    return read_images(CARD, find_images(CARD, **kwargs))


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
    content = leaf_content({"w": 4})
    content["user_data"]["w"]["y"] = [9, 10, 36, 61]
    (own_folder / "femnist" / "all_data").mkdir(parents=True)
    (own_folder / "femnist" / "all_data" / "a.json").write_text(json.dumps(content))
    (data,) = read().values()
    assert data.column("label") == ["9", "A", "a", "z"]


def test_how_writers_are_spread_over_files_changes_nothing(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    writers = {"b": 3, "a": 4, "c": 5}
    write_leaf(one / "femnist", {"all_data": [writers]})
    write_leaf(other / "femnist", {"all_data": [{"c": 5}, {"a": 4}, {"b": 3}]})
    (first,), (second,) = read(data_root=one).values(), read(data_root=other).values()
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.targets, second.targets)
    assert first.column("writer") == second.column("writer")


@pytest.mark.parametrize("place", ["femnist", "femnist/data", "data/femnist/data"])
def test_it_may_lie_where_leaf_puts_it(own_folder, place):
    write_leaf(own_folder / place, BY_SAMPLE)
    found = find_images(CARD)
    assert (found.layout, found.path, found.origin) == ("leaf", own_folder / place, "LIGHTNING_FL_DATA")
    assert found.place == f"{own_folder / place} (4 files)"


def test_parts_go_before_all_data_and_a_npz_file_before_both(own_folder):
    write_leaf(own_folder / "femnist" / "data", {"all_data": [{"a": 9}], **BY_SAMPLE})
    assert list(read()) == ["train", "test"]
    writers = ["x"] * 30 + ["y"] * 30
    write_npz(own_folder / "femnist.npz", size=28, train_writer=np.array(writers), test_writer=np.array(["x"] * 30))
    assert find_images(CARD).layout == "npz"
    assert read()["train"].column("writer") == writers


def test_in_the_cache(own_folder):
    write_leaf(dataset_cache(CARD) / "femnist", BY_SAMPLE)
    assert find_images(CARD).origin == "cache"


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


def test_writers_without_an_image_are_left_out(own_folder):
    content = leaf_content({"a": 3, "empty": 0})
    content["user_data"]["alone"] = {"x": [], "y": []}  # LEAF's -t sample keeps writers of one image so
    (own_folder / "femnist" / "all_data").mkdir(parents=True)
    (own_folder / "femnist" / "all_data" / "a.json").write_text(json.dumps(content))
    (data,) = read().values()
    assert set(data.column("writer")) == {"a"}


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


def test_whole_writers_are_dealt_to_fewer_clients(own_folder):
    write_leaf(own_folder / "femnist", BY_SAMPLE)
    data = ready(partitioner=GroupBy(column="writer", num_clients=2), split=(0.5, 0.5, 0.0))
    parts, seen = read(), []
    for client in range(2):
        owners = [
            {parts[part].column("writer")[index] for index in data.client_data(client, split).indices}
            for split, part in (("train", "train"), ("test", "test"))
        ]
        assert owners[0] == owners[1]
        seen += owners[0]
    assert sorted(seen) == ["f0000_14", "f0001_41", "f0002_00"]


@pytest.mark.slow
def test_some_writers_are_drawn_by_the_seed(own_folder):
    writers = {f"w{number:02}": 4 + number % 3 for number in range(30)}
    write_leaf(own_folder / "femnist", {"train": [writers], "test": [dict.fromkeys(writers, 2)]})
    drawn = {}
    for seed in (0, 1):
        data = ImageData(
            name="femnist",
            source="real",
            split_seed=seed,
            partitioner=GroupBy(column="writer", num_groups=10, min_samples=5),
        )
        data.setup()
        drawn[seed] = data.client_names()
        assert len(drawn[seed]) == 10
        assert all(writers[name] >= 5 for name in drawn[seed])
        assert [writers[name] for name in drawn[seed]] == [
            train + val for train, val in zip(data.num_samples("train"), data.num_samples("val"), strict=True)
        ]
        assert data.num_samples("test") == [2] * 10
    assert drawn[0] != drawn[1]
    with pytest.raises(DataError, match="10 of 30 groups have at least 6 samples for training, but 11 are wanted: ask"):
        ready(partitioner=GroupBy(column="writer", num_groups=11, min_samples=6))


def test_parts_without_a_common_writer_need_pooling(own_folder):
    write_leaf(own_folder / "femnist", BY_USER)
    message = (
        "2 clients, such as f0002_00, have samples in the test part of the data but none in the train part: put the"
        " parts together (ImageData's pooled: true), or take data whose groups are in every part (of LEAF's, those made"
        " with -t sample)."
    )
    with pytest.raises(DataError, match=re.escape(message)):
        ready(partitioner=GroupBy(column="writer"))
    with pytest.raises(DataError, match="no client has samples in the test part of the data: put the parts together"):
        ready(partitioner=GroupBy(column="writer", min_samples=1))  # which leaves the writers of the test part out
    data = ready(partitioner=GroupBy(column="writer"), pooled=True, split=(0.5, 0.25, 0.25))
    assert data.client_names() == ["f0000_14", "f0001_41", "f0002_00", "f0003_07"]
    assert [sum(sizes) for sizes in zip(*(data.num_samples(s) for s in ("train", "val", "test")), strict=True)] == [
        6,
        8,
        5,
        5,
    ]
    assert ready(partitioner=IID(num_clients=2)).num_samples("test") == [5, 5]  # without writers it is no fault


def test_pooled_writers_have_the_images_of_both_parts(own_folder):
    write_leaf(own_folder / "femnist", BY_SAMPLE)
    data = ready(partitioner=GroupBy(column="writer"), pooled=True)
    totals = zip(*(data.num_samples(split) for split in ("train", "val", "test")), strict=True)
    assert [sum(sizes) for sizes in totals] == [8, 11, 14]


def test_it_trains(own_folder, tmp_path):
    write_leaf(own_folder / "femnist", BY_SAMPLE)
    _, trainer = fit(
        ImageData(name="femnist", source="real", partitioner=GroupBy(column="writer"), split=(0.8, 0.2, 0)), tmp_path
    )
    assert trainer.metrics["test"]["test_loss"].worst > 0


# ---- the stand-in


@pytest.mark.slow
def test_the_stand_in_has_writers():
    writers = GroupBy(column="writer", num_groups=100, min_samples=20)
    data = ImageData(name="femnist", source="standin", partitioner=writers)
    with pytest.warns(UserWarning, match="STAND-IN DATA: scikit-learn's 8 x 8 digits"):
        data.setup()
    assert (data.num_clients, data.num_classes, data.image_shape) == (100, 62, (1, 28, 28))
    assert data.client_names()[0].startswith("made_up_")
    assert min(data.num_samples("test")) > 0


def test_what_is_nowhere_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(tmp_path))
    message = (
        r"femnist\.npz \(or a folder femnist or femnist/data or data/femnist/data with train/\*\.json and"
        r" test/\*\.json, or all_data/\*\.json\) of data set femnist was not found in .*; torchvision does not have it"
        r" .*Put femnist\.npz in .*femnist, or name its folder in data_root or LIGHTNING_FL_DATA; the folder femnist"
        r" may lie in any of these too\."
    )
    with pytest.raises(DataError, match=message):
        find_images(CARD)
    with pytest.raises(
        ConfigurationError, match=r"data_root='.*gone' is not a folder: name the one that holds femnist"
    ):
        find_images(CARD, data_root=tmp_path / "gone")


# ---- damaged files


def change(**changes):
    """What a file holds, with some keys of writer "a" changed; a key of the file begins with ``top_``."""
    content = leaf_content({"a": 2, "b": 3})
    for key, value in changes.items():
        if key.startswith("top_"):
            content[key.removeprefix("top_")] = value
        else:
            content["user_data"]["a"][key] = value
    return content


IMAGE = [0.5] * 784
BAD = [
    ("{", r"cannot be read as JSON \(.*\): make the files again with LEAF's preprocess\.sh"),
    (b"\xff\xfe", r"cannot be read as JSON \('utf-8' codec"),
    (["users"], r"has no list 'users': LEAF's files have users, num_samples, user_data"),
    ({"users": [], "num_samples": []}, "has no dict 'user_data'"),
    (change(top_num_samples=[2]), "has 2 users and 1 num_samples"),
    (change(top_num_samples=[2, 4]), "writer b has 3 images, 3 labels and num_samples 4"),
    (change(top_users=["a", "c"]), "writer b is in user_data, but not among the users"),
    (
        change(top_users=["a", "b", "c"], top_num_samples=[2, 3, 1]),
        "writer c is among the users twice or has no user_data",
    ),
    (change(top_users=["a", "b", "a"], top_num_samples=[2, 3, 2]), "writer a is among the users twice or has no user_"),
    (change(x=None), "writer a has no list 'x'"),
    (change(top_user_data={"a": [], "b": []}), "writer a has no list 'x'"),
    (change(y=[1]), "writer a has 2 images, 1 labels and num_samples 2"),
    (change(x=[IMAGE, IMAGE[:-1]]), r"writer a: image 1 has 783 values, not 784 \(28 x 28\)"),
    (change(x=[IMAGE, 3]), "writer a: image 1 has 3, not 784"),
    (change(x=[IMAGE, [*IMAGE[:-1], "dark"]]), "writer a: a pixel is not a number"),
    (change(x=[IMAGE, [*IMAGE[:-1], [0.5, 0.5]]]), "writer a: a pixel is not a number"),
    (change(x=[IMAGE, [*IMAGE[:-1], 255]]), "writer a: image 1 has the value 255, not one from 0 to 1"),
    (change(x=[[*IMAGE[:-1], -0.1], IMAGE]), "writer a: image 0 has the value -0.1, not one from 0 to 1"),
    (change(x=[[*IMAGE[:-1], float("nan")], IMAGE]), "writer a: image 0 has the value nan, not one"),
    (change(x=[[*IMAGE[:-1], None], IMAGE]), "writer a: image 0 has the value nan, not one"),
    (change(y=[3, 62]), r"writer a: image 1 has the label 62, not a whole number in 0\.\.61"),
    (change(y=[-1, 3]), "writer a: image 0 has the label -1, not"),
    (change(y=[3, 1.0]), r"writer a: image 1 has the label 1\.0, not"),
    (leaf_content({}), r"femnist, train part: no writer has an image"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_a_damaged_file_is_named(own_folder, content, message):
    folder = own_folder / "femnist" / "all_data"
    folder.mkdir(parents=True)
    path = folder / "all_data_0.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=message) as raised:
        read()
    assert "no writer" in message or str(path) in str(raised.value)
    assert str(raised.value).endswith("make the files again with LEAF's preprocess.sh.")


def test_a_writer_belongs_in_one_file(own_folder):
    write_leaf(own_folder / "femnist", {"all_data": [{"a": 3, "b": 2}, {"c": 3, "a": 3}]})
    with pytest.raises(
        DataError, match=r"femnist: writer a is both in all_data/all_data_0_.* and in all_data/all_data_1_.*: every"
    ):
        read()


def test_a_folder_that_is_not_complete_is_named(own_folder):
    (own_folder / "femnist" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"femnist/train holds no \.json files: run LEAF's preprocess\.sh again, or"):
        find_images(CARD)
    write_leaf(own_folder / "femnist", {"train": [{"a": 2}]})
    with pytest.raises(DataError, match=r"femnist has a folder train, but no test: run LEAF's preprocess\.sh again"):
        find_images(CARD)
    with pytest.warns(UserWarning, match=r"STAND-IN DATA.*The reason: data set femnist: .*but no test"):
        ImageData(name="femnist", partitioner=IID(num_clients=2)).setup()
