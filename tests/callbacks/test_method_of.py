"""What a run is called in its title and its record."""

import pytest

from lightning_fl.callbacks import (
    CollaborationGraph,
    DROClientSampling,
    FedCollab,
    FineTuning,
    LearningCurves,
    LocalMixup,
    LocalTraining,
    PersonalLayers,
    PrivateHeads,
    UniformSampling,
)
from lightning_fl.callbacks.callback import method_of
from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters


class Halves(ClientClusters):
    def assign(self, trainer, weights, clients):
        return {client: client % 2 for client in clients}


@pytest.mark.parametrize(
    ("strategy", "callbacks", "name"),
    [
        ("FedAvg", [], "FedAvg"),
        ("FedAvg", [UniformSampling(cohort_size=3), LearningCurves()], "FedAvg"),
        ("FedProx", [], "FedProx"),
        ("FedAvg", [DROClientSampling()], "DRFA"),
        ("FedAvg", [LocalMixup(), DROClientSampling()], "DRFLM"),
        ("FedAvg", [LocalMixup()], "FedAvg + local mixup"),
        ("FedAvg", [DROClientSampling(method="afl")], "AFL"),
        ("FedAvg", [DROClientSampling(cohort="all", step_size=0.0)], "equal weights"),
        ("FedAvg", [DROClientSampling(step_size=0.0), LocalMixup()], "uniform draws + local mixup"),
        ("FedAvg", [FedCollab(capacity=1.0)], "FedCollab"),
        ("FedProx", [FedCollab(capacity=1.0), LocalMixup()], "FedProx + FedCollab + local mixup"),
        ("SCAFFOLD", [DROClientSampling(), LocalMixup()], "SCAFFOLD + DRFLM"),
        ("FedAvg", [CollaborationGraph(budget=0.5)], "DPFL"),
        ("FedAvg", [FineTuning(epochs=1)], "FedAvg + fine-tuning"),
        ("FedAvg", [PersonalLayers(layers=["head"])], "FedAvg + personal layers"),
        ("FedAvg", [PersonalLayers(layers="normalization")], "FedBN"),
        ("FedAvg", [PrivateHeads(layers=["head"])], "FedAvg + private heads"),
        ("FedAvg", [LocalTraining()], "training alone"),
        ("FedAvg", [Halves()], "Halves"),
    ],
)
def test_the_name_says_what_callbacks_make_of_the_strategy(strategy, callbacks, name):
    assert method_of(strategy, callbacks) == name
