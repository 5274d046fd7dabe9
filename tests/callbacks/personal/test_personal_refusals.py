"""What the callbacks of personal models and of late clients refuse: the type of error, and the option at fault."""

from collections.abc import Callable
from typing import Any

import pytest
from corners import CornerModule, Manual, MixedClients, fit
from hooks import hooks
from tiny import TinyClients, TinyModule
from torch import Tensor, nn

from lightning_fl.callbacks import BestClientModels, Callback, ClientArrivals, FedSoft, PersonalLayers, SoftAveraging
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError, FederatedError, TrainingError


class Broken(CornerModule):
    """Its losses are infinite, except in training."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss if self.training else loss / 0


class Bare(TinyModule):
    """Its only normalisation holds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.InstanceNorm1d(3))


def selects(*participants: Participant) -> Callback:
    return hooks(select_clients=lambda trainer: Cohort(participants))


def soft(**options: Any) -> Callback:
    return SoftAveraging(**{"num_models": 2, **options})


def fedsoft(**options: Any) -> Callback:
    return FedSoft(**{"num_models": 2, "lam": 0.1, **options})


def layers(names: Any) -> Callback:
    return PersonalLayers(layers=names)


def arrivals(**rounds: int) -> Callback:
    return ClientArrivals(rounds={name.removeprefix("_"): number for name, number in rounds.items()})


TINY: dict[str, Any] = {"module": TinyModule(), "data": TinyClients()}
FEW: dict[str, Any] = {"data": MixedClients(with_val={0, 4})}

#: Callbacks of a run, its settings, and the words for the fault.
REFUSED: list[tuple[Callable[[], list[Callback]], dict[str, Any], str]] = [
    (lambda: [soft(num_models=7)], {}, "SoftAveraging.num_models=7 for 6 clients"),
    (lambda: [soft(initial_rounds=4)], {}, "SoftAveraging.initial_rounds=4"),
    (lambda: [soft(split="val")], FEW, r"split='val': 4 of 6 clients have no .* is client_1\)"),
    (lambda: [soft(personal_split="val")], FEW, "personal_split='val': 4 of 6 clients"),
    (lambda: [soft()], {"module": Manual()}, "SoftAveraging .*Manual"),
    (lambda: [fedsoft(num_models=7)], {}, "FedSoft.num_models=7 for 6 clients"),
    (lambda: [fedsoft(initial_rounds=4)], {}, "FedSoft.initial_rounds=4"),
    (lambda: [fedsoft(), selects(Participant(0, 1))], {}, "FedSoft conflicts with"),
    (
        lambda: [fedsoft(clients_per_model=2), selects(*(Participant(client, weight=1.0) for client in range(6)))],
        {},
        "FedSoft.clients_per_model conflicts with",
    ),
    (lambda: [BestClientModels()], {"check_val_every_n_rounds": 0}, "trainer.check_val_every_n_rounds"),
    (lambda: [BestClientModels()], {"data": MixedClients(with_val=())}, r"BestClientModels .*data\.split"),
    (lambda: [BestClientModels(monitor="val/acc")], TINY, "monitor='val/acc'"),
    (lambda: [layers(["linera"])], TINY, "'linera' .*'linear'"),
    (lambda: [layers(["*"])], TINY, "whole model"),
    (lambda: [layers("normalization")], TINY, "layers='normalization': TinyModule"),
    (lambda: [layers("normalization")], {**TINY, "module": Bare()}, "layers='normalization': Bare"),
    (lambda: [arrivals(client_2=0)], TINY, r"ClientArrivals.rounds\[client_2\]=0"),
    (lambda: [arrivals(client_9=2)], TINY, "ClientArrivals.rounds.*'client_9'.*client_0, client_1"),
    (lambda: [arrivals(_0=2, _1=2, _2=3)], TINY, r"ClientArrivals\.rounds.* round 1"),
]


@pytest.mark.parametrize("row", range(len(REFUSED)))
def test_what_a_run_refuses(row: int) -> None:
    callbacks, settings, words = REFUSED[row]
    refuses(ConfigurationError, callbacks, settings, words)


def test_a_sample_without_a_finite_loss_is_named() -> None:
    words = r"SoftAveraging .*client_0\) on its train data in round 1"
    refuses(TrainingError, lambda: [soft()], {"module": Broken()}, words)


def refuses(
    error: type[FederatedError], callbacks: Callable[[], list[Callback]], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(error, match=words):
        fit(*callbacks(), **settings)
