"""Packages that come with an extra only."""

import importlib.util

from lightning_fl.core.errors import ConfigurationError

__all__ = ["expect_extra"]


def expect_extra(package: str, extra: str, who: str) -> None:
    """Refuse what needs a package that is not installed, naming the extra that brings it.

    Args:
        package: as it is imported.
        extra: of this package.
        who: needs it.

    Raises:
        ConfigurationError: it is missing.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:  # a mere folder of that name has no origin
        raise ConfigurationError(
            f'{who}: {package} is not installed. Install it with `pip install "lightning-fl[{extra}]"`.'
        )
