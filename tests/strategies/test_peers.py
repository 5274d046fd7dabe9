"""Whom a rank names where another did not come in time."""

import socket

import pytest

from lightning_fl.errors import FederatedError, TrainingError
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
