"""From a parsed recipe to its objects."""

from jsonargparse import ArgumentParser
from numpy.typing import ArrayLike

from lightning_fl.recipe.instantiate import instantiate


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
