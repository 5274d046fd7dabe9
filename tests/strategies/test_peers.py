"""Which rank is named when another did not come in time, or is gone."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from processes import LIMIT
from torch.distributed import HashStore

from lightning_fl.core.errors import FederatedError, LostPeerError, TrainingError
from lightning_fl.strategies import FedAvg
from lightning_fl.strategies import peers as module
from lightning_fl.strategies.peers import Peers

BROKEN = RuntimeError("Connection closed by peer")


def until(peers: Peers, what: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Peers]]:
    """Ranks of one run, in threads of this process."""
    for name, seconds in {"_POLL": 0.01, "_REPLY": 0.5, "_GRACE": 0.2}.items():
        monkeypatch.setattr(module, name, seconds)
    monkeypatch.setattr(HashStore, "clone", lambda store: store, raising=False)
    store = HashStore()
    made = [Peers(rank, [host, 3], store, 60.0) for rank, host in enumerate("abc")]
    for one in made:
        one.ending.set()  # this process is no rank's
        one.enter_barrier()
    for one in made:
        until(one, lambda one=one: not one.missing_ranks())
    yield made
    for one in reversed(made):
        one.leave()


@pytest.mark.parametrize("waits", [False, True])
def test_ranks_at_work_and_ranks_that_do_not_answer_are_named(waits: bool, ranks: list[Peers]) -> None:
    zero, one, two = ranks
    two.leave()  # without an error: it answers no more
    one.waits = waits
    found = zero.reason(BROKEN, timed_out=True)
    assert isinstance(found, TrainingError)
    silent, _, busy = str(found).partition(". ")
    assert "rank 2 (c)" in silent
    assert ("rank 1 (b)" in str(found)) == ("trainer.timeout" in busy) == (not waits)  # who waits as well is not blamed


def test_a_rank_that_is_gone_is_named_on_all(ranks: list[Peers]) -> None:
    zero, one, two = ranks
    two.leave()
    for each in (one, zero):
        found = each.reason(BROKEN, timed_out=False)
        assert isinstance(found, LostPeerError)
        assert str(found).startswith("rank 2 (c) is gone")


def test_a_rank_that_waits_for_long_finds_one_that_is_gone(ranks: list[Peers]) -> None:
    zero, one, two = ranks
    zero._lost = 0.3
    two.leave()
    zero.waits = True
    until(one, lambda: one.error)
    assert str(one.error).startswith("rank 2 (c) is gone")


@pytest.mark.parametrize("code", [3, -9])
def test_a_process_that_failed_is_named_at_once(code: int, ranks: list[Peers]) -> None:
    zero, one, _ = ranks
    zero._children = [SimpleNamespace(poll=lambda: 0), SimpleNamespace(poll=lambda: code)]
    assert str(one.reason(BROKEN, timed_out=False)).startswith("rank 2 (c) is gone")


def test_the_first_error_is_the_reason_on_all(ranks: list[Peers]) -> None:
    zero, one, two = ranks
    one.publish_error(FederatedError("its disk is full"))
    until(two, lambda: two.error)
    two.publish_error(FederatedError("a later one"))
    for each in (zero, two):
        found = each.reason(BROKEN, timed_out=False)
        assert type(found) is FederatedError
        assert str(found) == "rank 1 (b): its disk is full"
    with pytest.raises(FederatedError, match="its disk is full"):
        zero.check()


def test_a_rank_that_goes_on_after_rank_zero_has_ended_is_told(ranks: list[Peers]) -> None:
    zero, one, two = ranks
    two.leave()
    zero.leave()
    assert "start all alike" in str(one.reason(BROKEN, timed_out=False))


def test_a_store_that_does_not_answer_is_rank_zero_s(ranks: list[Peers], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of the store last for as long as its process is stopped."""
    _, one, _ = ranks
    asked, blocked = threading.Event(), threading.Event()

    def stuck(*_: object) -> None:
        asked.set()
        blocked.wait(LIMIT)
        raise RuntimeError

    monkeypatch.setattr(one, "_store", SimpleNamespace(set=stuck))
    try:
        assert asked.wait(LIMIT)
        assert str(one.reason(BROKEN, timed_out=False)).startswith("rank 0 (a) is gone")
        one._lost = 0.3  # less than that has waited
        one.enter_barrier()
        with pytest.raises(LostPeerError, match="rank 0"):
            one.missing_ranks()
    finally:
        blocked.set()


def test_an_error_of_this_rank_aborts_what_its_gpu_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL itself needs GPUs: a group that records calls replaces it."""
    asked = []

    class Group:
        def _get_backend(self, device: torch.device) -> "Group":
            asked.append(device)
            return self

        def abort(self) -> None:
            asked.append("abort")

    strategy = FedAvg(process_group_backend="cpu:gloo,cuda:nccl")
    strategy.parallel_devices = [torch.device("cuda", 0)]
    strategy._peers = SimpleNamespace(publish_error=asked.append, leave=lambda: asked.append("leave"))
    error = TrainingError("a label is out of range")
    with monkeypatch.context() as patch:
        patch.setattr("torch.distributed.distributed_c10d._world", SimpleNamespace(default_pg=Group()))
        patch.setattr("torch.distributed.destroy_process_group", lambda: asked.append("destroy"))
        strategy.disconnect(error)
    assert asked == [error, torch.device("cuda", 0), "abort", "destroy", "leave"]
