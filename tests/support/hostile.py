"""Two ranks, of which rank 1 is hostile; rank 0 writes what it makes of it to ``seen.json`` in the folder given."""

import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
from lightning.fabric import Fabric
from traps import Trap

import lightning_fl.strategies  # registers the names with Fabric
from lightning_fl.strategies import rank_exchange


def main(folder: Path) -> None:
    fabric = Fabric(strategy="fedavg", devices=2, accelerator="cpu")
    fabric.launch()
    strategy, rank = fabric.strategy, fabric.global_rank
    messages = {
        "pickle": pickle.dumps({1: Trap(folder / "sprung")}),
        "garbage": bytes(range(256)) * 100,
        "others": rank_exchange._message(["no", "clients"]),
        "names": rank_exchange._message({"0": 1}),
        "good": rank_exchange._message({1: "well"}),
    }
    seen: dict[str, str] = {}
    own = rank_exchange._message
    for name, message in messages.items():
        if rank == 1:
            rank_exchange._message = lambda value, message=message: message
        try:
            seen[name] = str(strategy.exchange({rank: rank}))
        except lightning_fl.FederatedError as error:
            seen[name] = f"{type(error).__name__}: {error}"
        try:
            seen[f"broadcast {name}"] = str(strategy.broadcast(None, src=1))
        except lightning_fl.FederatedError as error:
            seen[f"broadcast {name}"] = f"{type(error).__name__}: {error}"
    rank_exchange._message = own
    if rank == 1:  # announces what no machine holds
        head = np.frombuffer((1 << 60).to_bytes(8, "little").ljust(8 + rank_exchange._FIRST_BYTES, b"\0"), np.uint8)
        strategy._gathered_rows(head, len(head))
    else:
        try:
            strategy.exchange({rank: rank})
        except lightning_fl.FederatedError as error:
            seen["oversized"] = f"{type(error).__name__}: {error}"
        (folder / "seen.json").write_text(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
