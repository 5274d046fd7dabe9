"""Finished runs side by side, and grids of runs: ``lightning-fl compare`` and ``lightning-fl study``."""
