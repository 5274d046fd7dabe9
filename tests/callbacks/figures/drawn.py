"""What figures show, as plain values, and the names that tests give to clients."""


def names_of(count: int) -> list[str]:
    return [f"silo {i}" for i in range(count)]


def texts_of(labels) -> list[str]:
    return [label.get_text() for label in labels]


def legend_of(axes) -> list[str]:
    return texts_of(axes.get_legend().get_texts())
