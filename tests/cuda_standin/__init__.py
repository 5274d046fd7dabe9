"""A CUDA device made of software, for tests on machines without one: :class:`~cuda_standin.device.StandIn`."""
