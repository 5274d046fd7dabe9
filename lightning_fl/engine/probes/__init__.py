"""What clients' data say of a model, computed where the data are."""
