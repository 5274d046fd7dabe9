"""Flower's simulation with as many actors as processes; clients are in ``flower_client.py``."""

import argparse

import rounds
from federations import FEDERATIONS
from flower_client import client_app
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("federation")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--lightning", action="store_true", help="a new lightning.Trainer for every client and round")
    arguments = parser.parse_args()
    rounds.imported()
    federation = FEDERATIONS[arguments.federation]
    network = federation.network()
    server = ServerApp()

    def after_round(number: int, arrays: ArrayRecord) -> None:
        if number:
            rounds.end_of_round()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        cohort = federation.cohort or federation.num_clients
        strategy = FedAvg(
            fraction_train=cohort / federation.num_clients,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=federation.num_clients,
        )
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(network.state_dict()),
            num_rounds=arguments.rounds,
            evaluate_fn=after_round,
        )
        network.load_state_dict(result.arrays.to_torch_state_dict())

    run_simulation(
        server_app=server,
        client_app=client_app(arguments.federation, arguments.lightning),
        num_supernodes=federation.num_clients,
        backend_config={
            "init_args": {"num_cpus": arguments.processes},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    rounds.finish(network)


if __name__ == "__main__":
    main()
