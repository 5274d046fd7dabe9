"""The package's version, for whoever writes it into a file; the package's own ``__init__`` is imported by nobody."""

__all__ = ["__version__"]

__version__ = "0.1.0"
