"""Machines of their own: three real processes in three folders that share nothing but the loopback address."""

import json
import os
import re
import shutil
import signal
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from machine import GONE, silos, trainer_of
from meeting import meeting
from processes import SUPPORT, Ended, Process, reserved_port
from tiny import TinyModule, digest, regression_set

from lightning_fl.callbacks import LocalReference

SCRIPT = SUPPORT / "machine.py"
NODES = 3
pytestmark = [pytest.mark.processes, pytest.mark.slow]

StartNodes = Callable[..., list[Process]]


def write_silos(folder: Path) -> None:
    """Each machine has its own silo's file, and ``one`` has all."""
    for silo in range(NODES):
        dataset = regression_set(10 + 4 * silo, seed=silo)
        for machine in (f"machine_{silo}", "one"):
            path = folder / machine / f"silo_{silo}.pt"
            path.parent.mkdir(exist_ok=True, parents=True)
            torch.save({"x": dataset.tensors[0], "y": dataset.tensors[1]}, path)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process that holds all silos gets: its record and its folder."""
    root = tmp_path_factory.mktemp("one_process")
    write_silos(root)
    before = Path.cwd()
    os.chdir(root / "one")
    try:
        trainer = trainer_of(Namespace(num_nodes=1, rounds=4, seed=5, timeout=None, meet_in_round=None, fail=None))
        module = TinyModule(dropout=0.2, norm=True)
        trainer.fit(module, silos(NODES))
        trainer.test(module, silos(NODES), ckpt_path=trainer.trained_checkpoint)
    finally:
        os.chdir(before)
    assert trainer.callback(LocalReference) is not None
    record = {
        "weights": digest(trainer.models[0]),
        "test": {str(k): v for k, v in trainer.metrics["test"]["test_loss"].clients.items()},
    }
    return record, root / "one" / trainer.log_dir


@pytest.fixture
def machines(tmp_path: Path, start_warm: Callable[..., Process], monkeypatch: pytest.MonkeyPatch) -> StartNodes:
    """Start some of the machines, each in its folder; further words and variables by number of the machine."""
    write_silos(tmp_path)

    def start(
        port: str,
        *words: object,
        only: tuple[int, ...] = (0, 1, 2),
        of: dict[int, list[str]] | None = None,
        environments: dict[int, dict[str, str]] | None = None,
    ) -> list[Process]:
        processes = []
        for node in only:
            environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": str(node)}
            environment |= {"OMP_NUM_THREADS": "1"} | (environments or {}).get(node, {})
            monkeypatch.chdir(tmp_path / f"machine_{node}")
            line = [SCRIPT, *words, *(of or {}).get(node, [])]
            processes.append(start_warm(*line, environment=environment))
        monkeypatch.chdir(tmp_path)
        return processes

    return start


def ends(processes: list[Process]) -> list[Ended]:
    return [process.end() for process in processes]


def errors(processes: list[Process]) -> list[str]:
    """The last line of what each machine says of its end."""
    lines = []
    for ended in ends(processes):
        assert ended.code != 0, ended
        lines.append(ended.err.strip().splitlines()[-1])
    return lines


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"machine_{node}" / "record.json").read_text()) for node in range(NODES)]


def whole(processes: list[Process]) -> None:
    for ended in ends(processes):
        assert ended.code == 0, ended.err


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.ckpt"))


def test_each_machine_keeps_its_own_clients_and_gets_what_one_process_gets(
    tmp_path: Path, machines: StartNodes, one_process: Any
) -> None:
    expected, folder = one_process
    with reserved_port() as port:
        (tmp_path / "machine_1" / "runs" / "version_4").mkdir(parents=True)  # of this machine's own past
        whole(machines(port, "fit"))
    for record in records(tmp_path):
        assert (record["weights"], record["test"]) == (expected["weights"], expected["test"])
        assert record["log_dir"] == "runs/version_5"
    runs = [tmp_path / f"machine_{node}" / "runs" / "version_5" for node in range(NODES)]
    number = records(tmp_path)[0]["best_round"]
    for node, run in enumerate(runs):
        own = [f"checkpoints/{name}.client-{node}.round-{r}.ckpt" for name, r in (("best", number), ("last", 4))]
        first = ["checkpoints/best.ckpt", "checkpoints/last.ckpt", "models/shared_0.ckpt"] if node == 0 else []
        assert files(run) == sorted([*own, *first, f"models/client_{node}.ckpt"])
        assert not (run / ".run").exists()
        found, one = (torch.load(at / "models" / f"client_{node}.ckpt", weights_only=True) for at in (run, folder))
        assert all(torch.equal(found["state_dict"][key], value) for key, value in one["state_dict"].items())
        assert (run / "summary.json").is_file() == (node == 0)
    shared = torch.load(runs[0] / "checkpoints" / "last.ckpt", weights_only=True)
    assert shared["clients"] == shared["client_stores"] == shared["data"] == {}  # sums of data stay with their clients
    part = torch.load(runs[1] / "checkpoints" / "last.client-1.round-4.ckpt", weights_only=True)
    alone = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert part["data"] == alone["data"][1]
    assert shared["client_names"] == alone["client_names"]
    assert "client_stores" not in shared["callbacks"]["ModelCheckpoint"]["best"]

    with reserved_port() as port:  # a machine evaluates the best round with what its own client kept
        whole(machines(port, "test", "--ckpt-path", "best"))
    best = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["round"] == number
    assert len({json.dumps(record["test"]) for record in records(tmp_path)}) == 1

    lost = runs[2] / "checkpoints" / f"best.client-2.round-{number}.ckpt"
    shutil.copy(runs[2] / "checkpoints" / "last.client-2.round-4.ckpt", lost)
    torch.save({**torch.load(lost, weights_only=True), "token": "another run's"}, lost)
    with reserved_port() as port:
        for line in errors(machines(port, "test", "--ckpt-path", "best")):
            assert line.startswith("error: rank 2 (")
            assert f"{lost.relative_to(tmp_path / 'machine_2')} does not belong to the checkpoint: its run is" in line
    lost.unlink()
    with reserved_port() as port:
        for line in errors(machines(port, "test", "--ckpt-path", "best")):
            assert line.startswith("error: rank 2 (")
            assert (
                f"{lost.relative_to(tmp_path / 'machine_2')}, what client_2 kept up to round {number}, is not" in line
            )


def test_a_killed_machine_is_named_and_the_run_goes_on_to_the_same_bits(
    tmp_path: Path, machines: StartNodes, one_process: Any
) -> None:
    expected, _ = one_process
    with reserved_port() as port, meeting() as (server, environment):
        nodes = machines(port, "fit", "--meet-in-round", 3, environments={1: environment})
        with nodes[1].until_it_connects(server):
            nodes[1].send_signal(signal.SIGKILL)
            assert nodes[1].end().code == -signal.SIGKILL
        for line in errors([nodes[0], nodes[2]]):
            assert line.startswith("error: rank 1 (")
            assert "is gone: " in line
            assert "To resume after round 2, start all ranks again" in line
            assert line.endswith("--ckpt_path runs/version_0/checkpoints/last.ckpt.")
    with reserved_port() as port:
        whole(machines(port, "fit", "--ckpt-path", "last", "--meet-in-round", 3))
    for record in records(tmp_path):
        assert (record["weights"], record["test"]) == (expected["weights"], expected["test"])
        assert record["log_dir"] == "runs/version_1"


def test_a_machine_lost_before_a_resumed_run_saved_leaves_the_checkpoint_of_before(
    tmp_path: Path, machines: StartNodes
) -> None:
    with reserved_port() as port:
        whole(machines(port, "fit", "--rounds", 1, "--meet-in-round", 2))
    with reserved_port() as port, meeting() as (server, environment):
        words = ["fit", "--rounds", 3, "--ckpt-path", "last", "--meet-in-round", 2]
        nodes = machines(port, *words, environments={1: environment})
        with nodes[1].until_it_connects(server):
            nodes[1].send_signal(signal.SIGKILL)
        for line in errors([nodes[0], nodes[2]]):
            assert line.startswith("error: rank 1 (")
            assert line.endswith("start all ranks again with --ckpt_path runs/version_0/checkpoints/last.ckpt.")


@pytest.mark.parametrize(
    ("rank", "where"),
    [
        *[(0, "data"), (1, "setup"), (2, "module"), (1, "on_evaluate_end"), (0, "on_fit_end")],
        *[(1, f"module:{hook}") for hook in ("configure_optimizers", "transfer_batch_to_device")],
        *[(2, f"module:{hook}") for hook in ("validation_step", "on_validation_epoch_end", "on_train_end")],
        (0, "module:test_step"),
        *[(1, f"callback:{hook}") for hook in ("on_client_data", "on_client_start", "on_aggregate_end", "state_dict")],
    ],
)
def test_an_error_in_any_hook_of_one_machine_is_the_error_of_all(rank: int, where: str, machines: StartNodes) -> None:
    """Nobody waits for the time-out, which is half an hour."""
    with reserved_port() as port:
        for node, end in enumerate(ends(machines(port, "fit", of={rank: ["--fail", where]}))):
            assert (end.code, f"OSError: {GONE}" in end.err, "Traceback" in end.err) == (2, True, False)
            assert (f"error: rank {rank} (" in end.err) == (node != rank)
            assert ("machine.py, line " in end.err) >= (node == rank)
            assert node == rank or ":" in where or end.err.count("\n") == 1


def test_a_machine_at_work_ends_with_the_error_of_another(machines: StartNodes) -> None:
    with reserved_port() as port:
        nodes = machines(port, "fit", "--lost", 10, of={2: ["--fail", "busy"]})  # seconds, not minutes
        nodes[2].until_it_says("at work")
        nodes[1].send_signal(signal.SIGKILL)
        for node in (nodes[0], nodes[2]):
            ended = node.end()
            assert ended.code == 2
            assert "error: rank 1 (" in ended.err


def test_a_machine_at_work_ends_with_the_error_of_another_s_client(machines: StartNodes) -> None:
    with reserved_port() as port:
        nodes = machines(port, "fit", of={2: ["--fail", "busy"], 1: ["--fail", "step"]})
        for node, ended in enumerate(ends(nodes)):  # none waits for the turn that never ends
            assert ended.code == 2
            assert ("error: rank 1 (" in ended.err) == (node != 1)
            assert re.search(rf"client 1 \(.*\) failed in round 1: OSError: {GONE}", ended.err)


def test_data_that_all_machines_have_need_no_common_folder(tmp_path: Path, machines: StartNodes) -> None:
    """Rank zero alone keeps the run; what others go on from comes from there."""
    sizes = ["--sizes", "10", "12", "10", "20"]
    with reserved_port() as port:
        whole(machines(port, "fit", "--rounds", 4, *sizes))
    expected = records(tmp_path)
    assert [bool(files(tmp_path / f"machine_{node}" / "runs")) for node in range(NODES)] == [True, False, False]
    with reserved_port() as port:
        whole(machines(port, "fit", "--rounds", 2, *sizes))
    with reserved_port() as port:
        whole(machines(port, "fit", "--rounds", 4, "--ckpt-path", "last", *sizes))
    for record, before in zip(records(tmp_path), expected, strict=True):
        assert {**record, "log_dir": ""} == {**before, "log_dir": ""}
        assert record["log_dir"] == "runs/version_2"


def test_who_never_comes_is_named(tmp_path: Path, machines: StartNodes) -> None:
    with reserved_port() as port:
        (line,) = errors(machines(port, "fit", "--timeout", 2, only=(0,)))
        missing = "2 of 3 machines (NODE_RANK 1, 2)"
        assert line.startswith(f"error: waited 2 s for {missing} at 127.0.0.1:{port}: start them")
        assert line.endswith("or raise trainer.timeout.")
    with reserved_port() as port:
        (line,) = errors(machines(port, "fit", "--timeout", 1, only=(2,)))
        assert line.startswith("error: waited 1 s for rank 0 (Connection refused) at 127.0")
        assert "MASTER_ADDR" in line
    with reserved_port() as port:  # a line says so meanwhile, and Ctrl-C ends the waiting
        (node,) = machines(port, "fit", "--lines", 1, only=(0,))
        node.until_it_says(f"waiting for {missing} at 127.0.0.1:{port} … ")
        node.send_signal(signal.SIGINT)
        ended = node.end()
        assert ended.code == 130
        assert re.search(rf"{re.escape(missing)} at 127\.0\.0\.1:{port} … [1-9]\d* s$", ended.err, re.MULTILINE)
    with reserved_port() as port:  # those who came are told
        nodes = machines(port, "fit", "--lines", 1, only=(0, 1))
        nodes[1].until_it_says(f"waiting for 1 of 3 machines (NODE_RANK 2) at 127.0.0.1:{port}")
        nodes[1].send_signal(signal.SIGINT)
        (line,) = errors(nodes[:1])
        assert line.startswith("error: rank 1 (")
        assert line.endswith("): interrupted.")
        assert nodes[1].end().code == 130


def test_who_comes_with_another_recipe_or_other_data_is_refused(tmp_path: Path, machines: StartNodes) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--seed", "6"], r"has another recipe than {first}: trainer.seed is 6 there, 5 here. Start all ranks"),
        (["--learning-rate", "0.5"], "has another recipe than {first}: model.learning_rate is 0.5 there, 0.05"),
        (["--silos", "4"], "has another data set than {first}: the number of clients is 4 there, 3 here."),
    ]
    for words, text in cases:
        with reserved_port() as port:
            lines = errors(machines(port, "fit", of={1: words}))
        for line in lines:
            assert line.startswith("error: rank 1 (")
            named = line.removeprefix("error: ").split(" has another")[0].replace("rank 1", "rank 0")
            assert text.format(first=named) in line
    with reserved_port() as port:
        words = ["fit", "--sizes", "9", "12", "9"]
        for line in errors(machines(port, *words, of={2: ["--sizes", "9", "11", "9"]})):
            assert "the number of training samples of client 1 is 11 there, 12 here" in line
    with reserved_port() as port:  # a third one might come when these have ended, and would wait for others
        lines = errors(machines(port, "fit", only=(0, 1), of={1: ["--num-nodes", "2"]}))
        assert any("2 processes on 2 machines are expected here, 3 on 3 by rank 0 (" in line for line in lines)


@contextmanager
def a_listener() -> Iterator[str]:
    import socket

    with socket.create_server(("", 0)) as server:
        yield str(server.getsockname()[1])


def test_a_port_in_use_and_a_rank_that_comes_twice_are_named(machines: StartNodes) -> None:
    with a_listener() as port:
        (line,) = errors(machines(port, "fit", only=(0,)))
        assert line.startswith(f"error: port {port} cannot be opened on this machine")
        assert "set MASTER_PORT to a free one" in line
    with reserved_port() as port:
        nodes = machines(port, "fit", only=(0, 1))
        nodes += machines(port, "fit", only=(1,))
        for line in errors(nodes):
            assert "rank 1 of 3 was started twice" in line


def test_the_page_s_script_runs_as_it_stands(
    tmp_path: Path, start_warm: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "processes.md").read_text()
    (tmp_path / "train.py").write_text(page.split("cat > train.py <<'END'\n")[1].split("END\n")[0])
    processes = []
    with reserved_port() as port:
        for node in range(NODES):
            (tmp_path / f"machine_{node}").mkdir()
            monkeypatch.chdir(tmp_path / f"machine_{node}")
            environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": str(node)}
            processes.append(start_warm("../train.py", environment={**environment, "OMP_NUM_THREADS": "1"}))
        whole(processes)
    models = [f"machine_{node}/runs/version_0/models/client_{node}.ckpt" for node in range(NODES)]
    shared = "machine_0/runs/version_0/models/shared_0.ckpt"
    assert [name for name in files(tmp_path) if "/models/" in name] == sorted([*models, shared])
