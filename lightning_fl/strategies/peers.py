"""Status of a run's ranks, exchanged through rank zero's store: heartbeats, barriers, and the first error.

A collective that breaks names neither the rank at fault nor its reason. So the first error of a run is kept under a key
of the store, where a thread of every rank finds it; a rank that does not end by itself soon after is ended. The threads
also write the heartbeats of their ranks. Only they use the store: its calls block while its server is stopped.

Ranks of one machine listen on its loopback interface only, those of several on the interface of MASTER_ADDR.
"""

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from itertools import count
from typing import Any, NamedTuple

from torch.distributed import PrefixStore, Store, TCPStore

from lightning_fl.core import errors
from lightning_fl.core.errors import ConfigurationError, FederatedError, LostPeerError, TrainingError
from lightning_fl.core.wire_format import decode, encode
from lightning_fl.engine.interrupt import InterruptGuard, end_process

LOOPBACK = "127.0.0.1"
#: Where Gloo and NCCL read the network interface from that they listen on.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
#: System call for an interface's IPv4 address.
_SIOCGIFADDR = {"linux": 0x8915, "darwin": 0xC0206921}
#: Seconds between two polls of the store; without a heartbeat of a rank until it is gone: where an exchange broke, and
#: where this rank waits (a rank may hold Python's lock in one long call).
_POLL, _REPLY, _LOST = 0.25, 3.0, 300.0
#: Seconds that a rank has to end by itself, and that rank zero keeps the store for the others; between lines about
#: missing ranks.
_GRACE, _LINES = 3.0, 5.0
#: Stores that this process serves or uses, by address: they outlive a process group, whose ranks may connect again.
_STORES: dict[str, TCPStore] = {}
_CONNECTIONS = count()


def publish(store: Store, kind: str, text: str) -> None:
    """Keep an error, as name of its class and text, for all ranks, unless there is an earlier one."""
    store.compare_set("end", "", encode([kind, text[:4000]]))  # type: ignore[arg-type]  # takes bytes as well


