"""Real processes: the same bits on one and on two, and silos that stay where they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from algorithm_run import callbacks, federation, outcome, settings, settings_of
from processes import SUPPORT, Process, reserved_port, succeed
from tiny import FolderSilo, TinyClients, digest, regression_set

from lightning_fl import FederatedTrainer, Silos
from lightning_fl.callbacks import CollaborationGraph, ShapleyRewards

SCRIPT = SUPPORT / "algorithm_run.py"
pytestmark = [pytest.mark.processes, pytest.mark.slow]

TwoRanks = Callable[..., list[dict[str, Any]]]


def records_of(folder: Path, processes: list[Process]) -> list[dict[str, Any]]:
    """What all ranks have written, when all processes have ended well."""
    succeed(*processes)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("out_*.json"))]


def words(folder: Path, *arguments: str) -> list[str]:
    return [str(SCRIPT), "--root", str(folder / "runs"), "--out", str(folder / "out.json"), *arguments]


@pytest.fixture
def ranks_of(tmp_path: Path, start_warm: Callable[..., Process]) -> Callable[..., list[dict[str, Any]]]:
    """Run the script once per environment at the same time, everything imported already; the records of all ranks."""

    def run(environments: list[dict[str, str]], *arguments: str) -> list[dict[str, Any]]:
        line = words(tmp_path, *arguments)
        return records_of(
            tmp_path, [start_warm(*line, environment={"OMP_NUM_THREADS": "1", **more}) for more in environments]
        )

    return run


def environments_of(port: str) -> list[dict[str, str]]:
    """What a launcher tells each of two ranks."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "WORLD_SIZE": "2"}
    return [{**shared, "OMP_NUM_THREADS": "1", "LOCAL_RANK": str(rank)} for rank in range(2)]


