"""Names for the origin of data. Imports nothing, so that finished runs can be shown without torch."""

#: The source of embedded example data.
STAND_IN = "stand-in"
#: Shown wherever numbers come from embedded example data.
STAND_IN_LABEL = "STAND-IN DATA (embedded examples, not the measured data)"
