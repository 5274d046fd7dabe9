"""Labels in order of appearance."""

from hypothesis import given
from hypothesis import strategies as st

from lightning_fl.functional.gram import in_order


@given(st.lists(st.integers(-1, 9)))
def test_a_partition_is_numbered_in_order_of_appearance(labels: list[int]) -> None:
    found = in_order(labels)
    named = [label for label in found if label >= 0]
    assert list(dict.fromkeys(named)) == list(range(len(set(named))))
    assert [label < 0 for label in found] == [label < 0 for label in labels]
    for one, own in zip(labels, found, strict=True):
        for two, other in zip(labels, found, strict=True):
            assert (one == two) == (own == other)