@pytest.fixture
def two_ranks(ranks_of: Callable[..., list[dict[str, Any]]]) -> TwoRanks:
    """Run the script as two ranks, in the environment that a launcher makes for them; their records."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        with reserved_port() as port:
            return ranks_of(environments_of(port), "--devices", "2", *arguments)

    return run


def same(trainer: FederatedTrainer, data: Any, rank: dict[str, Any]) -> bool:
    """Whether a rank recorded what came of a run in this process."""
    expected = json.loads(json.dumps(outcome(trainer, data)))
    return expected == {name: rank[name] for name in expected}


def in_this_process(folder: Path, data: Any, algorithm: str = "drflm", **more: Any) -> FederatedTrainer:
    made = callbacks(algorithm=algorithm)
    given = settings(str(folder / "one"), 4) | settings_of(algorithm) | more
    trainer = FederatedTrainer(callbacks=made, accelerator="cpu", devices=1, **given)
    module, _ = federation(algorithm)
    trainer.fit(module, data)
    trainer.test(module, data)
    return trainer


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> FederatedTrainer:
    """The run in this process to which others are compared."""
    return in_this_process(tmp_path_factory.mktemp("plain"), TinyClients())


def test_processes_compile_after_they_were_forked(plain: FederatedTrainer, two_ranks: TwoRanks) -> None:
    ranks = two_ranks("--compile", "aot_eager")
    assert [rank["weights"] for rank in ranks] == 2 * [digest(plain.models[0])]


@pytest.mark.parametrize("launcher", [(), ("-m", "torch.distributed.run", "--nproc-per-node", "2")])
def test_two_processes_give_the_bits_of_one(
    launcher: tuple[str, ...], tmp_path: Path, plain: FederatedTrainer, start_warm: Callable[..., Process]
) -> None:
    """Started by the script itself, or by a launcher."""
    line = [*launcher, *words(tmp_path, "--devices", "2")]
    ranks = records_of(tmp_path, [start_warm(*line, environment={"OMP_NUM_THREADS": "1"})])
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    assert sorted(client for rank in ranks for client in rank["hosted"]) == [0, 1, 2]
    assert all(same(plain, TinyClients(), rank) for rank in ranks)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["version_0"]


def kept(trainer: FederatedTrainer, store: str) -> list[dict[str, Any]]:
    return list(trainer.client_store(store).values())


#: Algorithm -> whether a run in this process did what it is chosen for.
ALGORITHMS: dict[str, Callable[[Any], object]] = {
    # optimisers from ``__init__``, groups that hooks add, a module made in ``on_train_start``, states of metrics
    "states": lambda one: {name for client in kept(one, "metric_states") for name in client} == {"best"},
    # an average with which clients are evaluated, and a count that the loss depends on
    "averages": lambda one: {state["batches"] for state in kept(one, "callback_states")} <= {3, 6, 9, 12},
    # a client's turn sees one process: modules that gather, samplers that divide
    "gathering": lambda one: float(one.module.seen) > 0,
    # models that travel between ranks, validation data that do not
    "graph": lambda one: any(chosen for made in one.callback(CollaborationGraph).chosen for chosen in made.values()),
    # cosines of models on different ranks, and pulls that each rank keeps for its clients
    "pfedgraph": bool,
    # updates, local models and personal layers of clients on different ranks
    "coalitions": bool,
    # updates of clients on different ranks, also of one that arrives later
    "cfl": lambda one: one.collaboration.num_models >= 2,
    "kmeans": lambda one: one.collaboration.num_models >= 2,
    # discriminators of clients on different ranks, also of one that arrives later
    "fedcollab": bool,
    # gradients, losses and coalitions of clients on different ranks
    "shapley_first_order": lambda one: len(one.callback(ShapleyRewards).by_model) == 4,
    "shapley_exact": lambda one: len(one.callback(ShapleyRewards).by_model) == 4,
    # scores, bids, and turns of clients on different ranks, some of which fail in one tier
    **dict.fromkeys(("tiers", "soft", "fedsoft", "flsc", "ifca", "fesem"), bool),
    # blocks of clients of unequal sizes, some of whom take part, with layers of their own
    "stacked": bool,
    # every hook of strategies: further vectors, numbers, what client and server keep, personal models
    "learner": bool,
    # neighbours stay where their client is hosted; AFL's losses come from all ranks; fine-tuning draws the same batches
    **dict.fromkeys(("knnper", "afl", "finetune"), bool),
}


@pytest.mark.filterwarnings("ignore:.*left out of.*")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_has_the_same_bits_on_two_processes(algorithm: str, tmp_path: Path, two_ranks: TwoRanks) -> None:
    _, data = federation(algorithm)
    one = in_this_process(tmp_path, data, algorithm)
    assert ALGORITHMS[algorithm](one)
    ranks = two_ranks("--algorithm", algorithm)
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    assert all(same(one, data, rank) for rank in ranks)
    if algorithm == "stacked":
        assert [rank["hosted"] for rank in ranks] == [[0, 1, 2], [3, 4, 5, 6]]
    (folder,) = (tmp_path / "runs").iterdir()
    models = sorted((tmp_path / "one" / "version_0" / "models").glob("client_*"))
    assert len(models) == data.num_clients
    for path in models:
        exported, expected = (torch.load(one, weights_only=True) for one in (folder / "models" / path.name, path))
        assert all(torch.equal(exported["state_dict"][name], value) for name, value in expected["state_dict"].items())


def test_a_profile_of_two_processes_tells_their_waiting_and_changes_no_bit(
    tmp_path: Path, plain: FederatedTrainer, two_ranks: TwoRanks
) -> None:
    ranks = two_ranks("--profile")
    assert [rank["weights"] for rank in ranks] == [digest(plain.models[0])] * 2
    frame = pd.read_csv(tmp_path / "runs" / "version_0" / "profile.csv")
    assert list(frame.columns) == ["rank", "round", "category", "seconds"]
    assert set(frame.groupby(["rank", "round"]).groups) == {(rank, n) for rank in (0, 1) for n in (1, 2, 3, 4)}
    waiting = frame[frame["category"] == "waiting for ranks"]
    assert len(waiting) == 8
    assert (waiting["seconds"] > 0).all()
    spans = frame.groupby(["round", "rank"])["seconds"].sum().unstack()
    assert spans.shape == (4, 2)
    assert set(frame[frame["category"] == "loggers"]["rank"]) == {0, 1}


def test_two_nodes_give_the_bits_of_one(plain: FederatedTrainer, ranks_of: Callable[..., Any]) -> None:
    """Two machines started by hand, as Lightning documents it; here both are this one."""
    with reserved_port() as port:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        nodes = [{**shared, "NODE_RANK": str(node)} for node in range(2)]
        ranks = ranks_of(nodes, "--devices", "1", "--num-nodes", "2")
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    assert {rank["weights"] for rank in ranks} == {digest(plain.models[0])}


def test_slurm_tasks_give_the_bits_of_one(plain: FederatedTrainer, ranks_of: Callable[..., Any]) -> None:
    """What ``srun`` with two tasks sets for each of them."""
    shared = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "federation",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": "127.0.0.1",
    }
    with reserved_port() as port:
        shared["MASTER_PORT"] = port
        tasks = [{**shared, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)} for task in range(2)]
        ranks = ranks_of(tasks, "--devices", "2")
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    assert {rank["weights"] for rank in ranks} == {digest(plain.models[0])}


def silos_of_ranks(folder: Path) -> Silos:
    """Each rank has a folder of its own with its silos' files alone, as on machines of their own; all of them."""
    paths = [folder / f"rank_{silo % 2}" / f"silo_{silo}.pt" for silo in range(4)]
    for silo, path in enumerate(paths):
        dataset = regression_set(10 + 4 * silo, seed=silo)
        path.parent.mkdir(exist_ok=True)
        torch.save({"x": dataset.tensors[0], "y": dataset.tensors[1]}, path)
    return Silos([FolderSilo(str(path)) for path in paths])


