"""From a parsed recipe to its objects."""

from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, StochasticWeightAveraging, Timer
from numpy.typing import ArrayLike

from lightning_fl.callbacks import ModelCheckpoint, ProgressDisplay
from lightning_fl.cli import make_parser
from lightning_fl.recipe.instantiate import instantiate
from lightning_fl.recipe.parser import parse


class Weighted:
    """Takes what NumPy makes an array of, as chemprop's metrics do."""

    def __init__(self, weights: ArrayLike = 1.0, rotation: complex = 1j) -> None:
        self.weights, self.rotation = weights, rotation


def test_real_numbers_stay_real_where_an_annotation_also_takes_complex_ones():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Weighted, "made")
    for init, weights in (({}, 1.0), ({"weights": 2.5}, 2.5)):
        made = instantiate(
            parser, parser.parse_object({"made": {"class_path": f"{__name__}.Weighted", "init_args": init}})
        ).made
        assert type(made.weights) is float
        assert made.weights == weights
        assert made.rotation == 1j


def test_short_names_of_callbacks_are_of_this_package_and_then_lightnings():
    words = ["--trainer.callbacks=[ModelCheckpoint]", "--trainer.callbacks+=EarlyStopping"]
    words += ["--trainer.callbacks.monitor=val/rmse"]
    words += ["--trainer.callbacks+=Timer", "--trainer.callbacks.duration=00:01:00:00"]
    words += ["--trainer.callbacks+={class_path: lightning.pytorch.callbacks.LearningRateMonitor}"]
    words += ["--trainer.callbacks+=StochasticWeightAveraging", "--trainer.callbacks.swa_lrs=0.02"]
    parser = make_parser("fit")
    made = instantiate(parser, parse("fit", parser, ["--config", "drflm_esol", *words])).trainer
    assert {type(one) for one in made.callbacks} == {ProgressDisplay, ModelCheckpoint}
    kinds = [EarlyStopping, Timer, LearningRateMonitor, StochasticWeightAveraging]
    assert [type(one) for one in made.lightning_callbacks] == kinds
    assert made.lightning_callbacks[0].monitor == "val/rmse"
