"""How well the coalitions of a run are the groups that its clients are known to belong to."""

import math
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_info

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.collaboration.coalition_tracking import coalition_of
from lightning_fl.core.errors import CheckpointError, ConfigurationError
from lightning_fl.core.validation import check_counts
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["GroupAgreement"]


class GroupAgreement(Callback):
    """Compares the coalitions of every round with known groups by the adjusted Rand index (Hubert and Arabie 1985).

    1 where both are the same partition, 0 on average for partitions drawn at random, and exactly 0 for everybody alone
    or all together unless the groups are that themselves. Logged as ``coalitions/ari`` for the clients that are
    present. ``summary.json`` has ``group_agreement`` with the mean over the last rounds, which a study has as ``ari``.
    Who uses a mixture of models is with those who use the same one most.

    Nothing is trained or chosen by it.

    Args:
        groups: the group of every client, any names, length N; ``None`` for what the data say, such as the domains of
            ``ImageDomains``. Where they say nothing, nothing is compared, and the run says so.
        num: over how many last rounds the mean is; of a shorter run all.

    Raises:
        ConfigurationError: ``num`` is out of range; at the start of a run, ``groups`` does not have every client's.
    """

    only_shows = True

    def __init__(self, *, groups: list[str] | None = None, num: int = 10) -> None:
        check_counts(self, num=num)
        self.groups = groups
        self.num = num
        #: The adjusted Rand index after each round.
        self.history: list[float] = []
        self._known: list[str] | None = None

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Look up the groups; a new fit has no history."""
        self.history = []
        self._known = self.groups if self.groups is not None else trainer.datamodule.client_groups()
        if self._known is None:
            rank_zero_info("GroupAgreement: the data do not say which groups clients belong to; nothing is compared")
        elif len(self._known) != trainer.num_clients:
            raise ConfigurationError(
                f"GroupAgreement.groups has {len(self._known)} entries for {trainer.num_clients} clients: give one for"
                " each, in their order."
            )

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Compare the round's coalitions."""
        if self._known is None:
            return
        from sklearn.metrics import adjusted_rand_score  # type: ignore[import-untyped]  # takes seconds to import

        present = trainer.present_clients
        found = [coalition_of(trainer, client) for client in present]
        self.history.append(float(adjusted_rand_score([self._known[client] for client in present], found)))
        trainer.log("coalitions/ari", self.history[-1])

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Write the mean into the summary."""
        if self.history:
            last = self.history[-self.num :]
            trainer.run_log.summary["group_agreement"] = {
                "adjusted_rand_index": math.fsum(last) / len(last),
                "last_round": last[-1],
                "rounds": len(last),
            }

    def state_dict(self) -> dict[str, Any]:
        """The rounds so far."""
        return {"history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them up."""
        if not isinstance(state.get("history"), list):
            raise CheckpointError("it does not say what GroupAgreement had compared: train again without it.")
        self.history = state["history"]
