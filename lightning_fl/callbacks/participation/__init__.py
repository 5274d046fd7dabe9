"""Who takes part: callbacks that choose a round's clients."""
