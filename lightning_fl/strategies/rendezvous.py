"""How the ranks of a run find each other: at rank zero's store, saying whom they wait for.

Ranks of one machine listen on its loopback interface only, those of several on the interface of MASTER_ADDR.
"""

import errno
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import torch.distributed
from torch.distributed import PrefixStore, Store, TCPStore

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.wire_format import MessageError, decode, encode
from lightning_fl.engine.interrupt import Interrupted, InterruptGuard
from lightning_fl.strategies.peers import Channel, Peers, text_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["INTERFACE_VARIABLES", "LOOPBACK", "Place", "meet"]

LOOPBACK = "127.0.0.1"
#: Where Gloo and NCCL read the network interface from that they listen on.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
#: The system call for an interface's IPv4 address.
_SIOCGIFADDR = {"linux": 0x8915, "darwin": 0xC0206921}

#: Seconds between two looks, and from the start to the first line about others that have not come: on one machine
#: (False: where processes import for a while) and on several (True).
_LOOK = 0.05
_FIRST_LINE = {False: 30.0, True: 3.0}
_LINES = 10.0
#: Seconds for what a process that is there needs to answer.
_ANSWER = 10.0

#: The stores that this process serves or uses, by address: they outlive a group of processes, which may meet again.
_STORES: dict[tuple[str, int], TCPStore] = {}
_MEETINGS: list[None] = []


@dataclass(frozen=True)
class Place:
    """Where and as whom a rank comes.

    Args:
        address: of rank zero's machine.
        port: of the store there.
        rank: this one.
        world_size: ranks.
        num_nodes: machines.
        local_rank: this rank's among those of the machine.
        served: somebody else (torchrun) serves the store.
    """

    address: str
    port: int
    rank: int
    world_size: int
    num_nodes: int
    local_rank: int
    served: bool = False

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"

    @property
    def host(self) -> str:
        """The address by which ranks reach rank zero itself, whoever serves the store."""
        return self.address if self.num_nodes > 1 else LOOPBACK

    def reaches_all(self, address: str) -> bool:
        """Whether an address of this machine is one by which all ranks reach it.

        A name may stand for a loopback address on its own machine (Debian's /etc/hosts) and for another elsewhere.
        """
        return self.num_nodes == 1 or self.address == address or not ip_address(address.partition("%")[0]).is_loopback


class _Wait:
    """Waits with a line now and then on the machine's first rank, and not for ever."""

    def __init__(self, place: Place, seconds: float) -> None:
        self._place = place
        self._seconds = seconds
        self._began = time.monotonic()
        self._next = _FIRST_LINE[place.num_nodes > 1]

    def until(self, there: Callable[[], bool], missing: Callable[[], str], mend: str) -> None:
        """Wait until something is there; ``missing`` names what is not.

        Raises:
            ConfigurationError: the time is over.
        """
        with InterruptGuard() as guard:
            while not there():
                if guard.signal_number is not None:  # others who wait are told
                    raise Interrupted(guard.signal_number)
                waited = time.monotonic() - self._began
                if waited >= self._seconds:
                    raise ConfigurationError(
                        f"waited {self._seconds:.0f} s for {missing()} at {self._place}: {mend}, or raise"
                        " trainer.timeout."
                    )
                if waited >= self._next and self._place.local_rank == 0:
                    print(f"waiting for {missing()} at {self._place} … {waited:.0f} s", file=sys.stderr, flush=True)
                    self._next = waited + _LINES
                time.sleep(_LOOK)


def meet(place: Place, timeout: timedelta) -> tuple[Store, Peers]:
    """Wait until all ranks are there; a store for their process group, and their connections.

    Args:
        place: where.
        timeout: how long to wait.

    Raises:
        ConfigurationError: somebody did not come in time, came twice or counts the ranks otherwise; nobody serves at
            the address, or somebody else does.
    """
    wait = _Wait(place, timeout.total_seconds())
    store = PrefixStore(
        f"lightning_fl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{len(_MEETINGS)}", _open(place, wait)
    )
    _MEETINGS.append(None)
    try:
        hosts = _register(place, store, wait)
        peers = _connect(place, store, hosts)
        _listen_on(place, peers.address)
    except BaseException as error:
        # The others wait as well. What serves the store for them ends a little later.
        text = f"rank {place.rank} ({socket.gethostname()}): {text_of(error)}"
        with suppress(torch.distributed.DistError):
            if not store.check(["refused"]):
                _tell(store, "refused", text)
                if place.rank == 0 and not place.served:
                    time.sleep(10 * _LOOK)
        if isinstance(error, torch.distributed.DistError):
            raise ConfigurationError(
                f"rank 0 at {place} ended while ranks waited for others: its output says why. ({_first_line(error)})"
            ) from None
        raise
    return PrefixStore("group", store), peers


def _open(place: Place, wait: _Wait) -> TCPStore:
    """The store that all meet at."""
    known = _STORES.get((place.address, place.port))
    if known is not None:
        return known
    if place.rank == 0 and not place.served:
        try:
            server = _server(place, place.port)
            address, port = server.getsockname()[:2]
            address = LOOPBACK if ip_address(address).is_unspecified else address
            store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"port {place.port} cannot be opened for the other ranks on {socket.gethostname()}: another program, or"
                f" another run, listens there. Set MASTER_PORT to a free one for all ranks. ({_first_line(error)})"
            ) from None
    else:
        reasons: list[str] = []
        wait.until(
            lambda: _answers(place, reasons),
            lambda: f"{_count(1, place)}, the first of them ({reasons[-1]})",
            "start rank 0 there, look whether MASTER_ADDR and MASTER_PORT are right and the port is open",
        )
        try:
            store = TCPStore(
                place.address, place.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_ANSWER)
            )
        except (RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"what answers at {place} is not rank 0 of a run: look whether MASTER_ADDR and MASTER_PORT are those"
                f" that it was started with. ({_first_line(error)})"
            ) from None
    store.set_timeout(timedelta(seconds=_ANSWER))
    _STORES[place.address, place.port] = store
    return store


