"""Data drawn from equations in papers."""
