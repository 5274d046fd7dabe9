import itertools
import json
import pickle
import warnings

import numpy as np
import pytest
import torch
from image_files import cycle, pictures, write_npz
from image_module_tiny import fit

from lightning_fl.core.errors import DataError
from lightning_fl.data.images.dataset import read_npz
from lightning_fl.data.images.module import ImageData
from lightning_fl.data.images.transform import channel_statistics, crop_at, flip_where
from lightning_fl.data.module import SPLITS
from lightning_fl.data.partition import IID, Dirichlet, FromFile, GroupBy, Pathological
from lightning_fl.data.partition.from_file import split_file_text
from lightning_fl.data.shifts import Inversion, LabelPermutation, Shift


@pytest.fixture
def npz(tmp_path):
    return str(write_npz(tmp_path / "mine.npz"))


def ready(name, **kwargs):
    data = ImageData(name=name, **({"partitioner": IID(num_clients=3), "split_seed": 1} | kwargs))
    data.prepare_data()
    data.setup("fit")
    return data


def samples(data, client, split):
    """A client's bytes and labels."""
    part = data.client_data(client, split)
    images, labels = part.dataset.tensors
    return images[part.indices], labels[part.indices]


def test_parts_keep_apart(npz):
    data = ready(npz, partitioner=Pathological(num_clients=3, classes_per_client=1), split=(0.8, 0.2, 0.0))
    parts = read_npz(npz)
    assert (data.num_classes, data.image_shape, data.source) == (3, (1, 8, 8), "user")
    for client in range(3):
        classes = {split: set(samples(data, client, split)[1].tolist()) for split in SPLITS}
        assert len(classes["train"]) == 1
        assert classes["train"] == classes["val"] == classes["test"]
        test = data.client_data(client, "test")
        assert torch.equal(samples(data, client, "test")[0], parts["test"].images[test.indices])
    assert [sum(data.num_samples(split)) for split in SPLITS] == [48, 12, 30]
    # one object for all clients: packed once
    assert data.client_data(0, "train").dataset is data.client_data(1, "val").dataset


def test_parts_of_other_shapes_are_refused_and_converted_where_asked_for(tmp_path):
    path = str(write_npz(tmp_path / "mine.npz", test=0, test_images=pictures(9, 9), test_labels=cycle(9)))
    with pytest.raises(DataError, match=r"test part: .*\[1, 9, 9\].*\[1, 8, 8\].* size"):
        ready(path)
    assert ready(path, size=8).image_shape == (1, 8, 8)


def test_classes_that_nobody_trains_on_are_named(tmp_path):
    path = str(write_npz(tmp_path / "mine.npz", test=0, test_images=pictures(10), test_labels=cycle(10, 5)))
    with pytest.warns(UserWarning, match="test part: .*3, 4"):
        data = ready(path)
    assert data.class_names == ["0", "1", "2", "3", "4"]


def test_pooled_parts_are_divided_inside_each_client(npz):
    data = ready(npz, pooled=True, split=(0.5, 0.25, 0.25), stratified=True)
    assert [data.num_samples(split) for split in SPLITS] == [[15] * 3, [8] * 3, [7] * 3]
    used = torch.cat([torch.tensor(data.client_data(c, split).indices) for c in range(3) for split in SPLITS])
    assert used.sort().values.tolist() == list(range(90))
    parts = read_npz(npz)
    images, labels = data.client_data(0, "train").dataset.tensors
    assert torch.equal(images, torch.cat([parts["train"].images, parts["test"].images]))
    assert torch.equal(labels, torch.cat([parts["train"].targets, parts["test"].targets]))