def _answers(place: Place, reasons: list[str]) -> bool:
    """Whether somebody listens at the address, else why not."""
    try:
        socket.create_connection((place.address, place.port), timeout=1.0).close()
    except OSError as error:
        reasons[:] = [error.strerror or type(error).__name__]
        return False
    return True


def _register(place: Place, store: Store, wait: _Wait) -> list[str]:
    """Say who came and wait for all others; the names of all ranks' machines."""
    own = [socket.gethostname(), place.world_size, place.num_nodes]
    if store.add(f"came/{place.rank}", 1) > 1:
        other = decode(store.get(f"here/{place.rank}"))[0]
        raise ConfigurationError(
            f"rank {place.rank} of {place.world_size} came twice, from {own[0]} and before from {other}: give every"
            " machine a NODE_RANK of its own."
        )
    _tell(store, f"here/{place.rank}", own)
    names = [f"here/{rank}" for rank in range(place.world_size)]

    def all_here() -> bool:
        if store.check(["refused"]):
            raise ConfigurationError(str(decode(store.get("refused"))))
        if place.rank and store.check(names[:1]):
            host, world_size, num_nodes = decode(store.get(names[0]))
            if [world_size, num_nodes] != own[1:]:
                raise ConfigurationError(
                    f"rank {place.rank} ({own[0]}) is one of {own[1]} processes on {own[2]} machines, rank 0 ({host})"
                    f" one of {world_size} on {num_nodes}: set trainer.devices and trainer.num_nodes alike."
                )
        return store.check(names)

    def missing() -> str:
        absent = [rank for rank, name in enumerate(names) if not store.check([name])]
        if place.num_nodes == 1:
            return f"{len(absent)} of {place.world_size} processes"
        per_node = place.world_size // place.num_nodes
        nodes = sorted({rank // per_node for rank in absent})
        return f"{_count(len(nodes), place)} (NODE_RANK {', '.join(map(str, nodes))})"

    wait.until(all_here, missing, "start them there with the same command")
    return [str(decode(store.get(name))[0]) for name in names]


def _count(missing: int, place: Place) -> str:
    return (
        f"{missing} of {place.num_nodes} machines"
        if place.num_nodes > 1
        else f"{missing} of {place.world_size} processes"
    )


def _connect(place: Place, store: Store, hosts: list[str]) -> Peers:
    """The connections between rank zero and all others."""
    if place.rank:
        store.wait(["control"], timedelta(seconds=_ANSWER))
        port, token = decode(store.get("control"))
        try:
            channel = Channel(socket.create_connection((place.host, port), timeout=_ANSWER))
        except OSError as error:
            raise ConfigurationError(
                f"rank 0 ({hosts[0]}) cannot be reached at {place.host}:{port} ({error}): ranks need all ports"
                " between their machines, not MASTER_PORT alone."
            ) from error
        channel.send([token, place.rank])
        return Peers(place.rank, hosts, {0: channel})
    with _server(place, 0) as server:
        token = secrets.token_hex(16)
        _tell(store, "control", [server.getsockname()[1], token])
        server.settimeout(_ANSWER)
        channels: dict[int, Channel] = {}
        while len(channels) < place.world_size - 1:
            try:
                channel = Channel(server.accept()[0])
                said, rank = channel.receive()
            except TimeoutError:
                absent = ", ".join(
                    f"{rank} ({hosts[rank]})" for rank in range(1, place.world_size) if rank not in channels
                )
                raise ConfigurationError(
                    f"rank {absent} came to {place} and did not connect to rank 0 within {_ANSWER:.0f} s: look whether"
                    " its machine reaches all ports of this one, or whether it was ended."
                ) from None
            except (OSError, MessageError, TypeError, ValueError):
                continue  # somebody else
            if said == token and rank in range(1, place.world_size):
                channels[rank] = channel
            else:
                channel.close()
    return Peers(0, hosts, channels)


def _server(place: Place, port: int) -> socket.socket:
    """A socket that listens where other ranks connect to; on all interfaces where that is no address of this machine's.

    Raises:
        OSError: the port is in use.
    """
    found = []
    with suppress(socket.gaierror):
        found = socket.getaddrinfo(place.host, port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in found:
        if place.reaches_all(str(address[0])):
            try:
                return socket.create_server(address, family=family, backlog=place.world_size)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=place.world_size, dualstack_ipv6=both)


def _listen_on(place: Place, address: str) -> None:
    """Have Gloo, and NCCL on one machine, listen on the interface of an address, unless the user chose another one."""
    if fcntl is None or sys.platform not in _SIOCGIFADDR or not place.reaches_all(address):
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no such address
                found = fcntl.ioctl(probe, _SIOCGIFADDR[sys.platform], struct.pack("256s", name.encode()))[20:24]
                if socket.inet_ntoa(found) == address:
                    for variable in INTERFACE_VARIABLES[: 2 if place.num_nodes == 1 else 1]:
                        os.environ.setdefault(variable, name)


def _tell(store: Store, key: str, value: Any) -> None:
    store.set(key, encode(value))  # type: ignore[arg-type]  # takes bytes as well


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
