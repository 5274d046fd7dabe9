"""Used by all packages: errors, seeds, range checks, clients and cohorts, collaboration, metrics, the wire format."""
