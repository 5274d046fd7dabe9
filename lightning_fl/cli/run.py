"""``lightning-fl fit``, ``validate``, ``test`` and ``predict``: a recipe, see :mod:`lightning_fl.recipe`."""

from lightning_fl.recipe.parser import USAGE, add_arguments, parse
from lightning_fl.recipe.run import run

__all__ = ["USAGE", "add_arguments", "parse", "run"]
