"""Real processes: the same bits on one and on two, and silos that stay where they are."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from algorithm_run import callbacks, federation, settings, settings_of, tier_records
from corners import MixedClients
from processes import SUPPORT, Process, reserved_port, start, succeed
from stateful_modules import SampledClients
from tiny import FolderSilo, TinyClients, digest, regression_set

from lightning_fl import FederatedTrainer, Silos
from lightning_fl.callbacks import CollaborationGraph, ShapleyRewards, TierBidding

SCRIPT = SUPPORT / "algorithm_run.py"
pytestmark = [pytest.mark.processes, pytest.mark.slow]

TwoRanks = Callable[..., list[dict[str, Any]]]


def records_of(folder: Path, processes: list[Process]) -> list[dict[str, Any]]:
    """What all ranks have written, when all processes have ended well."""
    succeed(*processes)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("out_*.json"))]


def words(folder: Path, *arguments: str) -> list[str]:
    return [str(SCRIPT), "--root", str(folder / "runs"), "--out", str(folder / "out.json"), *arguments]


def fresh(folder: Path, *arguments: str, command: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Start the script, which starts other ranks itself or is started by a launcher; the records of all ranks."""
    line = [sys.executable, *command, *words(folder, *arguments)]
    return records_of(folder, [start(*line, environment={"OMP_NUM_THREADS": "1"})])


@pytest.fixture
def ranks_of(tmp_path: Path, start_warm: Callable[..., Process]) -> Callable[..., list[dict[str, Any]]]:
    """Run the script once per environment at the same time, everything imported already; the records of all ranks."""

    def run(environments: list[dict[str, str]], *arguments: str) -> list[dict[str, Any]]:
        line = words(tmp_path, *arguments)
        return records_of(
            tmp_path, [start_warm(*line, environment={"OMP_NUM_THREADS": "1", **more}) for more in environments]
        )

    return run


@pytest.fixture
def two_ranks(ranks_of: Callable[..., list[dict[str, Any]]]) -> TwoRanks:
    """Run the script as two ranks, in the environment that a launcher makes for them; their records."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        with reserved_port() as port:
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "WORLD_SIZE": "2"}
            environments = [{**shared, "LOCAL_RANK": str(rank)} for rank in range(2)]
            return ranks_of(environments, "--devices", "2", *arguments)

    return run


def traffic(trainer: FederatedTrainer) -> dict[str, Any]:
    assert trainer.datamodule is not None
    return trainer.communication.summary(trainer.datamodule.client_names())


def in_this_process(folder: Path, data: Any, algorithm: str = "drflm", **more: Any) -> FederatedTrainer:
    made = callbacks(algorithm=algorithm)
    given = settings(str(folder / "one"), 4) | settings_of(algorithm) | more
    trainer = FederatedTrainer(callbacks=made, accelerator="cpu", devices=1, **given)
    module, _ = federation(algorithm)
    trainer.fit(module, data)
    trainer.test(module, data)
    return trainer


def test_processes_compile_after_they_were_forked(tmp_path: Path, two_ranks: TwoRanks) -> None:
    one = in_this_process(tmp_path, TinyClients())
    ranks = two_ranks("--compile", "aot_eager")
    assert [rank["weights"] for rank in ranks] == 2 * [digest(one.models[0])]


@pytest.mark.parametrize("command", [(), ("-m", "torch.distributed.run", "--nproc-per-node", "2")])
def test_two_processes_give_the_bits_of_one(command: tuple[str, ...], tmp_path: Path) -> None:
    one = in_this_process(tmp_path, TinyClients())
    ranks = fresh(tmp_path, "--devices", "2", command=command)
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    assert sorted(client for rank in ranks for client in rank["hosted"]) == [0, 1, 2]
    for rank in ranks:
        assert rank["communication"] == traffic(one)
        assert rank["weights"] == digest(one.models[0])
        assert rank["test"] == {str(k): v for k, v in one.metrics["test"]["test_loss"].clients.items()}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["version_0"]


def test_states_of_all_kinds_do_not_depend_on_the_processes(tmp_path: Path, two_ranks: TwoRanks) -> None:
    """Optimisers from ``__init__``, groups that hooks add, a module made in ``on_train_start``, metrics' states."""
    one = in_this_process(tmp_path, TinyClients(), "states")
    ranks = two_ranks("--algorithm", "states")
    assert [rank["weights"] for rank in ranks] == [digest(one.models[0])] * 2
    assert {name for client in one.client_store("metric_states").values() for name in client} == {"best"}


