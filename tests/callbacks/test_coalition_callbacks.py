"""The callbacks that draw coalitions and gains."""

import pytest
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import HCCT, CoalitionFigure, GainFigure, LocalReference


def trainer(*callbacks, root, rounds=2, **settings):
    return FederatedTrainer(
        callbacks=list(callbacks),
        max_rounds=rounds,
        default_root_dir=root,
        enable_progress_bar=False,
        seed=1,
        **settings,
    )


@pytest.mark.slow
def test_what_is_drawn_of_hcct(tmp_path):
    run = trainer(HCCT(relative_trade_off=0.8), CoalitionFigure(), root=tmp_path)
    drawn = []
    original = run.run_log.log_figure
    run.run_log.log_figure = lambda name, figure, step: drawn.append((name, step)) or original(name, figure, step)
    run.fit(TinyModule(), TinyClients())
    assert drawn == [("partition", 2), ("merge_tree", 2)]
    figures = {path.name for path in (tmp_path / "version_0" / "figures").iterdir()}
    assert figures == {"merge_tree.png", "partition.png"}


@pytest.mark.slow
def test_gains_are_drawn_of_the_last_validation_and_of_tests(tmp_path):
    run = trainer(LocalReference(), GainFigure(), root=tmp_path)
    module, data = TinyModule(), TinyClients()
    run.fit(module, data)
    run.test(module, data)
    figures = {path.name for path in (tmp_path / "version_0" / "figures").iterdir()}
    assert figures == {"gain_val.png", "gain_test.png"}
