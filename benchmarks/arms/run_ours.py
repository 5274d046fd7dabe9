"""lightning-fl as a script uses it, with its default loggers and checkpoints, in one process or several."""

import argparse

import rounds
from federations import FEDERATIONS, Vectors
from lightning_network import LightningNetwork
from torch.utils.data import Dataset

from lightning_fl import FederatedDataModule, FederatedTrainer, Partitioned
from lightning_fl.callbacks import Callback, UniformSampling
from lightning_fl.data import IID
from lightning_fl.data.module import Split
from lightning_fl.strategies.fork_launcher import end_fork


class Clients(FederatedDataModule):
    """A federation's clients, who have training samples only."""

    def __init__(self, federation: str, shuffle: bool = False) -> None:
        self.federation = FEDERATIONS[federation]
        super().__init__(batch_size=self.federation.batch_size, shuffle=shuffle)

    @property
    def num_clients(self) -> int:
        return self.federation.num_clients

    def client_sizes(self) -> list[int]:
        return [self.federation.samples] * self.num_clients

    def client_data(self, client: int, split: Split) -> Dataset | None:
        return self.federation.client_data(client) if split == "train" else None


class RoundEnds(Callback):
    def on_round_end(self, trainer: FederatedTrainer) -> None:
        rounds.end_of_round()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("federation")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--shuffle", action="store_true")
    arguments = parser.parse_args()
    rounds.imported()
    federation = FEDERATIONS[arguments.federation]
    trainer = FederatedTrainer(
        accelerator="cpu",
        devices=1,
        max_rounds=arguments.rounds,
        optimizer_state="fresh",
        local_steps=federation.steps,
        callbacks=[RoundEnds(), *([UniformSampling(cohort_size=federation.cohort)] if federation.cohort else [])],
    )
    trainer.strategy.fork_processes(arguments.processes)  # as lightning-fl fit does by itself
    module = LightningNetwork(arguments.federation)
    data: FederatedDataModule = Clients(arguments.federation, arguments.shuffle)
    if isinstance(federation, Vectors):
        clients = IID(num_clients=federation.num_clients)
        split, shuffle = (1.0, 0.0, 0.0), arguments.shuffle
        data = Partitioned(federation.table, clients, split=split, batch_size=federation.batch_size, shuffle=shuffle)
    trainer.fit(module, data)
    if trainer.is_global_zero:  # the module holds the shared model once fit returns
        rounds.finish(module.network)
    else:
        end_fork(0)  # as lightning-fl fit does by itself


if __name__ == "__main__":
    main()
