"""Refused options of callbacks (top level, personal, figures): the exception and the option's name."""

import pytest

from lightning_fl.callbacks import (
    BestClientModels,
    FedSoft,
    FineTuning,
    ForestReference,
    GroupAgreement,
    KNNPer,
    LastRounds,
    ModelCheckpoint,
    ParityFigure,
    PersonalLayers,
    PretrainedWeights,
    ProgressDisplay,
    ROCFigure,
    Snapshots,
    SoftAveraging,
)
from lightning_fl.core.errors import ConfigurationError

SOFT = {"num_models": 2}
SOFTER = {"num_models": 2, "lam": 0.1}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(
            (SoftAveraging, SOFT | {name: 0})
            for name in ("num_models", "every_n_rounds", "initial_rounds", "num_samples")
        ),
        *((SoftAveraging, SOFT | {name: "test"}) for name in ("split", "personal_split")),
        (FedSoft, SOFTER | {"lam": -1}),
        (FedSoft, SOFTER | {"sigma": 2}),
        (FedSoft, SOFTER | {"clients_per_model": 0}),
        (FedSoft, SOFTER | {"split": "test"}),
        (ModelCheckpoint, {"every_n_rounds": -1}),
        (BestClientModels, {"mode": "up"}),
        (FineTuning, {"epochs": 0}),
        (FineTuning, {"steps": 0}),
        (FineTuning, {"epochs": 1, "steps": 2}),
        (ForestReference, {"num_trees": 0}),
        (GroupAgreement, {"num": 0}),
        (KNNPer, {"k": 0}),
        (KNNPer, {"interpolation": 1.5}),
        (KNNPer, {"interpolation": "best"}),
        (KNNPer, {"scale": 0.0}),
        (KNNPer, {"task": "ranks"}),
        (LastRounds, {"num": 0}),
        (ModelCheckpoint, {"mode": "up"}),
        (ParityFigure, {"split": "train"}),
        (ParityFigure, {"target": -1}),
        (PersonalLayers, {"layers": []}),
        (PretrainedWeights, {"unfreeze_after": 3, "path": "a.pt"}),
        (PretrainedWeights, {"unfreeze_after": 0, "path": "a.pt", "freeze": True}),
        (ProgressDisplay, {"every_n_rounds": 0}),
        (ROCFigure, {"split": "train"}),
        (Snapshots, {"num": 0}),
        (Snapshots, {"every_n_rounds": 0}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(map(str, value.items())),
)
def test_refused_options(kind, options):
    with pytest.raises(ConfigurationError) as error:
        kind(**options)
    message = str(error.value)
    assert any(message.startswith(f"{kind.__name__}.{name}={value!r}") for name, value in options.items()), message
