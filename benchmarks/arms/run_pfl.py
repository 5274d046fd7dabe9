"""pfl-research's simulated backend; in several processes with torchrun."""

import argparse
from functools import partial
from typing import Any

import rounds
import torch
from federations import FEDERATIONS, LEARNING_RATE, MOMENTUM
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Network(nn.Module):
    """A federation's network with the two methods that pfl asks for."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.federation = FEDERATIONS[name]
        self.network = self.federation.network()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.federation.loss(self.network, (images, labels))

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(images, labels).item() * len(labels), len(labels))}


class RoundEnds(TrainingProcessCallback):
    def after_central_iteration(self, *arguments: Any, **more: Any) -> tuple[bool, Metrics]:
        rounds.end_of_round()
        return False, Metrics()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("federation")
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    rounds.imported()
    torch.set_num_threads(1)
    federation = FEDERATIONS[arguments.federation]
    clients = list(range(federation.num_clients))
    # Whoever takes part in every round is made once.
    data = {} if federation.cohort else {client: list(federation.client_data(client).tensors) for client in clients}

    def user(client: int) -> Dataset:
        return Dataset(data.get(client) or list(federation.client_data(client).tensors), user_id=client)

    users = FederatedDataset(user, get_user_sampler("random" if federation.cohort else "minimize_reuse", clients))
    network = Network(arguments.federation)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=arguments.rounds,
            evaluation_frequency=arguments.rounds + 1,
            train_cohort_size=federation.cohort or federation.num_clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=PyTorchModel(
            network,
            local_optimizer_create=partial(torch.optim.SGD, momentum=MOMENTUM),
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=federation.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=federation.samples),
        callbacks=[RoundEnds()],
    )
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        rounds.finish(network)


if __name__ == "__main__":
    main()
