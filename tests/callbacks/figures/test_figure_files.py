"""The files of figures of other callbacks, after a fit and a test."""

from collections.abc import Callable
from pathlib import Path

import pytest
from corners import fit

from lightning_fl.callbacks import (
    HCCT,
    Callback,
    CoalitionFigure,
    CollaborationGraph,
    GainFigure,
    GraphFigure,
    LocalReference,
    ShapleyRewards,
    TierBidding,
    TierFigures,
)

FILES: list[tuple[Callable[[], list[Callback]], set[str]]] = [
    (lambda: [HCCT(relative_trade_off=0.8), CoalitionFigure()], {"merge_tree", "partition"}),
    (lambda: [LocalReference(), GainFigure()], {"gain_val", "gain_test"}),
    (lambda: [CollaborationGraph(budget=2), GraphFigure()], {"graph"}),
    (
        lambda: [TierFigures(), TierBidding(num_tiers=2, num_best=1, num_samples=None), ShapleyRewards()],
        {"personal_acc", "tier_contributions", "tier_importance", "tier_membership"},
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "names"), FILES)
def test_files(make: Callable[[], list[Callback]], names: set[str], tmp_path: Path) -> None:
    run = fit(*make(), default_root_dir=tmp_path)
    run.test(run.module, run.datamodule)
    files = list(Path(run.log_dir, "figures").iterdir())
    assert {path.name for path in files} == {f"{name}.png" for name in names}
    assert all(path.stat().st_size > 10_000 for path in files)
