"""What every room uses: errors, seeds, range checks, clients and cohorts, collaboration, metrics, the wire format."""
