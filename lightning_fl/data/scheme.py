"""Base class of partitioners, divisions and shifts: options as fields, checked and recorded."""

from typing import Any

from lightning_fl.core.validation import check_fields


class Scheme:
    """Base class of dataclasses whose fields are options: checked by their annotations, and written to the record."""

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__}.")

    def describe(self) -> dict[str, Any]:
        options = {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "names"}
        return {"name": type(self).__name__} | options
