"""Callbacks of incentives: contributions, bids and payments."""
