"""On which addresses the processes of a run listen, as their own tables of sockets say."""

import json
import socket
from collections.abc import Callable

import psutil
import pytest
from processes import Process, reserved_port

#: Of this machine, but not its loopback interface's.
OUTSIDE = [
    entry.address
    for entries in psutil.net_if_addrs().values()
    for entry in entries
    if entry.family == socket.AF_INET and not entry.address.startswith("127.")
]

SCRIPT = """
import json, sys
import psutil
from lightning.fabric import Fabric
import lightning_fl.strategies
fabric = Fabric(strategy="fedavg", accelerator="cpu", devices=int(sys.argv[1]), num_nodes=int(sys.argv[2]))
fabric.launch()
sockets = psutil.Process().net_connections("tcp")
fabric.barrier()
print(json.dumps([one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN]))
"""


@pytest.mark.processes
@pytest.mark.skipif(not OUTSIDE, reason="this machine has no address but its loopback interface's")
@pytest.mark.parametrize(("machines", "expected"), [(1, "127.0.0.1"), (2, OUTSIDE[0] if OUTSIDE else "")])
def test_ranks_listen_to_those_of_their_run_only(
    machines: int, expected: str, start_warm: Callable[..., Process]
) -> None:
    with reserved_port() as port:
        shared = {"MASTER_ADDR": OUTSIDE[0], "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        numbered = "LOCAL_RANK" if machines == 1 else "NODE_RANK"
        ranks = [
            start_warm("-c", SCRIPT, str(2 // machines), str(machines), environment={**shared, numbered: str(rank)})
            for rank in range(2)
        ]
        for rank, ended in enumerate(rank.end() for rank in ranks):
            assert ended.code == 0, ended.err
            found = json.loads(ended.out.splitlines()[-1])
            assert set(found) == {expected}
            assert len(found) == 2 - rank  # Gloo's, and rank zero's store
