"""On what clients train: callbacks that change batches or targets."""
