"""Measurements on clients' data, computed on the rank that hosts them."""