class Peers:
    """Status of the other ranks.

    ``identity`` is the name of this rank's machine, the number of ranks, and what else all agree on. After ``timeout``
    seconds, at most 300, without a heartbeat of a rank, a waiting rank reports it as gone. ``children`` are
    processes of ranks 1, 2, ... that this rank started.
    """

    def __init__(
        self, rank: int, identity: Sequence[Any], store: Store, timeout: float, children: Sequence[Any] = ()
    ) -> None:
        self.rank, self._identity, self._children = rank, identity, children
        self.error: FederatedError | None = None  #: that ended another rank
        self.waits = self._fails = False  #: this rank is in an exchange; a rank has failed
        self.ending, self._left, self._wake = threading.Event(), threading.Event(), threading.Event()
        #: Last of every rank: time, whether it waits, barriers that it entered, ``identity``; empty before the first.
        self.heartbeats: list[list[Any]] = [[] for _ in range(identity[1])]
        self.heartbeats[rank] = [0.0, False, 0, *identity]
        self._store = store.clone()  # with a connection of its own: that of the group waits in it
        self._lost = min(timeout, _LOST)
        self._own: tuple[str, str] | None = None
        self._barriers, self._pause, self._polled = 0, _POLL, time.monotonic()
        self._clock = 0.0  # seconds in which this rank polled; it may have been stopped itself
        self._seen = [0.0] * len(self.heartbeats)
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._thread.start()

    def name(self, *ranks: int) -> str:
        """Ranks and their machines, for messages."""
        return ", ".join(
            f"rank {rank}" + (f" ({last[3]})" if (last := self.heartbeats[rank]) else "") for rank in ranks
        )

    def check(self) -> None:
        """Raise the error of another rank, if there is one."""
        if self.error is not None:
            self.ending.set()
            raise self.error

    def enter_barrier(self) -> None:
        """Enter the next barrier."""
        self._barriers, self._pause, self.waits = self._barriers + 1, 0.01, True
        self._wake.set()

    def missing_ranks(self) -> list[int]:
        """Return the ranks that have not entered the barrier; raises the error of one that failed or is gone."""
        self.check()
        if time.monotonic() - self._polled > self._lost:
            raise self._gone(0)  # it serves the store, which does not answer
        ranks = [rank for rank, last in enumerate(self.heartbeats) if not last or last[2] < self._barriers]
        self.waits = bool(ranks)
        return ranks

    def publish_error(self, error: BaseException) -> None:
        """Publish the error that ends this rank."""
        text = str(error) if isinstance(error, FederatedError) else f"{type(error).__name__}: {error}".rstrip(": ")
        text = "interrupted." if isinstance(error, KeyboardInterrupt) else text
        self._own = self._own or (type(error).__name__, f"{self.name(self.rank)}: {text}")
        self.ending.set()
        self._wake.set()

    def leave(self) -> None:
        """End this rank's part; rank zero waits a little for ranks that still look for an error in its store."""
        raised = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if raised is not None and not hasattr(sys, "ps1"):  # it ends the interpreter, unless that is a notebook's
            self.publish_error(raised)
        for event in (self.ending, self._left, self._wake):
            event.set()
        self._thread.join(_GRACE + 1)

    def reason(self, symptom: BaseException, timed_out: bool) -> FederatedError:
        """Find why an exchange broke, from its error on this rank and whether it lasted as long as one may."""
        self.ending.set()
        begin, deadline = self._clock, time.monotonic() + 2 * _REPLY
        while self.error is None and self._clock <= begin + _REPLY and time.monotonic() < deadline:
            time.sleep(_POLL / 10)
        if self.error is not None:
            return self.error
        silent = [rank for rank, seen in enumerate(self._seen) if self._clock - seen > _REPLY / 2]
        if self._clock <= begin + 4 * _POLL:  # after a poll under way, rank zero's store has not answered
            silent = [0]
        busy = [rank for rank, last in enumerate(self.heartbeats) if rank not in (self.rank, *silent) and not last[1]]
        if timed_out:
            text = f"{self.name(*silent)} does not answer: stopped, or without a network. " if silent else ""
            if busy or not silent:
                who = f"{self.name(*busy)}, still at work," if busy else "another rank"
                text += f"{who} did not come in the time that trainer.timeout allows: raise it for longer turns."
            found = TrainingError(text.rstrip())
        elif silent:
            found = self._gone(*silent)
        else:
            found = TrainingError(f"the connection to another rank broke: {str(symptom).partition(chr(10))[0]}")
        self._own = type(found).__name__, str(found)
        return found

    def _gone(self, *ranks: int) -> LostPeerError:
        return LostPeerError(f"{self.name(*ranks)} is gone: its process ended, or is stopped, and left no error.")

    def _watch(self) -> None:
        store = self._store
        try:
            while not self._poll() and not self._left.is_set():
                self._wake.wait(self._pause)
                self._wake.clear()
                self._pause = min(2 * self._pause, _POLL)
            store.add("done", 1)
        except RuntimeError:  # the store has ended, and with it the process that serves it
            self.error, self._fails = self._gone(0), True
        if self._fails and not self.ending.wait(_GRACE) and not hasattr(sys, "ps1"):
            end_process(2, f"error: {self.error}")  # in a notebook, the next exchange raises it
        self._left.wait()
        if self.rank == 0:
            deadline = time.monotonic() + _GRACE
            with suppress(RuntimeError):  # a launcher that served the store is gone
                publish(store, "", f"{self.name(0)} has ended while this rank continues: start all alike.")
                while store.add("done", 0) < len(self.heartbeats) and time.monotonic() < deadline:
                    time.sleep(0.01)

    def _poll(self) -> bool:
        """Write this rank's heartbeat, publish its error, read the other heartbeats; returns whether a rank failed."""
        store = self._store
        heartbeat = encode([time.monotonic(), self.waits, self._barriers, *self._identity])
        store.set(f"heartbeat/{self.rank}", heartbeat)  # type: ignore[arg-type]  # takes bytes as well
        if self._own is not None:
            publish(store, *self._own)
        for rank, process in enumerate(self._children, 1):
            if process.poll():
                publish(store, "LostPeerError", str(self._gone(rank)))
        ranks = [rank for rank, known in enumerate(self.heartbeats) if known or store.check([f"heartbeat/{rank}"])]
        found = store.multi_get([f"heartbeat/{rank}" for rank in ranks])
        now = time.monotonic()
        self._clock += min(now - self._polled, 4 * _POLL)
        self._polled = now
        for rank, new in zip(ranks, map(decode, found), strict=True):
            self._seen[rank] = self._seen[rank] if new == self.heartbeats[rank] else self._clock
            self.heartbeats[rank] = new
            if self.waits and self._clock - self._seen[rank] > self._lost:
                publish(store, "LostPeerError", str(self._gone(rank)))
        if store.check(["end"]):
            kind, text = map(str, decode(store.get("end")))
            self._fails, known = bool(kind), getattr(errors, kind, None)
            federated = isinstance(known, type) and issubclass(known, FederatedError)
            self.error = (known if known and federated else TrainingError)(text)
        return self.error is not None


class RankAddress(NamedTuple):
    """A rank, and the address of the store, which rank zero serves or a launcher such as torchrun has ``served``."""

    address: str
    port: int
    rank: int
    world_size: int
    num_nodes: int
    served: bool

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"

    @property
    def host(self) -> str:
        """Address of rank zero's own machine."""
        return self.address if self.num_nodes > 1 else LOOPBACK

    def reaches_all(self, address: str) -> bool:
        """Whether all ranks reach this machine there: its name may be a loopback address on itself alone."""
        return self.num_nodes == 1 or self.address == address or not ip_address(address.partition("%")[0]).is_loopback


