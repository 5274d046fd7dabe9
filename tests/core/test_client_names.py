"""No client's figures are taken for another's, or for an aggregate's."""

from lightning_fl.core.client_names import check_distinct, curve_names


def test_names_stay_but_for_aggregates_and_parts_of_other_curves() -> None:
    check_distinct(["a", "A", "a "])
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
