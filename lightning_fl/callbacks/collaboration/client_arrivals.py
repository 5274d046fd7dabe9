"""Clients that join while training runs."""

import torch

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError, did_you_mean, listed
from lightning_fl.core.validation import Count, checked_fields, warn_beyond_end
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class ClientArrivals(Callback):
    """Keeps clients absent before a given round: they neither train nor are evaluated.

    A client arrives with the average of the others' models, weighted by samples. The callback of the collaboration then
    finds its place: ``HCCT`` by its first update, ``FedCollab`` by its distances. ``LocalTraining`` trains it alone.

    Args:
        rounds: client (its name, or its number as text) -> its first round, counted from 1.

    Raises:
        ConfigurationError: a round is less than 1; at the start of a run, a client is unknown or none is present.
    """

    role = "arrival"

    rounds: dict[str, Count]

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        names = trainer.datamodule.client_names()
        numbers = {str(client): client for client in range(len(names))} | {name: i for i, name in enumerate(names)}
        for name in self.rounds:
            if name not in numbers:
                known = f"{did_you_mean(name, names)}. Clients are {listed(names, near=name)}"
                raise ConfigurationError(f"ClientArrivals.rounds: there is no client {name!r}{known}.")
        warn_beyond_end(self, trainer.max_rounds, rounds=self.rounds)
        self._first = {numbers[name]: first for name, first in self.rounds.items()}
        if all(self._first.get(client, 1) > 1 for client in range(len(names))):
            raise ConfigurationError("ClientArrivals.rounds: no client is present in round 1. Leave at least one out.")
        trainer.federation.absent_clients = self._absent(trainer)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        absent = self._absent(trainer)
        newcomers = trainer.federation.absent_clients - absent
        if newcomers:
            old = trainer.federation.collaboration
            samples = torch.tensor(trainer.federation.num_samples, dtype=torch.float64)
            samples[list(trainer.federation.absent_clients)] = 0.0
            personalisation = old.personalisation.clone()
            personalisation[list(newcomers)] = samples @ old.personalisation / samples.sum()
            trainer.federation.collaboration = Collaboration(old.aggregation, personalisation)
        trainer.federation.absent_clients = absent

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Give clients that trained alone, from the average of others' models, their own model."""
        old = trainer.federation.collaboration
        alone = [
            client
            for client in sorted(trainer.round.survivors & self._first.keys())
            if old.num_models == old.num_clients
            and old.aggregation[client, client] == 1
            and old.model_of(client) is None
        ]
        if alone:
            personalisation = old.personalisation.clone()
            personalisation[alone] = torch.eye(old.num_clients, dtype=personalisation.dtype)[alone]
            trainer.federation.collaboration = Collaboration(old.aggregation, personalisation)

    def _absent(self, trainer: TrainerSurface) -> set[int]:
        return {client for client, first in self._first.items() if first > trainer.federation.current_round + 1}
