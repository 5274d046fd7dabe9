"""What the core refuses: type of the error, and the names that its message has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_fl.core.client_names import check_distinct
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import monitored_metric
from lightning_fl.core.wire_format import MessageError, decode, encode

EYE = torch.eye(3)
TWICE = Participant(1, model=0)
TASKS = [f"task_{number}/{name}" for number in range(40) for name in ("loss", "rmse", "r2")]


def negative() -> torch.Tensor:
    return torch.tensor([[0.5, 0.5], [1.5, -0.5]])


@pytest.mark.parametrize(
    ("make", "arguments", "named"),
    [
        (check_distinct, [["a", "b", "a", "b"]], ["'a' (clients 0, 2)", "'b' (clients 1, 3)"]),
        (check_distinct, [[str(number) for number in range(9)] * 2], ["'4' (clients 4, 13) and 4 more"]),
        (Cohort.of, [[3, 1, 3]], ["client 3", "twice"]),
        (Cohort, [(0, 1)], ["0", "Participant"]),
        (Cohort, [(TWICE, Participant(1, model=0, weight=2.0))], ["client 1", "model 0"]),
        (Participant, [2, None, -0.5], ["client 2", "weight=-0.5"]),
        (Participant, [2, None, float("nan")], ["client 2", "weight=nan"]),
        (Participant, [2, None, float("inf")], ["client 2", "weight=inf"]),
        (Participant, [2, 0, None, (1,)], ["client 2", "model=0", "feeds"]),
        (Participant, [2, 0, None, None, True], ["client 2", "model=0", "own"]),
        (Participant, [2, None, None, None, False, 1], ["client 2", "draw=1", "model=None"]),
        (Participant, [2, 0, None, None, False, -1], ["client 2", "draw=-1"]),
        (Collaboration, [torch.zeros(3)], ["aggregation", "(3,)", "[num_models, num_clients]"]),
        (Collaboration, [torch.zeros(0, 3)], ["aggregation", "(0, 3)"]),
        (Collaboration, [torch.full((2, 3), 1 / 3)], ["personalisation", "2 models and 3 clients"]),
        (Collaboration, [torch.full((2, 3), 1 / 3), EYE], ["personalisation", "(3, 3)", "(2, 3)", "(3, 2)"]),
        (Collaboration, [EYE * 2], ["aggregation: row 0", "sums to 2"]),
        (Collaboration, [negative()], ["aggregation: row 1", "negative"]),
        (Collaboration, [torch.tensor([[torch.nan, 1.0]])], ["aggregation: row 0", "finite"]),
        (Collaboration, [EYE, EYE + 1e-5], ["personalisation: row 0", "1.00003"]),
        (Collaboration.fedavg, [[]], ["num_samples=[]"]),
        (Collaboration.fedavg, [[0, 0]], ["num_samples=[0, 0]"]),
        (Collaboration.fedavg, [[3, -1]], ["num_samples=[3, -1]"]),
        (Collaboration.coalitions, [[0, 0], [1]], ["2 coalition labels", "1 clients"]),
        (Collaboration.coalitions, [[0, 2], [1, 1]], ["labels [0, 2]"]),
        (Collaboration.coalitions, [[-2, 0], [1, 1]], ["labels [-2, 0]"]),
        (Collaboration.coalitions, [[-1, -1], [1, 1]], ["labels []"]),
        (Collaboration.coalitions, [[0.0, 0.5], [1, 1]], ["labels [0.0, 0.5]"]),
        (Collaboration.coalitions, [[], []], ["labels []"]),
        (Collaboration.coalitions, [[0, 1], [1, 0]], ["coalition 1", "0 samples"]),
        (monitored_metric, [["a", "b"], "c", "a", "Owner"], ["Owner.monitor='c'", "a, b"]),
        (monitored_metric, [[], None, None, "Owner"], ["Owner.monitor=None", "no metrics"]),
        (monitored_metric, [TASKS, "task_37/rmsd", None, "X"], ["task_37/rmse", "and 100 more"]),
    ],
)
def test_core(make: Any, arguments: list[Any], named: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make(*arguments)
    assert [name for name in named if name not in str(refused.value)] == []
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "builtins.object"),
        ({"path": Path("x")}, "Path"),
        (torch.eye(2).to_sparse(), "dense"),
        (np.array(["a"]), "numpy"),
        (lambda: None, "builtins.function"),
    ],
)
def test_values_that_cannot_be_sent(value: Any, named: str) -> None:
    with pytest.raises(MessageError, match=named):
        encode({1: [value]})
    assert decode(encode({1: (2,)})) == {1: (2,)}  # and leaves nothing behind
