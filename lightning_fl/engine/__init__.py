"""The engine: flat weights, packed batches, and one client's turn. Internal; the public surface is the trainer's."""
