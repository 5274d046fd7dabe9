"""Options of callbacks that do not go together are refused when one is made: the exception and the option's name."""

from typing import Any

import pytest
from torch import nn

from lightning_fl.callbacks import (
    FLSC,
    CollaborationGraph,
    DROClientSampling,
    FedCollab,
    FineTuning,
    ParityFigure,
    PersonalLayers,
    PFedGraph,
    PretrainedWeights,
    ShapleyRewards,
    TierBidding,
    Tokens,
    UniformSampling,
)
from lightning_fl.core.errors import ConfigurationError

#: The first option is at fault.
REFUSED: list[tuple[type, dict[str, Any]]] = [
    (CollaborationGraph, {"budget": 1.5}),
    (CollaborationGraph, {"graph": "random"}),
    (CollaborationGraph, {"budget": 1, "graph": "full"}),
    (CollaborationGraph, {"monitor": "val/acc", "graph": "full"}),
    (CollaborationGraph, {"monitor": "val/acc", "graph": "random", "budget": 1}),
    (DROClientSampling, {"cohort_size": 2, "cohort": "all"}),
    (DROClientSampling, {"cohort_size": 2, "method": "afl"}),
    (FedCollab, {"distances": "a.csv", "structure": "b"}),
    (FedCollab, {"warm_up_rounds": 3}),
    (FedCollab, {"layer": "before"}),
    (FedCollab, {"layer": "before", "warm_up_rounds": 1, "encoder": nn.Identity()}),
    (FineTuning, {"epochs": 1, "steps": 2}),
    (FineTuning, {"best_epoch": True, "steps": 2}),
    (FineTuning, {"best_epoch": True, "every_evaluation": True}),
    (FLSC, {"num_best": 3, "num_clusters": 2}),
    (ParityFigure, {"target": -1}),
    (PersonalLayers, {"layers": []}),
    (PFedGraph, {"layers": []}),
    (PretrainedWeights, {"unfreeze_after": 3, "path": "a.pt"}),
    (ShapleyRewards, {"num_permutations": 10}),
    (ShapleyRewards, {"num_permutations": 5, "method": "permutations"}),
    (ShapleyRewards, {"leave_own_out": True, "method": "exact"}),
    (TierBidding, {"num_best": 0, "num_random": 0, "num_tiers": 2}),
    (Tokens, {"price": 1e-9}),
    (Tokens, {"price": 2, "initial_balance": 1}),
    (UniformSampling, {"cohort_size": 2.5}),
]


@pytest.mark.parametrize(("kind", "options"), REFUSED, ids=lambda one: getattr(one, "__name__", str(one)))
def test_refused_options(kind: type, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as error:
        kind(**options)
    (name, value), *_ = options.items()
    message = str(error.value)
    assert message.startswith(f"{kind.__name__}.")
    assert f"{name}={value!r}" in message
