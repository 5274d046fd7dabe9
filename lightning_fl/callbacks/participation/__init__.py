"""Callbacks that choose a round's clients."""
