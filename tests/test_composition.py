"""How clients learn x who collaborates x who takes part x local data: what goes together trains, the rest is refused.

The cells that go together are those of the methods' own descriptions: a strategy that weighs clients by their losses
cannot also draw them by these, one whose control variates are of a shared model needs one, and a client has one
personal model, not two.
"""

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from algorithm_run import STRATEGIES
from corners import CornerModule, MixedClients
from tiny import digest

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import (
    CFL,
    FLSC,
    HCCT,
    IFCA,
    Callback,
    CollaborationGraph,
    DiscriminatorSettings,
    DROClientSampling,
    FedCollab,
    FedSoft,
    FeSEM,
    FineTuning,
    KMeans,
    KNNPer,
    LocalMixup,
    ModelCheckpoint,
    PersonalLayers,
    PFedGraph,
    SoftAveraging,
    TierBidding,
    UniformSampling,
)

pytestmark = pytest.mark.usefixtures("few_draws")
SMALL = DiscriminatorSettings(hidden=4, max_rounds=10)
#: Who shares a model with whom.
COLLABORATIONS: dict[str, Callable[[], list[Any]]] = {
    "one model": list,
    "FedCollab": lambda: [FedCollab(discriminator=SMALL)],
    "HCCT": lambda: [HCCT(relative_trade_off=0.3)],
    "IFCA": lambda: [IFCA(num_clusters=2)],
    "CFL": lambda: [CFL()],
    "FeSEM": lambda: [FeSEM(num_clusters=2)],
    "KMeans": lambda: [KMeans(num_clusters=2)],
    "CollaborationGraph": lambda: [CollaborationGraph(budget=2)],
    "PFedGraph": lambda: [PFedGraph()],
    "SoftAveraging": lambda: [SoftAveraging(num_models=2)],
    "FLSC": lambda: [FLSC(num_clusters=3, num_best=2)],
    "FedSoft": lambda: [FedSoft(num_models=2, lam=0.1)],
    "TierBidding": lambda: [TierBidding(num_tiers=2)],
}
PARTICIPATIONS: dict[str, Callable[[], list[Any]]] = {
    "all": list,
    "some": lambda: [UniformSampling(cohort_size=4)],
    "by losses": lambda: [DROClientSampling()],
    "all by losses": lambda: [DROClientSampling(method="afl")],
}
LOCAL_DATA: dict[str, Callable[[], list[Any]]] = {
    "plain": list,
    "mixup": lambda: [LocalMixup(alpha=0.4)],
    "personal": lambda: [PersonalLayers(layers=["linear.bias"])],
    "neighbours": lambda: [KNNPer(k=3)],
    "fine-tuned": lambda: [FineTuning(steps=1, every_evaluation=True)],
}
A_MODEL_EACH = {"CollaborationGraph", "PFedGraph"}
NOT_A_MODEL_EACH = {"scaffold", "fednova", "qfedavg", "maxfl", "maxfl_out", "fedfa", "ditto", "apfl", "pfedme"}
SEVERAL_MODELS = {"SoftAveraging", "FLSC", "FedSoft", "TierBidding"}


def goes_together(learner: str, collaboration: str, participation: str) -> bool:
    """The table, without the columns of aggregations that do not exist."""
    if collaboration in A_MODEL_EACH and learner in NOT_A_MODEL_EACH:
        return False
    if collaboration in SEVERAL_MODELS and learner == "scaffold":
        return False
    if collaboration in SEVERAL_MODELS - {"TierBidding"} and learner == "fednova":
        return False
    return not (
        participation.endswith("by losses")
        and learner in ("scaffold", "fednova", "qfedavg", "maxfl", "maxfl_out", "fedfa")
    )


#: Every pair of learner and collaboration, with participations and local data such that each of these, too, meets every
#: learner, every collaboration and each other; who is drawn by losses meets every learner.
CELLS = [
    *(
        (
            learner,
            collaboration,
            "some" if (row + column) % 2 and collaboration != "TierBidding" else "all",  # tiers choose for themselves
            list(LOCAL_DATA)[(row + 2 * column) % len(LOCAL_DATA)],
        )
        for (row, learner), (column, collaboration) in product(enumerate(STRATEGIES), enumerate(COLLABORATIONS))
    ),
    *((learner, "one model", who, "plain") for learner, who in product(STRATEGIES, ["by losses", "all by losses"])),
]


class KeepsTwoRounds(Callback):
    """Copies what the run has written before its third round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_round_start(self, trainer: FederatedTrainer) -> None:
        if trainer.current_round == 2 and not self.folder.exists():
            shutil.copytree(trainer.log_dir, self.folder)


def make(cell: tuple[str, str, str, str], folder: Path) -> FederatedTrainer:
    learner, collaboration, participation, data = cell
    head = LOCAL_DATA["personal"]() if learner == "fedrep" and data != "personal" else []  # which it needs
    return FederatedTrainer(
        strategy=STRATEGIES[learner](),
        callbacks=[
            *COLLABORATIONS[collaboration](),
            *PARTICIPATIONS[participation](),
            *LOCAL_DATA[data](),
            *head,
            ModelCheckpoint(every_n_rounds=1, save_models=False),
            KeepsTwoRounds(folder / "two_rounds"),
        ],
        max_rounds=3,
        local_steps=1 if participation == "all by losses" else 2,
        seed=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=folder,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_what_goes_together_trains_and_goes_on_and_the_rest_is_refused(
    cell: tuple[str, str, str, str], tmp_path: Path
) -> None:
    if not goes_together(*cell[:3]):
        with pytest.raises(ConfigurationError, match="does not go with"):
            make(cell, tmp_path)
        return
    whole, resumed = make(cell, tmp_path), make(cell, tmp_path)
    whole.fit(CornerModule(), MixedClients())
    resumed.fit(CornerModule(), MixedClients(), ckpt_path=tmp_path / "two_rounds" / "checkpoints" / "last.ckpt")
    assert [digest(model) for model in whole.models] == [digest(model) for model in resumed.models]
    for client in range(6):
        own = whole.client_model(client)
        assert own.equal(resumed.client_model(client))
        assert all(torch.isfinite(vector).all() for _, vector in own.floating())
    assert whole.metrics["val"] == resumed.metrics["val"]
    assert all(map(torch.isfinite, map(torch.tensor, next(iter(whole.metrics["val"].values())).clients.values())))
