"""Callbacks that set which clients collaborate."""
