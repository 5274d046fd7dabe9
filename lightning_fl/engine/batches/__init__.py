"""A client's data as batches that are ready on the device."""
