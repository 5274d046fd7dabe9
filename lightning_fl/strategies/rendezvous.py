"""How the ranks of a run find each other: at rank zero's store, with messages about ranks that are missing.

Ranks of one machine listen on its loopback interface only, those of several on the interface of MASTER_ADDR.
"""

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from itertools import count
from typing import Any, NamedTuple

from torch.distributed import PrefixStore, Store, TCPStore

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.interrupt import InterruptGuard
from lightning_fl.strategies.peers import Peers, publish

LOOPBACK = "127.0.0.1"
#: Where Gloo and NCCL read the network interface from that they listen on.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
#: System call for an interface's IPv4 address.
_SIOCGIFADDR = {"linux": 0x8915, "darwin": 0xC0206921}
#: Seconds between lines about missing ranks.
_LINES = 5.0
#: Stores that this process serves or uses, by address: they outlive a process group, whose ranks may meet again.
_STORES: dict[str, TCPStore] = {}
_MEETINGS = count()


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


def meet(own: RankAddress, timeout: timedelta, children: Sequence[Any] = ()) -> tuple[Store, Peers]:
    """Wait until all ranks are connected to the store; returns the store for the process group, and the other ranks.

    ``children`` are the processes of ranks 1, 2, ..., if this rank started them.

    Raises:
        ConfigurationError: a rank is missing, came twice or counts the ranks otherwise; the address is in use, or what
            answers there is not a run.
    """
    seconds, host, counts = timeout.total_seconds(), socket.gethostname(), [own.world_size, own.num_nodes]
    server = _STORES.get(str(own)) or _STORES.setdefault(str(own), _store(own, seconds))
    store = PrefixStore(f"lightning_fl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_MEETINGS)}", server)
    if store.add(f"came/{own.rank}", 1) > 1:
        twice = f"rank {own.rank} of {own.world_size} came twice, now from {host}: set NODE_RANK on every machine."
        publish(store, "ConfigurationError", twice)
        raise ConfigurationError(twice)
    peers = Peers(own.rank, [host, *counts], store, seconds, children)

    def missing() -> str:
        absent = peers.absent()
        if 0 not in absent and (theirs := peers.signs[0][4:]) != counts:
            raise ConfigurationError(
                "{} processes on {} machines are expected here, {} on {} by ".format(*counts, *theirs)
                + f"{peers.name(0)}: set trainer.devices and trainer.num_nodes alike."
            )
        if own.num_nodes == 1:
            return f"{len(absent)} of {own.world_size} processes" if absent else ""
        nodes = sorted({rank * own.num_nodes // own.world_size for rank in absent})
        return f"{len(nodes)} of {own.num_nodes} machines (NODE_RANK {', '.join(map(str, nodes))})" if nodes else ""

    try:
        peers.come()
        _wait(own, seconds, missing, "start them there with the same command")
        _choose_interface(own)
    except BaseException as error:
        peers.tell(error)
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
                raise ConfigurationError(
                    f"waited {most:.0f} s for {what} at {own}: {remedy}, or raise trainer.timeout."
                )
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