def test_a_rank_never_opens_another_silos_data(tmp_path: Path, two_ranks: TwoRanks) -> None:
    together = silos_of_ranks(tmp_path)
    ranks = two_ranks("--silos", str(tmp_path))
    assert [rank["hosted"] for rank in ranks] == [[0, 2], [1, 3]]
    assert [rank["opened"] for rank in ranks] == [["silo_0.pt", "silo_2.pt"], ["silo_1.pt", "silo_3.pt"]]
    assert ranks[0]["weights"] == ranks[1]["weights"] == digest(in_this_process(tmp_path, together).models[0])


def test_what_silos_keep_in_a_common_folder_goes_on_in_one_process(tmp_path: Path, two_ranks: TwoRanks) -> None:
    """Each rank writes its own clients' part; a single process that hosts all finds all."""
    together = silos_of_ranks(tmp_path)
    two_ranks("--silos", str(tmp_path), "--rounds", "2")
    folder = tmp_path / "runs" / "version_0" / "checkpoints"
    parts = [f"last.client-{client}.round-2.ckpt" for client in range(4)]
    assert sorted(path.name for path in folder.glob("last.*")) == ["last.ckpt", *parts]
    trainer = FederatedTrainer(
        callbacks=callbacks(), accelerator="cpu", devices=1, **settings(str(tmp_path / "runs"), 4)
    )
    module, _ = federation("drflm")
    trainer.fit(module, together, ckpt_path="last")
    again = in_this_process(tmp_path, silos_of_ranks(tmp_path))
    assert digest(trainer.models[0]) == digest(again.models[0])


SECOND_RUN = """
import sys
from lightning_fl import FederatedTrainer, TrainingError
from lightning_fl.strategies.fork_launcher import end_fork
from tiny import TinyClients, TinyModule

class Failing(TinyModule):
    def training_step(self, batch, batch_idx):
        raise ValueError("no such fever chart")

trainer = FederatedTrainer(accelerator="cpu", max_rounds=2, logger=False, seed=5, default_root_dir=sys.argv[1])
trainer.strategy.fork_processes(2)
try:
    trainer.fit(Failing(), TinyClients())
except TrainingError as error:
    said = str(error)
trainer.fit(TinyModule(), TinyClients())
print(f"rank {trainer.fabric.global_rank} of {trainer.fabric.world_size}:", trainer.current_round, said, flush=True)
if not trainer.is_global_zero:
    end_fork(0)
"""


def said_by_ranks(start_warm: Callable[..., Process], script: str, folder: Path) -> list[str]:
    """Lines that begin with "rank", in order, of a script that succeeds."""
    process = start_warm("-c", script, str(folder), environment={"OMP_NUM_THREADS": "1"})
    succeed(process)
    return sorted(line for line in process.out.splitlines() if line.startswith("rank "))


def test_forked_processes_meet_again_after_a_run_that_failed(
    tmp_path: Path, start_warm: Callable[..., Process]
) -> None:
    said = said_by_ranks(start_warm, SECOND_RUN, tmp_path)
    assert [line[:14] for line in said] == ["rank 0 of 2: 2", "rank 1 of 2: 2"]
    assert all("no such fever chart" in line for line in said)


