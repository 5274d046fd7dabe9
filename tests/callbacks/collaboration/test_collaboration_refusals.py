"""What the callbacks of collaboration refuse: the type of error, and the option or thing at fault."""

from typing import Any

import pytest
from corners import CornerModule, Manual, Network, fit
from lightning.pytorch import LightningModule
from tiny import TinyClients, TinyModule
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from two_kinds import TwoKinds, trainer

from lightning_fl.callbacks import (
    CFL,
    FLSC,
    HCCT,
    IFCA,
    Callback,
    CollaborationGraph,
    FedCollab,
    FeSEM,
    KMeans,
    LocalTraining,
    PFedGraph,
    UniformSampling,
)
from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError, TrainingError


class Puts(ClientClusters):
    """Puts one client into one cluster."""

    def __init__(self, client: int = 0, cluster: Any = 0, **options: Any) -> None:
        super().__init__(**options)
        self.put = {client: cluster}

    def assign(self, trainer, weights, clients):
        return self.put


class Names(Callback):
    """Selects one client together with its model."""

    def select_clients(self, trainer):
        return Cohort((Participant(0, 1),))


class Feeds(Callback):
    """Selects one client that contributes to a model that does not exist."""

    def select_clients(self, trainer):
        return Cohort((Participant(0, feeds=(3,)),))


class Bare(CornerModule):
    """Nothing that could be drawn anew."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Sequential(nn.BatchNorm1d(2), nn.Softmax(1))  # type: ignore[assignment]


class Computed(CornerModule):
    """The weight of the layer is computed from parameters that its ``reset_parameters`` does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = weight_norm(nn.Linear(2, 4))


class Infinite(CornerModule):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) / 0


class Blind(TinyModule):
    validation_step = LightningModule.validation_step


class Fragile(TinyModule):
    def validation_step(self, batch, batch_idx):
        raise TrainingError("no sensor")


class NoValidation(TwoKinds):
    def client_data(self, client, split):
        return None if (client, split) == (3, "val") else super().client_data(client, split)


def tiny(*callbacks, module=None, data=None):
    trainer(*callbacks).fit(module or TinyModule(), data or TwoKinds())


@pytest.mark.parametrize(
    ("run", "error", "name"),
    [
        *[
            (lambda one=one: trainer(one(), LocalTraining()), ConfigurationError, r"\w+ and LocalTraining")
            for one in (HCCT, CFL, CollaborationGraph, PFedGraph, Puts)
        ],
        *[
            (
                lambda cls=cls: trainer(cls(num_clusters=2), LocalTraining()),
                ConfigurationError,
                r"\w+ and LocalTraining",
            )
            for cls in (FeSEM, IFCA, KMeans)
        ],
        *[
            (lambda cls=cls: tiny(cls(num_clusters=6)), ConfigurationError, rf"{cls.__name__}\.num_clusters=6.* 5 cl")
            for cls in (Puts, FeSEM, IFCA, KMeans)
        ],
        (lambda: fit(FLSC(num_clusters=7, num_best=2)), ConfigurationError, r"FLSC\.num_clusters=7"),
        *[
            (lambda put=put: tiny(Puts(*put)), ConfigurationError, rf"Puts\.assign .*{put[0]}.*{put[1]}")
            for put in ((9, 0), (0, 0.5), (0, -2))
        ],
        *[
            (lambda n=n: tiny(CollaborationGraph(**{n: [7]})), ConfigurationError, rf"{n}=\[7\]")
            for n in ("loners", "watched")
        ],
        (lambda: tiny(CollaborationGraph(), data=NoValidation()), ConfigurationError, "client_3"),
        (lambda: tiny(CollaborationGraph(monitor="val/acc")), ConfigurationError, "monitor='val/acc'.*val_loss"),
        (lambda: tiny(CollaborationGraph(), module=Blind()), ConfigurationError, "Blind .*validation_step"),
        (lambda: tiny(CollaborationGraph(), module=Fragile()), TrainingError, "no sensor"),
        (lambda: tiny(CollaborationGraph(graph="nowhere")), ConfigurationError, "graph='nowhere'"),
        (
            lambda: tiny(FedCollab(), data=TinyClients((24, 3, 18))),
            ConfigurationError,
            r"client 1 \(client_1\) has 3 training samples",
        ),
        (lambda: tiny(FedCollab(warm_up_rounds=1, layer="befor")), ConfigurationError, "layer='befor'.*linear"),
        (lambda: tiny(HCCT(layer="nothing")), ConfigurationError, r"HCCT\.layer='nothing'.*linear"),
        (
            lambda: fit(FeSEM(num_clusters=4), UniformSampling(cohort_size=3)),
            ConfigurationError,
            r"FeSEM\.num_clusters=4.* 3 clients",
        ),
        *[
            (lambda make=make, module=module, more=more: fit(make(), *more, module=module()), ConfigurationError, name)
            for make, module, more, name in (
                (lambda: IFCA(num_clusters=2), Manual, (), "IFCA .*Manual"),
                (lambda: IFCA(num_clusters=2), Bare, (), "models of Bare"),
                (lambda: IFCA(num_clusters=2), Computed, (), r"IFCA\.initial_noise"),
                (lambda: IFCA(num_clusters=2, initial_noise=0.1), CornerModule, (), r"IFCA\.initial_noise"),
                (lambda: IFCA(num_clusters=2), Network, (Names(),), "IFCA .*trainer.callbacks"),
                (lambda: FLSC(num_clusters=2, num_best=2), Network, (Names(),), "FLSC .*trainer.callbacks"),
                (lambda: FLSC(num_clusters=2, num_best=2, initial_noise=0.1), CornerModule, (), r"FLSC\.initial_noise"),
                (Feeds, CornerModule, (), "client 0 and model 3"),
                (lambda: PFedGraph(layers=["fc"]), CornerModule, (), r"PFedGraph\.layers: 'fc'.*linear"),
            )
        ],
        (lambda: fit(IFCA(num_clusters=2), module=Infinite()), TrainingError, r"IFCA .*client_0.* round 1"),
        (lambda: fit(PFedGraph(), stacked_clients=2), ConfigurationError, "PFedGraph .*correct_gradient_"),
        (lambda: Participant(0, 1, feeds=(0,)), ConfigurationError, "feeds"),
    ],
)
def test_what_a_run_refuses(run, error, name):
    with pytest.raises(error, match=name):
        run()


@pytest.mark.parametrize("arguments", [{"graph": "full"}, {"budget": 0}])
def test_what_chooses_nobody_by_its_loss_needs_no_validation(arguments):
    run = trainer(CollaborationGraph(**arguments), rounds=1, check_val_every_n_rounds=0)
    run.fit(Blind(), NoValidation())
    alone = trainer(LocalTraining(), rounds=1)
    alone.fit(TinyModule(), TwoKinds())
    for client in range(5):
        assert run.client_model(client).equal(alone.client_model(client)) == ("budget" in arguments)
