"""GPUs that the runs of a study see."""

import os
import sys
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from study_tiny import tiny_cells

from lightning_fl.study import local_workers
from lightning_fl.study.local_workers import LocalWorkers


@pytest.fixture
def cells(tmp_path):
    return tiny_cells(tmp_path)[1]


@pytest.fixture
def asked(monkeypatch):
    """A machine with GPUs 3 and 5; the functions that other processes ran."""
    found = []

    class Pool:
        def __init__(self, *_): ...

        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def submit(self, function):
            found.append(function)
            future = Future()
            future.set_result(["3", "5"])
            return future

    monkeypatch.setattr(LocalWorkers, "_pool", Pool)
    return found


def start(own, cell):
    """Start a cell; its job, which has the GPU that its process is given."""

    class Process:
        def __init__(self, target, args, name):
            self.gpu = args[2]
            self.sentinel, self.exitcode = os.open(os.devnull, os.O_RDONLY), 0

        def start(self): ...

        def is_alive(self):
            return False

    own._context = SimpleNamespace(Process=Process)
    return own.start(cell)


def test_each_worker_has_a_gpu_which_the_next_cell_gets(cells, asked):
    own = LocalWorkers(None, cells)
    assert own.num_workers == 2
    jobs = [start(own, cell) for cell in cells[:2]]
    assert [job.gpu for job in jobs] == ["3", "5"]
    assert own.ended(jobs[:1]) == {jobs[0]: 0}
    assert start(own, cells[2]).gpu == "3"


def test_more_workers_share_gpus_in_turn_and_a_single_one_has_all(cells, asked):
    many = LocalWorkers(3, cells)
    assert [start(many, cell).gpu for cell in cells[:3]] == ["3", "5", "3"]
    assert start(LocalWorkers(1, cells), cells[3]).gpu is None


def test_runs_on_the_cpu_take_cores_and_no_gpu_is_asked_for(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(local_workers, "usable_cores", lambda: 7)
    on_cpu = tiny_cells(tmp_path, overrides={"trainer.accelerator": "cpu"})[1]
    own = LocalWorkers(None, on_cpu)
    assert (own.num_workers, asked) == (7, [])
    assert start(own, on_cpu[0]).gpu is None


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, "auto"),
        ({"trainer.accelerator": "gpu"}, "gpu"),
        ({"trainer": {"accelerator": "cpu"}}, "cpu"),
        ({"trainer": {"max_rounds": 2}, "trainer.accelerator": "cuda"}, "cuda"),
    ],
)
def test_the_last_accelerator_of_a_cells_settings_counts(tmp_path, overrides, expected):
    assert tiny_cells(tmp_path, overrides=overrides)[1][0].accelerator == expected


@pytest.mark.parametrize(
    ("variable", "count", "expected"),
    [(None, 3, ["0", "1", "2"]), ("4, GPU-8f3", 2, ["4", "GPU-8f3"]), ("", 0, []), ("1,2", 0, []), (None, 0, [])],
)
def test_visible_gpus(variable, count, expected, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    assert local_workers.visible_gpus() == expected


@pytest.mark.parametrize(("gpu", "expected"), [("5", "5"), (None, "0,1")])
def test_a_run_sees_its_gpu_alone(gpu, expected, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(local_workers, "_start_worker", lambda log: None)
    monkeypatch.setattr(local_workers, "exit_code", lambda call: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]) or 0)
    monkeypatch.setattr("sys.argv", [])
    replaced = {"__main__": SimpleNamespace(__spec__=None), "lightning_fl.study.warm": SimpleNamespace(PARSER=None)}
    monkeypatch.setattr("sys.modules", {**sys.modules, **replaced})
    with pytest.raises(SystemExit) as ended:
        local_workers.run_cell(["fit"], tmp_path / "log.txt", gpu)
    assert (ended.value.code, seen) == (0, [expected])
