"""Callbacks that draw figures of a run from data of other callbacks, by the functions in ``plots``."""
