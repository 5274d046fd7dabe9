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
from dataclasses import dataclass
from datetime import timedelta
from errno import EADDRINUSE
from ipaddress import ip_address
from typing import Any

from torch.distributed import DistError, PrefixStore, Store, TCPStore

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.wire_format import decode, encode
from lightning_fl.engine.interrupt import Interrupted, InterruptGuard
from lightning_fl.strategies.peers import END, Peers, publish, text_of

__all__ = ["INTERFACE_VARIABLES", "LOOPBACK", "RankAddress", "meet"]

LOOPBACK = "127.0.0.1"
#: Where Gloo and NCCL read the network interface from that they listen on.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
#: System call for an interface's IPv4 address.
_SIOCGIFADDR = {"linux": 0x8915, "darwin": 0xC0206921}
#: Seconds between two looks; until the first line about missing ranks, on one machine and on several; between lines;
#: that a process has to answer.
_LOOK, _FIRST_LINE, _LINES, _ANSWER = 0.05, {False: 30.0, True: 3.0}, 10.0, timedelta(seconds=10)

#: Stores that this process serves or uses, by address: they outlive a process group, whose ranks may meet again.
_STORES: dict[str, TCPStore] = {}
_MEETINGS: list[None] = []


@dataclass(frozen=True)
class RankAddress:
    """A rank and where it meets the others.

    Args:
        address: of rank zero's machine.
        port: of the store there.
        rank: of this process.
        world_size: number of ranks.
        num_nodes: number of machines.
        local_rank: rank on this machine.
        served: a launcher such as torchrun serves the store.
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
        """Address at which ranks reach rank zero itself, even if a launcher serves the store."""
        return self.address if self.num_nodes > 1 else LOOPBACK

    def reaches_all(self, address: str) -> bool:
        """Whether all ranks reach this machine at one of its addresses.

        A name may be a loopback address on its own machine (Debian's /etc/hosts) and another one elsewhere.
        """
        return self.num_nodes == 1 or self.address == address or not ip_address(address.partition("%")[0]).is_loopback

    def missing(self, ranks: Sequence[int]) -> str:
        """Description of missing ranks."""
        if self.num_nodes == 1:
            return f"{len(ranks)} of {self.world_size} processes"
        nodes = sorted({rank * self.num_nodes // self.world_size for rank in ranks})
        return f"{len(nodes)} of {self.num_nodes} machines (NODE_RANK {', '.join(map(str, nodes))})"


def meet(own: RankAddress, timeout: timedelta, children: Sequence[Any] = ()) -> tuple[Store, Peers]:
    """Wait until all ranks are connected to the store.

    Args:
        own: this rank.
        timeout: longest wait.
        children: processes of ranks 1, 2, ..., if this rank started them.

    Returns:
        The store for the process group, and the other ranks.

    Raises:
        ConfigurationError: a rank is missing, came twice or counts the ranks otherwise; the address is in use, or what
            answers there is not a run.
    """
    begin = time.monotonic()
    next_line = begin + _FIRST_LINE[own.num_nodes > 1]

    def wait(arrived: Callable[[], bool], missing: Callable[[], str], remedy: str) -> None:
        nonlocal next_line
        with InterruptGuard() as guard:
            while not arrived():
                if guard.signal_number is not None:  # other ranks are told
                    raise Interrupted(guard.signal_number)
                now = time.monotonic()
                if now - begin >= timeout.total_seconds():
                    raise ConfigurationError(
                        f"waited {timeout.total_seconds():.0f} s for {missing()} at {own}: {remedy}, or raise"
                        " trainer.timeout."
                    )
                if now >= next_line and own.local_rank == 0:
                    print(f"waiting for {missing()} at {own} … {now - begin:.0f} s", file=sys.stderr, flush=True)
                    next_line = now + _LINES
                time.sleep(_LOOK)

    run = f"lightning_fl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{len(_MEETINGS)}"
    store = PrefixStore(run, _open(own, wait))
    _MEETINGS.append(None)
    try:
        hosts = _register(own, store, wait)
        _choose_interface(own)
        return PrefixStore("group", store), Peers(own.rank, hosts, store, children)
    except DistError as error:
        raise ConfigurationError(
            f"rank 0 at {own} ended while ranks waited for others: its output has the reason. ({_first_line(error)})"
        ) from None
    except BaseException as error:
        with suppress(DistError):
            if not store.check([END]):
                publish(store, type(error).__name__, f"rank {own.rank} ({socket.gethostname()}): {text_of(error)}")
                if own.rank == 0 and not own.served:
                    time.sleep(10 * _LOOK)  # the store ends with this process
        raise


def _open(own: RankAddress, wait: Callable[..., None]) -> TCPStore:
    """Serve or join the store."""
    if str(own) in _STORES:
        return _STORES[str(own)]
    try:
        if own.rank == 0 and not own.served:
            problem = (
                f"port {own.port} cannot be opened for the other ranks on {socket.gethostname()}: another program or"
                " run listens there. Set MASTER_PORT to a free one for all ranks."
            )
            server = _server(own)
            address, port = server.getsockname()[:2]
            address = LOOPBACK if ip_address(address).is_unspecified else address
            store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())
        else:
            reasons = [""]

            def answers() -> bool:
                try:
                    socket.create_connection((own.address, own.port), timeout=1.0).close()
                except OSError as error:
                    reasons[0] = error.strerror or type(error).__name__
                    return False
                return True

            wait(
                answers,
                lambda: f"{own.missing([0]).partition(' (')[0]}, the first of them ({reasons[0]})",
                "start rank 0 there, check MASTER_ADDR and MASTER_PORT and that the port is open",
            )
            problem = (
                f"what answers at {own} is not rank 0 of a run: check that MASTER_ADDR and MASTER_PORT are those that"
                " it was started with."
            )
            store = TCPStore(own.address, own.port, is_master=False, wait_for_workers=False, timeout=_ANSWER)
    except ConfigurationError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(f"{problem} ({_first_line(error)})") from None
    store.set_timeout(_ANSWER)
    return _STORES.setdefault(str(own), store)


def _register(own: RankAddress, store: Store, wait: Callable[..., None]) -> list[str]:
    """Register this rank and wait for all others; returns the name of every rank's machine."""
    here = [socket.gethostname(), own.world_size, own.num_nodes]
    if store.add(f"came/{own.rank}", 1) > 1:
        other = decode(store.get(f"here/{own.rank}"))[0]
        raise ConfigurationError(
            f"rank {own.rank} of {own.world_size} came twice, from {here[0]} and before from {other}: give every"
            " machine a NODE_RANK of its own."
        )
    store.set(f"beat/{own.rank}", bytes(2))  # type: ignore[arg-type]  # takes bytes as well
    store.set(f"here/{own.rank}", encode(here))  # type: ignore[arg-type]
    names = [f"here/{rank}" for rank in range(own.world_size)]

    def all_here() -> bool:
        if store.check([END]):
            raise ConfigurationError(str(decode(store.get(END))[1]))
        if own.rank and store.check(names[:1]):
            host, world_size, num_nodes = decode(store.get(names[0]))
            if [world_size, num_nodes] != here[1:]:
                raise ConfigurationError(
                    f"rank {own.rank} ({here[0]}) is one of {here[1]} processes on {here[2]} machines, rank 0 ({host})"
                    f" one of {world_size} on {num_nodes}: set trainer.devices and trainer.num_nodes alike."
                )
        return store.check(names)

    def missing() -> str:
        return own.missing([rank for rank, name in enumerate(names) if not store.check([name])])

    wait(all_here, missing, "start them there with the same command")
    return [str(decode(store.get(name))[0]) for name in names]


def _server(own: RankAddress) -> socket.socket:
    """Listen where other ranks connect to: on all interfaces if that is not an address of this machine."""
    found: Sequence[Any] = ()
    with suppress(socket.gaierror):
        found = socket.getaddrinfo(own.host, own.port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in found:
        if own.reaches_all(str(address[0])):
            try:
                return socket.create_server(address, family=family, backlog=own.world_size)
            except OSError as error:
                if error.errno == EADDRINUSE:
                    raise
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


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
