"""FedCollab's client discriminators: the networks, their rounds, and the distances that follow."""
