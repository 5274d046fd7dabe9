"""Which GPUs the runs of a study see."""

import os
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from study_tiny import tiny_cells

from lightning_fl.study import forked, warm, workers
from lightning_fl.study.workers import Workers


@pytest.fixture
def cells(tmp_path):
    return tiny_cells(tmp_path)[1]


@pytest.fixture
def started(monkeypatch):
    """A machine with GPUs 3 and 5, and what is started there: slots free themselves where the test says so."""
    asked = []

    class Executor:
        def __init__(self, *_): ...

        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def submit(self, function):
            asked.append(function)
            found = Future()
            found.set_result(["3", "5"])
            return found

    monkeypatch.setattr(workers, "_executor", Executor)
    return asked


def start(own, cell):
    """The GPU that a cell's process is given."""
    given = []

    def process(target, args, name):
        given.append(args[2])
        return SimpleNamespace(start=lambda: None, sentinel=None)

    own._context = SimpleNamespace(Process=process)
    own._start(cell)
    return given[0]


def test_there_are_as_many_workers_as_gpus_and_each_has_one(cells, started):
    own = Workers(None, cells)
    assert own.num_workers == 2
    assert [start(own, cell) for cell in cells[:2]] == ["3", "5"]
    own._jobs.pop(0)  # the first has ended: the next one takes its GPU
    assert start(own, cells[2]) == "3"


def test_more_workers_share_gpus_in_turn_and_a_single_one_has_all(cells, started):
    many = Workers(3, cells)
    assert [start(many, cell) for cell in cells[:3]] == ["3", "5", "3"]
    assert start(Workers(1, cells), cells[3]) is None


def test_runs_on_the_cpu_take_cores_and_no_gpu_is_asked_for(tmp_path, started, monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 7)
    on_cpu = tiny_cells(tmp_path, overrides={"trainer.accelerator": "cpu"})[1]
    assert {cell.accelerator for cell in on_cpu} == {"cpu"}
    own = Workers(None, on_cpu)
    assert own.num_workers == 7
    assert not started
    assert start(own, on_cpu[0]) is None


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, "auto"),
        ({"trainer.accelerator": "gpu"}, "gpu"),
        ({"trainer": {"accelerator": "cpu"}}, "cpu"),
        ({"trainer": {"max_rounds": 2}, "trainer.accelerator": "cuda"}, "cuda"),
    ],
)
def test_a_cells_accelerator_is_what_its_settings_say_last(tmp_path, overrides, expected):
    cells = tiny_cells(tmp_path, overrides=overrides)[1]
    assert cells[0].accelerator == expected


@pytest.mark.parametrize(
    ("variable", "count", "expected"),
    [(None, 3, ["0", "1", "2"]), ("4, GPU-8f3", 2, ["4", "GPU-8f3"]), ("", 0, []), ("1,2", 0, []), (None, 0, [])],
)
def test_gpus_are_those_that_the_environment_leaves(variable, count, expected, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    assert forked.visible_gpus() == expected


@pytest.mark.parametrize(("gpu", "expected"), [("5", "5"), (None, "0,1")])
def test_a_run_sees_its_gpu_alone(gpu, expected, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(forked, "start_worker", lambda log: None)
    monkeypatch.setattr(warm, "PARSER", None)
    monkeypatch.setattr(forked, "exit_code", lambda call: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]) or 0)
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.modules", {**__import__("sys").modules, "__main__": SimpleNamespace(__spec__=None)})
    with pytest.raises(SystemExit) as ended:
        forked.run_cell(["fit"], tmp_path / "log.txt", gpu)
    assert ended.value.code == 0
    assert seen == [expected]
