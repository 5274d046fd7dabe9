"""Models of a client's own: personal layers, fine-tuning, local references."""
