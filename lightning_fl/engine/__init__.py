"""The engine: rounds of a federation, without a trainer and without callbacks. Internal."""
