"""What happened to tiers, round by round: bids, cohorts, importance weights; kept, saved and written as a table."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.surface import TrainerSurface

__all__ = ["TierHistory"]


class TierHistory(Callback):
    """The record of a callback that trains tiers; the last entries decide the next round.

    Args:
        num_tiers: K.

    Attributes:
        members: tier -> clients that were put into it at first.

    Attributes (a list entry per round):
        rounds: rounds done.
        bids: client -> tiers, the preferred one first; only clients that bid.
        cohorts: tier -> "best" and "random" -> clients.
        importance: υ of the models after the round, float64 [N, K]; NaN for clients that are not there.
        shares: P after the round, float64 [N, K].
        accuracies: of each tier's new model, mean υ over those who trained it; NaN where nobody did.
    """

    def __init__(self, num_tiers: int) -> None:
        self.num_tiers = num_tiers
        self._reset()

    def _reset(self) -> None:
        self.members: dict[int, list[int]] = {}
        self.rounds: list[int] = []
        self.bids: list[dict[int, list[int]]] = []
        self.cohorts: list[dict[int, dict[str, list[int]]]] = []
        self.importance: list[Tensor] = []
        self.shares: list[Tensor] = []
        self.accuracies: list[list[float]] = []
        #: Rounds done when the personal models were last made; whose updates arrived in the round, with their shares.
        self._personal_round = 0
        self._contributors: dict[int, dict[int, float]] = {}

    def state_dict(self) -> dict[str, Any]:
        """The history."""
        return {
            "members": self.members,
            "rounds": self.rounds,
            "bids": self.bids,
            "cohorts": self.cohorts,
            "importance": self.importance,
            "shares": self.shares,
            "accuracies": self.accuracies,
            "personal_round": self._personal_round,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history."""
        self.members = {tier: list(clients) for tier, clients in state["members"].items()}
        self.rounds = list(state["rounds"])
        self.bids = [{client: list(tiers) for client, tiers in bids.items()} for bids in state["bids"]]
        self.cohorts = [
            {tier: {role: list(clients) for role, clients in of.items()} for tier, of in cohorts.items()}
            for cohorts in state["cohorts"]
        ]
        self.importance = [one.clone() for one in state["importance"]]
        self.shares = [one.clone() for one in state["shares"]]
        self.accuracies = [list(one) for one in state["accuracies"]]
        self._personal_round = state["personal_round"]

    def _write(self, trainer: TrainerSurface) -> None:
        """``tiers.csv`` and the summary."""
        if not trainer.is_global_zero or trainer.datamodule is None or not self.rounds:
            return
        import pandas as pd  # takes a second to import

        names = trainer.datamodule.client_names()
        folder = Path(trainer.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        columns = ["round", "client", "tier", "importance", "share", "bid", "role"]
        pd.DataFrame(self._rows(names), columns=columns).to_csv(folder / "tiers.csv", index=False)
        trainer.run_log.summary["tiers"] = {
            "tiers": [self._tier(tier) for tier in range(self.num_tiers)],
            "clients": {name: self._client(client) for client, name in enumerate(names)},
        }

    def _rows(self, names: Sequence[str]) -> list[tuple[int, str, int, float, float, int, str]]:
        rows = []
        for turn, done in enumerate(self.rounds):
            raw, shares = self.importance[turn].tolist(), self.shares[turn].tolist()
            for client in range(len(names)):
                tiers = self.bids[turn].get(client, [])
                for tier in range(self.num_tiers):
                    cohort = self.cohorts[turn][tier]
                    role = next((role for role, clients in cohort.items() if client in clients), "")
                    bid = tiers.index(tier) + 1 if tier in tiers else 0
                    rows.append((done, names[client], tier, raw[client][tier], shares[client][tier], bid, role))
        return rows

    def _tier(self, tier: int) -> dict[str, Any]:
        known = [of[tier] for of in self.accuracies if not math.isnan(of[tier])]
        return {
            "rounds_trained": len(known),
            "last_accuracy": known[-1] if known else None,
            "best_accuracy": max(known, default=None),
        }

    def _client(self, client: int) -> dict[str, Any]:
        """Its shares at the end, the rounds in which it bid, and how often it was chosen for each tier."""
        return {
            "shares": self.shares[-1][client].tolist(),
            "rounds_with_bids": sum(client in bids for bids in self.bids),
            "turns": [
                sum(client in clients for of in self.cohorts for clients in of[tier].values())
                for tier in range(self.num_tiers)
            ],
        }