PREDICTION = """
import sys
from lightning_fl import FederatedTrainer
from lightning_fl.strategies.fork_launcher import end_fork
from tiny import TinyClients, TinyModule

class Failing(TinyModule):
    def predict_step(self, batch, batch_idx):
        if trainer.fabric.global_rank == 1:
            raise ValueError("no such fever chart")
        return super().predict_step(batch, batch_idx)

trainer = FederatedTrainer(accelerator="cpu", max_rounds=1, logger=False, seed=5, default_root_dir=sys.argv[1])
trainer.strategy.fork_processes(2)
module, data = Failing(), TinyClients()
trainer.fit(module, data)
try:
    said = f"{len(trainer.predict(module, data))} clients"
except Exception as error:
    said = str(error)
print(f"rank {trainer.fabric.global_rank} of {trainer.fabric.world_size}:", said, flush=True)
if not trainer.is_global_zero:
    end_fork(0)
"""


def test_a_prediction_that_fails_on_one_rank_fails_on_all(tmp_path: Path, start_warm: Callable[..., Process]) -> None:
    said = said_by_ranks(start_warm, PREDICTION, tmp_path)
    assert [line[:11] for line in said] == ["rank 0 of 2", "rank 1 of 2"]
    assert all("no such fever chart" in line for line in said)


COMMAND = """
import sys
from lightning_fl.cli import main
from lightning_fl.recipe import run
run._FIRST_RANK_SECONDS = 0.0  # no other rank ends this one
sys.exit(main(sys.argv[1:]))
"""
SHORT = """
from tiny import TinyModule

class Short(TinyModule):
    def __init__(self, missing: int = 0):
        super().__init__()
        self.missing = missing

    def predict_step(self, batch, batch_idx):
        return super().predict_step(batch, batch_idx)[self.missing if self.trainer.client == 1 else 0 :]
"""
WORDS = (
    *("--model", "short.Short", "--data", "tiny.TinyClients", "--trainer.accelerator", "cpu"),
    *("--trainer.max_rounds", "1", "--trainer.logger", "false"),
)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_command_that_predicts_ends_with_the_files_of_all_ranks(
    missing: int, tmp_path: Path, start_warm: Callable[..., Process]
) -> None:
    """Of client 1, on the second rank, a row is missing."""
    (tmp_path / "short.py").write_text(SHORT)
    succeed(start_warm("-c", COMMAND, "fit", *WORDS, "--trainer.devices", "1"))
    line = ["predict", *WORDS, "--trainer.devices", "2", "--ckpt_path", "last", f"--model.missing={missing}"]
    with reserved_port() as port:
        begun = [start_warm("-c", COMMAND, *line, environment=one) for one in environments_of(port)]
        ended = [process.end() for process in begun]
    assert [one.code for one in ended] == (2 * [2] if missing else [0, 0]), ended
    assert ["return a row for each" in one.err for one in ended] == 2 * [bool(missing)]
    assert [one.out.startswith("predictions: ") for one in ended] == [not missing, False]
    (folder,) = tmp_path.rglob("predictions")
    assert ("client_1.csv" in {path.name for path in folder.iterdir()}) is not bool(missing)


KILLED = """
import os, signal, sys, threading
from lightning_fl import FederatedTrainer
from lightning_fl.core.errors import LostPeerError
from tiny import TinyClients, TinyModule

class Killed(TinyModule):
    def training_step(self, batch, batch_idx):
        if trainer.fabric.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)

trainer = FederatedTrainer(accelerator="cpu", devices=2, logger=False, default_root_dir=sys.argv[1])
try:
    trainer.fit(Killed(), TinyClients())
except LostPeerError as error:
    print("threads:", *(one.name for one in threading.enumerate()))
    print("said:", error)
"""


def test_a_process_whose_child_is_killed_says_so_and_ends_by_itself(
    tmp_path: Path, start_warm: Callable[..., Process]
) -> None:
    """No thread of the launcher, which starts the script again, ends it from outside some seconds later."""
    (tmp_path / "killed.py").write_text(KILLED)
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)}  # also of the script that it starts again
    process = start_warm(str(tmp_path / "killed.py"), str(tmp_path), environment=environment)
    succeed(process)
    found = dict(line.split(": ", 1) for line in process.out.splitlines() if line.startswith(("threads", "said")))
    assert "rank 1" in found["said"]
    assert "child-process-observer" not in found["threads"]
