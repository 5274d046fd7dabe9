"""What a recipe may name, and what is said where that was not why it failed."""

import pytest

from lightning_fl.recipe.trust import own_classes_only


def test_an_error_whose_causes_run_in_a_circle_is_raised_as_it_is() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(ValueError, match="first"), own_classes_only("a recipe"):
        raise first
