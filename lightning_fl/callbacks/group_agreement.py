"""Agreement of a run's coalitions with known groups of clients."""

import math

from lightning.fabric.utilities.rank_zero import rank_zero_info

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class GroupAgreement(Callback):
    """Compares coalitions with known groups by the adjusted Rand index (Hubert and Arabie 1985).

    1 for equal partitions, 0 on average for random ones, and exactly 0 for all clients alone or together unless the
    groups are the same. Logged every round as ``coalitions/ari`` for the present clients; ``summary.json`` has the mean
    over the last rounds as ``group_agreement``, a study as ``ari``. A mixture counts as its main model.

    Args:
        groups: names of the clients' groups, length N; ``None`` for those of the data module, such as the domains of
            ``ImageDomains``. Without groups nothing is compared.
        num: number of last rounds in the mean.

    Raises:
        ConfigurationError: at the start of a run, ``groups`` has another length than N.
    """

    only_shows = True
    saved = ("history",)

    groups: list[str] | None = None
    num: Count = 10

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        #: The adjusted Rand index after each round.
        self.history: list[float] = []
        self._known = self.groups if self.groups is not None else trainer.datamodule.client_groups()
        if self._known is None:
            rank_zero_info("GroupAgreement compares nothing: the data have no groups; set GroupAgreement.groups")
        elif len(self._known) != trainer.num_clients:
            count = f"{len(self._known)} entries for {trainer.num_clients} clients"
            raise ConfigurationError(f"GroupAgreement.groups has {count}: list one for each, in order.")

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        if self._known is None:
            return
        from sklearn.metrics import adjusted_rand_score  # type: ignore[import-untyped]  # takes seconds to import

        present, labels = trainer.present_clients, trainer.federation.collaboration.partition
        found = [labels[client] for client in present]
        self.history.append(float(adjusted_rand_score([self._known[client] for client in present], found)))
        trainer.log("coalitions/ari", self.history[-1])

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        if self.history:
            last = self.history[-self.num :]
            trainer.run_log.summary["group_agreement"] = {
                "adjusted_rand_index": math.fsum(last) / len(last),
                "last_round": last[-1],
                "rounds": len(last),
            }
