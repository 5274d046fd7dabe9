"""For what reward: contributions, bids and payments."""
