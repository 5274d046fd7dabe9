"""Check for packages that only an extra installs."""

import importlib.util

from lightning_fl.core.errors import ConfigurationError


def expect_extra(package: str, extra: str, owner: str) -> None:
    """Raise an error with the command to install if a package is missing.

    Raises:
        ConfigurationError: the package is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:  # a plain folder of that name has no origin
        raise ConfigurationError(
            f'{owner}: {package} is not installed. Install it with `pip install "lightning-fl[{extra}]"`.'
        )