def test_states_of_callbacks_do_not_depend_on_the_processes(tmp_path: Path, two_ranks: TwoRanks) -> None:
    """An average with which clients are evaluated, and a count that the loss depends on."""
    one = in_this_process(tmp_path, TinyClients(), "averages")
    ranks = two_ranks("--algorithm", "averages")
    tested = {str(client): value for client, value in one.metrics["test"]["test_loss"].clients.items()}
    for rank in ranks:
        assert rank["weights"] == digest(one.models[0])
        assert rank["test"] == tested
    assert {state["batches"] for state in one.client_store("callback_states").values()} <= {3, 6, 9, 12}


def test_what_modules_gather_and_samplers_divide_does_not_depend_on_the_processes(
    tmp_path: Path, two_ranks: TwoRanks
) -> None:
    """A client's turn takes place in a process that is alone, where the run has several."""
    one = in_this_process(tmp_path, SampledClients(), "gathering")
    ranks = two_ranks("--algorithm", "gathering")
    assert [rank["weights"] for rank in ranks] == [digest(one.models[0])] * 2
    assert one.module is not None
    assert float(one.module.seen) > 0  # type: ignore[arg-type]


def test_a_profile_of_two_processes_tells_their_waiting_and_changes_no_bit(tmp_path: Path, two_ranks: TwoRanks) -> None:
    one = in_this_process(tmp_path, TinyClients())
    ranks = two_ranks("--profile")
    assert [rank["weights"] for rank in ranks] == [digest(one.models[0])] * 2
    frame = pd.read_csv(tmp_path / "runs" / "version_0" / "profile.csv")
    assert list(frame.columns) == ["rank", "round", "category", "seconds"]
    assert set(frame.groupby(["rank", "round"]).groups) == {(rank, n) for rank in (0, 1) for n in (1, 2, 3, 4)}
    waiting = frame[frame["category"] == "waiting for ranks"]
    assert len(waiting) == 8
    assert (waiting["seconds"] > 0).all()
    spans = frame.groupby(["round", "rank"])["seconds"].sum().unstack()
    assert spans.shape == (4, 2)
    assert set(frame[frame["category"] == "loggers"]["rank"]) == {0, 1}


def test_every_clients_own_model_has_the_same_bits_on_two_processes(tmp_path: Path, two_ranks: TwoRanks) -> None:
    """Models travel between ranks, validation data do not."""
    one = in_this_process(tmp_path, TinyClients(), "graph")
    ranks = two_ranks("--algorithm", "graph")
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    graph = next(callback for callback in one.callbacks if isinstance(callback, CollaborationGraph))
    assert any(others for chosen in graph.chosen for others in chosen.values())
    for rank in ranks:
        assert rank["communication"] == traffic(one)
        assert rank["models"] == [digest(model) for model in one.models]
        assert [{int(k): v for k, v in chosen.items()} for chosen in rank["chosen"][0]] == graph.chosen
        assert rank["test"] == {str(k): v for k, v in one.metrics["test"]["test_loss"].clients.items()}


def test_models_that_a_server_makes_for_each_client_have_the_same_bits_on_two_processes(
    tmp_path: Path, two_ranks: TwoRanks
) -> None:
    """Cosines of models on different ranks, and pulls that each rank keeps for its clients."""
    one = in_this_process(tmp_path, TinyClients(), "pfedgraph")
    for rank in two_ranks("--algorithm", "pfedgraph"):
        assert rank["communication"] == traffic(one)
        assert rank["models"] == [digest(model) for model in one.models]
        assert rank["test"] == {str(k): v for k, v in one.metrics["test"]["test_loss"].clients.items()}


def test_coalitions_and_personal_models_have_the_same_bits_on_two_processes(
    tmp_path: Path, two_ranks: TwoRanks
) -> None:
    """Updates, local models and personal layers of clients on different ranks."""
    one = in_this_process(tmp_path, TinyClients(), "coalitions")
    ranks = two_ranks("--algorithm", "coalitions")
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    for rank in ranks:
        assert rank["communication"] == traffic(one)
        assert rank["weights"] == digest(one.models[0])
        assert rank["test"] == {str(k): v for k, v in one.metrics["test"]["test_loss"].clients.items()}
        assert rank["gains"]["test_loss"] == {str(k): v for k, v in one.gains["test"]["test_loss"].clients.items()}
    (folder,) = (tmp_path / "runs").iterdir()
    exported = {path.name: torch.load(path, weights_only=True)["state_dict"] for path in folder.glob("models/client_*")}
    for path in (tmp_path / "one" / "version_0" / "models").glob("client_*"):
        expected = torch.load(path, weights_only=True)["state_dict"]
        assert all(torch.equal(exported[path.name][name], value) for name, value in expected.items())
    assert len(exported) == 3


