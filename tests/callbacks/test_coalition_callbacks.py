"""The callbacks that draw coalitions and gains."""

import pytest
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import HCCT, CoalitionFigure, GainFigure, LocalReference, LocalTraining
from lightning_fl.core.errors import ConfigurationError


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
    run = trainer(HCCT(relative_trade_off=0.8), CoalitionFigure(every_n_rounds=1), root=tmp_path)
    drawn = []
    original = run.run_log.log_figure
    run.run_log.log_figure = lambda name, figure, step: drawn.append((name, step)) or original(name, figure, step)
    run.fit(TinyModule(), TinyClients())
    assert drawn == [("merge_tree", 1), ("partition", 1), ("merge_tree", 2), ("partition", 2)]
    figures = {path.name for path in (tmp_path / "version_0" / "figures").iterdir()}
    assert figures == {"merge_tree.png", "partition.png"}


@pytest.mark.slow
def test_the_history_goes_on_after_a_stop(tmp_path):
    trainer(HCCT(relative_trade_off=0.8), CoalitionFigure(), root=tmp_path).fit(TinyModule(), TinyClients())
    figure = CoalitionFigure()
    run = trainer(HCCT(relative_trade_off=0.8), figure, root=tmp_path, rounds=4)
    run.fit(TinyModule(), TinyClients(), ckpt_path="last")
    assert figure.rounds == [1, 2, 3, 4]
    assert len(figure.assignments) == 4


@pytest.mark.slow
def test_gains_are_drawn_of_the_last_validation_and_of_tests(tmp_path):
    run = trainer(LocalReference(), GainFigure(metric="loss"), root=tmp_path)
    module, data = TinyModule(), TinyClients()
    run.fit(module, data)
    run.test(module, data)
    figures = {path.name for path in (tmp_path / "version_0" / "figures").iterdir()}
    assert figures == {"gain_val.png", "gain_test.png"}


def test_pictures_of_nothing_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="CoalitionFigure"):
        trainer(CoalitionFigure(), root=tmp_path).fit(TinyModule(), TinyClients())
    for callbacks in ([GainFigure()], [GainFigure(), LocalReference()]):
        with pytest.raises(ConfigurationError, match="GainFigure .*LocalReference"):
            trainer(*callbacks, root=tmp_path).fit(TinyModule(), TinyClients())
    run = trainer(LocalTraining(), LocalReference(), GainFigure(metric="auc"), root=tmp_path)
    with pytest.raises(ConfigurationError, match=r"GainFigure\.metric='auc' is not logged in val. Logged are: loss"):
        run.fit(TinyModule(), TinyClients())