def connect_ranks(own: RankAddress, timeout: timedelta, children: Sequence[Any] = ()) -> tuple[Store, Peers]:
    """Wait until all ranks are connected to the store; returns the store for the process group, and the other ranks.

    A ``ConfigurationError`` says that a rank is missing, was started twice or has another number of ranks, that the
    address is in use, or that what answers there is not a run.
    """
    seconds, host, counts = timeout.total_seconds(), socket.gethostname(), [own.world_size, own.num_nodes]
    server = _STORES.get(str(own)) or _STORES.setdefault(str(own), _store(own, seconds))
    store = PrefixStore(f"lightning_fl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_CONNECTIONS)}", server)
    if store.add(f"came/{own.rank}", 1) > 1:
        twice = f"rank {own.rank} of {own.world_size} was started twice, now on {host}: set NODE_RANK on every machine."
        publish(store, "ConfigurationError", twice)
        raise ConfigurationError(twice)
    peers = Peers(own.rank, [host, *counts], store, seconds, children)

    def missing() -> str:
        absent = peers.missing_ranks()
        if 0 not in absent and (theirs := peers.heartbeats[0][4:]) != counts:
            raise ConfigurationError(
                "{} processes on {} machines are expected here, {} on {} by ".format(*counts, *theirs)
                + f"{peers.name(0)}: set trainer.devices and trainer.num_nodes alike."
            )
        if own.num_nodes == 1:
            return f"{len(absent)} of {own.world_size} processes" if absent else ""
        nodes = sorted({rank * own.num_nodes // own.world_size for rank in absent})
        return f"{len(nodes)} of {own.num_nodes} machines (NODE_RANK {', '.join(map(str, nodes))})" if nodes else ""

    try:
        peers.enter_barrier()
        _wait(own, seconds, missing, "start them there with the same command")
        _choose_interface(own)
    except BaseException as error:
        peers.publish_error(error)
        peers.leave()
        raise
    return PrefixStore("group", store), peers


def _wait(own: RankAddress, most: float, missing: Callable[[], str], remedy: str) -> None:
    """Wait until nothing is missing, with a line about what is."""
    begin, lines = time.monotonic(), 1
    with InterruptGuard() as guard:
        while what := missing():
            if guard.signal_number is not None:
                raise KeyboardInterrupt  # here, where other ranks are told
            waited = time.monotonic() - begin
            if waited >= most:
                waiting = f"waited {most:.0f} s for {what} at {own}"
                raise ConfigurationError(f"{waiting}: {remedy}, or raise trainer.timeout.")
            if waited >= lines * _LINES and os.environ.get("LOCAL_RANK", "0") == "0":
                print(f"waiting for {what} at {own} … {waited:.0f} s", file=sys.stderr, flush=True)
                lines += 1
            time.sleep(0.02)


def _store(own: RankAddress, most: float) -> TCPStore:
    """Serve or join the store."""

    def refused() -> str:
        try:
            socket.create_connection((own.address, own.port), timeout=1.0).close()
        except OSError as error:
            return f"rank 0 ({error.strerror or type(error).__name__})"
        return ""

    problem = f"port {own.port} cannot be opened on this machine: set MASTER_PORT to a free one"
    try:
        if own.rank == 0 and not own.served:
            server = _server(own)
            address, port = server.getsockname()[:2]
            address = LOOPBACK if ip_address(address).is_unspecified else address
            return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())
        _wait(own, most, refused, "start it there, check MASTER_ADDR and MASTER_PORT")
        problem = f"what answers at {own} is not rank 0 of a run, or ended: check MASTER_ADDR and MASTER_PORT"
        return TCPStore(own.address, own.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=10))
    except (OSError, RuntimeError) as error:
        raise ConfigurationError(f"{problem} ({str(error).partition(chr(10))[0]}).") from None


def _server(own: RankAddress) -> socket.socket:
    """Listen where other ranks connect to: on all interfaces if that is not an address of this machine."""
    with suppress(OSError):
        family, _, _, _, address = socket.getaddrinfo(own.host, own.port, type=socket.SOCK_STREAM)[0]
        if own.reaches_all(str(address[0])):
            return socket.create_server(address, family=family, backlog=own.world_size)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", own.port), family=family, backlog=own.world_size, dualstack_ipv6=both)


def _choose_interface(own: RankAddress) -> None:
    """Have Gloo, and NCCL on one machine, listen where rank zero is reached, unless the user chose an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(ImportError, OSError):
        import fcntl  # not on Windows

        probe.connect((own.host, own.port))  # sends nothing
        address = probe.getsockname()[0]
        for _, name in socket.if_nameindex() if own.reaches_all(address) else ():
            with suppress(OSError, KeyError):  # it has no such address
                found = fcntl.ioctl(probe, _SIOCGIFADDR[sys.platform], struct.pack("256s", name.encode()))[20:24]
                if socket.inet_ntoa(found) == address:
                    for variable in INTERFACE_VARIABLES[: 2 if own.num_nodes == 1 else 1]:
                        os.environ.setdefault(variable, name)
