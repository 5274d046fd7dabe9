"""Refused options of callbacks (top level, personal, figures): the exception and the option's name."""

import pytest

from lightning_fl.callbacks import FineTuning, ParityFigure, PersonalLayers, PretrainedWeights
from lightning_fl.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FineTuning, {"epochs": 1, "steps": 2}),
        (ParityFigure, {"target": -1}),
        (PersonalLayers, {"layers": []}),
        (PretrainedWeights, {"unfreeze_after": 3, "path": "a.pt"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(map(str, value.items())),
)
def test_refused_options(kind, options):
    with pytest.raises(ConfigurationError) as error:
        kind(**options)
    message = str(error.value)
    assert any(message.startswith(f"{kind.__name__}.{name}={value!r}") for name, value in options.items()), message