def test_a_column_divides_the_images(tmp_path):
    path = write_npz(tmp_path / "mine.npz", test=0, train_writer=np.arange(60) // 20)
    data = ready(str(path), partitioner=GroupBy(column="writer"))
    assert data.client_names() == ["0", "1", "2"]
    for client in range(3):
        assert {i // 20 for i in data.client_data(client, "train").indices} == {client}


def test_batches_are_normalised_by_the_training_images_of_the_whole_data_set(npz):
    whole = channel_statistics(read_npz(npz)["train"].images)
    for kwargs in ({}, {"pooled": True}, {"max_samples": 30}, {"partitioner": Dirichlet(num_clients=3, alpha=0.3)}):
        data = ready(npz, **kwargs)
        assert data.describe()["normalization"] == {"mean": whole[0], "std": whole[1]}
        images, labels = samples(data, 0, "train")
        batch = data.on_after_batch_transfer([images, labels], 0)
        expected = (images.double() / 255 - whole[0][0]) / whole[1][0]
        torch.testing.assert_close(batch[0], expected.float())
        assert batch[1] is labels
    data = ready(npz, mean=[0.5], std=[0.25])
    torch.testing.assert_close(data.on_after_batch_transfer([images], 0)[0], (images / 255 - 0.5) / 0.25)
    data = ready(npz, normalize=False)
    torch.testing.assert_close(data.on_after_batch_transfer([images], 0)[0], images / 255)


def test_size_and_channels(npz):
    data = ready(npz, size=5, channels=3)
    assert (data.image_shape, samples(data, 0, "test")[0].shape[1:]) == ((3, 5, 5), (3, 5, 5))
    assert len(data.describe()["normalization"]["mean"]) == 3


def test_a_random_part_keeps_classes_and_parts_in_proportion(npz):
    data = ready(npz, max_samples=27)
    assert data.describe()["images"] == {"train": 18, "test": 9}
    assert torch.bincount(data.client_data(0, "train").dataset.tensors[1]).tolist() == [6, 6, 6]
    images = data.client_data(0, "train").dataset.tensors[0]
    assert torch.equal(images, ready(npz, max_samples=27).client_data(0, "train").dataset.tensors[0])
    other = ready(npz, max_samples=27, split_seed=2).client_data(0, "train").dataset.tensors[0]
    assert not torch.equal(images, other)
    assert ready(npz, max_samples=90).describe()["images"] == {"train": 60, "test": 30}


def test_a_random_part_is_that_of_the_run_that_is_repeated(npz, tmp_path):
    run, path = ready(npz, max_samples=27), tmp_path / "splits.json"
    path.write_text(split_file_text(run, range(3)))
    again = ready(npz, max_samples=27, partitioner=FromFile(path=str(path)), split_seed=2)
    for client, split in itertools.product(range(3), SPLITS):
        assert all(map(torch.equal, samples(again, client, split), samples(run, client, split)))


class Brighten(Shift):
    """Adds the client's number, and for label 0 ten more."""

    def images(self, client, images, labels):
        return images // 2 + client + 10 * (labels == 0)[:, None, None, None].to(torch.uint8)


def test_shifts_change_a_clients_own_samples_in_every_split_and_in_their_order(npz):
    shifts = [Brighten(), LabelPermutation(permutations=[[0, 1, 2], [2, 0, 1], [1, 2, 0]], clients_per_value=1)]
    plain, shifted = ready(npz), ready(npz, shifts=shifts)
    for client, permutation in enumerate(shifts[1].permutations):
        for split in SPLITS:
            assert shifted.client_data(client, split).indices == plain.client_data(client, split).indices
            images, labels = samples(plain, client, split)
            expected = images // 2 + client + 10 * (labels == 0)[:, None, None, None]
            assert torch.equal(samples(shifted, client, split)[0], expected)
            assert torch.equal(samples(shifted, client, split)[1], torch.tensor(permutation)[labels])
    assert [shift["name"] for shift in shifted.describe()["shifts"]] == ["Brighten", "LabelPermutation"]


def test_samples_of_nobody_are_not_shifted(npz):
    data = ready(npz, shifts=[Inversion(clients=[0, 1, 2])], train_shares=[0.5, 0.5, 0.5])
    images, _ = data.client_data(0, "train").dataset.tensors
    original = read_npz(npz)["train"].images
    used = {i for client in range(3) for split in ("train", "val") for i in data.client_data(client, split).indices}
    assert 0 < len(used) < 60
    for index in range(60):
        assert torch.equal(images[index], 255 - original[index] if index in used else original[index])


def test_training_batches_are_augmented_and_evaluation_batches_are_not(npz, tmp_path):
    data = ready(npz, normalize=False, augment=["crop", "flip"], batch_size=16, partitioner=IID(num_clients=1))
    module, trainer = fit(data, tmp_path)
    bytes_of = {split: samples(data, 0, split)[0] for split in SPLITS}
    for split in ("val", "test"):
        seen = torch.cat(module.seen[split]).cpu()[: len(bytes_of[split])]
        torch.testing.assert_close(seen, bytes_of[split] / 255)
    # every training image is some crop, mirrored or not, of some image of the client's
    places = [torch.full((2, len(bytes_of["train"])), 0) for _ in range(81)]
    for place, offsets in enumerate(places):
        offsets[0], offsets[1] = place // 9, place % 9
    crops = torch.cat([crop_at(bytes_of["train"], offsets) for offsets in places])
    everything = torch.cat([crops, flip_where(crops, torch.ones(len(crops), dtype=torch.bool))]).flatten(1)
    known = {row.numpy().tobytes() for row in everything}
    seen = torch.cat(module.seen["train"]).cpu().mul(255).round().to(torch.uint8).flatten(1)
    assert all(row.numpy().tobytes() in known for row in seen)
    unchanged = {row.numpy().tobytes() for row in bytes_of["train"].flatten(1)}
    assert sum(row.numpy().tobytes() in unchanged for row in seen) < len(seen) / 4
    same = ready(npz, normalize=False, augment=["crop", "flip"], batch_size=16, partitioner=IID(num_clients=1))
    again, _ = fit(same, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(module.seen["train"], again.seen["train"], strict=True))
    assert trainer.current_round == 2


def test_a_run_on_the_stand_in_learns_and_says_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")
    data = ImageData(
        name="fashionmnist",
        size=8,
        max_samples=400,
        partitioner=Dirichlet(num_clients=4, alpha=1.0),
        stratified=True,
        split_seed=0,
    )
    with pytest.warns(UserWarning, match="STAND-IN DATA.*OFFLINE"):
        data.prepare_data()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # said once is enough
        data.setup("fit")
    record = data.describe()
    assert record["title"].startswith("STAND-IN (scikit-learn's 8 x 8 digits, enlarged) for Fashion-MNIST")
    assert (record["source"], record["file"], record["classes"][9]) == ("stand-in", None, "ankle boot")
    assert json.loads(json.dumps(record)) == record
    module, trainer = fit(data, tmp_path, rounds=3)
    assert all(images.isfinite().all() for images in module.seen["train"])
    assert trainer.metrics["test"]["test_loss"].mean < 2.3  # that of guessing


def test_measured_data_and_the_stand_in_by_choice():
    with pytest.warns(UserWarning, match="STAND-IN DATA"):
        assert ready("usps", source="standin").image_shape == (1, 16, 16)
    assert ready("digits").source == "measured"


def test_superclasses(tmp_path):
    path = write_npz(tmp_path / "mine.npz", train_coarse_labels=cycle(60, 2), test_coarse_labels=cycle(30, 2))
    data = ready(str(path), coarse_labels=True)
    assert data.num_classes == 2
    np.savez(
        tmp_path / "cifar100.npz",
        **{f"{part}_images": pictures(100, 32, 3) for part in ("train", "test")},
        **{f"{part}_labels": cycle(100, 100) for part in ("train", "test")},
        **{f"{part}_coarse_labels": cycle(100, 20) for part in ("train", "test")},
    )
    data = ready("cifar100", data_root=str(tmp_path), coarse_labels=True)
    assert (data.num_classes, data.describe()["classes"][0], data.source) == (20, "aquatic_mammals", "measured")
    assert ready("cifar100", data_root=str(tmp_path)).num_classes == 100


def test_it_travels_to_other_processes(npz):
    data = ready(npz, augment=["flip"])
    other = pickle.loads(pickle.dumps(data))
    assert all(torch.equal(a, b) for a, b in zip(samples(data, 1, "val"), samples(other, 1, "val"), strict=True))
