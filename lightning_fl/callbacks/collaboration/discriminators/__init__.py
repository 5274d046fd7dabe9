"""FedCollab's client discriminators: their inputs, networks and rounds, and the distances that follow."""
