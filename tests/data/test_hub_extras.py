"""What is said where the packages of Hugging Face and Flower are not installed."""

import importlib.util

import pytest

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data import IID, FromFlower, HFDataset


@pytest.fixture(autouse=True)
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    gone = ("datasets", "flwr_datasets")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in gone else found(name, *rest))


def test_the_extra_of_hugging_face_is_named() -> None:
    message = r'^HFDataset: datasets is not installed\. Install it with `pip install "lightning-fl\[hf\]"`\.$'
    with pytest.raises(ConfigurationError, match=message):
        HFDataset(path="x", target="y", partitioner=IID(num_clients=2))


def test_the_extra_of_flower_is_named() -> None:
    message = r'^FromFlower: flwr_datasets is not installed\. Install it with `pip install "lightning-fl\[flower\]"`\.$'
    with pytest.raises(ConfigurationError, match=message):
        FromFlower(partitioner="IidPartitioner", arguments={"num_partitions": 2})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"channels": 2}, r"HFDataset.channels=2: give 1 for grey or 3 for colour"),
        ({"parts": {"trian": "train"}}, r"HFDataset.parts: 'trian' is none of train, val, test"),
        ({"parts": {"test": "test"}}, r"HFDataset.parts: name the part to train on"),
        ({"columns": ["y"]}, r"HFDataset.columns=\['y'\]: name columns to learn from, without the target"),
        ({"columns": ["a"], "drop": ["b"]}, r"HFDataset.columns=\['a'\]: name columns"),
    ],
)
def test_options_that_do_not_go_together(changes: dict, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        HFDataset(path="x", target="y", partitioner=IID(num_clients=2), **changes)