@pytest.mark.parametrize("algorithm", ["cfl", "kmeans"])
def test_clusters_have_the_same_bits_on_two_processes(algorithm: str, tmp_path: Path, two_ranks: TwoRanks) -> None:
    """Updates of clients on different ranks, also of one that arrives later."""
    one = in_this_process(tmp_path, TinyClients(), algorithm)
    ranks = two_ranks("--algorithm", algorithm)
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    assert one.collaboration.num_models >= 2
    for rank in ranks:
        assert rank["communication"] == traffic(one)
        assert rank["models"] == [digest(model) for model in one.models]
        assert rank["shares"] == one.collaboration.personalisation.tolist()
        assert rank["test"] == {str(k): v for k, v in one.metrics["test"]["test_loss"].clients.items()}


def test_distances_have_the_same_bits_on_two_processes(tmp_path: Path, two_ranks: TwoRanks) -> None:
    """Discriminators of clients on different ranks, also of one that arrives later."""
    one = in_this_process(tmp_path, TinyClients(), "fedcollab")
    ranks = two_ranks("--algorithm", "fedcollab")
    for rank in ranks:
        assert rank["communication"] == traffic(one)
        assert rank["distances"] == [one.callbacks[1].distances.tolist()]  # type: ignore[attr-defined]
        assert rank["weights"] == digest(one.models[0])
        assert rank["test"] == {str(k): v for k, v in one.metrics["test"]["test_loss"].clients.items()}


@pytest.mark.parametrize("method", ["first_order", "exact"])
def test_contributions_have_the_same_bits_on_two_processes(method: str, tmp_path: Path, two_ranks: TwoRanks) -> None:
    """Gradients, losses and coalitions of clients on different ranks."""
    one = in_this_process(tmp_path, TinyClients(), f"shapley_{method}")
    ranks = two_ranks("--algorithm", f"shapley_{method}")
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    rewards = next(callback for callback in one.callbacks if isinstance(callback, ShapleyRewards))
    assert len(rewards.by_model) == 4
    for rank in ranks:
        assert rank["communication"] == traffic(one)
        assert rank["weights"] == digest(one.models[0])
        assert rank["contributions"] == [json.loads(json.dumps(rewards.by_model))]


@pytest.mark.filterwarnings("ignore:.*left out of.*")
@pytest.mark.parametrize("algorithm", ["tiers", "soft", "fedsoft", "flsc", "ifca", "fesem"])
def test_tiers_and_tokens_have_the_same_bits_on_two_processes(
    algorithm: str, tmp_path: Path, two_ranks: TwoRanks
) -> None:
    """Scores, bids, and turns of clients on different ranks, some of which fail in one tier."""
    one = in_this_process(tmp_path, MixedClients(), algorithm)
    ranks = two_ranks("--algorithm", algorithm)
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    tiers = [tier_records(c) for c in one.callbacks if isinstance(c, TierBidding)]
    assert len(tiers) == (algorithm == "tiers")
    for rank in ranks:
        assert rank["communication"] == traffic(one)
        assert rank["models"] == [digest(model) for model in one.models]
        assert rank["shares"] == one.collaboration.personalisation.tolist()
        assert rank["tiers"] == json.loads(json.dumps(tiers))
        assert rank["test"] == {str(k): v for k, v in one.metrics["test"]["test/acc"].clients.items()}


def test_stacked_clients_have_the_same_bits_on_two_processes(tmp_path: Path, two_ranks: TwoRanks) -> None:
    """Blocks of clients of unequal sizes, some of whom take part, with layers of their own."""
    _, data = federation("stacked")
    one = in_this_process(tmp_path, data, "stacked")
    ranks = two_ranks("--algorithm", "stacked")
    assert [rank["hosted"] for rank in ranks] == [[0, 1, 2], [3, 4, 5, 6]]
    for rank in ranks:
        assert rank["communication"] == traffic(one)
        assert rank["weights"] == digest(one.models[0])
        assert rank["test"] == {str(k): v for k, v in one.metrics["test"]["test_loss"].clients.items()}


def test_a_strategy_s_hooks_have_the_same_bits_on_two_processes(tmp_path: Path, two_ranks: TwoRanks) -> None:
    """Further vectors, numbers, what client and server keep, personal models; also of what is exported."""
    _, data = federation("learner")
    one = in_this_process(tmp_path, data, "learner")
    ranks = two_ranks("--algorithm", "learner")
    for rank in ranks:
        assert rank["communication"] == traffic(one)
        assert rank["weights"] == digest(one.models[0])
        assert rank["test"] == {str(k): v for k, v in one.metrics["test"]["test_loss"].clients.items()}
    (folder,) = (tmp_path / "runs").iterdir()
    for path in (tmp_path / "one" / "version_0" / "models").glob("client_*"):
        exported, expected = (torch.load(one, weights_only=True) for one in (folder / "models" / path.name, path))
        assert all(torch.equal(exported["state_dict"][name], value) for name, value in expected["state_dict"].items())


