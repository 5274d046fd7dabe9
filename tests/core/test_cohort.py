import pytest

from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError


def test_clients_are_named_once_in_order():
    cohort = Cohort((Participant(4, model=1), Participant(2), Participant(4, model=0, weight=2.0)))
    assert cohort.clients == [4, 2]
    assert Cohort.of(range(3)).participants == (Participant(0), Participant(1), Participant(2))
    assert Cohort.of([2, 0]).clients == [2, 0]
    assert Cohort(()).clients == []


def test_twice_the_same_is_refused():
    with pytest.raises(ConfigurationError, match="client 3 takes part twice: name it once"):
        Cohort.of([3, 1, 3])
    with pytest.raises(ConfigurationError, match="a cohort has 0 in place of a Participant: give Participant"):
        Cohort((0, 1))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="client 1 takes part twice in model 0"):
        Cohort((Participant(1, model=0), Participant(1, model=0, weight=2.0)))


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf")])
def test_a_weight_is_a_finite_number_of_at_least_0(weight):
    with pytest.raises(ConfigurationError, match=f"client 2 takes part with weight={weight}: give a finite number"):
        Participant(2, weight=weight)
    assert Participant(2, weight=0.0).weight == 0
