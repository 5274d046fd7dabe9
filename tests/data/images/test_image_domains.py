import json

import numpy as np
import pytest
import torch
from image_files import cycle, pictures, write_npz
from image_module_tiny import fit

from lightning_fl.core.errors import DataError
from lightning_fl.data.images.domains import ImageDomains
from lightning_fl.data.module import SPLITS


@pytest.fixture
def files(tmp_path):
    """Two domains of different size and colour, told apart by their brightness."""
    dark = tmp_path / "dark.npz"
    light = tmp_path / "light.npz"
    np.savez(
        dark,
        train_images=pictures(60) // 4,
        train_labels=cycle(60),
        test_images=pictures(30) // 4,
        test_labels=cycle(30),
    )
    np.savez(light, train_images=pictures(45, 12, 3) // 4 + 190, train_labels=cycle(45))
    return [str(dark), str(light)]


def ready(domains, **kwargs):
    data = ImageDomains(domains=domains, **({"size": 8, "split_seed": 1} | kwargs))
    data.prepare_data()
    data.setup("fit")
    return data


def images_of(data, client):
    tensors = data.client_data(client, "train").dataset.tensors
    indices = [
        i for split in SPLITS if data.num_samples(split)[client] for i in data.client_data(client, split).indices
    ]
    return tensors[0][indices], tensors[1][indices]


def test_every_client_has_images_of_one_domain(files):
    data = ImageDomains(domains=files, clients_per_domain=[2, 1], size=8)
    assert data.num_clients == 3  # before any data are read
    data = ready(files, clients_per_domain=[2, 1])
    assert data.client_names() == ["dark_0", "dark_1", "light_0"]
    assert [len(images_of(data, client)[0]) for client in range(3)] == [45, 45, 45]  # training and test together
    assert data.image_shape == (3, 8, 8)
    for client in range(3):
        images, _ = images_of(data, client)
        assert ((images < 64).all(), (images >= 190).all()) == (client < 2, client == 2)


def test_so_many_samples_for_each_client(files):
    for stratified in (False, True):
        data = ready(files, samples_per_client=15, stratified=stratified, split=(0.6, 0.2, 0.2), channels=1)
        assert [data.num_samples(split) for split in SPLITS] == [[9, 9], [3, 3], [3, 3]]
        if stratified:
            assert [torch.bincount(images_of(data, client)[1]).tolist() for client in range(2)] == [[5, 5, 5]] * 2
    with pytest.raises(DataError, match="domain light has 45 .*samples_per_client=23 need 46"):
        ready(files, samples_per_client=23, clients_per_domain=2)


def test_the_record(files):
    record = ready(files, samples_per_client=15).describe()
    assert json.loads(json.dumps(record)) == record
    assert (record["source"], record["title"]) == ("measured", "dark, light")
    assert record["domains"]["dark"]["images"] == 90
    assert record["domains"]["light"]["file"] == "light.npz"
    assert record["images"] == {"train": 30}


def test_missing_domains_are_refused(files, tmp_path):
    with pytest.raises(DataError, match=r"1 of 3 domains .*gone\.npz"):
        ready([*files, str(tmp_path / "gone.npz")])


@pytest.mark.slow
def test_without_any_real_data_domains_are_renderings_of_the_digits(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")
    names = ["mnist", "usps", "svhn"]
    with pytest.warns(UserWarning, match=r"STAND-IN DATA: .* say nothing about mnist, usps, svhn\. Set source"):
        data = ready(names, samples_per_client=60, size=8, split=(0.6, 0.2, 0.2), stratified=True)
    record = data.describe()
    assert (record["source"], record["title"]) == ("stand-in", "STAND-IN (digits) for mnist, usps, svhn")
    assert record["domains"]["usps"] == {"rendering": "inverted"}
    assert [float(images_of(data, client)[0].float().mean()) > 150 for client in range(3)] == [False, True, False]
    module, trainer = fit(data, tmp_path)
    assert len(module.seen["test"]) >= 3
    assert set(trainer.metrics["test"]["test_loss"].clients) == {0, 1, 2}
    with pytest.warns(UserWarning, match=r"say nothing about mnist, usps\.$"):
        assert ready(names[:2], source="standin").source == "stand-in"


def test_classes_must_agree(tmp_path, files):
    write_npz(tmp_path / "synthdigits.npz")
    np.savez(tmp_path / "fashionmnist.npz", train_images=pictures(20, 28), train_labels=cycle(20, 10))
    with (
        pytest.warns(UserWarning, match="is not the file"),
        pytest.raises(DataError, match=r"domain (synthdigits|fashionmnist) has the classes"),
    ):
        ready(["synthdigits", "fashionmnist"], data_root=str(tmp_path))
    # a file of one's own without the last classes
    data = ready(["synthdigits", files[0]], data_root=str(tmp_path))
    assert data.num_classes == 10
