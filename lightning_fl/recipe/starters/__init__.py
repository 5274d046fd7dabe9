"""Projects to start from: what ``lightning-fl init`` writes, and the templates that it fills."""
