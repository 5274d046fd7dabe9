"""The cases, by matter; importing them imports none of the packages."""

from public import (  # noqa: F401
    densities,
    images,
    molecules,
    satellites,
    series,
    sound_and_language,
    tables,
)
