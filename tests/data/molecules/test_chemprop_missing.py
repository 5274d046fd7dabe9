"""What is said of chemprop where it is not installed, and of graphs that nobody makes."""

import importlib.util

import pytest

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data import MoleculeNet
from lightning_fl.data.partition import IID


def test_the_extra_is_named_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "chemprop" else found(name, *rest)
    )
    with pytest.raises(ConfigurationError, match=r"graphs='chemprop': .* `pip install lightning-fl\[chemprop\]`\."):
        MoleculeNet(partitioner=IID(num_clients=2), graphs="chemprop")


def test_unknown_graphs_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"graphs='dgl': expected one of pyg, chemprop\."):
        MoleculeNet(partitioner=IID(num_clients=2), graphs="dgl")  # type: ignore[arg-type]


def test_a_new_clients_file_needs_pyg_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_fl.data.molecules.module.expect_chemprop", lambda: None)
    data = MoleculeNet(partitioner=IID(num_clients=2), graphs="chemprop")
    with pytest.raises(ConfigurationError, match=r"a new client's file is read for graphs='pyg' only\."):
        data.newcomer_data("new.csv", {})
