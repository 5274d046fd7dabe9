"""No client's figures are taken for another's, or for an aggregate's."""

import pytest

from lightning_fl import ConfigurationError
from lightning_fl.core.client_names import check_distinct, curve_names


def test_equal_names_are_refused() -> None:
    check_distinct(["a", "A", "a "])
    with pytest.raises(
        ConfigurationError, match=r"several clients have the same name: 'a' \(clients 0, 2\); 'b' \(clients 1, 3\)\."
    ):
        check_distinct(["a", "b", "a", "b"])
    with pytest.raises(ConfigurationError, match=r"'4' \(clients 4, 13\) and 4 more. Give each a name of its own"):
        check_distinct([str(number) for number in range(9)] * 2)


def test_names_stay_but_for_aggregates_and_parts_of_other_curves() -> None:
    names = ["lab 0", "worst", "Mean", "a/b", "甲", "", "a\nb", "worst (client 1)", "$x$"]
    assert curve_names(names) == [
        "lab 0",
        "worst (client 1)'",
        "Mean (client 2)",
        "a_b (client 3)",
        "甲",
        "(client 5)",
        "a_b (client 6)",
        "worst (client 1)",
        "$x$",
    ]
