"""Whom a rank names where another did not come in time."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from lightning_fl.core.errors import FederatedError, TrainingError
from lightning_fl.strategies import FedAvg
from lightning_fl.strategies import peers as module
from lightning_fl.strategies.peers import Channel, Peers

HOSTS = ["a", "b", "c"]
TIMED_OUT = RuntimeError("Timed out waiting 3000ms for recv operation to complete")


@pytest.fixture
def connected(monkeypatch):
    """Rank zero, and the other ends of its connections to ranks 1 and 2."""
    monkeypatch.setattr(module, "_GRACE", 0.3)
    here, there = {}, {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        for rank in (1, 2):
            there[rank] = Channel(socket.create_connection(server.getsockname()))
            here[rank] = Channel(server.accept()[0])
    zero = Peers(0, HOSTS, here)
    yield zero, there
    zero.leave()
    for channel in there.values():
        channel.close()


def test_who_is_still_at_work_and_who_does_not_answer_are_named(connected):
    zero, there = connected
    at_work = Peers(1, HOSTS, {0: there[1]})  # and nobody reads what rank 2 is asked
    error = zero.reason(TIMED_OUT)
    assert isinstance(error, TrainingError)
    assert str(error) == (
        "rank 2 (c) did not come to an exchange in the time that trainer.timeout allows, and does not answer: its"
        " process is stopped or hangs, or its machine does. rank 1 (b) was still at work and did not come to an"
        " exchange in the time that trainer.timeout allows: raise it if turns or evaluations take longer, or look what"
        " keeps that rank."
    )
    at_work.leave()


def test_who_waits_as_well_is_not_blamed(connected):
    zero, there = connected
    one, two = (Peers(rank, HOSTS, {0: there[rank]}) for rank in (1, 2))
    one.waits = True
    assert str(zero.reason(TIMED_OUT)).startswith("rank 2 (c) was still at work and did not come to an exchange in")
    one.leave()
    two.leave()


def test_an_error_that_is_known_is_the_reason(connected):
    zero, there = connected
    one = Peers(1, HOSTS, {0: there[1]})
    one.tell(FederatedError("its disk is full"))
    assert str(zero.reason(RuntimeError("Connection closed by peer"))) == "rank 1 (b): its disk is full"
    one.leave()


def test_a_rank_that_waits_for_a_gpu_is_freed_once_and_then_gets_the_error(connected):
    """The thread at work is in a call that no exception ends, as in a collective of GPUs; aborting it does."""
    zero, there = connected
    freed, ends = threading.Event(), []

    def abort() -> None:
        ends.append("aborted")
        freed.set()

    def work() -> None:
        zero.begin_work()
        try:
            freed.wait(60)
            while True:
                time.sleep(0.01)
        except TrainingError as error:
            ends.append(str(error))
        finally:
            zero.end_work()

    zero.abort = abort
    thread = threading.Thread(target=work)
    thread.start()
    one = Peers(1, HOSTS, {0: there[1]})
    one.tell(TrainingError("its validation failed"))
    thread.join(60)
    assert ends == ["aborted", "rank 1 (b): its validation failed"]
    one.leave()


def test_an_error_of_this_rank_aborts_what_its_gpu_waits_for(monkeypatch):
    """NCCL itself needs GPUs: a group that writes down what is asked of it stands in its place."""
    asked = []

    class Group:
        def _get_backend(self, device: torch.device) -> "Group":
            asked.append(device)
            return self

        def abort(self) -> None:
            asked.append("abort")

    strategy = FedAvg(process_group_backend="cpu:gloo,cuda:nccl")
    strategy.parallel_devices = [torch.device("cuda", 0)]
    strategy._peers = Peers(0, HOSTS, {})
    with monkeypatch.context() as patch:
        patch.setattr("torch.distributed.distributed_c10d._world", SimpleNamespace(default_pg=Group()))
        patch.setattr("torch.distributed.is_initialized", lambda: True)
        patch.setattr("torch.distributed.destroy_process_group", lambda: asked.append("destroy"))
        strategy.fail(TrainingError("a label is out of range"))
    assert asked == [torch.device("cuda", 0), "abort", "destroy"]
