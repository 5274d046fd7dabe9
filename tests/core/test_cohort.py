from lightning_fl.core.cohort import Cohort, Participant


def test_clients_are_named_once_in_order():
    cohort = Cohort((Participant(4, model=1), Participant(2), Participant(4, model=0, weight=2.0)))
    assert cohort.clients == [4, 2]
    assert Cohort.of(range(3)).participants == (Participant(0), Participant(1), Participant(2))
    assert Cohort.of([2, 0]).clients == [2, 0]
    assert Cohort(()).clients == []
    assert Participant(2, weight=0.0).weight == 0
