"""The package's version, for files that record it, without importing the package."""

__all__ = ["__version__"]

__version__ = "0.1.0"
