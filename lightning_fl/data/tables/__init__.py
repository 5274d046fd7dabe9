"""Rows of numbers and categories with a target each. Readers of tables are in :mod:`lightning_fl.files`."""
