"""PyG's generated files are removed, and what was made of them goes on."""

import inspect
import sys
import tempfile

import pytest
import torch
from torch_geometric.nn import MessagePassing

from lightning_fl.files.generated_modules import remove_generated_files


class Sum(MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return x_j


def test_no_file_stays_and_its_lines_are_known(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    sys.modules.pop(f"{Sum.__module__}_Sum_propagate", None)
    layer = Sum()
    assert list(tmp_path.glob("*_Sum_propagate_*.py"))
    remove_generated_files()
    assert list(tmp_path.iterdir()) == []
    assert "def propagate" in inspect.getsource(sys.modules[layer.propagate.__module__])
    edges = torch.tensor([[0, 1], [1, 1]])
    assert layer(torch.tensor([[1.0], [2.0]]), edges).tolist() == [[0.0], [3.0]]
    assert Sum()(torch.tensor([[1.0], [2.0]]), edges).tolist() == [[0.0], [3.0]]
    remove_generated_files()


@pytest.mark.processes
@pytest.mark.parametrize(("end", "code"), [("raise KeyboardInterrupt", -2), ("kill(getpid(), 15)", 143)])
def test_nothing_stays_of_what_is_constructed_and_never_run(end, code, tmp_path, start_warm):
    lines = f"""
import sys, tempfile
from os import getpid, kill
tempfile.tempdir, sys.dont_write_bytecode = {str(tmp_path)!r}, False
import lightning_fl.trainer.session
from lightning_fl.engine.interrupt import ends_on_signals
from torch_geometric.nn import SGConv
command = ends_on_signals()
command.__enter__()
SGConv(2, 2)
{end}
"""
    assert start_warm("-c", lines).end().code in (code, 1 if code < 0 else code)
    assert list(tmp_path.iterdir()) == []