@pytest.mark.parametrize("algorithm", ["knnper", "afl", "finetune"])
def test_neighbours_and_averages_have_the_same_bits_on_two_processes(
    algorithm: str, tmp_path: Path, two_ranks: TwoRanks
) -> None:
    """Neighbours of a client are where it is hosted, and no byte is sent of them; AFL's losses come from all ranks.

    What is fine-tuned before each evaluation draws the same batches on any rank.
    """
    one = in_this_process(tmp_path, TinyClients(), algorithm)
    for rank in two_ranks("--algorithm", algorithm):
        assert rank["communication"] == traffic(one)
        assert rank["weights"] == digest(one.models[0])
        assert rank["test"] == {str(k): v for k, v in one.metrics["test"]["test_loss"].clients.items()}


def test_two_nodes_give_the_bits_of_one(tmp_path: Path, ranks_of: Callable[..., Any]) -> None:
    """Two machines started by hand, as Lightning documents it; here both are this one."""
    with reserved_port() as port:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        nodes = [{**shared, "NODE_RANK": str(node)} for node in range(2)]
        ranks = ranks_of(nodes, "--devices", "1", "--num-nodes", "2")
    assert [rank["num_processes"] for rank in ranks] == [2, 2]
    assert {rank["weights"] for rank in ranks} == {digest(in_this_process(tmp_path, TinyClients()).models[0])}


def test_slurm_tasks_give_the_bits_of_one(tmp_path: Path, ranks_of: Callable[..., Any]) -> None:
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
    assert {rank["weights"] for rank in ranks} == {digest(in_this_process(tmp_path, TinyClients()).models[0])}


def test_a_rank_never_opens_another_silos_data(tmp_path: Path, two_ranks: TwoRanks) -> None:
    sets = [regression_set(10 + 4 * i, seed=i) for i in range(4)]
    for silo, dataset in enumerate(sets):
        # Each rank has a folder of its own with its silos' files alone, as on machines of their own.
        path = tmp_path / f"rank_{silo % 2}" / f"silo_{silo}.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save({"x": dataset.tensors[0], "y": dataset.tensors[1]}, path)
    ranks = two_ranks("--silos", str(tmp_path))
    assert [rank["hosted"] for rank in ranks] == [[0, 2], [1, 3]]
    assert [rank["opened"] for rank in ranks] == [["silo_0.pt", "silo_2.pt"], ["silo_1.pt", "silo_3.pt"]]
    together = Silos([FolderSilo(str(tmp_path / f"rank_{silo % 2}" / f"silo_{silo}.pt")) for silo in range(4)])
    assert ranks[0]["weights"] == ranks[1]["weights"] == digest(in_this_process(tmp_path, together).models[0])


def test_what_silos_keep_in_a_common_folder_goes_on_in_one_process(tmp_path: Path, two_ranks: TwoRanks) -> None:
    """Each rank writes its own clients' part; a single process that hosts all finds all."""
    sets = [regression_set(10 + 4 * i, seed=i) for i in range(4)]
    for silo, dataset in enumerate(sets):
        path = tmp_path / f"rank_{silo % 2}" / f"silo_{silo}.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save({"x": dataset.tensors[0], "y": dataset.tensors[1]}, path)

    def together() -> Silos:
        return Silos([FolderSilo(str(tmp_path / f"rank_{silo % 2}" / f"silo_{silo}.pt")) for silo in range(4)])

    two_ranks("--silos", str(tmp_path), "--rounds", "2")
    folder = tmp_path / "runs" / "version_0" / "checkpoints"
    parts = [f"last.client-{client}.round-2.ckpt" for client in range(4)]
    assert sorted(path.name for path in folder.glob("last.*")) == ["last.ckpt", *parts]
    trainer = FederatedTrainer(
        callbacks=callbacks(), accelerator="cpu", devices=1, **settings(str(tmp_path / "runs"), 4)
    )
    module, _ = federation("drflm")
    trainer.fit(module, together(), ckpt_path="last")
    assert digest(trainer.models[0]) == digest(in_this_process(tmp_path, together()).models[0])


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


def test_forked_processes_meet_again_after_a_run_that_failed(
    tmp_path: Path, start_warm: Callable[..., Process]
) -> None:
    process = start_warm("-c", SECOND_RUN, str(tmp_path), environment={"OMP_NUM_THREADS": "1"})
    succeed(process)
    said = sorted(line for line in process.out.splitlines() if line.startswith("rank "))
    assert [line[:14] for line in said] == ["rank 0 of 2: 2", "rank 1 of 2: 2"]
    assert all("no such fever chart" in line for line in said)
