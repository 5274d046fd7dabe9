"""Turns of several clients at once, their weights stacked."""
