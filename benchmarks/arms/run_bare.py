"""FedAvg as one writes it by hand: the floor. In several processes with ``launch.py``."""

import argparse
import os

import rounds
import torch
import torch.distributed as dist
from federations import FEDERATIONS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("federation")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--keep", action="store_true", help="cut or collate every batch once and keep it")
    parser.add_argument("--shuffle", action="store_true")
    arguments = parser.parse_args()
    rounds.imported()
    torch.set_num_threads(1)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    federation = FEDERATIONS[arguments.federation]
    clients = range(rank, federation.num_clients, world_size)
    kept = {client: list(federation.batches(client)) for client in clients} if arguments.keep else {}
    network = federation.network()
    shared = {name: value.clone() for name, value in network.state_dict().items()}
    for _ in range(arguments.rounds):
        total = {name: torch.zeros_like(value) for name, value in shared.items()}
        for client in clients:
            network.load_state_dict(shared)
            federation.train(network, kept[client] if kept else federation.batches(client, arguments.shuffle))
            for name, value in network.state_dict().items():
                total[name] += value
        if world_size > 1:
            for value in total.values():
                dist.all_reduce(value)
        shared = {name: (value / federation.num_clients).to(value.dtype) for name, value in total.items()}
        rounds.end_of_round()
    if rank == 0:
        network.load_state_dict(shared)
        rounds.finish(network)
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
